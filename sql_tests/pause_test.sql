-- pause_tenant, resume_tenant: queued jobs of one tenant wait, the others go on.
select plan(20);

create function pg_temp.wish(p_tenant text) returns jsonb language sql as $fn$
    select to_jsonb(t) - '{queue, tenant, changed_xid}'::text[] from fairq.tenants as t
    where t.queue = 'q' and t.tenant = p_tenant
$fn$;

-- given
select fairq.set_queue('q', p_charge => 'jobs');
select fairq.set_tenant('q', 'a', 2, 5, p_rate => 100, p_burst => 50);
select fairq_test.given_jobs('a', 5, 'q');
select fairq_test.given_jobs('b', 5, 'q');
create temp table running as select * from fairq_test.claim(2, 'q');

-- when, then
select fairq.pause_tenant('q', 'a');
select is(
    pg_temp.wish('a'), '{"weight": 2, "max_running": 5, "paused": true, "rate": 100, "burst": 50}',
    'of its wish only the pause changes'
);
select bag_eq('select c.tenant::text from fairq_test.claim(3, ''q'') as c', array['b', 'b', 'b'], 'nothing of it is started');
select ok(fairq.complete_job(r.job_id, r.lease_token), 'what runs goes on') from running as r where r.tenant = 'a' limit 1;
select fairq.pause_tenant('q', 'a');
select is((pg_temp.wish('a') ->> 'paused')::boolean, true, 'paused twice is paused');
select fairq.resume_tenant('q', 'a');
select is(
    pg_temp.wish('a'), '{"weight": 2, "max_running": 5, "paused": false, "rate": 100, "burst": 50}',
    'of its wish only the pause ends'
);
select ok(count(*) filter (where c.tenant = 'a') > 0, 'it is started again') from fairq_test.claim(4, 'q') as c;

-- a tenant without a row of its own keeps what it had
select fairq.set_tenant('q', '*', 3, 7, p_rate => 20, p_burst => 10);
select fairq.pause_tenant('q', 'b');
select is(
    pg_temp.wish('b'), '{"weight": 3, "max_running": 7, "paused": true, "rate": 20, "burst": 10}',
    'what * gives is kept under a pause'
);
select fairq.pause_tenant('q', '*');
select is((pg_temp.wish('*') ->> 'paused')::boolean, true, 'all without a row may be paused');
select fairq_test.given_jobs('c', 1, 'q');
select is_empty('select * from fairq_test.claim(9, ''q'') as c where c.tenant = ''c''', 'and those are');
select fairq.resume_tenant('q', '*');
select is(count(*), 1::bigint, 'until they are resumed') from fairq_test.claim(9, 'q') as c where c.tenant = 'c';

-- what the pause has cost is at most one job of precedence: R11
select fairq.resume_tenant('q', 'b');
select fairq.set_queue('s', p_charge => 'jobs');
select fairq_test.given_jobs(t.tenant, 20, 's') from (values ('d'), ('e')) as t(tenant);
select fairq.pause_tenant('s', 'e');
select fairq_test.claim(10, 's');
select fairq.resume_tenant('s', 'e');
select results_eq(
    'select c.tenant collate "default" from fairq_test.claim(8, ''s'') as c',
    array['e', 'd', 'e', 'd', 'e', 'd', 'e', 'd'],
    'after a pause in which another had ten jobs a tenant is one job ahead, and not ten'
);
select fairq.resume_tenant('r', 'x');
select is_empty('select * from fairq_test.claim(9, ''r'')', 'a queue that nobody has used yet may be told as well');

-- refusals
select fairq_test.refuses(
    format('select fairq.%s(%s)', f.name, c.arguments), '22023', c.names, format('refused: %s %s', f.name, c.arguments)
)
from (values ('pause_tenant'), ('resume_tenant')) as f(name)
cross join (values
    ('null, ''a''', 'p_queue'), ('''*'', ''a''', 'p_queue'), ('''q'', null', 'p_tenant')
) as c(arguments, names);
select fairq_test.as_role('fairq_tenant');
select throws_ok('select fairq.pause_tenant(''q'', ''a'')', '42501', null, 'a tenant may not pause another');
select throws_ok('select fairq.resume_tenant(''q'', ''a'')', '42501', null, 'nor end a pause');
select fairq_test.as_role('none');

select * from finish();
