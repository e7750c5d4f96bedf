-- fail: running -> scheduled (another attempt later), queued, dead, or cancelled.
select plan(51);

select fairq_test.given_jobs('a', 12, p_max_attempts => 3);
create temp table held as select row_number() over () as n, c.* from fairq_test.claim(12) as c;
grant select on held to public;

-- one
select is(fairq.fail_job(h.job_id, h.lease_token, 'boom'), 'scheduled', 'a job that fails waits for another attempt')
from held as h where h.n = 1;
select results_eq(
    'select v.state, v.attempts, v.last_error, v.started_at is null from fairq.all_jobs as v join held as h using (job_id) where h.n = 1',
    $$ values ('scheduled', 1, '{"message": "boom", "length": 4}'::jsonb, true) $$,
    'with the attempt counted and the error kept'
);
select ok(
    v.run_at - g.created_at between interval '4 s' and interval '5 s',
    'after the queue''s wait, a fifth of it left to chance'
)
from fairq.all_jobs as v join held as h using (job_id) join fairq.job_log as g using (job_id) where h.n = 1;
select is(
    fairq_test.timeline(h.job_id), 'created 0, claimed 1 by worker, retry_scheduled 1 by worker', 'the timeline knows'
)
from held as h where h.n = 1;
select is(g.details ->> 'error', '{"length": 4, "message": "boom"}', 'and why') from fairq.job_log as g;
select ok((g.details ->> 'delay_seconds')::numeric between 4 and 5, 'and for how long') from fairq.job_log as g;
select is(
    fairq.fail_job(h.job_id, h.lease_token, p_retry_delay => '2 days'), 'scheduled', 'a wait of the worker''s own'
)
from held as h where h.n = 2;
select ok(v.run_at - clock_timestamp() between interval '47 h' and interval '48 h', 'is taken as it is')
from fairq.all_jobs as v join held as h using (job_id) where h.n = 2;
select is(v.last_error, null, 'no error is none')
from fairq.all_jobs as v join held as h using (job_id) where h.n = 2;
select is(fairq.fail_job(h.job_id, h.lease_token, 'x', '0'), 'queued', 'no wait at all') from held as h where h.n = 3;
select results_eq(
    'select v.state, v.run_at from fairq.all_jobs as v join held as h using (job_id) where h.n = 3',
    'select ''queued'', h.run_at from held as h where h.n = 3', 'the job is at its old place'
);
select is(fairq.fail_job(h.job_id, h.lease_token, 'x', p_retry => false), 'dead', 'a failure for good')
from held as h where h.n = 4;
select is(
    to_jsonb(f) - '{run_at, created_at, finished_at, started_at, token_hash, slot}'::text[],
    jsonb_build_object(
        'job_id', h.job_id, 'queue', 'default', 'tenant', 'a', 'task', 'work', 'payload', '{}'::jsonb, 'priority', 2,
        'state', 'dead',
        'attempts', 1, 'max_attempts', 3, 'cost', 1, 'operation_key', null, 'traceparent', null, 'last_error',
        '{"message": "x", "length": 1}'::jsonb,
        'lease_owner', 'worker', 'result', null
    ),
    'ends the job, with all that was known of it'
)
from held as h join fairq.finished_jobs as f using (job_id) where h.n = 4;
select is(fairq_test.timeline(h.job_id), 'created 0, claimed 1 by worker, dead 1 by worker', 'its timeline is whole')
from held as h where h.n = 4;

-- whatever is wrong, one answer
create temp table before as select * from fairq.leases;
select is(fairq.fail_job(h.job_id, gen_random_uuid()), null, 'not under another token') from held as h where h.n = 5;
select is(fairq.fail_job(h.job_id, o.lease_token), null, 'nor under the token of another job')
from held as h cross join held as o where h.n = 5 and o.n = 6;
select is(fairq.fail_job(-1, h.lease_token), null, 'an unknown job') from held as h where h.n = 5;
select is(fairq.fail_job(h.job_id, h.lease_token), null, 'a job that waits again') from held as h where h.n = 1;
select is(fairq.fail_job(h.job_id, h.lease_token), null, 'a job that is dead: a late failure changes nothing')
from held as h where h.n = 4;
select fairq_test.as_role('fairq_worker');
select is(fairq.fail_job(h.job_id, h.lease_token), null, 'nor by another caller with the right token')
from held as h where h.n = 5;
select fairq_test.as_role('none');
select results_eq(
    'select * from fairq.leases order by 1', 'select * from before order by 1', 'and no lease has changed'
);
select fairq_test.given_lease_over(h.job_id) from held as h where h.n = 5;
select is(
    fairq.fail_job(h.job_id, h.lease_token), null, 'a lease that is over: the attempt ends as expired, not as failed'
)
from held as h where h.n = 5;
select is(fairq.release_expired_jobs(), 1, 'which it does then');
create temp table second as select * from fairq_test.claim(1, p_owner => 'second');
select is(s.attempt, 2, 'the job is tried again') from second as s;
select is(fairq.fail_job(s.job_id, h.lease_token), null, 'the first attempt''s failure is not the second''s')
from second as s join held as h using (job_id);

-- attempts: how often a job runs
select fairq_test.given_jobs('a', 1, 'once', p_max_attempts => 1);
select fairq_test.given_jobs('a', 1, 'twice', p_max_attempts => 2);
create temp table once as select * from fairq_test.claim(1, 'once');
select is(
    fairq.fail_job(o.job_id, o.lease_token, 'x', '0'), 'dead', 'with one attempt, the first failure is the last'
)
from once as o;
create temp table twice as select * from fairq_test.claim(1, 'twice');
select is(fairq.fail_job(t.job_id, t.lease_token, 'x', '0'), 'queued', 'with two, there is another') from twice as t;
create temp table again as select * from fairq_test.claim(1, 'twice');
select is(a.attempt, 2, 'the second') from again as a;
select is(fairq.fail_job(a.job_id, a.lease_token, 'y', '0'), 'dead', 'and then no more') from again as a;
select results_eq(
    'select f.attempts, f.last_error ->> ''message'' from fairq.finished_jobs as f join again using (job_id)',
    $$ values (2, 'y') $$,
    'the dead job has its attempts and its last error'
);
select is_empty('select * from fairq_test.claim(1, ''twice'')', 'it is not tried again');
select is(
    fairq_test.timeline(a.job_id),
    'created 0, claimed 1 by worker, retry_scheduled 1 by worker, claimed 2 by worker, dead 2 by worker',
    'the timeline has each attempt'
)
from again as a;

-- cancellation
select fairq.cancel_job(h.job_id) from held as h where h.n in (6, 7);
select is(
    fairq.fail_job(h.job_id, h.lease_token, 'stopped'), 'cancelled',
    'a job that was to be cancelled and fails is cancelled'
)
from held as h where h.n = 6;
select is(
    fairq.fail_job(h.job_id, h.lease_token, 'stopped', p_retry => false), 'cancelled', 'also when it fails for good'
)
from held as h where h.n = 7;
select results_eq(
    'select f.state, f.last_error ->> ''message'' from fairq.finished_jobs as f join held as h using (job_id) where h.n = 6',
    $$ values ('cancelled', 'stopped') $$, 'with the reason that its worker gave'
);

-- many
select results_eq(
    $$ select o.job_id, o.outcome
       from (select array_agg(h.job_id order by h.n desc) as ids, array_agg(h.lease_token order by h.n desc) as tokens,
                    array_agg('error ' || h.n order by h.n desc) as errors from held as h where h.n in (1, 4, 8, 9)) as b
       cross join fairq.fail_jobs(b.ids || -1::bigint, b.tokens || gen_random_uuid(), b.errors || null::text, '1 hour') as o $$,
    $$ select coalesce(h.job_id, -1), v.outcome from (values
           (1, 9, 'scheduled'), (2, 8, 'scheduled'), (3, 4, 'lost'), (4, 1, 'lost'), (5, null, 'lost')
       ) as v(at, n, outcome) left join held as h on h.n = v.n order by v.at $$,
    'a batch says of each what became of it, in input order'
);
select is(v.last_error ->> 'message', 'error 9', 'each job has its own error')
from fairq.all_jobs as v join held as h using (job_id) where h.n = 9;
select results_eq(
    $$ select o.outcome from (select array_agg(h.job_id) as ids, array_agg(h.lease_token) as tokens from held as h where h.n in (10, 11)) as b
       cross join fairq.fail_jobs(b.ids, b.tokens, p_retry => false) as o $$,
    array['dead', 'dead'], 'a batch that fails for good'
);
select results_eq(
    $$ select o.outcome from held as h cross join fairq.fail_jobs(array[h.job_id, h.job_id], array[h.lease_token, h.lease_token], p_retry_delay => '0') as o
       where h.n = 12 $$,
    array['queued', 'lost'], 'a job named twice fails once'
);
select fairq_test.claim(1, 'twice', p_tenant => 'nobody');
select is(f.running, 0, 'the scheduler has counted every end') from fairq.flows as f where f.queue = 'twice';

-- refusals
select fairq_test.refuses(format('select fairq.%s', c.call), '22023', c.names, 'refused: ' || c.call)
from (values
    ('fail_job(null, gen_random_uuid())', 'p_job_id'),
    ('fail_job(1, null)', 'p_token'),
    ('fail_job(1, gen_random_uuid(), p_retry_delay => ''-1 s'')', 'p_retry_delay'),
    ('fail_job(1, gen_random_uuid(), p_retry_delay => ''3651 days'')', 'p_retry_delay'),
    ('fail_job(1, gen_random_uuid(), p_retry => null)', 'p_retry'),
    ('fail_jobs(array[1], array[gen_random_uuid()], ''{}'')', 'p_errors'),
    ('fail_jobs(array[1], array[gen_random_uuid()], array[''x'', ''y''])', 'p_errors'),
    ('fail_jobs(array[1, 2], array[gen_random_uuid(), gen_random_uuid()], ''[0:1]={x,y}'')', 'p_errors'),
    ('fail_jobs(array[1, 2], array[gen_random_uuid(), gen_random_uuid()], ''{{x,y}}'')', 'p_errors'),
    ('fail_jobs(array[1], array[gen_random_uuid()], p_retry_delay => ''-1 s'')', 'p_retry_delay'),
    ('fail_jobs(array[1], array[gen_random_uuid()], p_retry => null)', 'p_retry')
) as c(call, names);

select * from finish();
