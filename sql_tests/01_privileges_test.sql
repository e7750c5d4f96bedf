-- Who may do what: one table for functions, one for tables. A right that is not written here is a mistake.
select plan(8);

-- functions. The columns: worker, producer, tenant, operator, and anybody.
create temp view allowed as
select v.*
from (values
    ('enqueue_job',          false, true,  true,  false, false),
    ('enqueue_jobs',         false, true,  true,  false, false),
    ('claim_jobs',           true,  false, false, false, false),
    ('renew_job_lease',      true,  false, false, false, false),
    ('renew_job_leases',     true,  false, false, false, false),
    ('complete_job',         true,  false, false, false, false),
    ('complete_jobs',        true,  false, false, false, false),
    ('fail_job',             true,  false, false, false, false),
    ('fail_jobs',            true,  false, false, false, false),
    ('release_job',          true,  false, false, false, false),
    ('release_jobs',         true,  false, false, false, false),
    ('release_expired_jobs', true,  false, false, true,  false),
    ('promote_due_jobs',     true,  false, false, true,  false),
    ('cancel_job',           false, true,  true,  true,  false),
    ('retry_job',            false, false, false, true,  false),
    ('reschedule_job',       false, false, false, true,  false),
    ('prune',                false, false, false, true,  false),
    ('maintain',             false, false, false, true,  false),
    ('reconcile',            false, false, false, true,  false),
    ('erase_tenant',         false, false, false, true,  false),
    ('set_tenant',           false, false, false, true,  false),
    ('pause_tenant',         false, false, false, true,  false),
    ('pause_tenant_because', false, false, false, true,  false),
    ('pause_queue',          false, false, false, true,  false),
    ('resume_queue',         false, false, false, true,  false),
    ('pauses',               false, false, false, true,  false),
    ('resume_tenant',        false, false, false, true,  false),
    ('purge_tenant',         false, false, false, true,  false),
    ('set_queue',            false, false, false, true,  false),
    ('queue_stats',          true,  false, false, true,  false),
    ('tenant_stats',         false, false, false, true,  false),
    ('dead_jobs',            false, false, false, true,  false),
    ('explain_wait',         false, true,  true,  true,  false),
    ('get_job',              false, true,  true,  true,  false),
    ('channel',              true,  true,  true,  true,  false),
    ('current_tenant_id',    true,  true,  true,  true,  false),
    ('tenant_provider',      true,  true,  true,  true,  false),
    ('schema_version',       true,  true,  true,  true,  false)
) as v(name, worker, producer, tenant, operator, anybody);

create temp view found as
select
    p.proname::text as name,
    has_function_privilege('fairq_worker', p.oid, 'execute') as worker,
    has_function_privilege('fairq_producer', p.oid, 'execute') as producer,
    has_function_privilege('fairq_tenant', p.oid, 'execute') as tenant,
    has_function_privilege('fairq_operator', p.oid, 'execute') as operator,
    has_function_privilege('public', p.oid, 'execute') as anybody
from pg_proc as p
where p.pronamespace = 'fairq'::regnamespace;

select set_eq(
    'select * from found where name !~ ''^_''', 'select * from allowed', 'each role may call what the table says'
);
select is_empty(
    'select * from found where name ~ ''^_'' and (worker or producer or tenant or operator or anybody)',
    'nobody may call an internal function'
);
select is_empty($$
    select p.oid::regprocedure, a.grantee::regrole
    from pg_proc as p
    cross join aclexplode(p.proacl) as a
    where p.pronamespace = 'fairq'::regnamespace
      and (a.is_grantable or a.grantee not in (
          'fairq_owner'::regrole, 'fairq_api'::regrole, 'fairq_worker'::regrole, 'fairq_producer'::regrole,
          'fairq_tenant'::regrole, 'fairq_operator'::regrole
      )) and a.grantee <> p.proowner
$$, 'no function is granted to another role, or for passing on');
select bag_eq(
    'select p.proname::text from pg_proc as p where p.pronamespace = ''fairq''::regnamespace and p.proname !~ ''^_''',
    'select name from allowed', 'no public function has a second form'
);

-- tables, views and sequences
create temp view rights as
select
    c.relname::text as relation, g.role_name as role,
    string_agg(lower(g.privilege) || coalesce('(' || g.columns || ')', ''), ' ' order by g.privilege) as may
from pg_class as c
cross join lateral (
    select a.grantee::regrole::text as role_name, a.privilege_type as privilege, null as columns
    from aclexplode(c.relacl) as a
    union all
    select a.grantee::regrole::text, a.privilege_type, string_agg(t.attname, ' ' order by t.attnum)
    from pg_attribute as t
    cross join aclexplode(t.attacl) as a
    where t.attrelid = c.oid
    group by a.grantee, a.privilege_type
) as g
where c.relnamespace = 'fairq'::regnamespace and g.role_name <> 'fairq_owner'
group by c.relname, g.role_name;

select set_eq('select * from rights', $$ values
    -- what the functions need: no change of a job's id, tenant or payload, none at all of the log
    ('jobs', 'fairq_api', 'delete insert select update(priority state attempts run_at last_error changed_xid)'),
    ('leases', 'fairq_api', 'delete insert select update(lease_expires_at cancel_requested_at prepaid)'),
    ('finished_jobs', 'fairq_api', 'delete insert select update(state)'),
    ('job_log', 'fairq_api', 'insert select'),
    ('job_keys', 'fairq_api', 'insert select update(job_id payload_hash expires_at)'),
    ('queues', 'fairq_api', 'insert select update(paused charge max_running rate burst default_lease longest_lease '
        'max_attempts backoff_base backoff_cap backoff_jitter payload_limit key_ttl retention retention_failed notify '
        'read_ahead)'),
    ('tenants', 'fairq_api', 'insert select update(weight max_running paused rate burst)'),
    ('flows', 'fairq_api', 'insert select update(weight max_running paused rate burst tokens tokens_at token_due_at limited '
        'vtime epoch estimate price running head_at head_id served stamp minute started spent)'),
    ('schedulers', 'fairq_api', 'insert select update(queue)'),
    ('ticks', 'fairq_api', 'delete insert select'),
    ('settlements', 'fairq_api', 'delete insert select'),
    ('pause_notes', 'fairq_api', 'delete insert select update(paused_by reason)'),
    ('ready_picks', 'fairq_api', 'delete insert select update(queue)'),
    ('access_grants', 'fairq_api', 'select'),
    ('all_jobs', 'fairq_api', 'select'),
    ('jobs_job_id_seq', 'fairq_api', 'usage'),
    ('dispatch_seq', 'fairq_api', 'usage'),
    ('job_log_log_id_seq', 'fairq_api', 'usage'),
    ('slot_seq', 'fairq_api', 'select'),
    -- tenants read their own rows, without fences
    ('all_jobs', 'fairq_tenant', 'select'),
    ('job_events', 'fairq_tenant', 'select'),
    ('jobs', 'fairq_tenant', 'select(job_id queue tenant task payload priority state attempts max_attempts run_at cost '
        'operation_key traceparent last_error created_at)'),
    ('leases', 'fairq_tenant', 'select(job_id queue tenant lease_owner attempt started_at cancel_requested_at)'),
    ('finished_jobs', 'fairq_tenant', 'select(job_id queue tenant task payload priority state attempts max_attempts run_at '
        'cost operation_key traceparent last_error created_at started_at finished_at lease_owner result)'),
    ('job_log', 'fairq_tenant', 'select'),
    -- operators read everything else
    ('all_jobs', 'fairq_operator', 'select'),
    ('job_events', 'fairq_operator', 'select'),
    ('jobs', 'fairq_operator', 'select'),
    ('leases', 'fairq_operator', 'select(job_id queue tenant caller lease_owner attempt started_at lease_expires_at '
        'cancel_requested_at dispatch prepaid epoch)'),
    ('finished_jobs', 'fairq_operator', 'select(job_id queue tenant task payload priority state attempts max_attempts run_at '
        'cost operation_key traceparent last_error created_at started_at finished_at lease_owner result)'),
    ('job_log', 'fairq_operator', 'select'),
    ('job_keys', 'fairq_operator', 'select'),
    ('queues', 'fairq_operator', 'select'),
    ('tenants', 'fairq_operator', 'select'),
    ('flows', 'fairq_operator', 'select'),
    ('schedulers', 'fairq_operator', 'select'),
    ('ticks', 'fairq_operator', 'select'),
    ('settlements', 'fairq_operator', 'select'),
    ('pause_notes', 'fairq_operator', 'select'),
    ('ready_picks', 'fairq_operator', 'select'),
    ('access_grants', 'fairq_operator', 'delete insert select update')
$$, 'each role has the rights on tables and columns that the table says, and no other role has any');

select is_empty($$
    select c.relname, w.who
    from pg_class as c
    cross join (values
        ('fairq_api'), ('fairq_worker'), ('fairq_producer'), ('fairq_tenant'), ('fairq_operator')
    ) as w(who)
    where c.relnamespace = 'fairq'::regnamespace and c.relkind in ('r', 'p')
      and has_table_privilege(w.who, c.oid, 'truncate, trigger, references')
$$, 'nobody but the owner may truncate a table or hang a trigger or foreign key on it');

-- the roles themselves
select set_eq($$
    select r.rolname::text, r.rolcanlogin, r.rolinherit, r.rolsuper, r.rolbypassrls, r.rolcreaterole, r.rolcreatedb
    from pg_roles as r where r.rolname ~ '^fairq_(owner|api|worker|producer|tenant|operator)$'
$$, $$ values
    ('fairq_owner', false, false, false, false, false, false),
    ('fairq_api', false, false, false, false, false, false),
    ('fairq_worker', false, false, false, false, false, false),
    ('fairq_producer', false, false, false, false, false, false),
    ('fairq_tenant', false, false, false, false, false, false),
    ('fairq_operator', false, false, false, false, false, false)
$$, 'no role of fairq can log in or has a power beyond its grants');
select set_eq($$
    select a.grantee::regrole::text, lower(a.privilege_type)
    from pg_namespace as n cross join aclexplode(n.nspacl) as a where n.nspname = 'fairq'
$$, $$ values
    ('fairq_owner', 'usage'), ('fairq_owner', 'create'), ('fairq_api', 'usage'), ('fairq_worker', 'usage'),
    ('fairq_producer', 'usage'), ('fairq_tenant', 'usage'), ('fairq_operator', 'usage')
$$, 'only the owner may create something in the schema');

select * from finish();
