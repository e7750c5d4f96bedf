--
-- expire: running, its lease over -> queued, dead or cancelled
--

create or replace function fairq._end_expired(p_lease fairq.leases, p_now timestamptz, p_is_fed boolean)
    returns text
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- running -> queued, dead, cancelled
--
-- Queued again at once and at its old place: the lease was wait enough.
-- Locks:  the lease's row is held.
declare
    v_is_last boolean;
    v_error   jsonb;
begin
    select p_lease.attempt >= j.max_attempts into v_is_last
    from fairq.jobs as j where j.job_id = p_lease.job_id;
    v_error := jsonb_build_object(
        'code', 'LEASE_EXPIRED',
        'message', format('the lease of attempt %s was over', p_lease.attempt),
        'retryable', not v_is_last
    );

    if p_lease.cancel_requested_at is not null then
        perform fairq._end_job(p_lease, 'cancelled', p_now, v_error);
        return 'cancelled';
    elsif v_is_last then
        perform fairq._end_job(p_lease, 'dead', p_now, v_error);
        return 'dead';
    end if;
    perform fairq._put_back(p_lease, p_lease.attempt, null, v_error, p_is_fed);
    perform fairq._log(p_lease, 'lease_expired', p_now, jsonb_build_object('error', v_error));
    return 'queued';
end
$fn$;
comment on function fairq._end_expired(fairq.leases, timestamptz, boolean) is 'Ends an attempt whose lease is over. Internal.';
revoke all on function fairq._end_expired(fairq.leases, timestamptz, boolean) from public;

create or replace function fairq._quarantine(p_lease fairq.leases, p_now timestamptz, p_error jsonb)
    returns text
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- running -> dead, with the reason why its lease could not be ended. Where not even that can be (an ended job has its
-- id already, its payload cannot be read), the job is kept: as nobody's, under a new token, until the next try in an
-- hour; the log says why.
--
-- Locks:  the lease's row is held; the job's row.
begin
    perform fairq._end_job(p_lease, 'dead', p_now, p_error);
    return 'dead';
exception
    when lock_not_available or transaction_rollback or insufficient_resources then
        raise;
    when others then
        delete from fairq.leases as l where l.job_id = p_lease.job_id;
        p_lease.lease_token := gen_random_uuid();
        p_lease.lease_expires_at := p_now + interval '1 hour';
        insert into fairq.leases select p_lease.*;
        p_error := p_error || jsonb_build_object('kept', left(sqlerrm, 2000));
        -- it has ended no attempt
        p_lease.started_at := null;
        perform fairq._log(p_lease, 'lease_expired', p_now, jsonb_build_object('error', p_error));
        return 'kept';
end
$fn$;
comment on function fairq._quarantine(fairq.leases, timestamptz, jsonb) is 'Ends a job that cannot be put back, or keeps it for an hour. Internal.';
revoke all on function fairq._quarantine(fairq.leases, timestamptz, jsonb) from public;

create or replace function fairq._expire_lease(p_lease fairq.leases, p_now timestamptz, p_is_fed boolean)
    returns text
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- As _end_expired, but a job that cannot be put back goes to dead with the reason, or is kept: one bad row stops
-- nobody.
--
-- What passes by itself (a lock, a deadlock, a full disk) is no fault of the row: the caller hears of it and may try
-- again.
begin
    return fairq._end_expired(p_lease, p_now, p_is_fed);
exception
    when lock_not_available or transaction_rollback or insufficient_resources then
        raise;
    when others then
        return fairq._quarantine(
            p_lease, p_now,
            jsonb_build_object('code', 'QUARANTINED', 'message', left(sqlerrm, 2000), 'sqlstate', sqlstate)
        );
end
$fn$;
comment on function fairq._expire_lease(fairq.leases, timestamptz, boolean) is 'Ends an attempt whose lease is over, whatever is wrong with the job. Internal.';
revoke all on function fairq._expire_lease(fairq.leases, timestamptz, boolean) from public;

create or replace function fairq._expire_due(p_tick fairq.ticks, p_now timestamptz, p_limit integer)
    returns fairq.moved
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- running -> queued, dead, cancelled, inside a claim: what is over goes straight into its look.
--
-- Locks:  leases' rows, skipping those held by others, then their jobs' rows.
-- Index:  leases_expire_idx, from the expire floor.
declare
    v_moved fairq.moved := row('{}'::fairq.news[], '{}'::fairq.ending[], null)::fairq.moved;
    v_lease fairq.leases;
    v_state text;
begin
    for v_lease in
        select l.* from fairq.leases as l
        where l.queue = p_tick.queue and l.lease_expires_at >= p_tick.expire_floor and l.lease_expires_at <= p_now
        order by l.lease_expires_at
        limit p_limit
        for update skip locked
    loop
        v_state := fairq._expire_lease(v_lease, p_now, true);
        continue when v_state = 'kept';
        v_moved.endings := v_moved.endings || fairq._ending(v_lease, 'prepaid', p_now);
        if v_state = 'queued' then
            v_moved.news := v_moved.news || (
                select row(j.tenant, 'queued', j.priority, j.run_at, j.job_id)::fairq.news
                from fairq.jobs as j where j.job_id = v_lease.job_id
            );
        end if;
    end loop;

    -- what is still there (over the limit, or locked) holds the floor; else what ends next, if it is within a second:
    -- most claims need not ask. A lease that comes later lowers the floor.
    select l.lease_expires_at into v_moved.floor from fairq.leases as l
    where l.queue = p_tick.queue and l.lease_expires_at >= p_tick.expire_floor
      and l.lease_expires_at <= p_now + interval '1 second'
    order by l.lease_expires_at
    limit 1;
    v_moved.floor := coalesce(v_moved.floor, p_now + interval '1 second');
    return v_moved;
end
$fn$;
comment on function fairq._expire_due(fairq.ticks, timestamptz, integer) is 'Ends the attempts whose leases are over, inside a claim. Internal.';
revoke all on function fairq._expire_due(fairq.ticks, timestamptz, integer) from public;

create or replace function fairq.release_expired_jobs(p_queue text default null, p_limit integer default 100)
    returns integer
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- leases may be none or many when this plan is made, and it must serve both
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
as $fn$
-- running -> queued, dead, cancelled
--
-- Claims do this by themselves; from outside it neither reads nor moves their floor.
-- Locks:  leases' rows, skipping those held by others, then their jobs' rows.
-- Index:  leases_expire_idx.
-- Raises: 22023 when p_limit is out of range.
declare
    -- a variable, since no index is searched by a function that changes while the query runs
    v_now   timestamptz := clock_timestamp();
    v_queue text;
    v_lease fairq.leases;
    v_total integer := 0;
begin
    perform fairq._check_limit(p_limit, 10000);

    for v_queue in
        select s.queue from fairq.schedulers as s where p_queue is null or s.queue = p_queue order by s.queue
    loop
        for v_lease in
            select l.* from fairq.leases as l
            where l.queue = v_queue and l.lease_expires_at <= v_now
            order by l.lease_expires_at
            limit p_limit - v_total
            for update skip locked
        loop
            continue when fairq._expire_lease(v_lease, clock_timestamp(), false) = 'kept';
            perform fairq._settle(v_queue, fairq._ending(v_lease, 'prepaid', clock_timestamp()));
            v_total := v_total + 1;
        end loop;
        exit when v_total >= p_limit;
    end loop;
    return v_total;
end
$fn$;
comment on function fairq.release_expired_jobs(text, integer) is 'running, lease over -> queued, dead or cancelled: at most p_limit of them; returns how many. Claims do it by themselves.';
revoke all on function fairq.release_expired_jobs(text, integer) from public;
grant execute on function fairq.release_expired_jobs(text, integer) to fairq_worker, fairq_operator;
