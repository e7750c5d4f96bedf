-- enqueue under a key: one operation, one job, for as long as the key stands.
select plan(21);

create function pg_temp.enqueue(
    p_tenant text, p_key text, p_payload jsonb default '{}', p_task text default 't', p_ttl interval default null,
    p_queue text default 'default'
) returns fairq.enqueued_job language sql as $fn$
    select fairq.enqueue_job(p_tenant, p_task, p_payload, p_queue, p_key => p_key, p_key_ttl => p_ttl)
$fn$;
create temp table first as select * from pg_temp.enqueue('a', 'k');
grant select on first to public;

-- again
select results_eq(
    'select * from pg_temp.enqueue(''a'', ''k'')', 'select job_id, false from first',
    'the same key and payload again: the first job'
);
select results_eq(
    'select * from pg_temp.enqueue(''a'', ''k'', p_queue => ''other'')', 'select job_id, false from first',
    'also for another queue'
);
select is(count(*), 1::bigint, 'there is one job') from fairq.jobs;
select throws_ok(
    'select pg_temp.enqueue(''a'', ''k'', ''{"x": 1}'')', 'QF002', null,
    'the same key for another payload is a mistake'
);
select throws_ok(
    'select pg_temp.enqueue(''a'', ''k'', p_task => ''u'')', 'QF002', null, 'and so it is for another task'
);
select is((pg_temp.enqueue('a', 'space', '{"a": 1, "b": 2}')).created, true, 'a key for a payload of two fields');
select is(
    (pg_temp.enqueue('a', 'space', '{"b":2,   "a":1}')).created, false,
    'the payload written in another way is the same'
);

-- tenants
select is((pg_temp.enqueue('b', 'k', '{"x": 1}')).created, true, 'the key of another tenant is another key');
select isnt((pg_temp.enqueue('b', 'k', '{"x": 1}')).job_id, f.job_id, 'and stands for a job of its own')
from first as f;

-- the key outlives the job
create temp table held as select * from fairq_test.claim(1, p_tenant => 'a');
select fairq.complete_job(h.job_id, h.lease_token) from held as h;
select results_eq(
    'select * from pg_temp.enqueue(''a'', ''k'')', 'select job_id, false from first',
    'the job has succeeded: still the first job'
);
select fairq.cancel_job((pg_temp.enqueue('a', 'space', '{"a": 1, "b": 2}')).job_id);
select is(
    (pg_temp.enqueue('a', 'space', '{"a": 1, "b": 2}')).created, false, 'nor does a cancelled job free its key'
);

-- the time to live
select ok(
    k.expires_at between clock_timestamp() + interval '23 hours' and clock_timestamp() + interval '1 day',
    'a key stands for as long as its queue says'
)
from fairq.job_keys as k where k.operation_key = 'space';
select is((pg_temp.enqueue('a', 'short', p_ttl => '1 microsecond')).created, true, 'a key for the shortest time');
create temp table again as select * from pg_temp.enqueue('a', 'short', '{"other": true}');
select is(a.created, true, 'an expired key is free, also for another payload') from again as a;
select is(k.job_id, a.job_id, 'and stands for the new job')
from again as a join fairq.job_keys as k on k.operation_key = 'short';
select is((pg_temp.enqueue('a', 'short', '{"other": true}')).job_id, a.job_id, 'from then on') from again as a;
update fairq.job_keys as k set expires_at = clock_timestamp() where k.operation_key = 'short';
select is((pg_temp.enqueue('a', 'short')).created, true, 'at the very moment it expires it is free');

-- no key
select is((pg_temp.enqueue('a', null)).created, true, 'without a key every job is new');
select is((pg_temp.enqueue('a', null)).created, true, 'however often');
select is((pg_temp.enqueue('a', repeat('k', 200))).created, true, 'the longest key is taken whole');
select is((pg_temp.enqueue('a', repeat('k', 199))).created, true, 'and is not cut');

select * from finish();
