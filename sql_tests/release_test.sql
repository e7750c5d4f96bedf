-- release: running -> queued, the attempt given back; scheduled when snoozed.
select plan(31);

select fairq_test.given_jobs('a', 8, p_max_attempts => 1);
create temp table held as select row_number() over () as n, c.* from fairq_test.claim(8) as c;
grant select on held to public;

-- one
select is(fairq.release_job(h.job_id, h.lease_token), 'queued', 'a job is given back') from held as h where h.n = 1;
select results_eq(
    'select v.state, v.attempts, v.run_at, v.last_error from fairq.all_jobs as v join held as h using (job_id) where h.n = 1',
    'select ''queued'', 0, h.run_at, null::jsonb from held as h where h.n = 1',
    'the attempt does not count, and its place is the old one'
);
select is(fairq_test.timeline(h.job_id), 'created 0, claimed 1 by worker, released 1 by worker', 'the timeline knows')
from held as h where h.n = 1;
create temp table again as select * from fairq_test.claim();
select is(a.attempt, 1, 'the next attempt is the first') from again as a;
select is(a.job_id, h.job_id, 'of the same job') from again as a cross join held as h where h.n = 1;
select is(fairq.release_job(a.job_id, a.lease_token, '1 hour'), 'scheduled', 'or it is snoozed') from again as a;
select ok(v.run_at - clock_timestamp() between interval '59 m' and interval '1 h', 'for the time said')
from fairq.all_jobs as v join again using (job_id);
select is(
    g.details, '{"delay_seconds": 3600}', 'which the log keeps'
)
from fairq.job_log as g order by g.log_id desc limit 1;
select is(fairq.release_job(h.job_id, h.lease_token, '0'), 'queued', 'a snooze of no time is none')
from held as h where h.n = 2;
select is(
    fairq.fail_job(a.job_id, a.lease_token, p_retry_delay => '0'), 'dead',
    'however often it was released, its one attempt is still to come, and ends it'
)
from fairq_test.claim() as a;

-- whatever is wrong, one answer
create temp table before as select * from fairq.leases;
select is(fairq.release_job(h.job_id, gen_random_uuid()), null, 'not under another token')
from held as h where h.n = 3;
select is(fairq.release_job(h.job_id, o.lease_token), null, 'nor under the token of another job')
from held as h cross join held as o where h.n = 3 and o.n = 4;
select is(fairq.release_job(-1, h.lease_token), null, 'an unknown job') from held as h where h.n = 3;
select is(fairq.release_job(h.job_id, h.lease_token), null, 'a job given back before') from held as h where h.n = 1;
select fairq_test.as_role('fairq_worker');
select is(fairq.release_job(h.job_id, h.lease_token), null, 'nor by another caller with the right token')
from held as h where h.n = 3;
select fairq_test.as_role('none');
select results_eq(
    'select * from fairq.leases order by 1', 'select * from before order by 1', 'and no lease has changed'
);
select fairq_test.given_lease_over(h.job_id) from held as h where h.n = 3;
select is(fairq.release_job(h.job_id, h.lease_token), null, 'a lease that is over: the attempt counts')
from held as h where h.n = 3;

-- cancellation
select fairq.cancel_job(h.job_id) from held as h where h.n in (4, 5);
select is(fairq.release_job(h.job_id, h.lease_token), 'cancelled', 'a job that was to be cancelled is cancelled')
from held as h where h.n = 4;
select is(fairq.release_job(h.job_id, h.lease_token, '1 hour'), 'cancelled', 'also when snoozed')
from held as h where h.n = 5;
select matches(
    fairq_test.timeline(h.job_id),
    '^created 0, claimed 1 by worker, cancel_requested 1 by [a-z]+, cancelled 1 by worker$', 'its timeline is whole'
)
from held as h where h.n = 4;

-- many
select results_eq(
    $$ select o.job_id, o.outcome
       from (select array_agg(h.job_id order by h.n desc) as ids, array_agg(h.lease_token order by h.n desc) as tokens
             from held as h where h.n in (1, 3, 6, 7)) as b
       cross join fairq.release_jobs(b.ids || -1::bigint, b.tokens || gen_random_uuid(), '1 hour') as o $$,
    $$ select coalesce(h.job_id, -1), v.outcome from (values
           (1, 7, 'scheduled'), (2, 6, 'scheduled'), (3, 3, 'lost'), (4, 1, 'lost'), (5, null, 'lost')
       ) as v(at, n, outcome) left join held as h on h.n = v.n order by v.at $$,
    'a batch says of each what became of it, in input order'
);
select results_eq(
    $$ select o.outcome from held as h cross join fairq.release_jobs(array[h.job_id, h.job_id], array[gen_random_uuid(), h.lease_token]) as o
       where h.n = 8 $$,
    array['lost', 'queued'], 'a job named twice is judged by each token'
);
select is(fairq.release_expired_jobs(), 1, 'one lease was left to run out');
select fairq_test.claim(1, p_tenant => 'nobody');
select is(f.running, 0, 'the scheduler has counted every end') from fairq.flows as f;

-- refusals
select fairq_test.refuses(format('select fairq.%s', c.call), '22023', c.names, 'refused: ' || c.call)
from (values
    ('release_job(null, gen_random_uuid())', 'p_job_id'),
    ('release_job(1, null)', 'p_token'),
    ('release_job(1, gen_random_uuid(), ''-1 s'')', 'p_delay'),
    ('release_job(1, gen_random_uuid(), ''3651 days'')', 'p_delay'),
    ('release_jobs(array[1], array[gen_random_uuid()], ''-1 s'')', 'p_delay'),
    ('release_jobs(array[1], array[gen_random_uuid()], ''3651 days'')', 'p_delay')
) as c(call, names);
select throws_ok(
    'select fairq.release_job(1, gen_random_uuid(), ''-1 s'')', '22023',
    'p_delay must be an interval from 00:00:00 to 3650 days, no part of it negative, not -00:00:01',
    'a refusal names the argument, the rule and the value'
);

select * from finish();
