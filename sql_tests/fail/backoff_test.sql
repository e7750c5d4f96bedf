-- fail: how long a job waits before its next attempt.
select plan(22);

create function pg_temp.delay(p_attempt integer, p_random double precision default 0, p_queue text default '*')
    returns interval language sql as $fn$
    select fairq._retry_delay(q, p_attempt, p_random) from fairq.queues as q where q.queue = p_queue
$fn$;

select is(pg_temp.delay(c.attempt), c.delay::interval, 'attempt ' || c.attempt || ': ' || c.delay)
from (values
    (1, '5 s'), (2, '10 s'), (3, '20 s'), (10, '2560 s'), (11, '1 h'), (31, '1 h'), (32, '1 h'), (63, '1 h'),
    (64, '1 h'),
    (1000, '1 h'), (2147483647, '1 h')
) as c(attempt, delay);
select is(pg_temp.delay(2, 1), interval '8 s', 'at most the queue''s share of it is left to chance');
select is(
    pg_temp.delay(64, 0.5), interval '54 minutes',
    'of a long wait too: those that failed together do not come back together'
);

-- the widest settings
select fairq.set_queue('wide', p_backoff_base => '365 days', p_backoff_cap => '365 days', p_backoff_jitter => 1);
select is(pg_temp.delay(1000, 0, 'wide'), interval '8760 h', 'the longest wait there can be');
select is(pg_temp.delay(1000, 1, 'wide'), interval '0', 'all of it left to chance');
select fairq.set_queue('none', p_backoff_base => '0', p_backoff_cap => '0');
select is(pg_temp.delay(c.attempt, 0, 'none'), interval '0', 'no wait at attempt ' || c.attempt)
from (values (1), (1000)) as c(attempt);
select fairq.set_queue('fine', p_backoff_base => '1 microsecond', p_backoff_cap => '1 s', p_backoff_jitter => 0);
select is(pg_temp.delay(1, 1, 'fine'), interval '1 microsecond', 'the shortest wait there can be');

-- in use
select fairq_test.given_jobs('a', 1, q.queue, p_max_attempts => 1000)
from (values ('none'), ('wide'), ('late')) as q(queue);
create temp table held as select c.* from (values ('none'), ('late')) as q(queue)
cross join fairq_test.claim(1, q.queue) as c;
select is(fairq.fail_job(h.job_id, h.lease_token), 'queued', 'a queue that waits for nothing queues the job at once')
from held as h where h.queue = 'none';
update fairq.leases as l set attempt = 999 where l.queue = 'late';
select is(
    fairq.fail_job(h.job_id, h.lease_token), 'scheduled',
    'the last but one attempt of a thousand fails like any other'
)
from held as h where h.queue = 'late';
select ok(j.run_at - clock_timestamp() between interval '47 m' and interval '1 h', 'and waits the longest time')
from fairq.jobs as j where j.queue = 'late';
update fairq.jobs as j set run_at = clock_timestamp() where j.queue = 'late';
update fairq.ticks set promote_floor = '-infinity';
select is((select attempt from fairq_test.claim(1, 'late')), 1000, 'the last one comes');

select * from finish();
