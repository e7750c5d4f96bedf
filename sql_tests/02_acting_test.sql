-- The rights of the groups and of the two powers, tried out by logins of their own.
select plan(43);

-- given two tenants, each with a job in every table a tenant may read
select fairq_test.given_jobs(t.tenant, 4) from (values ('a'), ('b')) as t(tenant);
create temp table held as select * from fairq_test.claim(6);
-- a snooze, a success and a job that runs on, for each
select fairq.release_job(h.job_id, h.lease_token, '1 hour'), 'snoozed'
from (select distinct on (tenant) * from held order by tenant, job_id) as h;
select fairq.complete_job(h.job_id, h.lease_token, '{"secret": true}')
from (select distinct on (tenant) * from held order by tenant, job_id desc) as h;

-- in one transaction, so that the logins are gone afterwards, whatever happens
begin;
create role fairq_test_tenant login in role fairq_tenant;
create role fairq_test_both login in role fairq_tenant, fairq_operator, fairq_api;
create role fairq_test_worker login in role fairq_worker;
create role fairq_test_producer login in role fairq_producer;
create role fairq_test_operator login in role fairq_operator;
create role fairq_test_nobody login;
create role fairq_test_reader login in role pg_read_all_data, pg_write_all_data;
grant select on held to public;

create temp view seen as
select 'jobs' as place, j.tenant from fairq.jobs as j
union all select 'leases', l.tenant from fairq.leases as l
union all select 'finished_jobs', f.tenant from fairq.finished_jobs as f
union all select 'job_log', g.tenant from fairq.job_log as g
union all select 'all_jobs', v.tenant from fairq.all_jobs as v
union all select 'job_events', e.tenant from fairq.job_events as e;
alter view seen set (security_invoker = true);
grant select on seen to public;

select is(
    (select count(distinct s.tenant || s.place) from seen as s), 12::bigint, 'both tenants have rows everywhere'
);

-- Acting as tenant a
set local session authorization fairq_test_tenant;
select ok(
    row_security_active('fairq.jobs'),
    'row security is active for the attacker: the rest of this file means something'
);
select is_empty('select * from seen', 'without a tenant nothing is seen, and nothing fails');
set local app.tenant_id = '';
select is_empty('select * from seen', 'an empty setting, as SET LOCAL leaves it, is no tenant');
set local app.tenant_id = 'a';
select set_eq('select distinct place, tenant from seen', $$ values
    ('jobs', 'a'), ('leases', 'a'), ('finished_jobs', 'a'), ('job_log', 'a'), ('all_jobs', 'a'), ('job_events', 'a')
$$, 'a tenant sees its own rows, in tables and views, and no other');
set local app.tenant_id = 'b';
select set_eq('select distinct tenant from seen', array['b'], 'and b sees those of b');
set local app.tenant_id = 'c';
select is_empty('select * from seen', 'a tenant without jobs sees none');
set local app.tenant_id = 'a';

select throws_ok(format('select %s', t.what), '42501', null, 'a tenant may not read a token: ' || t.what)
from (values
    ('lease_token from fairq.leases'), ('* from fairq.leases'), ('l from fairq.leases as l'),
    ('to_jsonb(l) from fairq.leases as l'), ('1 from fairq.leases where lease_token is null'),
    ('1 from fairq.leases order by lease_token'), ('caller from fairq.leases'),
    ('token_hash from fairq.finished_jobs'),
    ('changed_xid from fairq.jobs')
) as t(what);
select throws_ok(t.what, '42501', null, 'a tenant may not: ' || t.what)
from (values
    ('update fairq.jobs set priority = 0'), ('delete from fairq.jobs'), ('delete from fairq.finished_jobs'),
    ('insert into fairq.jobs (tenant, task) values (''a'', ''t'')'), ('truncate fairq.jobs'),
    ('select from fairq.tenants'), ('select from fairq.flows'), ('select from fairq.job_keys'),
    ('select from fairq.access_grants'), ('set row_security = off; select count(*) from fairq.jobs'),
    ('alter table fairq.jobs disable row level security'), ('select nextval(''fairq.jobs_job_id_seq'')')
) as t(what);

-- Acting as a tenant that was given more by mistake
set local session authorization fairq_test_both;
set local app.tenant_id = 'a';
select set_eq('select distinct tenant from seen', array['a'], 'the fence holds whatever other roles the tenant has');

-- Acting as worker and producer
set local session authorization fairq_test_worker;
select is_empty($$
    select c.oid::regclass from pg_class as c
    where c.relnamespace = 'fairq'::regnamespace and c.relkind in ('r', 'v')
      and has_any_column_privilege(c.oid, 'select, insert, update')
$$, 'a worker has no right on any table');
select throws_ok('select from fairq.jobs', '42501', null, 'a worker may not read jobs');
select throws_ok('select * from fairq.enqueue_job(''a'', ''t'')', '42501', null, 'a worker may not enqueue');
select throws_ok('select fairq._caller()', '42501', null, 'a worker may not call an internal function');
set local session authorization fairq_test_producer;
select throws_ok('select from fairq.jobs', '42501', null, 'a producer may not read jobs');
select throws_ok('select * from fairq.claim_jobs(p_owner => ''p'')', '42501', null, 'a producer may not claim');

-- Acting as anybody
set local session authorization fairq_test_nobody;
select throws_ok('select * from fairq.enqueue_job(''a'', ''t'')', '42501', null, 'a plain login may call nothing');
select throws_ok('select from fairq.jobs', '42501', null, 'a plain login may read nothing');
set local session authorization fairq_test_reader;
select is_empty('select job_id from fairq.jobs', 'who reads and writes everything elsewhere sees nothing here');
select throws_ok(
    'insert into fairq.access_grants (role_name, verb) values (''fairq_test_reader'', ''claim'')', '42501', null,
    'and may not grant itself something'
);

-- Acting as operator
set local session authorization fairq_test_operator;
select set_eq('select distinct tenant from seen', array['a', 'b'], 'an operator sees every tenant');
select throws_ok('select lease_token from fairq.leases', '42501', null, 'an operator may not read tokens');

-- Acting as an owner of rows: the force of row security does not make it blind
set local session authorization default;
set local role fairq_owner;
select set_eq(
    'select distinct tenant from seen', array['a', 'b'], 'the owner sees every row, though row security is forced'
);
with changed as (update fairq.jobs set last_error = '{}' returning 1)
select is((select count(*) from changed), 6::bigint, 'the owner''s update reaches every row');
reset role;

select * from finish();
rollback;
