-- enqueue: for whom a caller may.
select plan(20);

begin;
create role fairq_test_producer login in role fairq_producer;
create role fairq_test_tenant login in role fairq_tenant;
create role fairq_test_narrow login;
create role fairq_test_heir login in role fairq_test_narrow;
create role fairq_test_none login;
grant usage on schema fairq to fairq_test_narrow, fairq_test_none;
grant execute on function fairq.enqueue_job(
    text, text, jsonb, text, timestamptz, interval, integer, integer, text, interval, double precision, text
) to fairq_test_narrow, fairq_test_none;
grant execute on function fairq.enqueue_jobs(jsonb) to fairq_test_narrow;
insert into fairq.access_grants (role_name, verb, queue, tenant) values
    ('fairq_test_narrow', 'enqueue', 'q', 'a'), ('fairq_test_narrow', 'enqueue', 'q', 'b'),
    ('fairq_test_narrow', 'claim', '*', '*');

-- Acting as producer
set local session authorization fairq_test_producer;
select lives_ok(
    'select fairq.enqueue_job(''anybody'', ''t'', p_queue => ''anywhere'')',
    'a producer enqueues for every tenant, in every queue'
);
select fairq_test.refuses(
    'select fairq.enqueue_job(p_task => ''t'')', '22023', 'p_tenant', 'and has to say for whom'
);

-- Acting as tenant
set local session authorization fairq_test_tenant;
select fairq_test.refuses(
    'select fairq.enqueue_job(p_task => ''t'')', '42501', 'no tenant', 'a session without a tenant enqueues for nobody'
);
select throws_ok('select fairq.enqueue_job(''a'', ''t'')', '42501', null, 'not even by naming one');
set local app.tenant_id = 'a';
select lives_ok('select fairq.enqueue_job(''a'', ''t'')', 'a tenant enqueues for itself');
select lives_ok('select fairq.enqueue_job(p_task => ''own'')', 'it need not say so');
select throws_ok('select fairq.enqueue_job(''b'', ''t'')', '42501', null, 'and for nobody else');
select throws_ok(
    'select fairq.enqueue_jobs(''[{"task": "t"}, {"tenant": "b", "task": "t"}]'')', '42501', null,
    'in a batch neither'
);
select results_eq(
    'select outcome from fairq.enqueue_jobs(''[{"task": "t"}, {"tenant": "a", "task": "t"}]'')',
    array['created', 'created'],
    'a batch for itself, said or not'
);
select set_eq('select distinct tenant from fairq.all_jobs', array['a'], 'all of it is its own');
set local app.tenant_id = '';
select throws_ok('select fairq.enqueue_job(''a'', ''t'')', '42501', null, 'an empty setting is no tenant');
set local app.tenant_id = '*';
select throws_ok('select fairq.enqueue_job(''b'', ''t'')', '42501', null, 'who calls itself * is not everybody');

-- Acting as a role with two tenants in one queue, and as one that has it
set local session authorization fairq_test_heir;
select lives_ok(
    'select fairq.enqueue_job(''a'', ''t'', p_queue => ''q'')', 'a grant counts for whoever has the role'
);
select lives_ok('select fairq.enqueue_job(''b'', ''t'', p_queue => ''q'')', 'each row of it');
select throws_ok(
    'select fairq.enqueue_job(''c'', ''t'', p_queue => ''q'')', '42501',
    'enqueue is not granted to role fairq_test_heir for queue q and tenant c',
    'another tenant is not granted, and the refusal says what was asked'
);
select throws_ok('select fairq.enqueue_job(''a'', ''t'', p_queue => ''r'')', '42501', null, 'nor another queue');
select throws_ok(
    'select fairq.enqueue_jobs(''[{"tenant": "a", "task": "t", "queue": "q"}, {"tenant": "a", "task": "t", "queue": "r"}]'')',
    '42501', null,
    'nor in a batch, after one that is'
);

-- Acting as a role with the right to call, and no grant
set local session authorization fairq_test_none;
select throws_ok('select fairq.enqueue_job(''a'', ''t'')', '42501', null, 'the right to call is not enough');
set local session authorization default;
insert into fairq.access_grants (role_name, verb) values ('fairq_test_none', 'enqueue');
set local session authorization fairq_test_none;
select lives_ok('select fairq.enqueue_job(''a'', ''t'')', 'a new grant is in force at once');
set local session authorization default;
delete from fairq.access_grants where role_name = 'fairq_test_none';
set local session authorization fairq_test_none;
select throws_ok('select fairq.enqueue_job(''a'', ''t'')', '42501', null, 'and so is its end');
set local session authorization default;

select * from finish();
rollback;
