--
-- complete: running -> succeeded
--

create or replace function fairq._complete(
    p_job_ids bigint[], p_tokens uuid[], p_results jsonb[], p_now timestamptz default null
)
    returns integer[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- running -> succeeded: returns the places in the arrays of those that succeeded by it.
--
-- The leases are taken away in the order of the jobs' ids. A lease judged by a clock read before a wait for its row
-- would live too long, or die too soon when it is just being renewed: so the clock is read once the row is had, and a
-- lease that was over by then is put back as it was. No shared row is written: the scheduler learns of it from the
-- settlements.
-- given:  the arrays, by job: the tokens given for one stand side by side, and a binary search finds them.
-- p_now:  the clock; null for the real one.
-- Long:   all that ends is moved in one statement, which ends as many as it moves or raises.
-- Locks:  the leases' rows, then the jobs'.
-- Index:  leases_pkey and jobs_pkey, a probe for each job.
-- Raises: 40001 when a lease has no job, which no function leaves behind.
declare
    v_caller text := fairq._caller();
    v_done   integer[];
    v_ended  integer;
    v_late   fairq.leases[];
begin
    with given as materialized (
        select array_agg(u.job_id) as job_ids, array_agg(u.token) as tokens, array_agg(u.at::integer) as places
        from (
            select t.job_id, t.token, t.at from unnest(p_job_ids, p_tokens) with ordinality as t(job_id, token, at)
            order by t.job_id, t.at
        ) as u
    ), taken as (
        -- by the primary key, in its order: a join with the arrays might be turned round, and walk every dead lease
        delete from fairq.leases as l
        where l.job_id = any (p_job_ids) and l.caller = v_caller
          and l.lease_token = any ((select g.tokens from given as g)[
              width_bucket(l.job_id - 1, (select g.job_ids from given as g)) + 1
              : width_bucket(l.job_id, (select g.job_ids from given as g))
          ])
        returning
            l.job_id, l.queue, l.tenant, l.lease_owner, l.lease_token, l.attempt, l.started_at, l.prepaid, l.weight,
            l.epoch, (select g.places from given as g)[
                width_bucket(l.job_id - 1, (select g.job_ids from given as g)) + array_position(
                    (select g.tokens from given as g)[
                        width_bucket(l.job_id - 1, (select g.job_ids from given as g)) + 1
                        : width_bucket(l.job_id, (select g.job_ids from given as g))
                    ],
                    l.lease_token
                )
            ] as at,
            coalesce(p_now, clock_timestamp()) as now_held,
            case when l.lease_expires_at <= coalesce(p_now, clock_timestamp()) then l end as late
    ), settled as (
        -- as in _ending, for attempts that are paid by the time they were held
        insert into fairq.settlements (queue, endings)
        select
            s.queue,
            array_agg(row(s.tenant, s.epoch, s.ended, s.measured, s.elapsed, s.extra, s.refund)::fairq.ending)
        from (
            select
                h.queue, h.tenant, h.epoch, count(*) as ended, count(h.prepaid) as measured,
                coalesce(sum(h.held) filter (where h.prepaid > 0), 0) as elapsed,
                coalesce(sum(round(greatest(0, h.held - h.prepaid) * 2520 / h.weight)::bigint), 0) as extra,
                coalesce(sum(round(greatest(0, h.prepaid - h.held) * 2520 / h.weight)::bigint), 0) as refund
            from (
                select
                    t.queue, t.tenant, t.epoch, t.prepaid, t.weight,
                    greatest(1, round(extract(epoch from t.now_held - t.started_at) * 1000))::bigint as held
                from taken as t
                where t.late is null
                -- held is had once, and not for each sum anew
                offset 0
            ) as h
            group by h.queue, h.tenant, h.epoch
        ) as s
        group by s.queue
    ), gone as (
        delete from fairq.jobs as j
        where j.job_id = any (array(select t.job_id from taken as t where t.late is null))
        returning j.*
    ), kept as (
        insert into fairq.finished_jobs (
            job_id, queue, tenant, task, payload, priority, state, attempts, max_attempts, run_at, cost, operation_key,
            traceparent, last_error, created_at, started_at, finished_at, lease_owner, token_hash, result, slot
        )
        select
            g.job_id, g.queue, g.tenant, g.task, g.payload, g.priority, 'succeeded', t.attempt, g.max_attempts,
            g.run_at, g.cost, g.operation_key, g.traceparent, g.last_error, g.created_at, t.started_at, t.now_held,
            t.lease_owner, sha256(uuid_send(t.lease_token)), p_results[t.at],
            -- as the column's default, which would be asked for with each row
            (select coalesce(pg_sequence_last_value('fairq.slot_seq'::regclass) % 4, 0)::smallint)
        from gone as g
        join taken as t on t.job_id = g.job_id
    )
    select
        array_agg(t.at) filter (where t.late is null), (select count(*) from gone),
        -- a row with a null in it is neither null nor not null
        array_agg(t.late) filter (where not t.late is null)
    into v_done, v_ended, v_late
    from taken as t;
    if v_late is not null then
        insert into fairq.leases select l.* from unnest(v_late) as l;
    end if;
    if coalesce(cardinality(v_done), 0) <> v_ended then
        -- a lease without its job would be a job that nobody ever finds: nothing of this may stay
        raise exception 'a job has a lease and no row'
            using errcode = '40001', hint = 'Try again, once: said twice, somebody has deleted rows of the table jobs.';
    end if;
    return coalesce(v_done, '{}');
end
$fn$;
comment on function fairq._complete(bigint[], uuid[], jsonb[], timestamptz) is 'Completes jobs whose leases are alive. Internal.';
revoke all on function fairq._complete(bigint[], uuid[], jsonb[], timestamptz) from public;

create or replace function fairq._complete_one(
    p_job_id bigint, p_token uuid, p_result jsonb, p_now timestamptz default null
)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- _complete() for one job, which most completions are: plain statements start sooner than a great one.
--
-- p_now:  the clock; null for the real one.
-- Locks:  the lease's row, then the job's.
-- Index:  leases_pkey and jobs_pkey.
-- Raises: 40001 when a lease has no job, which no function leaves behind.
declare
    v_now   timestamptz;
    v_lease fairq.leases;
    v_job   fairq.jobs;
begin
    delete from fairq.leases as l
    where l.job_id = p_job_id and l.lease_token = p_token and l.caller = fairq._caller()
    returning l.* into v_lease;
    if not found then
        return false;
    end if;
    -- read now and not before: there may have been a wait
    v_now := coalesce(p_now, clock_timestamp());
    if v_lease.lease_expires_at <= v_now then
        insert into fairq.leases select v_lease.*;
        return false;
    end if;

    -- as in _settle and _finish, without their calls
    insert into fairq.settlements (queue, endings) values (v_lease.queue, array[fairq._ending(v_lease, 'held', v_now)]);
    delete from fairq.jobs as j where j.job_id = v_lease.job_id returning j.* into v_job;
    if not found then
        raise exception 'a job has a lease and no row'
            using errcode = '40001', hint = 'Try again, once: said twice, somebody has deleted rows of the table jobs.';
    end if;
    insert into fairq.finished_jobs (
        job_id, queue, tenant, task, payload, priority, state, attempts, max_attempts, run_at, cost, operation_key,
        traceparent, last_error, created_at, started_at, finished_at, lease_owner, token_hash, result
    )
    values (
        v_job.job_id, v_job.queue, v_job.tenant, v_job.task, v_job.payload, v_job.priority, 'succeeded',
        v_lease.attempt, v_job.max_attempts, v_job.run_at, v_job.cost, v_job.operation_key, v_job.traceparent,
        v_job.last_error, v_job.created_at, v_lease.started_at, v_now, v_lease.lease_owner,
        sha256(uuid_send(p_token)), p_result
    );
    return true;
end
$fn$;
comment on function fairq._complete_one(bigint, uuid, jsonb, timestamptz) is 'Completes a job whose lease is alive. Internal.';
revoke all on function fairq._complete_one(bigint, uuid, jsonb, timestamptz) from public;

create or replace function fairq._completed_before(p_job_id bigint, p_token uuid)
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- A reply that was lost, and a worker that asks again.
--
-- Index:  finished_jobs_pkey; the state is looked at afterwards, or finished_jobs_prune_idx would be a temptation.
begin
    return exists (
        select from (
            select f.state, f.token_hash from fairq.finished_jobs as f where f.job_id = p_job_id offset 0
        ) as f
        where f.state = 'succeeded' and f.token_hash = sha256(uuid_send(p_token))
    );
end
$fn$;
comment on function fairq._completed_before(bigint, uuid) is 'Whether this token completed this job. Internal.';
revoke all on function fairq._completed_before(bigint, uuid) from public;

create or replace function fairq.complete_job(p_job_id bigint, p_token uuid, p_result jsonb default null)
    returns boolean
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs(); nothing is joined here
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
as $fn$
-- running -> succeeded
--
-- Locks:  the lease's row, then the job's.
-- Raises: 22023 for a null id or token; 54000 for a result over the queue's payload_limit.
declare
    -- assigned, not performed: an expression costs less than a statement
    v_is_good boolean;
begin
    if p_job_id is null or p_token is null then
        v_is_good := fairq._check_held(p_job_id, p_token);
    end if;
    if p_result is not null and fairq._is_oversized(p_job_id, p_result) then
        raise exception 'p_result of job % has % bytes, more than its queue allows',
            p_job_id, octet_length(p_result::text)
            using errcode = '54000', hint = 'Store it elsewhere and complete the job with a reference to it.';
    end if;
    if fairq._complete_one(p_job_id, p_token, p_result) then
        return true;
    end if;
    -- not in one expression: what the first call committed while this one waited is to be seen
    return fairq._completed_before(p_job_id, p_token);
end
$fn$;
comment on function fairq.complete_job(bigint, uuid, jsonb) is 'running -> succeeded, with a result. True also when the same token completed it before; false when the lease is lost: undo what was done.';
revoke all on function fairq.complete_job(bigint, uuid, jsonb) from public;
grant execute on function fairq.complete_job(bigint, uuid, jsonb) to fairq_worker;

create or replace function fairq._is_oversized(p_job_id bigint, p_result jsonb)
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- A job that does not run has no limit: its completion is lost.
begin
    return case
        when p_result is null then false
        else octet_length(p_result::text) > coalesce(
            (select (fairq._queue_settings(l.queue)).payload_limit from fairq.leases as l where l.job_id = p_job_id),
            67108864
        )
    end;
end
$fn$;
comment on function fairq._is_oversized(bigint, jsonb) is 'Whether a result is longer than the job''s queue allows. Internal.';
revoke all on function fairq._is_oversized(bigint, jsonb) from public;

create or replace function fairq.complete_jobs(p_job_ids bigint[], p_tokens uuid[], p_results jsonb[] default null)
    returns setof fairq.job_outcome
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs(); the one join, of the jobs that are gone with their leases, goes by hash
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_nestloop = off
    set enable_hashjoin = on
    set enable_mergejoin = off
    set jit = off
as $fn$
-- running -> succeeded; many at once
--
-- Locks:  the leases' rows, by job id, then the jobs'.
-- Raises: 22023 for arrays out of range; an oversized result is the outcome too_large of its job alone.
declare
    -- assigned, not performed: an expression costs less than a statement
    v_is_good boolean := fairq._check_batch(p_job_ids, p_tokens);
    v_large   bigint[] := '{}';
    v_done    integer[];
begin
    if p_results is not null then
        perform fairq._check_beside('p_results', p_results, cardinality(p_job_ids));
        v_large := array(
            select u.job_id from unnest(p_job_ids, p_results) as u(job_id, result)
            where fairq._is_oversized(u.job_id, u.result)
        );
    end if;
    if cardinality(v_large) > 0 then
        -- no lease has no token
        p_tokens := array(
            select case when u.job_id <> all (v_large) then u.token end
            from unnest(p_job_ids, p_tokens) with ordinality as u(job_id, token)
            order by u.ordinality
        );
    end if;
    if cardinality(p_job_ids) = 1 then
        v_done := case when fairq._complete_one(p_job_ids[1], p_tokens[1], p_results[1]) then array[1] end;
    else
        v_done := fairq._complete(p_job_ids, p_tokens, p_results);
    end if;
    if cardinality(v_done) = cardinality(p_job_ids) then
        -- mostly; then there is nothing to look for
        return query select j.job_id, 'succeeded' from unnest(p_job_ids) as j(job_id);
        return;
    end if;

    return query
    select u.job_id, case
        when u.ordinality = any (v_done) then 'succeeded'
        when u.job_id = any (v_large) then 'too_large'
        when fairq._completed_before(u.job_id, u.token) then 'already_succeeded'
        else 'lost'
    end
    from unnest(p_job_ids, p_tokens) with ordinality as u(job_id, token)
    order by u.ordinality;
end
$fn$;
comment on function fairq.complete_jobs(bigint[], uuid[], jsonb[]) is 'complete_job() for many: succeeded, already_succeeded, lost or too_large for each, in input order.';
revoke all on function fairq.complete_jobs(bigint[], uuid[], jsonb[]) from public;
grant execute on function fairq.complete_jobs(bigint[], uuid[], jsonb[]) to fairq_worker;
