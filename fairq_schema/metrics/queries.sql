-- What exporters ask, as a login with the rights of an operator and of pg_monitor. The names of the columns are those
-- of the metrics without their prefix; nothing is null. Each costs what the functions of fairq say, whatever the backlog.

-- name: fairq_queue
select
    s.queue,
    s.queued as queued_jobs,
    s.scheduled as scheduled_jobs,
    s.running as running_jobs,
    coalesce(s.max_running, 'Infinity'::double precision) as max_running_jobs,
    s.dead as dead_jobs,
    s.expired as expired_leases,
    s.backlogged as backlogged_tenants,
    s.eligible_tenants,
    s.paused::integer as paused,
    s.started / 60 as starts_per_second,
    coalesce(extract(epoch from s.oldest_wait), 0)::double precision as oldest_wait_seconds,
    coalesce(extract(epoch from coalesce(clock_timestamp() - s.ticked_at, s.oldest_wait)), 0)::double precision
        as last_claim_age_seconds
from fairq.queue_stats() as s

-- name: fairq_tenant
select
    q.queue,
    t.tenant,
    t.queued as queued_jobs,
    t.running as running_jobs,
    coalesce(t.backlog_share, 0) as backlog_ratio,
    coalesce(t.share, 0) as share_ratio,
    coalesce(t.entitled, 0) as entitled_ratio,
    coalesce(extract(epoch from t.oldest_wait), 0)::double precision as oldest_wait_seconds,
    coalesce(t.blocked_by <> 'no work', false)::integer as blocked
from (
    select s.queue
    from fairq.schedulers as s
    cross join lateral (
        select k.backlogged from fairq.ticks as k where k.queue = s.queue order by k.tick_id desc limit 1
    ) as n
    order by n.backlogged desc, s.queue
    limit 10
) as q
cross join lateral fairq.tenant_stats(p_queue => q.queue, p_limit => 5, p_by => 'backlog') as t

-- name: fairq_lock
select
    s.queue,
    coalesce(max(extract(epoch from clock_timestamp() - a.xact_start)), 0)::double precision as held_seconds,
    count(w.pid) as waiting_sessions
from fairq.schedulers as s
left join pg_locks as l on l.transactionid = s.xmax and l.granted and l.pid <> pg_backend_pid()
left join pg_stat_activity as a on a.pid = l.pid
left join pg_locks as w on w.transactionid = s.xmax and not w.granted
group by s.queue

-- name: fairq_held
select k.kind, coalesce(max(h.age), 0)::double precision as age_seconds, coalesce(max(h.transactions), 0) as transactions
from (values ('session'), ('standby'), ('prepared'), ('slot')) as k(kind)
left join (
    select
        case a.backend_type when 'walsender' then 'standby' else 'session' end as kind,
        extract(epoch from clock_timestamp() - a.xact_start) as age,
        greatest(age(a.backend_xmin), age(a.backend_xid)) as transactions
    from pg_stat_activity as a
    where (a.backend_xmin is not null or a.backend_xid is not null) and a.pid <> pg_backend_pid()
      -- a snapshot of another database holds nothing here
      and (a.datid is null or a.datid = (select d.oid from pg_database as d where d.datname = current_database()))
    union all
    select 'prepared', extract(epoch from clock_timestamp() - p.prepared), age(p.transaction)
    from pg_prepared_xacts as p
    where p.database = current_database()
    union all
    select 'slot', null, greatest(age(r.xmin), age(r.catalog_xmin)) from pg_replication_slots as r
) as h on h.kind = k.kind
group by k.kind

-- name: fairq_table
select
    r.name as table,
    sum(t.n_live_tup)::bigint as live_rows,
    sum(t.n_dead_tup)::bigint as dead_rows,
    sum(t.n_tup_ins)::bigint as inserted_rows_total,
    sum(t.n_tup_upd)::bigint as updated_rows_total,
    sum(t.n_tup_del)::bigint as deleted_rows_total,
    sum(pg_total_relation_size(t.relid))::bigint as size_bytes,
    max(age(c.relfrozenxid)) as frozen_age_transactions
from pg_stat_user_tables as t
join pg_class as c on c.oid = t.relid
cross join lateral (
    -- a partition counts for its table
    select p.relname::text as name from pg_class as p where p.oid = coalesce(pg_partition_root(t.relid), t.relid)
) as r
where c.relnamespace = 'fairq'::regnamespace
  and c.relkind = 'r'
group by r.name

-- name: fairq_server
select fairq.schema_version() as schema_version, pg_notification_queue_usage() as notification_queue_ratio
