-- retry: dead, cancelled -> queued.
select plan(23);

-- a dead job
create temp table dead as
select *
from fairq.enqueue_job('a', 'work', '{"x": 1}', p_priority => 1, p_max_attempts => 2, p_key => 'k', p_cost => 2);
create temp table held as select * from fairq_test.claim();
select fairq.fail_job(h.job_id, h.lease_token, 'x', '0') from held as h;
create temp table second as select * from fairq_test.claim();
select fairq.fail_job(s.job_id, s.lease_token, 'y') from second as s;
create temp table ended as select f.* from fairq.finished_jobs as f;
select is(fairq.retry_job(d.job_id), 'queued', 'a dead job is queued again') from dead as d;
select is(
    to_jsonb(j) - '{run_at, changed_xid}'::text[],
    to_jsonb(e) - '{run_at, started_at, finished_at, lease_owner, token_hash, result, slot}'::text[] || '{"state": "queued", "attempts": 0}',
    'under its old id, as it was, with all its attempts before it; the last error stays to be read'
)
from ended as e join fairq.jobs as j using (job_id);
select ok(j.run_at > e.finished_at, 'a revived job is due at once') from ended as e join fairq.jobs as j using (job_id);
select is_empty('select from fairq.finished_jobs', 'a revived job is no longer among those that have ended');
select is(fairq.retry_job(d.job_id), 'not_finished', 'a job that was revived already waits, and is not revived again') from dead as d;
select is(fairq.complete_job(s.job_id, s.lease_token), false, 'the token of an attempt before the revival completes nothing') from second as s;
create temp table third as select * from fairq_test.claim();
select is(t.attempt, 1, 'the attempts of a revived job are counted from one') from third as t;
select is(fairq.retry_job(d.job_id), 'not_finished', 'a running job is not revived') from dead as d;
select is(fairq.fail_job(t.job_id, t.lease_token, 'z', '0'), 'queued', 'a revived job has all its attempts again: after the first it is queued') from third as t;
create temp table fourth as select * from fairq_test.claim();
select is(fairq.complete_job(f.job_id, f.lease_token), true, 'a revived job can succeed') from fourth as f;
select is(
    fairq_test.timeline(d.job_id),
    'created 0, claimed 1 by worker, retry_scheduled 1 by worker, claimed 2 by worker, dead 2 by worker, '
    || format('revived 2 by %s, ', session_user)
    || 'claimed 1 by worker, retry_scheduled 1 by worker, claimed 2 by worker, succeeded 2 by worker',
    'the timeline of a revived job has both lives'
)
from dead as d;
select is(g.details, '{"from": "dead"}', 'the event of a revival says what the job was revived from')
from fairq.job_log as g where g.event_type = 'revived';
select is(fairq.retry_job(d.job_id), 'succeeded', 'a job that has succeeded is not run again') from dead as d;

-- a cancelled one
create temp table cancelled as select * from fairq.enqueue_job('a', 'work', p_delay => '1 day');
select fairq.cancel_job(c.job_id) from cancelled as c;
select is(fairq.retry_job(c.job_id), 'queued', 'a cancelled job is queued again') from cancelled as c;
select is(c.job_id, h.job_id, 'a cancelled job that was queued again is claimed under its old id') from cancelled as c cross join fairq_test.claim() as h;

-- others
select is(fairq.retry_job(-1), 'not_found', 'an unknown job is not found');
select throws_ok('select fairq.retry_job(null)', '22023', null, 'a null id is refused');
select fairq_test.claim(1, p_tenant => 'nobody');
select is(f.running, 1, 'of a job that was revived and claimed the scheduler counts one attempt that runs') from fairq.flows as f;
select fairq_test.as_role('fairq_tenant');
select throws_ok('select fairq.retry_job(1)', '42501', null, 'a tenant may not revive a job');
select fairq_test.as_role('fairq_worker');
select throws_ok('select fairq.retry_job(1)', '42501', null, 'a worker may not revive a job');
select fairq_test.as_role('fairq_operator');
select is(fairq.retry_job(-1), 'not_found', 'an operator may revive jobs');
select fairq_test.as_role('none');

-- an operator whose grant is narrowed to another tenant knows nothing of the job
begin;
delete from fairq.access_grants as g where g.role_name = 'fairq_operator';
create role fairq_test_narrowed in role fairq_operator;
insert into fairq.access_grants (role_name, verb, tenant) values ('fairq_test_narrowed', 'cancel', 'b');
create temp table theirs as
select v.tenant, e.job_id from (values ('a'), ('b')) as v(tenant) cross join fairq.enqueue_job(v.tenant, 't') as e;
grant select on theirs to public;
select fairq.cancel_job(t.job_id) from theirs as t;
select fairq_test.as_role('fairq_test_narrowed');
select results_eq(
    'select fairq.retry_job(t.job_id) from theirs as t order by t.tenant',
    array['not_found', 'queued'], 'an operator revives jobs of the tenants it is granted, and finds no others'
);
select fairq_test.as_role('none');
select is(fairq_test.state_of(t.job_id), 'cancelled', 'which stay as they were') from theirs as t where t.tenant = 'a';
rollback;

select * from finish();
