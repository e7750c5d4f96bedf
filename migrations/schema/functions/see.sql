--
-- see: what waits, what runs, and why a job has not started
--
-- Counts stop at 10,000: a look at a queue must cost the same whatever its backlog.

create or replace function fairq.queue_stats(p_queue text default null)
    returns setof fairq.queue_stat
    language plpgsql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
as $fn$
-- Index:  jobs_promote_idx, leases_expire_idx, flows_pick_idx; at most 10,000 entries of each for a queue.
begin
    return query
    select
        s.queue,
        (fairq._queue_settings(s.queue)).paused,
        (select count(*) from (
            select from fairq.flows as f where f.queue = s.queue and f.eligible limit 10000
        ) as n),
        (select count(*) from (
            select from fairq.jobs as j where j.queue = s.queue and j.state = 'scheduled' limit 10000
        ) as n),
        (select count(*) from (
            select from fairq.leases as l where l.queue = s.queue limit 10000
        ) as n),
        (select min(j.run_at) from fairq.jobs as j where j.queue = s.queue and j.state = 'scheduled'),
        (select t.ticked_at from fairq.ticks as t where t.queue = s.queue order by t.tick_id desc limit 1)
    from fairq.schedulers as s
    where p_queue is null or s.queue = p_queue
    order by s.queue;
end
$fn$;
comment on function fairq.queue_stats(text) is 'One row for each queue that was ever claimed from: paused, tenants that may be picked, scheduled and running jobs (counts stop at 10,000), when the next scheduled one is due, the scheduler''s last tick.';
revoke all on function fairq.queue_stats(text) from public;
grant execute on function fairq.queue_stats(text) to fairq_operator, fairq_worker;

create or replace function fairq.tenant_stats(p_queue text)
    returns setof fairq.tenant_stat
    language plpgsql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
as $fn$
-- Index:  flows_pick_idx; jobs_claim_idx, at most 10,000 entries for a tenant.
-- Raises: 22023 for a bad queue.
begin
    perform fairq._check_name('p_queue', p_queue, 200);
    return query
    select
        f.tenant, f.weight, f.max_running, f.paused, f.running,
        (select count(*) from (
            select from fairq.jobs as j
            where j.queue = f.queue and j.tenant = f.tenant and j.state = 'queued'
              and not exists (select from fairq.leases as l where l.job_id = j.job_id offset 0)
            limit 10000
        ) as n),
        f.vtime,
        case
            when f.paused then 'paused'
            when f.running >= f.max_running then 'at its cap'
            when not f.has_work then 'no work'
        end
    from fairq.flows as f
    where f.queue = p_queue
    order by f.eligible desc, f.vtime, f.tenant;
end
$fn$;
comment on function fairq.tenant_stats(text) is 'One row for each tenant the scheduler of a queue knows: its wishes, running and queued jobs (counts stop at 10,000), virtual time, and what keeps it from being picked.';
revoke all on function fairq.tenant_stats(text) from public;
grant execute on function fairq.tenant_stats(text) to fairq_operator;

create or replace function fairq.explain_wait(p_job_id bigint)
    returns text
    language plpgsql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
as $fn$
-- Index:  primary keys; flows_key_idx; jobs_claim_idx, at most 10,000 entries.
-- Raises: 22023 for a null id.
declare
    v_job   fairq.jobs;
    v_flow  fairq.flows;
    v_lease fairq.leases;
    v_ahead bigint;
begin
    if p_job_id is null then
        perform fairq._refuse('p_job_id', null, 'a job''s id');
    end if;
    if fairq._find_job(p_job_id, 'cancel') <> 'waiting' then
        return replace(fairq._find_job(p_job_id, 'cancel'), '_', ' ');
    end if;
    select j.* into v_job from fairq.jobs as j where j.job_id = p_job_id;
    select l.* into v_lease from fairq.leases as l where l.job_id = p_job_id;
    select f.* into v_flow from fairq.flows as f
    where f.queue = v_job.queue and f.tenant = v_job.tenant order by f.stamp desc limit 1;
    select count(*) into v_ahead from (
        select from fairq.jobs as j
        where j.queue = v_job.queue and j.tenant = v_job.tenant and j.state = 'queued'
          and (j.priority, j.run_at, j.job_id) < (v_job.priority, v_job.run_at, v_job.job_id)
          and not exists (select from fairq.leases as l where l.job_id = j.job_id offset 0)
        limit 10000
    ) as n;

    return case
        when v_lease.lease_expires_at <= clock_timestamp() then 'its lease is over: the next claim of the queue ends the attempt'
        when v_lease.job_id is not null then 'it runs'
        when (fairq._queue_settings(v_job.queue)).paused then 'its queue is paused'
        when v_job.state = 'scheduled' and v_job.run_at > clock_timestamp() then format('it is not due before %s', v_job.run_at)
        when v_flow.paused then 'its tenant is paused'
        when v_flow.running >= v_flow.max_running then format('its tenant is at its cap of %s', v_flow.max_running)
        else format('it is behind %s of its own tenant''s jobs', v_ahead)
    end;
end
$fn$;
comment on function fairq.explain_wait(bigint) is 'Why a job has not started, in words.';
revoke all on function fairq.explain_wait(bigint) from public;
grant execute on function fairq.explain_wait(bigint) to fairq_operator, fairq_producer, fairq_tenant;
