--
-- Rights on tables, column by column where a table holds more than the role needs
--

revoke all on all tables in schema fairq from public;
revoke all on all sequences in schema fairq from public;

-- Nobody else may make something that depends on a type, which would keep us from changing or dropping it. Row types of
-- tables and views have this right of PUBLIC whatever the default privileges are; arrays follow their elements.
do $fn$
declare
    v_type text;
begin
    for v_type in
        select t.oid::regtype::text from pg_catalog.pg_type as t
        where t.typnamespace = 'fairq'::regnamespace and t.typelem = 0
    loop
        execute format('revoke all on type %s from public', v_type);
    end loop;
end
$fn$;

-- what functions take, return or declare
grant usage on type
    fairq.jobs, fairq.leases, fairq.job_keys, fairq.queues, fairq.tenants, fairq.flows, fairq.ticks, fairq.all_jobs,
    fairq.enqueued_job, fairq.enqueue_outcome, fairq.claimed_job, fairq.job_outcome, fairq.pause_stat,
    fairq.upkeep, fairq.right_count, fairq.queue_stat, fairq.tenant_stat,
    fairq.wait_reason, fairq.new_job, fairq.news, fairq.amount, fairq.ending,
    fairq.tenant_news, fairq.moved, fairq.place, fairq.pick, fairq.touched, fairq.caught_up, fairq.spent, fairq.picked
to fairq_api;

-- the functions: never a change of tenant, payload or id; never a change of the log; delete only where a job moves on
grant select, insert, delete on fairq.jobs to fairq_api;
grant update (state, priority, attempts, run_at, last_error, changed_xid) on fairq.jobs to fairq_api;
grant select, insert, delete on fairq.leases to fairq_api;
grant update (lease_expires_at, cancel_requested_at, prepaid) on fairq.leases to fairq_api;
grant select, insert, delete on fairq.finished_jobs to fairq_api;
-- one column, only so that its rows may be locked; the policy lets no update through
grant update (state) on fairq.finished_jobs to fairq_api;
grant select, insert on fairq.job_log to fairq_api;
grant select, insert on fairq.job_keys to fairq_api;
grant update (job_id, payload_hash, expires_at) on fairq.job_keys to fairq_api;
grant select, insert on fairq.queues to fairq_api;
grant update (
    paused, charge, max_running, rate, burst, default_lease, longest_lease, max_attempts, backoff_base, backoff_cap,
    backoff_jitter, payload_limit, key_ttl, retention, retention_failed, notify, read_ahead
) on fairq.queues to fairq_api;
grant select, insert on fairq.tenants to fairq_api;
grant update (weight, max_running, paused, rate, burst) on fairq.tenants to fairq_api;
grant select, insert, delete on fairq.pause_notes to fairq_api;
grant update (paused_by, reason) on fairq.pause_notes to fairq_api;
grant select, insert on fairq.flows to fairq_api;
grant update (
    weight, max_running, paused, rate, burst, tokens, tokens_at, token_due_at, limited, vtime, epoch, estimate, price,
    running, head_at, head_id, served, stamp, minute, started, spent
) on fairq.flows to fairq_api;
grant select, insert on fairq.schedulers to fairq_api;
-- only so that its rows may be locked; the policy lets no update through
grant update (queue) on fairq.schedulers to fairq_api;
grant select, insert, delete on fairq.ticks to fairq_api;
grant select, insert, delete on fairq.settlements to fairq_api;
grant select, insert, delete on fairq.ready_picks to fairq_api;
-- one column, only so that its rows may be locked; the policy lets no update through
grant update (queue) on fairq.ready_picks to fairq_api;
grant select on fairq.access_grants to fairq_api;
-- ids are drawn before the row is written where a key has to name its job; defaults are reckoned as who writes
grant usage on sequence fairq.jobs_job_id_seq, fairq.dispatch_seq, fairq.job_log_log_id_seq to fairq_api;
grant select on sequence fairq.slot_seq to fairq_api;

-- get_job() reads it; a view has the rights of its reader
grant select on fairq.all_jobs to fairq_api;

-- tenants: no token, no hash, nothing of the scheduler
grant select on fairq.all_jobs, fairq.job_events to fairq_tenant;
grant select (
    job_id, queue, tenant, task, payload, priority, state, attempts, max_attempts, run_at, cost, operation_key,
    traceparent, last_error, created_at
) on fairq.jobs to fairq_tenant;
grant select (job_id, queue, tenant, lease_owner, attempt, started_at, cancel_requested_at) on fairq.leases
to fairq_tenant;
grant select (
    job_id, queue, tenant, task, payload, priority, state, attempts, max_attempts, run_at, cost, operation_key,
    traceparent, last_error, created_at, started_at, finished_at, lease_owner, result
) on fairq.finished_jobs to fairq_tenant;
grant select on fairq.job_log to fairq_tenant;

-- operators: everything but the fences
grant select on fairq.all_jobs, fairq.job_events to fairq_operator;
grant select on
    fairq.jobs, fairq.job_log, fairq.job_keys, fairq.queues, fairq.tenants, fairq.flows, fairq.schedulers, fairq.ticks,
    fairq.settlements, fairq.ready_picks, fairq.pause_notes
to fairq_operator;
grant select (
    job_id, queue, tenant, caller, lease_owner, attempt, started_at, lease_expires_at, cancel_requested_at, dispatch,
    prepaid, epoch
) on fairq.leases to fairq_operator;
grant select (
    job_id, queue, tenant, task, payload, priority, state, attempts, max_attempts, run_at, cost, operation_key,
    traceparent, last_error, created_at, started_at, finished_at, lease_owner, result
) on fairq.finished_jobs to fairq_operator;
grant select, insert, update, delete on fairq.access_grants to fairq_operator;
