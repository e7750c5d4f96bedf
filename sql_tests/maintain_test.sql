-- maintain: upkeep in slices; what has ended goes by its partition or row by row, what has not ended stays.
select plan(50);

create function pg_temp.age(p_age interval) returns void language sql as $fn$
    update fairq.finished_jobs as f set finished_at = clock_timestamp() - p_age;
    update fairq.jobs as j set created_at = clock_timestamp() - p_age;
$fn$;
create function pg_temp.written() returns integer language sql as $fn$
    select (pg_sequence_last_value('fairq.slot_seq') % 4)::integer
$fn$;
-- as if the ring had been turned so long ago
create function pg_temp.turned(p_ago interval) returns void language sql as $fn$
    select setval(
        'fairq.slot_seq', extract(epoch from clock_timestamp() - p_ago)::bigint * 4 + pg_temp.written()
    )
$fn$;
create function pg_temp.partitions(p_whole text) returns integer[] language sql as $fn$
    select coalesce(array_agg(distinct p.slot order by p.slot), '{}') from (
        select f.slot::integer from fairq.finished_jobs as f where p_whole = 'finished_jobs'
        union all
        select g.slot from fairq.job_log as g where p_whole = 'job_log'
    ) as p
$fn$;
create function pg_temp.pages(p_partition regclass) returns bigint language sql as $fn$
    select pg_relation_size(p_partition)
$fn$;
create temp table last (task text, done bigint, lags boolean, why text);
create function pg_temp.maintain(p_limit integer default 10000) returns void language sql as $fn$
    delete from last;
    insert into last select * from fairq.maintain(p_limit);
$fn$;

-- given jobs in every state
create temp table jobs as
select v.task, e.job_id from (values ('succeeded'), ('dead'), ('running'), ('retried')) as v(task)
cross join fairq.enqueue_job('a', v.task, p_key => v.task) as e;
create temp table held as select * from fairq_test.claim(4);
select fairq.complete_job(h.job_id, h.lease_token) from held as h where h.task = 'succeeded';
select fairq.fail_job(h.job_id, h.lease_token, p_retry => false) from held as h where h.task = 'dead';
select fairq.fail_job(h.job_id, h.lease_token, p_retry_delay => '1 day') from held as h where h.task = 'retried';
insert into jobs
select v.task, e.job_id from (values ('cancelled'), ('queued')) as v(task)
cross join fairq.enqueue_job('a', v.task, p_key => v.task) as e;
select fairq.cancel_job(j.job_id) from jobs as j where j.task = 'cancelled';

-- the first time
select is(pg_sequence_last_value('fairq.slot_seq'), null, 'a new ring has no beginning');
select is(pg_temp.partitions('finished_jobs'), '{0}', 'and partition 0 is written');
select pg_temp.maintain();
select set_eq('select task from last', array['ended jobs', 'partitions', 'log', 'keys', 'flows', 'scheduler'], 'there is a row for each task');
select is(pg_temp.written(), 0, 'the first slice begins the ring');
select set_eq('select done from last where task <> ''partitions''', array[0], 'and finds nothing to do');
select is_empty('select * from last where lags', 'nor anything that lags');
select pg_temp.maintain();
select is(sum(done), 0::numeric, 'a second slice does nothing') from last;

-- the ring turns
select pg_temp.turned('3 days 11 hours');
select pg_temp.maintain();
select is(pg_temp.written(), 0, 'a partition is written for half of the longest retention');
select pg_temp.turned('3 days 13 hours');
select pg_temp.maintain();
select is(pg_temp.written(), 1, 'then the next is');
select is(done, 1::bigint, 'which the slice says') from last where task = 'partitions';
select fairq.cancel_job(fairq_test.given_jobs('b', 1)) as cancelled;
select is(pg_temp.partitions('finished_jobs'), '{0,1}', 'what ends from now on lies there');
select is(pg_temp.partitions('job_log'), '{0,1}', 'and its log');
select is(v.state, 'cancelled', 'and is seen like all that has ended') from fairq.all_jobs as v where v.tenant = 'b';
select is(pg_temp.written(), 1, 'a clock that was ahead when the ring was turned')
from setval('fairq.slot_seq', extract(epoch from clock_timestamp() + interval '1 year')::bigint * 4 + 1);
select pg_temp.maintain();
select is(pg_temp.written(), 2, 'keeps nothing from going on');
select setval('fairq.slot_seq', pg_sequence_last_value('fairq.slot_seq') - 1) as back_to_1;

-- a partition whose time is over
update fairq.finished_jobs as f set finished_at = clock_timestamp() - interval '6 days 23 hours' where f.slot = 0;
select pg_temp.maintain();
select is(pg_temp.partitions('finished_jobs'), '{0,1}', 'a partition stays while one of its jobs must be kept');
update fairq.finished_jobs as f set finished_at = clock_timestamp() - interval '7 days 1 second'
where f.slot = 0 and f.state <> 'dead';
select pg_temp.maintain();
select is(count(*), 3::bigint, 'and with it those whose time is over') from fairq.finished_jobs as f where f.slot = 0;
update fairq.finished_jobs as f set finished_at = clock_timestamp() - interval '7 days 1 second' where f.slot = 0;
select isnt(pg_temp.pages('fairq.finished_jobs_0'), 0::bigint, 'it has pages');
select pg_temp.maintain();
select is(pg_temp.partitions('finished_jobs'), '{1}', 'when all are over it is emptied');
select is(pg_temp.pages('fairq.finished_jobs_0'), 0::bigint, 'and gives its pages back');
select is(l.why, 'call again', 'the log is for the next slice') from last as l where l.task = 'log';
select pg_temp.maintain();
select is(l.lags, false, 'which clears it') from last as l where l.task = 'log';
select is_empty(
    $$ select from fairq.job_events as e join jobs using (job_id) where jobs.task in ('dead', 'cancelled', 'succeeded') $$,
    'of jobs that are gone no event is left'
);
select is(pg_temp.pages('fairq.job_log_0'), 0::bigint, 'and the log gives its pages back, too');
select results_eq(
    $$ select g.event_type, g.slot::integer from fairq.job_log as g join jobs using (job_id) where jobs.task = 'retried' $$,
    $$ values ('retry_scheduled', 1) $$, 'but a job that has not ended keeps its log, in another partition'
);
select set_eq(
    'select v.state from fairq.all_jobs as v where v.tenant = ''a''', array['running', 'queued', 'scheduled'],
    'a job that has not ended stays, however old it is'
);

-- all the way round
select pg_temp.turned('4 days');
select pg_temp.maintain();
select pg_temp.turned('4 days');
select pg_temp.maintain();
select pg_temp.turned('4 days');
select pg_temp.maintain();
select is(pg_temp.written(), 0, 'after four turns the first partition is written again');
select pg_temp.turned('4 days');
select pg_temp.maintain();
select is(pg_temp.written(), 0, 'but never one that has jobs which must be kept');
select is(l.lags, true, 'and the slice says so') from last as l where l.task = 'partitions';
select is(l.why, 'partition 1, whose turn it is, has jobs that must be kept', 'and why') from last as l where l.task = 'partitions';
select pg_temp.age('8 days');
select pg_temp.maintain();
select is(l.why, 'partition 1, whose turn it is, has rows of the log', 'or of the log') from last as l where l.task = 'partitions';
select pg_temp.maintain();
select is(pg_temp.written(), 1, 'until their time is over');

-- row by row: retentions that are not the longest
select fairq.set_queue('brief', p_retention => '1 day', p_retention_failed => '2 days');
select fairq_test.given_jobs('a', 4, q) from (values ('brief'), ('default')) as v(q);
create temp table ended as
select j.* from (values ('brief'), ('default')) as v(q) cross join lateral fairq_test.claim(2, v.q) as j;
select fairq.complete_job(e.job_id, e.lease_token) from ended as e;
select fairq.cancel_job(j.job_id) from fairq.jobs as j where j.queue in ('brief', 'default') and j.state = 'queued'
and not exists (select from fairq.leases as l where l.job_id = j.job_id);
create function pg_temp.left() returns text language sql as $fn$
    select string_agg(n.q || ' ' || n.state || ' ' || n.n, ', ' order by n.q, n.state) from (
        select f.queue as q, f.state, count(*) as n from fairq.finished_jobs as f group by f.queue, f.state
    ) as n
$fn$;
select is(pg_temp.left(), 'brief cancelled 2, brief succeeded 2, default cancelled 3, default succeeded 2', 'given jobs of two queues');
select pg_temp.age('25 hours');
select pg_temp.maintain(1);
select is(pg_temp.left(), 'brief cancelled 2, brief succeeded 1, default cancelled 3, default succeeded 2', 'a slice takes no more than its limit');
select is(l.why, 'call again', 'and says that there is more') from last as l where l.task = 'ended jobs';
select pg_temp.maintain();
select is(pg_temp.left(), 'brief cancelled 2, default cancelled 3, default succeeded 2', 'a shorter retention does not wait for the partition');
select pg_temp.age('49 hours');
select pg_temp.maintain();
select is(pg_temp.left(), 'default cancelled 3, default succeeded 2', 'what failed has a retention of its own');
select pg_temp.age('8 days');
select pg_temp.maintain();
select is(pg_temp.left(), 'default cancelled 3, default succeeded 2', 'the longest waits for the partition, which is being written');
select pg_temp.age('15 days');
select pg_temp.maintain();
select is(pg_temp.left(), null, 'but not twice as long');

-- keys
select is(count(*), 6::bigint, 'operation keys outlive their jobs') from fairq.job_keys;
update fairq.job_keys as k set expires_at = clock_timestamp() where k.operation_key in ('dead', 'running');
select pg_temp.maintain();
select is(count(*), 4::bigint, 'until they expire') from fairq.job_keys;

-- a partition that somebody has taken away
alter table fairq.finished_jobs detach partition fairq.finished_jobs_1;
select fairq.cancel_job(fairq_test.given_jobs('b', 1)) as cancelled;
select is(f.tableoid::regclass::text, 'fairq.finished_jobs_0', 'what would lie in a partition that is missing lies in partition 0')
from fairq.finished_jobs as f;
select pg_temp.age('15 days');
select pg_temp.turned('1 year');
select pg_temp.maintain();
select is(l.why, 'a partition is missing: see fairq check', 'no partition is emptied then') from last as l where l.task = 'partitions';
select is(pg_temp.left(), null, 'but what is twice past its time goes, row by row');
alter table fairq.finished_jobs attach partition fairq.finished_jobs_1 for values in (1);

-- refusals
select fairq_test.refuses(
    format('select * from fairq.maintain(%s)', c.value), '22023', 'p_limit', 'refused: p_limit ' || c.value
)
from (values ('null'), ('0'), ('100001')) as c(value);
begin isolation level repeatable read;
select throws_ok('select * from fairq.maintain()', '0A000', null, 'an old snapshot is refused');
rollback;
select fairq_test.as_role('fairq_worker');
select throws_ok('select * from fairq.maintain()', '42501', null, 'a worker may not maintain');
select fairq_test.as_role('fairq_operator');
select lives_ok('select * from fairq.maintain()', 'an operator may');
select fairq_test.as_role('none');

select * from finish();
