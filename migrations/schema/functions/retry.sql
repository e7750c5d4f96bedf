--
-- retry: dead, cancelled -> queued
--

create or replace function fairq.retry_job(p_job_id bigint)
    returns text
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
as $fn$
-- dead, cancelled -> queued, under its old id, with all its attempts before it again
--
-- Locks:  the job's row in finished_jobs.
-- Raises: 22023 for a null id.
declare
    v_job fairq.finished_jobs;
    v_now timestamptz;
begin
    perform fairq._check_id(p_job_id);
    if fairq._find_job(p_job_id) = 'finished' then
        select f.* into v_job from fairq.finished_jobs as f where f.job_id = p_job_id for update;
    end if;
    if v_job.job_id is null then
        -- not ended, or revived or removed while it was locked
        return case fairq._find_job(p_job_id) when 'waiting' then 'not_finished' else 'not_found' end;
    end if;
    if v_job.state = 'succeeded' then
        return 'succeeded';
    end if;

    v_now := clock_timestamp();
    delete from fairq.finished_jobs as f where f.job_id = p_job_id;
    insert into fairq.jobs (
        job_id, queue, tenant, task, payload, priority, state, max_attempts, run_at, cost, operation_key, traceparent,
        last_error, created_at
    )
    values (
        p_job_id, v_job.queue, v_job.tenant, v_job.task, v_job.payload, v_job.priority, 'queued', v_job.max_attempts,
        v_now, v_job.cost, v_job.operation_key, v_job.traceparent, v_job.last_error, v_job.created_at
    );
    insert into fairq.job_log (job_id, queue, tenant, event_type, attempt, actor, details, created_at)
    values (
        p_job_id, v_job.queue, v_job.tenant, 'revived', v_job.attempts, fairq._caller(),
        jsonb_build_object('from', v_job.state), v_now
    );
    return 'queued';
end
$fn$;
comment on function fairq.retry_job(bigint) is 'dead, cancelled -> queued, with its attempts counted anew: queued; else succeeded, not_finished or not_found.';
revoke all on function fairq.retry_job(bigint) from public;
grant execute on function fairq.retry_job(bigint) to fairq_operator;
