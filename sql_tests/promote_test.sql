-- promote: scheduled -> queued, when its time has come.
select plan(34);

-- given jobs that are due by now, and some that are not; a queue is known once it has been claimed from
create function pg_temp.given_due(p_count integer, p_queue text default 'default') returns void language plpgsql as $fn$
declare
    v_jobs bigint[] := array(select fairq_test.given_jobs('a', p_count, p_queue, p_delay => '1 day'));
begin
    update fairq.jobs as j set run_at = clock_timestamp() where j.job_id = any (v_jobs);
    update fairq.ticks set promote_floor = '-infinity';
end
$fn$;
create function pg_temp.waiting(p_queue text, p_state text) returns bigint language sql as $fn$
    select count(*) from fairq.jobs as j where j.queue = p_queue and j.state = p_state
$fn$;
select fairq_test.claim(1, q.queue) from (values ('default'), ('other')) as q(queue);
select fairq_test.given_jobs('a', 2, p_delay => '1 day');
select pg_temp.given_due(3);
select pg_temp.given_due(2, 'other');

select is(pg_temp.waiting('default', 'scheduled'), 5::bigint, 'scheduled jobs wait, also when their time has come');
select is(fairq.promote_due_jobs('default'), 3, 'those that are due are promoted');
select is(pg_temp.waiting('default', 'queued'), 3::bigint, 'and queued then');
select is(pg_temp.waiting('default', 'scheduled'), 2::bigint, 'the others wait on');
select is(pg_temp.waiting('other', 'scheduled'), 2::bigint, 'those of another queue too');
select is(fairq.promote_due_jobs('default'), 0, 'nothing more is due');
select is(count(*), 3::bigint, 'what was promoted is claimed') from fairq_test.claim(10);
select is(fairq.promote_due_jobs(), 2, 'without a queue: everywhere');
select is(fairq.promote_due_jobs('nowhere'), 0, 'an unknown queue has nothing to promote');

-- the limit, the earliest first
select pg_temp.given_due(5, 'limit');
select fairq_test.claim(1, 'limit', p_tenant => 'nobody');
select is(pg_temp.waiting('limit', 'scheduled'), 0::bigint, 'a claim promotes, whatever it came for');
update fairq.jobs set state = 'scheduled', run_at = clock_timestamp() - make_interval(secs => job_id), changed_xid = pg_current_xact_id()
where queue = 'limit';
select is(fairq.promote_due_jobs('limit', 2), 2, 'no more than the limit are promoted');
select is(min(j.job_id) filter (where j.state = 'queued'), max(j.job_id) - 1, 'the earliest first')
from fairq.jobs as j where j.queue = 'limit';
select is(count(*), 5::bigint, 'a claim takes them all') from fairq_test.claim(10, 'limit');
select is(j.run_at <= l.started_at, true, 'none before its time: ' || j.job_id)
from fairq.jobs as j join fairq.leases as l using (job_id) where j.queue = 'limit' order by j.job_id limit 1;
select is_empty('select * from fairq_test.claim(10, ''default'')', 'what is not due is not claimed');

-- the scheduler hears of it, though it has seen the job before
select fairq_test.given_jobs('a', 1, 'seen', p_delay => '1 day');
select is_empty('select * from fairq_test.claim(1, ''seen'')', 'a look has seen the job wait');
update fairq.jobs as j set run_at = clock_timestamp() where j.queue = 'seen';
update fairq.ticks set promote_floor = '-infinity';
select is(fairq.promote_due_jobs('seen'), 1, 'it is promoted from outside');
select is(count(*), 1::bigint, 'and claimed') from fairq_test.claim(1, 'seen');

-- the limit is for all queues together
select pg_temp.given_due(2, q.queue) from (values ('left'), ('right')) as q(queue);
select is(fairq.promote_due_jobs(p_limit => 3), 3, 'no more than the limit are promoted, from however many queues');
select is(fairq.promote_due_jobs(p_limit => 3), 1, 'the rest next time');

-- poison: a row that cannot be promoted stays, and stops nobody
create function pg_temp.poison() returns trigger language plpgsql as $fn$
begin
    raise exception 'this row cannot be changed' using errcode = current_setting('fairq_test.code');
end
$fn$;
set fairq_test.code = 'ZZ001';
set client_min_messages = error;
create trigger poison before update on fairq.jobs for each row when (old.task = 'bad' and new.state = 'queued')
execute function pg_temp.poison();
select fairq_test.claim(1, 'poison');
select fairq_test.given_jobs('a', 2, 'poison', p_task => 'bad', p_delay => '1 day');
update fairq.jobs set run_at = clock_timestamp() where task = 'bad';
select pg_temp.given_due(3, 'poison');
select is(count(*), 3::bigint, 'a claim promotes the others') from fairq_test.claim(10, 'poison');
select is(pg_temp.waiting('poison', 'scheduled'), 2::bigint, 'the bad ones stay scheduled');
select pg_temp.given_due(2, 'poison');
select is(count(*), 2::bigint, 'and are in nobody''s way') from fairq_test.claim(10, 'poison');
select pg_temp.given_due(2, 'poison');
select is(fairq.promote_due_jobs('poison'), 2, 'from outside the others are promoted, too');
select is(count(*), 2::bigint, 'and found') from fairq_test.claim(10, 'poison');
set fairq_test.code = '53100';
select fairq_test.refuses(
    'select fairq.promote_due_jobs(''poison'')', '53100', 'cannot be changed', 'a full disk is no fault of the row'
);
drop trigger poison on fairq.jobs;
select is(fairq.promote_due_jobs('poison'), 2, 'once nothing is in the way they are promoted');
select is(count(*), 2::bigint, 'and claimed') from fairq_test.claim(10, 'poison');

-- refusals
select fairq_test.refuses(
    format('select fairq.promote_due_jobs(p_limit => %s)', c.value), '22023', 'p_limit',
    'refused: p_limit ' || c.value
)
from (values ('null'), ('0'), ('-1'), ('10001'), ('2147483647')) as c(value);
select is(fairq.promote_due_jobs(p_limit => 10000), 0, 'the largest limit');

select * from finish();
