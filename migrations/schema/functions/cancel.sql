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
    perform fairq._check_id(p_job_id);
    for v_try in 1..10 loop
        v_where := fairq._find_job(p_job_id);
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
