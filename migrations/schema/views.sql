--
-- Views: with the rights of whoever reads them, so that a tenant sees its own jobs and nobody else's
--

create view fairq.all_jobs with (security_invoker = true) as
select
    j.job_id, j.queue, j.tenant, j.task, j.payload, j.priority,
    case when l.job_id is null then j.state else 'running' end as state,
    coalesce(l.attempt, j.attempts) as attempts,
    j.max_attempts, j.run_at, j.cost, j.operation_key, j.last_error, j.created_at,
    l.started_at, null::timestamptz as finished_at, l.lease_owner, l.cancel_requested_at, null::jsonb as result
from fairq.jobs as j
left join fairq.leases as l on l.job_id = j.job_id
union all
select
    f.job_id, f.queue, f.tenant, f.task, f.payload, f.priority,
    f.state,
    f.attempts,
    f.max_attempts, f.run_at, f.cost, f.operation_key, f.last_error, f.created_at,
    f.started_at, f.finished_at, f.lease_owner, null::timestamptz, f.result
from fairq.finished_jobs as f;

comment on view fairq.all_jobs is 'One row per job, wherever it is, with its state as users think of it: scheduled, queued, running, succeeded, dead, cancelled.';

create view fairq.job_events with (security_invoker = true) as
select j.job_id, j.queue, j.tenant, 'created' as event_type, 0 as attempt, null::text as actor, '{}'::jsonb as details, j.created_at
from fairq.jobs as j
union all
select f.job_id, f.queue, f.tenant, 'created', 0, null, '{}', f.created_at
from fairq.finished_jobs as f
union all
-- an attempt that runs, one that succeeded, and those that ended otherwise
select l.job_id, l.queue, l.tenant, 'claimed', l.attempt, l.lease_owner, '{}', l.started_at
from fairq.leases as l
union all
select f.job_id, f.queue, f.tenant, 'claimed', f.attempts, f.lease_owner, '{}', f.started_at
from fairq.finished_jobs as f
where f.state = 'succeeded'
union all
select g.job_id, g.queue, g.tenant, 'claimed', g.attempt, g.actor, '{}', g.started_at
from fairq.job_log as g
where g.started_at is not null
union all
select f.job_id, f.queue, f.tenant, 'succeeded', f.attempts, f.lease_owner, '{}', f.finished_at
from fairq.finished_jobs as f
where f.state = 'succeeded'
union all
select g.job_id, g.queue, g.tenant, g.event_type, g.attempt, g.actor, g.details, g.created_at
from fairq.job_log as g;

comment on view fairq.job_events is 'The whole timeline of every job. created, claimed and succeeded come from the rows that hold the job, so that a job that goes well costs no extra write. Order by created_at, attempt.';
