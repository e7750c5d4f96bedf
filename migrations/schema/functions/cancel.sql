--
-- cancel: queued, scheduled -> cancelled; running -> told at its next renewal
--

create or replace function fairq._request_cancel(p_job_id bigint, p_actor text)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- running -> running, its cancellation asked for. False when it does not run.
--
-- Locks:  the lease's row.
declare
    v_lease fairq.leases;
begin
    select l.* into v_lease from fairq.leases as l where l.job_id = p_job_id for update;
    if not found then
        return false;
    end if;
    if v_lease.cancel_requested_at is null then
        update fairq.leases as l set cancel_requested_at = clock_timestamp() where l.job_id = p_job_id;
        insert into fairq.job_log (job_id, queue, tenant, event_type, attempt, actor, created_at)
        values (
            p_job_id, v_lease.queue, v_lease.tenant, 'cancel_requested', v_lease.attempt, p_actor, clock_timestamp()
        );
    end if;
    return true;
end
$fn$;
comment on function fairq._request_cancel(bigint, text) is 'Asks a running job to stop. Internal.';
revoke all on function fairq._request_cancel(bigint, text) from public;

create or replace function fairq._hold_waiting(p_job_id bigint)
    returns fairq.jobs
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- A job that waits, locked so that no claim takes it; null when there is none such.
--
-- The lease is looked for in a statement of its own, after the row is locked: a claim may have come first. In that case
-- the lock is given up again (a block that fails gives up what it locked), since a worker that ends the job has locked
-- its lease and will want the row: nobody who holds a job's row ever waits for its lease.
-- Locks:  the job's row, for update.
declare
    v_job fairq.jobs;
begin
    select j.* into v_job from fairq.jobs as j where j.job_id = p_job_id for update;
    if exists (select from fairq.leases as l where l.job_id = p_job_id) then
        raise exception 'job % runs', p_job_id using errcode = 'QF900';
    end if;
    return v_job;
exception when sqlstate 'QF900' then
    return null;
end
$fn$;
comment on function fairq._hold_waiting(bigint) is 'Locks a job that waits. Internal.';
revoke all on function fairq._hold_waiting(bigint) from public;

create or replace function fairq._cancel_waiting(p_job fairq.jobs, p_actor text)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- queued, scheduled -> cancelled. Its tenant is never charged; the scheduler finds out when it looks for the job.
--
-- Locks:  the job's row is held.
declare
    v_now timestamptz := clock_timestamp();
begin
    delete from fairq.jobs as j where j.job_id = p_job.job_id;
    insert into fairq.finished_jobs (
        job_id, queue, tenant, task, payload, priority, state, attempts, max_attempts, run_at, cost, operation_key,
        last_error, created_at, finished_at
    )
    values (
        p_job.job_id, p_job.queue, p_job.tenant, p_job.task, p_job.payload, p_job.priority, 'cancelled', p_job.attempts,
        p_job.max_attempts, p_job.run_at, p_job.cost, p_job.operation_key, p_job.last_error, p_job.created_at, v_now
    );
    insert into fairq.job_log (job_id, queue, tenant, event_type, attempt, actor, created_at)
    values (p_job.job_id, p_job.queue, p_job.tenant, 'cancelled', p_job.attempts, p_actor, v_now);
end
$fn$;
comment on function fairq._cancel_waiting(fairq.jobs, text) is 'Cancels a job that waits. Internal.';
revoke all on function fairq._cancel_waiting(fairq.jobs, text) from public;

create or replace function fairq._find_job(p_job_id bigint, p_verb text)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- waiting (or running), finished or not_found; the last also for a job the caller may not touch.
declare
    v_queue  text;
    v_tenant text;
    v_where  text;
    v_granted text[];
begin
    select j.queue, j.tenant, 'waiting' into v_queue, v_tenant, v_where from fairq.jobs as j where j.job_id = p_job_id;
    if not found then
        select f.queue, f.tenant, 'finished' into v_queue, v_tenant, v_where
        from fairq.finished_jobs as f where f.job_id = p_job_id;
    end if;
    v_granted := fairq._granted_tenants(p_verb, v_queue, fairq._caller());
    if v_granted = '{*}' or v_tenant = any (v_granted) then
        return coalesce(v_where, 'not_found');
    end if;
    return 'not_found';
end
$fn$;
comment on function fairq._find_job(bigint, text) is 'Where a job is, if the caller may know. Internal.';
revoke all on function fairq._find_job(bigint, text) from public;

create or replace function fairq.cancel_job(p_job_id bigint)
    returns text
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
as $fn$
-- queued, scheduled -> cancelled; running -> asked to stop
--
-- Locks:  the lease's row, or the job's; never both at once.
-- Raises: 22023 for a null id; 40001 when the job kept moving.
declare
    v_actor text := fairq._caller();
    v_job   fairq.jobs;
    v_where text;
begin
    if p_job_id is null then
        perform fairq._refuse('p_job_id', null, 'a job''s id');
    end if;
    for v_try in 1..10 loop
        v_where := fairq._find_job(p_job_id, 'cancel');
        if v_where <> 'waiting' then
            return v_where;
        end if;
        if fairq._request_cancel(p_job_id, v_actor) then
            return 'cancel_requested';
        end if;
        v_job := fairq._hold_waiting(p_job_id);
        if v_job.job_id is not null then
            perform fairq._cancel_waiting(v_job, v_actor);
            return 'cancelled';
        end if;
    end loop;

    raise exception 'job % kept moving', p_job_id using errcode = '40001', hint = 'Try again.';
end
$fn$;
comment on function fairq.cancel_job(bigint) is 'Cancels a job that waits (cancelled), or asks a running one to stop (cancel_requested: its worker hears at the next renewal; failed, released or expired it is then cancelled, completed it has succeeded). Else finished, or not_found.';
revoke all on function fairq.cancel_job(bigint) from public;
grant execute on function fairq.cancel_job(bigint) to fairq_producer, fairq_tenant, fairq_operator;
