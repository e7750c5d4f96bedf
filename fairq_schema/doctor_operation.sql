-- What hurts the operation of fairq in this database: one statement for each thing that `fairq doctor` looks for, which
-- gives a row (severity, subject, what, remedy) for each time it is found. Those that read tables of fairq take an
-- operator; what other sessions do, and since when, shows to members of pg_monitor.
--
-- Two settings say what is long: fairq_doctor.patience (default 5 minutes) and fairq_doctor.transactions (1,000,000).

-- name: O1 held snapshots
with long as (
    select
        coalesce(nullif(current_setting('fairq_doctor.patience', true), '')::interval, interval '5 minutes') as patience,
        coalesce(nullif(current_setting('fairq_doctor.transactions', true), '')::bigint, 1000000) as transactions
)
select
    case when h.age > 12 * l.patience or h.transactions > 50 * l.transactions then 'error' else 'warning' end as severity,
    h.subject,
    h.what || ': rows that died since are not removed, and tables and indexes grow' as what,
    h.remedy
from long as l
cross join lateral (
    select
        format('process %s of %s', a.pid, coalesce(quote_ident(a.usename), '?')) as subject,
        clock_timestamp() - a.xact_start as age, greatest(age(a.backend_xmin), age(a.backend_xid))::bigint as transactions,
        format(
            'this session (%s) has been in its transaction since %s', coalesce(nullif(a.application_name, ''), a.backend_type),
            date_trunc('second', a.xact_start)
        ) as what,
        format(
            'let it commit, or end it: select pg_terminate_backend(%s); and set '
            'idle_in_transaction_session_timeout, in 17 transaction_timeout, for its login', a.pid
        ) as remedy
    from pg_stat_activity as a
    where a.pid <> pg_backend_pid() and coalesce(a.backend_type, '') not in ('autovacuum worker', 'walsender')
      and (a.backend_xmin is not null or a.backend_xid is not null)
      -- a snapshot of another database holds nothing here
      and (a.datid is null or a.datid = (select d.oid from pg_database as d where d.datname = current_database()))
    union all
    select
        format('standby %s', coalesce(nullif(a.application_name, ''), a.pid::text)), null, age(a.backend_xmin),
        format('a query on this standby holds a snapshot that is %s transactions old', age(a.backend_xmin)),
        'end long queries there, set max_standby_streaming_delay, or turn off its hot_standby_feedback'
    from pg_stat_activity as a
    where a.backend_type = 'walsender' and a.backend_xmin is not null
    union all
    select
        format('prepared transaction %L', p.gid), clock_timestamp() - p.prepared, age(p.transaction),
        format('it was prepared by %I at %s', p.owner, date_trunc('second', p.prepared)),
        format('finish it: commit prepared %1$L; or rollback prepared %1$L;', p.gid)
    from pg_prepared_xacts as p
    where p.database = current_database()
) as h
where h.age > l.patience or h.transactions > l.transactions
union all
select
    'warning', format('replication slot %L', s.slot_name),
    'nobody reads from this slot: it keeps WAL and, with an xmin, dead rows until the disk is full',
    format('connect its reader, or drop it: select pg_drop_replication_slot(%L);', s.slot_name)
from pg_replication_slots as s
where not s.active and coalesce(s.restart_lsn::text, s.xmin::text, s.catalog_xmin::text) is not null

-- name: O2 invalid indexes
select
    'error' as severity, i.indexrelid::regclass::text as subject,
    'this index is not valid: no statement can ride it, and every one that should reads its table' as what,
    format('reindex index concurrently %s;', i.indexrelid::regclass) as remedy
from pg_index as i
join pg_class as c on c.oid = i.indrelid
where not (i.indisvalid and i.indisready and i.indislive)
  and c.relnamespace = 'fairq'::regnamespace

-- name: O3 autovacuum
select
    'error' as severity, s.name as subject, 'this is off: dead rows stay, and tables and indexes grow' as what,
    format('alter system set %s = on; select pg_reload_conf();', s.name) as remedy
from pg_settings as s
where s.name in ('autovacuum', 'track_counts') and s.setting = 'off'
union all
select
    'error', c.oid::regclass::text, 'autovacuum is off for this table',
    format('alter table %s reset (autovacuum_enabled);', c.oid::regclass)
from pg_class as c
where c.relnamespace = 'fairq'::regnamespace
  and exists (
      select from pg_options_to_table(c.reloptions) as o
      where o.option_name = 'autovacuum_enabled' and not o.option_value::boolean
  )

-- name: O4 notification queue
select
    case when n.used > 0.75 then 'error' else 'warning' end as severity, 'NOTIFY' as subject,
    format('the notification queue is %s %% full; when it is full, every commit that notifies fails', round(100 * n.used)) as what,
    'a session listens in a transaction that it does not end: look for it in pg_stat_activity, and end it' as remedy
from (select pg_notification_queue_usage()::numeric as used) as n
where n.used > 0.25

-- name: O5 clock
select
    'error' as severity, format('queue %s', q.queue) as subject,
    format(
        'its last claim was at %s, which is still to come: the clock was set back, and until then no time is late', t.ticked_at
    ) as what,
    'slew clocks, never step them back (chrony: makestep only at boot); leases and delays last that much longer' as remedy
from (select s.queue from fairq.schedulers as s) as q
cross join lateral (
    select k.ticked_at from fairq.ticks as k where k.queue = q.queue order by k.tick_id desc limit 1
) as t
where t.ticked_at > clock_timestamp() + interval '5 seconds'
union all
select
    'error', format('queue %s', q.queue),
    format('a lease ends at %s, later than any lease may: it was given by another clock', l.lease_expires_at),
    'its job comes back then, or when its worker ends it; check the clocks of servers that were failed over'
from (select s.queue from fairq.schedulers as s) as q
cross join lateral (
    select ll.lease_expires_at from fairq.leases as ll where ll.queue = q.queue order by ll.lease_expires_at desc limit 1
) as l
cross join lateral (
    select w.longest_lease from fairq.queues as w where w.queue in (q.queue, '*') order by w.queue = '*' limit 1
) as w
where l.lease_expires_at > clock_timestamp() + w.longest_lease + interval '5 seconds'

-- name: O6 settings of logins
with groups as (
    select distinct a.grantee as role, (p.proname = 'enqueue_job') as enqueues
    from pg_proc as p
    cross join aclexplode(p.proacl) as a
    where p.oid in (
        select f.oid from pg_proc as f
        where f.pronamespace = 'fairq'::regnamespace
          and f.proname in ('enqueue_job', 'claim_jobs', 'set_queue')
    ) and a.grantee not in (0, p.proowner)
), logins as (
    select
        r.oid as role, quote_ident(r.rolname) as subject,
        format('alter role %I%%s reset %%s;', r.rolname) as remedy, bool_or(g.enqueues) as enqueues
    from pg_roles as r
    join groups as g on g.role = r.oid or pg_has_role(r.oid, g.role, 'MEMBER')
    where r.rolcanlogin and not r.rolsuper
    group by r.oid, r.rolname
), said as (
    select l.subject, l.enqueues, format(l.remedy, d.place, split_part(c.pair, '=', 1)) as remedy, c.pair
    from (
        select s.setrole, s.setconfig, case when s.setdatabase = 0 then '' else format(' in database %I', current_database()) end as place
        from pg_db_role_setting as s
        where s.setdatabase in (0, (select b.oid from pg_database as b where b.datname = current_database())) and s.setrole <> 0
    ) as d
    join logins as l on l.role = d.setrole
    cross join unnest(d.setconfig) as c(pair)
    union all
    select
        format('database %I', current_database()), true,
        format('alter database %I reset %s;', current_database(), split_part(c.pair, '=', 1)), c.pair
    from pg_db_role_setting as s
    cross join unnest(s.setconfig) as c(pair)
    where s.setrole = 0 and s.setdatabase = (select b.oid from pg_database as b where b.datname = current_database())
    union all
    select 'the server', true, format('alter system reset %s; select pg_reload_conf();', s.name), s.name || '=' || s.boot
    from (
        select p.name, p.setting || coalesce(p.unit, '') as boot from pg_settings as p
        where p.source in ('configuration file', 'command line', 'environment variable')
    ) as s
), pairs as (
    select
        s.subject, s.remedy, s.enqueues, lower(split_part(s.pair, '=', 1)) as name, substr(s.pair, strpos(s.pair, '=') + 1) as value
    from said as s
), spans as (
    -- a number without a unit is one of milliseconds
    select p.*, case
        when p.name ~ '_timeout$' and p.value ~ '^\d+ *(us|ms|s|min|h|d)?$'
            then case when p.value ~ '^\d+$' then p.value || 'ms' else p.value end::interval
    end as span
    from pairs as p
)
select v.severity, format('%s, %s = %s', s.subject, s.name, s.value) as subject, v.what, s.remedy
from spans as s
join lateral (
    values
    ('default_transaction_isolation', lower(s.value) not in ('read committed', 'read uncommitted'), 'error', 'every claim is refused (0A000)'),
    ('default_transaction_read_only', lower(s.value) in ('on', 'true', 'yes', '1'), 'error', 'nothing can be enqueued, claimed or completed (25006)'),
    ('row_security', lower(s.value) in ('off', 'false', 'no', '0'), 'error', 'every function is refused (42501)'),
    ('session_replication_role', lower(s.value) = 'replica', 'error', 'triggers do not fire: the scheduler never hears what operators change'),
    ('synchronous_commit', lower(s.value) in ('off', 'false', 'no', '0') and s.enqueues, 'warning', 'a crash of the server may lose jobs whose enqueue has committed'),
    ('enable_indexscan', lower(s.value) in ('off', 'false', 'no', '0'), 'warning', 'statements that should ride an index sort tables'),
    ('search_path', s.value ~* ',\s*"?pg_catalog', 'warning', 'what is in a schema before pg_catalog stands in for functions of PostgreSQL'),
    ('statement_timeout', s.span > interval '0' and s.span < interval '1 second', 'warning', 'a claim that has to wait for its turn is cut off (57014)'),
    ('transaction_timeout', s.span > interval '0' and s.span < interval '1 second', 'warning', 'a claim that has to wait for its turn is cut off, with its session'),
    ('lock_timeout', s.span > interval '0' and s.span < interval '100 milliseconds', 'warning', 'a claim that has to wait for its turn gives up (55P03)'),
    ('idle_session_timeout', s.span > interval '0', 'warning', 'sessions that wait for work by LISTEN are ended')
) as v(name, is_bad, severity, what) on v.name = s.name and v.is_bad

-- name: O7 leases
select
    'warning' as severity, format('queue %s', q.queue) as subject,
    format(
        'a lease lasts another %s, its jobs take %s: if that worker dies, its job waits as long',
        justify_interval(date_trunc('second', l.lease_expires_at - clock_timestamp())), make_interval(secs => round(t.mean) / 1000)
    ) as what,
    'claim for a few times what a job takes (p_lease, or set_queue(p_default_lease)), and renew while working' as remedy
from (select s.queue from fairq.schedulers as s) as q
cross join lateral (
    select k.mean from fairq.ticks as k where k.queue = q.queue order by k.tick_id desc limit 1
) as t
cross join lateral (
    select ll.lease_expires_at from fairq.leases as ll where ll.queue = q.queue order by ll.lease_expires_at desc limit 1
) as l
where t.mean is not null
  and l.lease_expires_at - clock_timestamp() > greatest(interval '10 minutes', make_interval(secs => t.mean / 10))

-- name: O8 counts of the scheduler
-- in one snapshot: what the scheduler believes to run is what runs, what is picked for the next claims, and what has ended
-- without its knowing yet
select
    'error' as severity, format('queue %s', q.queue) as subject,
    format('the scheduler counts %s jobs that run, and there are %s: caps do not hold', t.running, n.running) as what,
    format('select * from fairq.reconcile(%L);', q.queue) as remedy
from (select s.queue from fairq.schedulers as s) as q
cross join lateral (
    select k.running from fairq.ticks as k where k.queue = q.queue order by k.tick_id desc limit 1
) as t
cross join lateral (
    select
        (select count(*) from (select from fairq.leases as l where l.queue = q.queue limit 100000) as c)
        + coalesce((
            select sum((e).ended) from fairq.settlements as s cross join unnest(s.endings) as e where s.queue = q.queue
        ), 0)
        + coalesce((select sum(cardinality(r.jobs)) from fairq.ready_picks as r where r.queue = q.queue), 0) as running
) as n
where t.running <> n.running and n.running < 100000

-- name: O9 dead rows
select
    'warning' as severity, t.relid::regclass::text as subject,
    format(
        '%s of its rows are dead, %s live; last vacuumed: %s', t.n_dead_tup, t.n_live_tup,
        coalesce(date_trunc('second', greatest(t.last_vacuum, t.last_autovacuum))::text, 'never')
    ) as what,
    format('look for what holds snapshots (O1) and at autovacuum (O3); then: vacuum %s;', t.relid::regclass) as remedy
from pg_stat_user_tables as t
join pg_class as c on c.oid = t.relid
where c.relnamespace = 'fairq'::regnamespace
  and c.relname in ('jobs', 'leases', 'flows', 'ticks', 'settlements', 'ready_picks', 'job_keys')
  and t.n_dead_tup > 10000 and t.n_dead_tup > 2 * t.n_live_tup

-- name: O10 locks of queues
select
    'error' as severity, format('queue %s', s.queue) as subject,
    format(
        'process %s of %I (%s) has held its lock since %s, %s: nobody else can claim',
        a.pid, a.usename, a.application_name, date_trunc('second', a.xact_start), a.state
    ) as what,
    format('claim in a transaction of its own; now: select pg_terminate_backend(%s);', a.pid) as remedy
from fairq.schedulers as s
join pg_locks as l on l.transactionid = s.xmax and l.granted and l.pid <> pg_backend_pid()
join pg_stat_activity as a on a.pid = l.pid
where clock_timestamp() - a.xact_start
    > coalesce(nullif(current_setting('fairq_doctor.patience', true), '')::interval, interval '5 minutes') / 30

-- name: O11 transaction ids
select
    case when n.age > 1500000000 then 'error' else 'warning' end as severity, n.subject,
    format(
        'its oldest %s is %s old, and autovacuum should have frozen it at %s: at 2,100,000,000 the server stops writing',
        n.kind, n.age, n.limit
    ) as what,
    'look for what holds snapshots (O1) and at autovacuum (O3); then: vacuum (freeze), table by table' as remedy
from (
    select format('database %I', d.datname) as subject, 'transaction id' as kind, age(d.datfrozenxid)::bigint as age,
        current_setting('autovacuum_freeze_max_age')::bigint as limit
    from pg_database as d
    where d.datname = current_database()
    union all
    select format('database %I', d.datname), 'multixact id', mxid_age(d.datminmxid),
        current_setting('autovacuum_multixact_freeze_max_age')::bigint
    from pg_database as d
    where d.datname = current_database()
    union all
    select c.oid::regclass::text, 'transaction id', age(c.relfrozenxid), current_setting('autovacuum_freeze_max_age')::bigint
    from pg_class as c
    where c.relkind = 'r'
      and c.relnamespace = 'fairq'::regnamespace
) as n
where n.age > 2 * n.limit or n.age > 1500000000

-- name: O12 queues that stand still
with long as (
    select coalesce(nullif(current_setting('fairq_doctor.patience', true), '')::interval, interval '5 minutes') as patience
)
select
    'warning' as severity, format('queue %s', s.queue) as subject,
    case
        when s.ticked_at is null then format('%s jobs wait, and nobody has ever claimed from it', s.queued)
        when s.queued = 0 then format('%s leases are over, and nobody has claimed since %s', s.expired, date_trunc('second', s.ticked_at))
        else format('%s jobs wait, and nobody has claimed since %s', s.queued, date_trunc('second', s.ticked_at))
    end as what,
    'start workers for it, or pause it: then it is meant; claims also take back what leases have lost' as remedy
from long as l
cross join fairq.queue_stats() as s
where not s.paused and coalesce(s.max_running > 0, true)
  and (s.queued > 0 and s.oldest_wait > l.patience or s.expired > 0)
  and coalesce(s.ticked_at < clock_timestamp() - l.patience, true)

-- name: O13 connections
select
    'warning' as severity, 'max_connections' as subject,
    format('%s of %s connections are taken: the next ones are refused', n.taken, n.most) as what,
    'share connections by a pooler (pgbouncer in transaction mode), or let sessions that idle end' as remedy
from (
    select
        (select count(*) from pg_stat_activity as a where a.backend_type = 'client backend') as taken,
        current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer as most
) as n
where n.taken > 0.9 * n.most

-- name: O14 durability
select
    'error' as severity, s.name as subject,
    'this is off: a crash of the machine may leave a database that cannot be read, and lose any job' as what,
    format('alter system set %s = on; select pg_reload_conf();', s.name) as remedy
from pg_settings as s
where s.name in ('fsync', 'full_page_writes') and s.setting = 'off'
union all
select
    'info', 'recovery', 'this server is a standby: jobs can be looked at here, not enqueued or claimed', 'connect to the primary'
where pg_is_in_recovery()

-- name: O15 what this login does not see
select
    'info' as severity, quote_ident(session_user) as subject,
    'since when other sessions hold snapshots and locks, this login does not see (O1, O10)' as what,
    format('grant pg_monitor to %I;', session_user) as remedy
where not pg_has_role('pg_read_all_stats', 'usage')

-- name: O16 upkeep
-- maintain() leaves a job that has ended to its partition, until twice its retention
select
    'warning' as severity, format('queue %s', q.queue) as subject,
    format('jobs that ended at %s are still there; the retention is %s', date_trunc('second', o.finished_at), w.longest) as what,
    'run fairq maintain every few minutes (cron, pg_cron or a worker), and see which task lags' as remedy
from (select s.queue from fairq.schedulers as s) as q
cross join lateral (
    select greatest(r.retention, r.retention_failed) as longest from fairq.queues as r
    where r.queue in (q.queue, '*') order by r.queue = '*' limit 1
) as w
cross join lateral (
    select least(
        (
            select f.finished_at from fairq.finished_jobs as f
            where f.queue = q.queue and f.state = 'succeeded' order by f.finished_at limit 1
        ),
        (
            select f.finished_at from fairq.finished_jobs as f
            where f.queue = q.queue and f.state <> 'succeeded' order by f.finished_at limit 1
        )
    ) as finished_at
) as o
where o.finished_at < clock_timestamp() - 2 * w.longest - interval '1 day'
union all
select
    'warning', 'job_keys', format('keys that expired at %s are still there', date_trunc('second', k.expires_at)),
    'run fairq maintain every few minutes (cron, pg_cron or a worker), and see which task lags'
from (select j.expires_at from fairq.job_keys as j order by j.expires_at limit 1) as k
where k.expires_at < clock_timestamp() - interval '1 day'
union all
select
    'error', c.oid::regclass::text,
    format('it has %s partitions of 4: what belongs into one that is missing goes to partition 0', n.partitions),
    'fairq check says which; attach it again, with its constraints and rights'
from pg_class as c
cross join lateral (select count(*) as partitions from pg_inherits as i where i.inhparent = c.oid) as n
where c.relnamespace = 'fairq'::regnamespace and c.relkind = 'p' and n.partitions <> 4
