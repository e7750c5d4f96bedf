-- expire: running, its lease over -> queued, dead or cancelled.
select plan(53);

select fairq_test.given_jobs('a', 4, p_max_attempts => 2);
create temp table held as select row_number() over () as n, c.* from fairq_test.claim(4) as c;

-- one
select is(fairq.release_expired_jobs(), 0, 'a lease that lives is left alone');
select fairq_test.given_lease_over(h.job_id) from held as h where h.n = 1;
select is(fairq.release_expired_jobs('elsewhere'), 0, 'a lease of another queue too');
select is(fairq.release_expired_jobs('default'), 1, 'a lease that is over is ended');
select results_eq(
    'select v.state, v.attempts, v.run_at from fairq.all_jobs as v join held as h using (job_id) where h.n = 1',
    'select ''queued'', 1, h.run_at from held as h where h.n = 1',
    'the job waits at its old place, the attempt counts'
);
select is(
    v.last_error, '{"code": "LEASE_EXPIRED", "message": "the lease of attempt 1 was over", "retryable": true}',
    'with the reason'
)
from fairq.all_jobs as v join held as h using (job_id) where h.n = 1;
select is(
    fairq_test.timeline(h.job_id), 'created 0, claimed 1 by worker, lease_expired 1 by worker', 'the timeline knows'
)
from held as h where h.n = 1;
select is(fairq.release_expired_jobs(), 0, 'once is enough');

-- the last attempt
create temp table second as select * from fairq_test.claim();
select is(s.attempt, 2, 'the job is tried again') from second as s;
select fairq_test.given_lease_over(s.job_id) from second as s;
select is(fairq.release_expired_jobs(), 1, 'its last lease runs out');
select results_eq(
    'select f.state, f.attempts, f.last_error ->> ''retryable'', f.lease_owner from fairq.finished_jobs as f join second using (job_id)',
    $$ values ('dead', 2, 'false', 'worker') $$,
    'and it is dead: a job that kills its workers does not go on for ever'
);
select is(
    fairq_test.timeline(s.job_id),
    'created 0, claimed 1 by worker, lease_expired 1 by worker, claimed 2 by worker, dead 2 by worker',
    'the timeline has each attempt'
)
from second as s;

-- cancellation
select fairq.cancel_job(h.job_id), fairq_test.given_lease_over(h.job_id) from held as h where h.n = 2;
select is(fairq.release_expired_jobs(), 1, 'a job that was to be cancelled and whose worker is gone');
select is(fairq_test.state_of(h.job_id), 'cancelled', 'is cancelled') from held as h where h.n = 2;

-- a claim does the same by itself
select fairq_test.given_lease_over(h.job_id) from held as h where h.n in (3, 4);
select results_eq(
    'select c.job_id, c.attempt from fairq_test.claim(10) as c',
    'select h.job_id, 2 from held as h where h.n in (3, 4) order by 1',
    'a claim takes them back by itself, and hands them out again'
);
select fairq_test.given_lease_over(h.job_id) from held as h where h.n = 3;
select fairq.cancel_job(h.job_id), fairq_test.given_lease_over(h.job_id) from held as h where h.n = 4;
select is_empty('select * from fairq_test.claim(10)', 'also those that come to nothing');
select results_eq(
    'select v.state from fairq.all_jobs as v join held as h using (job_id) where h.n in (3, 4) order by h.n',
    array['dead', 'cancelled'],
    'being dead, or cancelled'
);
select is(f.running, 0, 'the scheduler has counted every end') from fairq.flows as f;

-- the limit, and the earliest first
select fairq_test.given_jobs('a', 5, 'limit');
create temp table many as select row_number() over () as n, c.* from fairq_test.claim(5, 'limit') as c;
update fairq.leases as l set started_at = '2000-01-01', lease_expires_at = clock_timestamp() - make_interval(secs => m.n)
from many as m where l.job_id = m.job_id;
select is(fairq.release_expired_jobs('limit', 2), 2, 'no more than the limit are ended');
select set_eq(
    'select m.n from many as m join fairq.leases using (job_id)', array[1, 2, 3]::bigint[],
    'those first that are over the longest'
);
select is(fairq.release_expired_jobs(), 3, 'without a queue: everywhere');

select fairq_test.given_jobs('a', 2, q.queue) from (values ('left'), ('right')) as q(queue);
create temp table sides as select c.* from (values ('left'), ('right')) as q(queue)
cross join fairq_test.claim(2, q.queue) as c;
select fairq_test.given_lease_over(s.job_id) from sides as s;
select is(fairq.release_expired_jobs(p_limit => 3), 3, 'no more than the limit are ended, in however many queues');
select is(fairq.release_expired_jobs(p_limit => 3), 1, 'the rest next time');

-- poison: a row that cannot be put back stops nobody
select fairq_test.given_jobs('a', 3, 'poison', p_task => 'good');
select fairq_test.given_jobs('a', 2, 'poison', p_task => 'bad');
create function fairq_test.poison() returns trigger language plpgsql as $fn$
begin
    raise exception 'this row % be changed', repeat('cannot ', 1000) using errcode = 'ZZ001';
end
$fn$;
create trigger poison before update on fairq.jobs for each row when (old.task = 'bad') execute function fairq_test.poison();
create temp table poisoned as select * from fairq_test.claim(10, 'poison');
select fairq_test.given_lease_over(p.job_id) from poisoned as p;
select is(fairq.release_expired_jobs('poison'), 5, 'bad rows among good ones: each is seen to');
select results_eq(
    'select v.task, v.state, count(*) from fairq.all_jobs as v where v.queue = ''poison'' group by 1, 2 order by 1',
    $$ values ('bad', 'dead', 2::bigint), ('good', 'queued', 3) $$, 'the good ones wait again, the bad ones are dead'
);
select is(distinct_error, '{"code": "QUARANTINED", "sqlstate": "ZZ001"}', 'with the reason')
from (select distinct f.last_error - 'message' as distinct_error from fairq.finished_jobs as f where f.queue = 'poison') as e;
select is(max(length(f.last_error ->> 'message')), 2000, 'of bearable length')
from fairq.finished_jobs as f where f.queue = 'poison';
select is(
    min(fairq_test.timeline(p.job_id)), 'created 0, claimed 1 by worker, dead 1 by worker', 'which the timeline knows'
)
from poisoned as p where p.task = 'bad';
select fairq_test.given_jobs('a', 1, 'poison', p_task => 'bad');
create temp table poisoned_again as select * from fairq_test.claim(10, 'poison');
select fairq_test.given_lease_over(p.job_id) from poisoned_again as p;
select is(count(*), 3::bigint, 'a claim is not stopped by one either') from fairq_test.claim(10, 'poison');
select is(count(*), 3::bigint, 'and puts it with the others') from fairq.finished_jobs as f where f.queue = 'poison';

-- worse: a row that cannot be ended either is kept, and stops nobody
select fairq_test.given_jobs('a', 1, 'worse', p_task => 'bad');
select fairq_test.given_jobs('a', 2, 'worse', p_task => 'good');
create trigger worse before delete on fairq.jobs for each row when (old.task = 'bad') execute function fairq_test.poison();
create temp table kept as select * from fairq_test.claim(10, 'worse');
select fairq_test.given_lease_over(k.job_id) from kept as k;
select is(count(*), 2::bigint, 'a claim takes the others back and hands them out') from fairq_test.claim(10, 'worse');
select results_eq(
    'select v.task, v.state, count(*) from fairq.all_jobs as v where v.queue = ''worse'' group by 1, 2 order by 1',
    $$ values ('bad', 'running', 1::bigint), ('good', 'running', 2) $$, 'the bad one still runs'
);
select is(fairq.complete_job(k.job_id, k.lease_token), false, 'as nobody''s: its worker has lost it')
from kept as k where k.task = 'bad';
select is(f.running, 3, 'it is counted as what it is') from fairq.flows as f where f.queue = 'worse';
select is(
    min(fairq_test.timeline(k.job_id)), 'created 0, claimed 1 by worker, lease_expired 1 by worker', 'the log knows'
)
from kept as k where k.task = 'bad';
select is(
    jsonb_build_array(l.details -> 'error' ->> 'code', left(l.details -> 'error' ->> 'kept', 8), l.started_at),
    '["QUARANTINED", "this row", null]', 'with the reason, and that no attempt was ended'
)
from fairq.job_log as l where l.queue = 'worse' and l.details -> 'error' ? 'kept';
select ok(l.lease_expires_at > clock_timestamp() + interval '59 minutes', 'it is tried again in an hour')
from fairq.leases as l join kept as k using (job_id) where k.task = 'bad';
select fairq_test.given_lease_over(k.job_id) from kept as k where k.task = 'bad';
select is(fairq.release_expired_jobs('worse'), 0, 'release_expired_jobs() does not count what it keeps');
drop trigger worse on fairq.jobs;
select fairq_test.given_lease_over(k.job_id) from kept as k where k.task = 'bad';
select is(fairq.release_expired_jobs('worse'), 1, 'once nothing is in the way it is ended');
select is(f.state, 'dead', 'and dead') from fairq.finished_jobs as f join kept as k using (job_id);

-- what passes by itself is no fault of the job
create function fairq_test.busy() returns trigger language plpgsql as $fn$
begin
    raise exception 'not now' using errcode = current_setting('fairq_test.busy');
end
$fn$;
create trigger busy before update on fairq.jobs for each row when (old.task = 'busy') execute function fairq_test.busy();
select fairq_test.given_jobs('a', 1, 'busy', p_task => 'busy');
select fairq_test.given_lease_over(c.job_id) from fairq_test.claim(1, 'busy') as c;
set fairq_test.busy = '55P03';
select fairq_test.refuses(
    'select fairq.release_expired_jobs(''busy'')', '55P03', 'not now', 'a lock that is not to be had is the caller''s to wait for'
);
set fairq_test.busy = '40P01';
select fairq_test.refuses('select fairq_test.claim(1, ''busy'')', '40P01', 'not now', 'a deadlock stops a claim');
set fairq_test.busy = '53100';
select fairq_test.refuses('select fairq.release_expired_jobs(''busy'')', '53100', 'not now', 'and so does a full disk');
drop trigger busy on fairq.jobs;
select is(c.attempt, 2, 'the job is none the worse for it') from fairq_test.claim(1, 'busy') as c;
drop trigger poison on fairq.jobs;
select is(f.running, 3, 'the scheduler counts what runs') from fairq.flows as f where f.queue = 'poison';

-- a lease that lost its job, which no function can bring about, is swept away too
select fairq_test.given_jobs('a', 1, 'orphan');
create temp table orphan as select * from fairq_test.claim(1, 'orphan');
delete from fairq.jobs as j using orphan as o where j.job_id = o.job_id;
select fairq_test.given_lease_over(o.job_id) from orphan as o;
select is(fairq.release_expired_jobs('orphan'), 1, 'a lease without a job');
select is_empty('select from fairq.leases join orphan using (job_id)', 'is gone');
select is_empty('select * from fairq_test.claim(1, ''orphan'')', 'and hands out nothing');

-- refusals
select fairq_test.refuses(
    format('select fairq.release_expired_jobs(p_limit => %s)', c.value), '22023', 'p_limit',
    'refused: p_limit ' || c.value
)
from (values ('null'), ('0'), ('-1'), ('10001'), ('2147483647')) as c(value);
select is(fairq.release_expired_jobs(p_limit => 10000), 0, 'the largest limit');

select * from finish();
