-- prune: ended jobs go when their time is over.
select plan(33);

-- given jobs in every state, all of them old; 'aged' is what prune() would take
create temp table jobs as
select v.task, e.job_id from (values ('succeeded'), ('dead'), ('running')) as v(task)
cross join fairq.enqueue_job('a', v.task, p_key => v.task) as e;
create temp table held as select * from fairq_test.claim(3);
select fairq.complete_job(h.job_id, h.lease_token) from held as h where h.task = 'succeeded';
select fairq.fail_job(h.job_id, h.lease_token, p_retry => false) from held as h where h.task = 'dead';
insert into jobs
select v.task, e.job_id from (values ('cancelled'), ('queued'), ('scheduled')) as v(task)
cross
join fairq.enqueue_job('a', v.task, p_key => v.task, p_delay => case v.task when 'scheduled' then interval '1 day' end) as e;
select fairq.cancel_job(j.job_id) from jobs as j where j.task = 'cancelled';

select is(fairq.prune(), 0, 'a job that has just ended stays');
create function pg_temp.age(p_age interval) returns void language sql as $fn$
    update fairq.finished_jobs as f set finished_at = clock_timestamp() - p_age;
    update fairq.jobs as j set created_at = clock_timestamp() - p_age;
$fn$;
select pg_temp.age('6 days 23 hours');
select is(fairq.prune(), 0, 'an ended job stays for as long as its queue''s retention says');
select pg_temp.age('7 days 1 second');
select is(count(*), 2::bigint, 'before the prune the log has the ends of the dead and the cancelled job') from fairq.job_log;
select is(fairq.prune(), 3, 'when the retention is over ended jobs go: succeeded, dead and cancelled');
select is_empty('select from fairq.finished_jobs', 'of pruned jobs no row is left');
select is_empty('select from fairq.job_log', 'the log of pruned jobs goes with them');
select set_eq(
    'select v.state from fairq.all_jobs as v', array['running', 'queued', 'scheduled'],
    'a job that has not ended stays, however old it is'
);
select is_empty(
    $$ select from fairq.job_events as e join jobs using (job_id) where jobs.task = 'dead' $$,
    'of pruned jobs no event is left'
);
select is(fairq.prune(), 0, 'a second prune finds nothing');

-- keys
select is(count(*), 6::bigint, 'an operation key outlives its pruned job') from fairq.job_keys;
select is(e.created, false, 'the key of a pruned job still makes no second one') from fairq.enqueue_job('a', 'dead', p_key => 'dead') as e;
update fairq.job_keys as k set expires_at = clock_timestamp() where k.operation_key in ('dead', 'running');
select is(fairq.prune(1), 1, 'no job is old, but keys have expired: no more than the limit go');
select is(fairq.prune(), 1, 'then the rest');
select is(count(*), 4::bigint, 'others stay') from fairq.job_keys;
select is(fairq_test.state_of(j.job_id), 'running', 'whose job may still run')
from jobs as j where j.task = 'running';

-- a queue's own retention
select fairq.set_queue('brief', p_retention => '0');
select fairq.set_queue('long', p_retention => '3650 days');
create temp table more as
select q.queue, e.job_id
from (values ('brief'), ('long'), ('default')) as q(queue)
cross join fairq.enqueue_job('a', 't', p_queue => q.queue) as e;
select fairq.cancel_job(m.job_id) from more as m;
select is(fairq.prune(), 1, 'a queue with a retention of nothing keeps nothing');
select pg_temp.age('3649 days');
select is(fairq.prune(), 1, 'a queue without settings of its own has the retention of all');
select results_eq(
    'select f.queue collate "default" from fairq.finished_jobs as f', array['long'],
    'a queue that keeps for ten years keeps what is younger'
);

-- a revived job keeps its log
create temp table revived as select e.job_id from fairq.enqueue_job('a', 't', p_queue => 'brief') as e;
select fairq.cancel_job(r.job_id), fairq.retry_job(r.job_id) from revived as r;
select is(fairq.prune(), 0, 'a revived job is not pruned');
select is(count(*), 2::bigint, 'a revived job keeps its log') from fairq.job_log join revived using (job_id);

-- the limit
select fairq.cancel_job(j) from fairq_test.given_jobs('a', 5, 'brief') as j;
select is(fairq.prune(2), 2, 'of ended jobs no more than the limit go at once');
select is(fairq.prune(100000), 3, 'what the limit left goes at the next prune');

-- flows nobody needs
select fairq_test.given_jobs(t, 1, 'flows') from (values ('gone'), ('owes'), ('limited'), ('waits')) as v(t);
create temp table ended as select * from fairq.claim_jobs('flows', 'w', 4);
select fairq.complete_job(e.job_id, e.lease_token) from ended as e;
select fairq_test.given_jobs('waits', 1, 'flows');
select fairq.claim_jobs('flows', 'w', 1, p_tenant => 'nobody');
update fairq.flows as f
set
    minute = f.minute - 1441,
    vtime = case f.tenant when 'owes' then f.vtime + 1000000000 when 'gone' then 0 else f.vtime end,
    rate = case f.tenant when 'limited' then 1 end
where f.queue = 'flows';
select is(fairq.prune(), 0, 'a flow is no job: it is not counted');
select results_eq(
    'select f.tenant collate "default" from fairq.flows as f where f.queue = ''flows'' order by f.tenant',
    array['limited', 'owes', 'waits'],
    'a flow goes after a day without work, unless it owes, is limited by a rate or has work'
);
select fairq_test.given_jobs('gone', 1, 'flows');
select is(count(*), 2::bigint, 'a tenant whose flow went is served again') from fairq.claim_jobs('flows', 'w', 5);
select is(f.vtime > 0, true, 'at the virtual time of the queue, not before it')
from fairq.flows as f where f.queue = 'flows' and f.tenant = 'gone';

-- refusals
select fairq_test.refuses(
    format('select fairq.prune(%s)', c.value), '22023', 'p_limit', 'refused: p_limit ' || c.value
)
from (values ('null'), ('0'), ('-1'), ('100001'), ('2147483647')) as c(value);
select fairq_test.as_role('fairq_worker');
select throws_ok('select fairq.prune()', '42501', null, 'a worker may not prune');
select fairq_test.as_role('fairq_operator');
select is(fairq.prune(), 0, 'an operator may prune');
select fairq_test.as_role('none');

select * from finish();
