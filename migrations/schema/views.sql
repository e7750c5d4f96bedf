--
-- Views: with the rights of whoever reads them, so that a tenant sees its own jobs and nobody else's
--

create view fairq.all_jobs with (security_invoker = true) as
select
    j.job_id,
    j.queue,
    j.tenant,
    j.task,
    j.payload,
    j.priority,
    case when l.job_id is null then j.state else 'running' end as state,
    coalesce(l.attempt, j.attempts) as attempts,
    j.max_attempts,
    j.run_at,
    j.cost,
    j.operation_key,
    j.last_error,
    j.created_at,
    l.started_at,
    null::timestamptz as finished_at,
    l.lease_owner,
    l.cancel_requested_at,
    null::jsonb as result,
    j.traceparent
from fairq.jobs as j
left join fairq.leases as l on j.job_id = l.job_id
union all
select
    f.job_id,
    f.queue,
    f.tenant,
    f.task,
    f.payload,
    f.priority,
    f.state,
    f.attempts,
    f.max_attempts,
    f.run_at,
    f.cost,
    f.operation_key,
    f.last_error,
    f.created_at,
    f.started_at,
    f.finished_at,
    f.lease_owner,
    null::timestamptz as cancel_requested_at,
    f.result,
    f.traceparent
from fairq.finished_jobs as f;

comment on view fairq.all_jobs is 'One row per job, wherever it is, with its state as users think of it: scheduled, queued, running, succeeded, dead, cancelled.';

-- created, claimed and succeeded come from the rows that hold the job; the log has the rest. An attempt that ended
-- otherwise than well is in the log with its start: that is its claim.
create view fairq.job_events with (security_invoker = true) as
select
    j.job_id,
    j.queue,
    j.tenant,
    e.event_type,
    e.attempt,
    e.actor,
    '{}'::jsonb as details,
    e.created_at
from fairq.jobs as j
left join fairq.leases as l on j.job_id = l.job_id
cross join lateral (
    values
    ('created', 0, null, j.created_at),
    ('claimed', l.attempt, l.lease_owner, l.started_at)
) as e (event_type, attempt, actor, created_at)
where e.created_at is not null
union all
select
    f.job_id,
    f.queue,
    f.tenant,
    e.event_type,
    e.attempt,
    e.actor,
    '{}'::jsonb as details,
    e.created_at
from fairq.finished_jobs as f
cross join lateral (
    values
    ('created', 0, null, f.created_at, true),
    ('claimed', f.attempts, f.lease_owner, f.started_at, f.state = 'succeeded'),
    ('succeeded', f.attempts, f.lease_owner, f.finished_at, f.state = 'succeeded')
) as e (event_type, attempt, actor, created_at, happened)
where e.happened
union all
select
    g.job_id,
    g.queue,
    g.tenant,
    e.event_type,
    g.attempt,
    g.actor,
    e.details,
    e.created_at
from fairq.job_log as g
cross join lateral (
    values
    ('claimed', '{}'::jsonb, g.started_at),
    (g.event_type, g.details, g.created_at)
) as e (event_type, details, created_at)
where e.created_at is not null;

comment on view fairq.job_events is 'The whole timeline of every job. created, claimed and succeeded come from the rows that hold the job, so that a job that goes well costs no extra write. Order by created_at, attempt.';
