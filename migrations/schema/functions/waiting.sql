--
-- waiting: finding a job, holding one that waits, and ending it; what cancel, reschedule, retry, purge and see share
--

create or replace function fairq._find_job(p_job_id bigint)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- waiting (or running), finished or not_found; the last also for a job the caller may not touch.
--
-- One statement: a job that moves from one table to the other meanwhile is in exactly one of them.
-- Index:  jobs_pkey, finished_jobs_pkey.
declare
    v_queue   text;
    v_tenant  text;
    v_where   text;
    v_granted text[];
begin
    select n.queue, n.tenant, n.place into v_queue, v_tenant, v_where
    from (
        select j.queue, j.tenant, 'waiting' as place from fairq.jobs as j where j.job_id = p_job_id
        union all
        select f.queue, f.tenant, 'finished' from fairq.finished_jobs as f where f.job_id = p_job_id
    ) as n
    limit 1;
    v_granted := fairq._granted_tenants('cancel', v_queue, fairq._caller());
    if v_granted = '{*}' or v_tenant = any (v_granted) then
        return coalesce(v_where, 'not_found');
    end if;
    return 'not_found';
end
$fn$;
comment on function fairq._find_job(bigint) is 'Where a job is, if the caller may manage it. Internal.';
revoke all on function fairq._find_job(bigint) from public;

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
        traceparent, last_error, created_at, finished_at
    )
    values (
        p_job.job_id, p_job.queue, p_job.tenant, p_job.task, p_job.payload, p_job.priority, 'cancelled', p_job.attempts,
        p_job.max_attempts, p_job.run_at, p_job.cost, p_job.operation_key, p_job.traceparent, p_job.last_error,
        p_job.created_at, v_now
    );
    insert into fairq.job_log (job_id, queue, tenant, event_type, attempt, actor, created_at)
    values (p_job.job_id, p_job.queue, p_job.tenant, 'cancelled', p_job.attempts, p_actor, v_now);
end
$fn$;
comment on function fairq._cancel_waiting(fairq.jobs, text) is 'Cancels a job that waits. Internal.';
revoke all on function fairq._cancel_waiting(fairq.jobs, text) from public;
