-- claim: what it refuses, and for whom it finds nothing.
select plan(40);

select fairq_test.given_jobs(t.tenant, 2) from (values ('a'), ('b')) as t(tenant);

select fairq_test.refuses(
    format('select fairq.claim_jobs(%s)', c.arguments), '22023', c.names, 'refused: ' || c.arguments
)
from (values
    ('''default''', 'p_owner'),
    ('''default'', null', 'p_owner'),
    ('''default'', ''''', 'p_owner'),
    ('''default'', ''  ''', 'p_owner'),
    ('''default'', repeat(''x'', 201)', 'p_owner'),
    ('null, ''w''', 'p_queue'),
    (''''', ''w''', 'p_queue'),
    ('''*'', ''w''', 'p_queue'),
    ('repeat(''x'', 201), ''w''', 'p_queue'),
    ('''default'', ''w'', null', 'p_limit'),
    ('''default'', ''w'', 0', 'p_limit'),
    ('''default'', ''w'', -1', 'p_limit'),
    ('''default'', ''w'', 1001', 'p_limit'),
    ('''default'', ''w'', 2147483647', 'p_limit'),
    ('''default'', ''w'', 1, ''0''', 'p_lease'),
    ('''default'', ''w'', 1, ''-1 s''', 'p_lease'),
    ('''default'', ''w'', 1, ''999 microseconds''', 'p_lease'),
    ('''default'', ''w'', 1, ''1 hour 1 microsecond''', 'p_lease'),
    ('''default'', ''w'', 1, ''178000000 years''', 'p_lease'),
    -- the first that is wrong
    ('''*'', null, 0, ''0''', 'p_queue'),
    ('''default'', ''w'', 0, ''0''', 'p_limit'),
    ('''default'', ''w'', p_tenant => ''''', 'p_tenant'),
    ('''default'', ''w'', p_tenant => ''*''', 'p_tenant'),
    ('''default'', ''w'', p_tenant => ''@own''', 'p_tenant'),
    ('''default'', ''w'', p_tenant => repeat(''x'', 201)', 'p_tenant')
) as c(arguments, names);
select fairq_test.refuses(
    'select fairq.claim_jobs(p_owner => ''w'', p_lease => ''-12 mons 360 days 1 hour'')', '22023', 'p_lease',
    'refused: a lease that goes back in months and forward in days'
);
-- before 17 there is no infinite interval, and so the argument itself is none
select fairq_test.refuses(
    'select fairq.claim_jobs(p_owner => ''w'', p_lease => ''infinity'')',
    case when s.is_17 then '22023' else '22007' end, case when s.is_17 then 'p_lease' else 'interval' end,
    'refused: an endless lease'
)
from (select current_setting('server_version_num')::integer >= 170000 as is_17) as s;
select is_empty('select from fairq.leases', 'nothing refused has left a lease');
select is_empty('select from fairq.schedulers', 'or taken the queue''s lock');

-- isolation: what is committed decides, not what an old snapshot shows
begin isolation level repeatable read;
select throws_ok('select fairq.claim_jobs(p_owner => ''w'')', '0A000', null, 'no claim at REPEATABLE READ');
rollback;
begin isolation level serializable;
select throws_ok('select fairq.claim_jobs(p_owner => ''w'')', '0A000', null, 'no claim at SERIALIZABLE');
rollback;
begin isolation level read uncommitted;
select lives_ok('select fairq.claim_jobs(p_owner => ''w'')', 'READ UNCOMMITTED is READ COMMITTED here');
rollback;
begin read only;
select throws_ok('select fairq.claim_jobs(p_owner => ''w'')', '25006', null, 'no claim in a read-only transaction');
rollback;

-- grants: what a worker may not claim looks like nothing to do
begin;
create role fairq_test_a login;
create role fairq_test_none login;
grant usage on schema fairq to fairq_test_a, fairq_test_none;
grant execute on function fairq.claim_jobs(text, text, integer, interval, text, boolean) to fairq_test_a, fairq_test_none;
insert into fairq.access_grants (role_name, verb, queue, tenant) values
    ('fairq_test_a', 'claim', 'default', 'a'), ('fairq_test_a', 'claim', '*', 'a'), ('fairq_test_none', 'claim', 'other', '*'),
    ('fairq_test_none', 'enqueue', '*', '*'), ('a role that is gone', 'claim', '*', '*');
set local session authorization fairq_test_none;
select is_empty(
    'select * from fairq.claim_jobs(p_owner => ''w'')', 'a grant for another queue, or another verb, is none'
);
set local session authorization fairq_test_a;
select is_empty(
    'select * from fairq.claim_jobs(p_owner => ''w'', p_tenant => ''b'')', 'a tenant that is not granted'
);
select results_eq(
    'select c.tenant collate "default" from fairq.claim_jobs(p_owner => ''w'') as c', array['a', 'a'],
    'what is granted, once though it is granted twice, and nothing else'
);
set local session authorization default;
select results_eq(
    'select distinct l.caller from fairq.leases as l', array['fairq_test_a'],
    'the lease belongs to the login that claimed'
);
grant fairq_test_a to fairq_test_none;
set local session authorization fairq_test_none;
set local role fairq_test_a;
select is_empty('select * from fairq.claim_jobs(p_owner => ''w'')', 'all of a run: none is left');
reset role;
set local session authorization default;

-- poor settings of the session do no harm
set local plan_cache_mode = force_custom_plan;
set local enable_indexscan = off;
set local statement_timeout = '20s';
select is(count(*), 2::bigint, 'planner settings of the caller are not those of the claim') from fairq_test.claim(5);
select throws_ok('select fairq.claim_jobs(p_limit => 5)', '22023', null, 'an owner must be named');

select * from finish();
rollback;
