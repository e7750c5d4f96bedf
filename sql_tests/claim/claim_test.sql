-- claim: queued -> running. A lease is born.
select plan(51);

-- given one job; when it is claimed
create temp table job as
select * from fairq.enqueue_job('a', 'work', '{"x": 1}', p_priority => 1, p_max_attempts => 3);
create temp table held as select * from fairq.claim_jobs(p_owner => 'worker 1');
select is(
    to_jsonb(h) - '{lease_token, lease_expires_at, run_at, created_at}'::text[],
    jsonb_build_object(
        'job_id', j.job_id, 'queue', 'default', 'tenant', 'a', 'task', 'work', 'payload', '{"x": 1}'::jsonb,
        'priority', 1,
        'attempt', 1, 'max_attempts', 3, 'traceparent', null
    ),
    'the worker gets all it needs'
)
from held as h cross join job as j;
select results_eq(
    'select h.run_at, h.created_at from held as h', 'select v.run_at, v.created_at from fairq.all_jobs as v',
    'with the job''s times'
);
select is(
    to_jsonb(l) - '{started_at, lease_expires_at, dispatch}'::text[],
    jsonb_build_object(
        'job_id', h.job_id, 'queue', 'default', 'tenant', 'a', 'caller', session_user, 'lease_owner', 'worker 1',
        'attempt', 1,
        'lease_token', h.lease_token, 'cancel_requested_at', null, 'prepaid', 1000, 'weight', 1, 'epoch', 0
    ),
    'the lease says who holds the job, and under which token'
)
from held as h join fairq.leases as l on l.job_id = h.job_id;
select is(l.lease_expires_at - l.started_at, interval '30 seconds', 'a lease that is not said is the queue''s')
from fairq.leases as l;
select ok(clock_timestamp() - l.started_at < interval '20 seconds', 'it starts by the clock of the server')
from fairq.leases as l;
select is(h.lease_expires_at, l.lease_expires_at, 'the worker knows when it ends')
from held as h cross join fairq.leases as l;
select is(substr(h.lease_token::text, 15, 1), '4', 'the token is a random uuid') from held as h;
select is(j.attempts, 0, 'the job itself is left alone') from fairq.jobs as j;
select results_eq(
    'select v.state, v.attempts, v.lease_owner from fairq.all_jobs as v', $$ values ('running', 1, 'worker 1') $$,
    'the job is seen to run'
);
select is(fairq_test.timeline(j.job_id), 'created 0, claimed 1 by worker 1', 'its timeline says so') from job as j;
select is_empty('select * from fairq_test.claim()', 'nobody else gets it');

-- limits and leases
select fairq_test.given_jobs('a', 5);
select is(count(*), 2::bigint, 'no more are claimed than are asked for') from fairq_test.claim(2);
select is(count(*), 3::bigint, 'no more than there are') from fairq_test.claim(1000);
select fairq_test.given_jobs('a', 3);
select is(h.lease_expires_at - l.started_at, interval '1 millisecond', 'the shortest lease')
from fairq_test.claim(1, p_lease => '1 millisecond') as h cross join lateral (
    select ll.started_at from fairq.leases as ll where ll.job_id = h.job_id offset 0
) as l;
create temp table longest as select * from fairq_test.claim(1, p_lease => '1 hour');
select is(l.lease_expires_at - l.started_at, interval '1 hour', 'the longest lease')
from longest join fairq.leases as l using (job_id);
select is(
    (select count(distinct lease_token) from fairq.leases), (select count(*) from fairq.leases),
    'each lease has its own token'
);

-- order
select fairq_test.given_jobs('z', 1, 'order', p_priority => 3, p_task => 'fourth');
select fairq_test.given_jobs('z', 1, 'order', p_priority => 0, p_task => 'first');
select fairq_test.given_jobs('z', 2, 'order', p_priority => 1, p_task => 'second');
select fairq.enqueue_job('z', 'earlier', p_queue => 'order', p_priority => 1, p_run_at => '2000-01-01');
select results_eq(
    'select task from fairq_test.claim(10, ''order'')', array['first', 'earlier', 'second', 'second', 'fourth'],
    'within a tenant: by priority, then by time'
);
select results_eq(
    'select l.task from (select j.task from fairq.leases as ll join fairq.jobs as j using (job_id) where ll.queue = ''order''
     order by ll.dispatch) as l', array['first', 'earlier', 'second', 'second', 'fourth'],
    'the dispatch numbers keep the order'
);
select fairq_test.given_jobs('heavy', 20, 'share');
select fairq_test.given_jobs('light', 20, 'share');
select fairq_test.given_tenant('heavy', 3, p_queue => 'share');
select results_eq(
    'select c.tenant collate "default", count(*) from fairq_test.claim(12, ''share'') as c group by 1 order by 1',
    $$ values ('heavy', 9::bigint), ('light', 3) $$, 'between tenants: by weight'
);

-- caps and pauses
select fairq_test.given_jobs('capped', 5, 'caps');
select fairq_test.given_tenant('capped', p_max_running => 2, p_queue => 'caps');
create temp table capped as select * from fairq_test.claim(10, 'caps');
select is(count(*), 2::bigint, 'a tenant runs no more than its cap') from capped;
select is_empty('select * from fairq_test.claim(10, ''caps'')', 'however often one asks');
select fairq.complete_job(c.job_id, c.lease_token) from capped as c limit 1;
select is(count(*), 1::bigint, 'until one has ended') from fairq_test.claim(10, 'caps');
select fairq_test.given_tenant('capped', p_max_running => 0, p_queue => 'caps');
select fairq.complete_job(c.job_id, c.lease_token) from capped as c offset 1;
select is_empty('select * from fairq_test.claim(10, ''caps'')', 'a cap of 0: none starts');
select fairq_test.given_tenant('capped', p_paused => true, p_queue => 'caps');
select is_empty('select * from fairq_test.claim(10, ''caps'')', 'a paused tenant: none starts');
select fairq_test.given_tenant('capped', p_queue => 'caps');
select fairq.set_queue('caps', p_paused => true);
select is_empty('select * from fairq_test.claim(10, ''caps'')', 'a paused queue: none starts');
select fairq.set_queue('caps', p_paused => false);
select is(count(*), 2::bigint, 'and all go on afterwards') from fairq_test.claim(10, 'caps');

-- rates, and what the queue as a whole may start
select fairq_test.given_jobs(t.tenant, 4, 'rates') from (values ('slow'), ('full'), ('free')) as t(tenant);
select fairq.set_tenant('rates', 'slow', p_rate => 0.001, p_burst => 2);
select fairq.set_tenant('rates', 'full', p_rate => 0.000001, p_burst => 1000000);
select results_eq(
    'select c.tenant collate "default", count(*) from fairq_test.claim(100, ''rates'') as c group by 1 order by 1',
    $$ values ('free', 4::bigint), ('full', 4), ('slow', 2) $$, 'a tenant starts no more at once than its bucket holds'
);
select results_eq(
    'select f.limited, f.token_due_at > clock_timestamp() from fairq.flows as f where f.queue = ''rates'' and f.tenant = ''slow''',
    $$ values (true, true) $$, 'and has to wait for the next token'
);
select fairq_test.given_tenant('slow', p_queue => 'rates');
select is(count(*), 2::bigint, 'or for its rate to be taken away') from fairq_test.claim(100, 'rates');
select fairq_test.given_jobs(t.tenant, 4, 'narrow') from (values ('a'), ('b')) as t(tenant);
select fairq.set_queue('narrow', p_max_running => 3);
create temp table narrow as select * from fairq_test.claim(100, 'narrow');
select results_eq(
    'select n.tenant collate "default" from narrow as n', array['a', 'b', 'a'],
    'a queue starts no more than its cap, in fair order'
);
select fairq.complete_job(n.job_id, n.lease_token) from narrow as n limit 2;
select is(count(*), 2::bigint, 'and as many again as have ended') from fairq_test.claim(100, 'narrow');
select fairq.set_queue('narrow', p_max_running => -1, p_rate => 0.001, p_burst => 2);
select is(count(*), 2::bigint, 'a rate that is new finds a full bucket') from fairq_test.claim(100, 'narrow');
select is_empty('select * from fairq_test.claim(100, ''narrow'')', 'and an empty one stays empty for a while');

-- one tenant only
select fairq_test.given_jobs(t.tenant, 2, 'scoped') from (values ('a'), ('b')) as t(tenant);
select results_eq(
    'select c.tenant collate "default" from fairq_test.claim(10, ''scoped'', p_tenant => ''b'') as c',
    array['b', 'b'],
    'a claim for one tenant gets its jobs alone'
);
select is_empty(
    'select * from fairq_test.claim(10, ''scoped'', p_tenant => ''nobody'')', 'an unknown tenant has none'
);
select is_empty('select * from fairq_test.claim(10, ''nowhere'')', 'an unknown queue has none');

select fairq_test.given_jobs('two', 1, q.queue) from (values ('left'), ('right')) as q(queue);
select results_eq(
    'select c.queue, j.queue collate "default" from fairq_test.claim(10, ''left'') as c join fairq.jobs as j using (job_id)',
    $$ values ('left', 'left') $$, 'a claim in one queue gets nothing of another, though it is the same tenant''s'
);

-- the transaction around it
begin;
select fairq_test.given_jobs('own', 1, 'tx');
select is_empty(
    'select * from fairq_test.claim(10, ''tx'')',
    'a job is not claimable before its transaction commits, not even there'
);
rollback;
select fairq_test.given_jobs('own', 1, 'tx');
begin;
select is(count(*), 1::bigint, 'a claim that is rolled back') from fairq_test.claim(10, 'tx');
rollback;
select is(
    (select attempt from fairq_test.claim(10, 'tx')), 1, 'has not happened: the job is still at its first attempt'
);
begin;
select is(count(*), 0::bigint, 'a claim in an open transaction') from fairq_test.claim(10, 'tx');
select is(
    current_setting('idle_in_transaction_session_timeout'), '10s',
    'may not be forgotten for long: the queue waits for it'
);
select is(current_setting('synchronous_commit'), 'on', 'it is as durable as the caller wants');
select is(count(*), 0::bigint, 'a claim may say that losing it is no loss')
from fairq.claim_jobs('tx', 'w', p_async_commit => true);
select is(current_setting('synchronous_commit'), 'off', 'then its commit does not wait for the disk');
commit;
select is(current_setting('synchronous_commit'), 'on', 'the next one does');
begin;
set local idle_in_transaction_session_timeout = '3s';
select is(count(*), 0::bigint, 'a caller stricter than that') from fairq_test.claim(10, 'tx');
select is(current_setting('idle_in_transaction_session_timeout'), '3s', 'stays so');
rollback;

-- what is due is seen to on the way
select fairq_test.given_jobs('a', 1, 'due', p_delay => '1 microsecond', p_task => 'later');
select is((select task from fairq_test.claim(10, 'due')), 'later', 'a claim promotes what is due');
select fairq_test.given_lease_over(l.job_id) from fairq.leases as l where l.queue = 'due';
select is(
    (select attempt from fairq_test.claim(10, 'due')), 2, 'and takes back what has expired, for the next attempt'
);

-- scheduler and queue know what runs
select is(f.running, 1, 'the scheduler has counted one end and two starts')
from fairq.flows as f where f.queue = 'due';
select is(
    (select count(*) from fairq.flows as f where f.running <> (
        select count(*) from fairq.leases as l where l.queue = f.queue and l.tenant = f.tenant
    ) and not exists (select from fairq.settlements as s
    where s.queue = f.queue)), 0::bigint, 'and is right everywhere'
);

select * from finish();
