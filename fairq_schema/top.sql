-- What `fairq top` looks at, each in a transaction that reads only and is cut off after two seconds. An operator's
-- login may run all of them; what other sessions do, and since when, shows in full to members of pg_monitor alone.

-- name: server
select
    current_database() as database,
    session_user::text as login,
    fairq.schema_version() as version,
    clock_timestamp() as looked_at,
    pg_has_role('pg_read_all_stats', 'usage') as sees_sessions,
    (select count(*) from pg_stat_activity as a where a.backend_type = 'client backend') as connections,
    current_setting('max_connections')::integer as most_connections,
    pg_notification_queue_usage() as notify_queue

-- name: queues
select
    s.queue, s.paused, s.charge, s.max_running, s.rate, s.backlogged as tenants, s.eligible_tenants, s.queued,
    s.scheduled, s.running, s.started / 60 as per_second, extract(epoch from s.oldest_wait)::double precision as oldest_wait,
    extract(epoch from clock_timestamp() - s.ticked_at)::double precision as last_claim, s.expired, s.dead
from fairq.queue_stats(p_queue => %(queue)s) as s
order by s.queued desc, s.running desc, s.queue collate "C"

-- name: tenants
select
    %(queue)s::text as queue, t.tenant, t.weight, t.queued, t.backlog_share, t.running, t.started / 60 as per_second,
    t.share, t.entitled, extract(epoch from t.oldest_wait)::double precision as oldest_wait, t.lag_jobs, t.lag_seconds,
    t.blocked_by
from fairq.tenant_stats(p_queue => %(queue)s, p_limit => %(limit)s, p_by => %(by)s) as t

-- name: dead
select
    d.job_id, d.queue, d.tenant, d.task, d.attempts,
    extract(epoch from clock_timestamp() - d.finished_at)::double precision as ago,
    left(coalesce(d.last_error ->> 'message', d.last_error::text, 'no error was given'), 500) as error
from fairq.dead_jobs(p_queue => %(queue)s, p_limit => %(limit)s) as d

-- name: locks
-- the row of a queue names the transaction that locked it last; who still runs it still holds it
select
    s.queue, l.pid, a.usename::text as login, a.application_name as application, a.state,
    extract(epoch from clock_timestamp() - a.xact_start)::double precision as age,
    (select count(*) from pg_locks as w where w.transactionid = s.xmax and not w.granted) as waiting
from fairq.schedulers as s
join pg_locks as l on l.transactionid = s.xmax and l.granted and l.pid <> pg_backend_pid()
left join pg_stat_activity as a on a.pid = l.pid
where %(queue)s::text is null or s.queue = %(queue)s
order by age desc nulls last, s.queue

-- name: snapshots
-- what keeps dead rows from being removed, the oldest first; a session may hold them by a snapshot or by an id of its own
select h.kind, h.name, h.login, h.application, h.state, h.age, h.transactions
from (
    select
        case a.backend_type when 'walsender' then 'standby' else 'session' end as kind, a.pid::text as name,
        a.usename::text as login, a.application_name as application, a.state,
        extract(epoch from clock_timestamp() - a.xact_start)::double precision as age,
        greatest(age(a.backend_xmin), age(a.backend_xid)) as transactions
    from pg_stat_activity as a
    where (a.backend_xmin is not null or a.backend_xid is not null) and a.pid <> pg_backend_pid()
      and (a.datid is null or a.datid = (select d.oid from pg_database as d where d.datname = current_database()))
    union all
    select
        'prepared', p.gid, p.owner::text, null, null,
        extract(epoch from clock_timestamp() - p.prepared)::double precision, age(p.transaction)
    from pg_prepared_xacts as p
    where p.database = current_database()
    union all
    select
        'slot', r.slot_name::text, null, null, case when r.active then 'active' else 'inactive' end, null,
        greatest(age(r.xmin), age(r.catalog_xmin))
    from pg_replication_slots as r
    where r.xmin is not null or r.catalog_xmin is not null
) as h
order by h.age desc nulls last, h.transactions desc
limit %(limit)s
