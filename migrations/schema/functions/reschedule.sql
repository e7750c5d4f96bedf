--
-- reschedule: another time or priority for a job that waits
--

create or replace function fairq.reschedule_job(
    p_job_id   bigint,
    p_run_at   timestamptz default null,
    p_delay    interval default null,
    p_priority integer default null
)
    returns text
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
as $fn$
-- queued, scheduled -> queued, scheduled
--
-- Locks:  the job's row.
-- Raises: 22023 for bad arguments, or none.
declare
    v_now   timestamptz := clock_timestamp();
    v_job   fairq.jobs;
    v_where text;
begin
    perform fairq._check_id(p_job_id);
    if num_nonnulls(p_run_at, p_delay, p_priority) = 0 then
        perform fairq._refuse('one of p_run_at, p_delay and p_priority', null, 'given');
    end if;
    perform fairq._check_run_at(p_run_at, p_delay);
    if p_priority not between 0 and 3 then
        perform fairq._refuse('p_priority', p_priority::text, 'a number from 0 (first) to 3');
    end if;

    if fairq._find_job(p_job_id) = 'waiting' then
        v_job := fairq._hold_waiting(p_job_id);
    end if;
    if v_job.job_id is null then
        v_where := fairq._find_job(p_job_id);
        return case v_where when 'waiting' then 'running' else v_where end;
    end if;
    v_job.run_at := coalesce(p_run_at, v_now + p_delay, v_job.run_at);
    v_job.state := case when v_job.run_at > v_now then 'scheduled' else 'queued' end;
    update fairq.jobs as j
    set
        run_at = v_job.run_at, state = v_job.state, priority = coalesce(p_priority, j.priority),
        changed_xid = pg_current_xact_id()
    where j.job_id = p_job_id;
    insert into fairq.job_log (job_id, queue, tenant, event_type, attempt, actor, details, created_at)
    values (
        p_job_id, v_job.queue, v_job.tenant, 'rescheduled', v_job.attempts, fairq._caller(),
        jsonb_build_object('run_at', v_job.run_at, 'priority', coalesce(p_priority, v_job.priority)), v_now
    );
    return v_job.state;
end
$fn$;
comment on function fairq.reschedule_job(bigint, timestamptz, interval, integer) is 'Changes time (p_run_at or p_delay) or priority of a job that waits: its new state; else running, finished or not_found.';
revoke all on function fairq.reschedule_job(bigint, timestamptz, interval, integer) from public;
grant execute on function fairq.reschedule_job(bigint, timestamptz, interval, integer) to fairq_operator;
