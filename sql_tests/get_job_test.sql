-- see: get_job, for those who have no right on any table.
select plan(9);

begin;
create role fairq_test_tenant login in role fairq_tenant;
create role fairq_test_producer login in role fairq_producer;
create role fairq_test_worker login in role fairq_worker;
create temp table mine as select v.tenant, e.job_id from (values ('a'), ('b')) as v(tenant)
cross join fairq.enqueue_job(v.tenant, 't', '{"x": 1}') as e;
grant select on mine to public;

-- Acting as producer
set local session authorization fairq_test_producer;
select results_eq(
    'select g.tenant collate "default", g.state, g.payload from mine as m cross join fairq.get_job(m.job_id) as g order by 1',
    $$ values ('a', 'queued', '{"x": 1}'::jsonb), ('b', 'queued', '{"x": 1}') $$, 'a producer gets every job'
);
select is_empty('select * from fairq.get_job(-1)', 'an id that no job has gives no row');
select throws_ok('select * from fairq.get_job(null)', '22023', null, 'null is no job');

-- Acting as worker
set local session authorization fairq_test_worker;
select throws_ok('select * from fairq.get_job(1)', '42501', null, 'a worker gets its jobs by claiming them');

-- Acting as tenant
set local session authorization fairq_test_tenant;
select throws_ok(
    'select * from fairq.get_job(-1)', '42501', 'this session acts for no tenant',
    'without a tenant there is an error, whether or not there is such a job'
);
select throws_ok(
    format('select * from fairq.get_job(%s)', m.job_id), '42501', 'this session acts for no tenant', 'the same one'
) from mine as m where m.tenant = 'a';
select throws_ok(
    format('select * from fairq.explain_wait(%s)', m.job_id), '42501', 'this session acts for no tenant',
    'and so it is with explain_wait'
) from mine as m where m.tenant = 'a';
set local app.tenant_id = 'a';
select results_eq(
    'select g.job_id from mine as m cross join fairq.get_job(m.job_id) as g',
    'select m.job_id from mine as m where m.tenant = ''a''', 'a tenant gets its own job alone'
);
set local app.tenant_id = 'c';
select is_empty(
    'select g.job_id from mine as m cross join fairq.get_job(m.job_id) as g', 'and one without jobs gets none'
);
set local session authorization default;

select * from finish();
rollback;
