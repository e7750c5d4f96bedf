-- cancel: queued, scheduled -> cancelled; running -> told at its next renewal.
select plan(36);

-- a job that waits
create temp table queued as select * from fairq.enqueue_job('a', 't', '{"x": 1}');
create temp table scheduled as select * from fairq.enqueue_job('a', 't', p_delay => '1 day');
select is(fairq.cancel_job(q.job_id), 'cancelled', 'a queued job is cancelled') from queued as q;
select is(
    to_jsonb(f) - '{run_at, created_at, finished_at, slot}'::text[],
    jsonb_build_object(
        'job_id', q.job_id, 'queue', 'default', 'tenant', 'a', 'task', 't', 'payload', '{"x": 1}'::jsonb, 'priority',
        2,
        'state', 'cancelled', 'attempts', 0, 'max_attempts', 5, 'cost', 1, 'operation_key', null, 'traceparent', null, 'last_error', null,
        'started_at', null, 'lease_owner', null, 'token_hash', null, 'result', null
    ),
    'all that was known of it is kept'
)
from queued as q join fairq.finished_jobs as f using (job_id);
select is(
    fairq_test.timeline(q.job_id), format('created 0, cancelled 0 by %s', session_user),
    'the timeline says who did it'
)
from queued as q;
select is_empty('select * from fairq_test.claim()', 'it is not claimed');
select is(fairq.cancel_job(s.job_id), 'cancelled', 'a scheduled job is cancelled') from scheduled as s;
select is(fairq.cancel_job(s.job_id), 'finished', 'once is enough') from scheduled as s;
select is(fairq.cancel_job(-1), 'not_found', 'an unknown job is not found');

-- a job that has failed before
select fairq_test.given_jobs('a');
create temp table failed as select * from fairq_test.claim();
select fairq.fail_job(f.job_id, f.lease_token, 'x', '1 day') from failed as f;
select is(fairq.cancel_job(f.job_id), 'cancelled', 'a job between two attempts is cancelled') from failed as f;
select results_eq(
    'select v.state, v.attempts, v.last_error ->> ''message'' from fairq.all_jobs as v join failed using (job_id)',
    $$ values ('cancelled', 1, 'x') $$, 'with its attempts and its last error'
);

-- a job that runs
select fairq_test.given_jobs('a', 4);
create temp table held as select row_number() over () as n, c.* from fairq_test.claim(4) as c;
select is(fairq.cancel_job(h.job_id), 'cancel_requested', 'a running job is asked to stop')
from held as h where h.n = 1;
select is(fairq_test.state_of(h.job_id), 'running', 'it runs on') from held as h where h.n = 1;
select ok(v.cancel_requested_at is not null, 'everybody can see that it was asked')
from fairq.all_jobs as v join held as h using (job_id) where h.n = 1;
create temp table asked as select l.* from fairq.leases as l join held as h using (job_id) where h.n = 1;
select is(fairq.cancel_job(h.job_id), 'cancel_requested', 'asked again') from held as h where h.n = 1;
select results_eq(
    'select l.* from fairq.leases as l join asked as a using (job_id)', 'select * from asked',
    'it was asked the first time'
);
select is(count(*), 1::bigint, 'and the log has it once') from fairq.job_log as g join asked as a using (job_id);
select is(fairq.renew_job_lease(h.job_id, h.lease_token), false, 'its worker hears of it at the next renewal')
from held as h where h.n = 1;
select is(fairq.release_job(h.job_id, h.lease_token), 'cancelled', 'and gives it up') from held as h where h.n = 1;
select is(
    fairq_test.timeline(h.job_id),
    format('created 0, claimed 1 by worker, cancel_requested 1 by %s, cancelled 1 by worker', session_user),
    'its timeline is whole'
)
from held as h where h.n = 1;
select is(f.started_at is not null and f.token_hash is not null, true, 'the end remembers its last attempt')
from fairq.finished_jobs as f join held as h using (job_id) where h.n = 1;
select is(fairq.complete_job(h.job_id, h.lease_token), false, 'after that it cannot succeed')
from held as h where h.n = 1;
select fairq.complete_job(h.job_id, h.lease_token) from held as h where h.n = 2;
select is(fairq.cancel_job(h.job_id), 'finished', 'a job that has succeeded cannot be cancelled')
from held as h where h.n = 2;
select fairq.fail_job(h.job_id, h.lease_token, p_retry => false) from held as h where h.n = 3;
select is(fairq.cancel_job(h.job_id), 'finished', 'nor a dead one') from held as h where h.n = 3;
select fairq_test.given_lease_over(h.job_id) from held as h where h.n = 4;
select is(fairq.cancel_job(h.job_id), 'cancel_requested', 'a job whose lease is over has not ended yet')
from held as h where h.n = 4;
select fairq_test.claim(1);
select is(fairq_test.state_of(h.job_id), 'cancelled', 'the next claim ends it') from held as h where h.n = 4;

-- the scheduler
select fairq_test.claim(1, p_tenant => 'nobody');
select is(f.running, 0, 'the scheduler has counted every end, and nothing for what never ran') from fairq.flows as f;

-- who may: producers everything, tenants their own
begin;
create role fairq_test_tenant login in role fairq_tenant;
create role fairq_test_producer login in role fairq_producer;
create role fairq_test_narrow login;
grant usage on schema fairq to fairq_test_narrow;
grant execute on function fairq.cancel_job(bigint) to fairq_test_narrow;
insert into fairq.access_grants (role_name, verb, queue, tenant) values ('fairq_test_narrow', 'cancel', 'q', 'b');
create temp table mine as select v.tenant, e.job_id from (values ('a'), ('b'), ('c')) as v(tenant)
cross join fairq.enqueue_job(v.tenant, 't') as e;
insert into mine select 'b in q', e.job_id from fairq.enqueue_job('b', 't', p_queue => 'q') as e;
grant select on mine to public;
set local session authorization fairq_test_tenant;
select throws_ok(
    format('select fairq.cancel_job(%s)', m.job_id), '42501', 'this session acts for no tenant',
    'without a tenant that is said, lest it look like nothing to cancel'
)
from mine as m where m.tenant = 'a';
set local app.tenant_id = 'a';
select is(fairq.cancel_job(m.job_id), 'not_found', 'a tenant finds no job of another')
from mine as m where m.tenant = 'b';
select is(fairq.cancel_job(m.job_id), 'cancelled', 'and cancels its own') from mine as m where m.tenant = 'a';
select is(fairq.cancel_job(m.job_id), 'finished', 'once') from mine as m where m.tenant = 'a';
select is(fairq.cancel_job(-1), 'not_found', 'an unknown job looks like one of another tenant');
set local session authorization fairq_test_narrow;
select is(fairq.cancel_job(m.job_id), 'not_found', 'a grant for one queue is none for another')
from mine as m where m.tenant = 'b';
select is(fairq.cancel_job(m.job_id), 'cancelled', 'it is one for its own') from mine as m where m.tenant = 'b in q';
set local session authorization fairq_test_producer;
select is(fairq.cancel_job(m.job_id), 'cancelled', 'a producer cancels any') from mine as m where m.tenant = 'c';
select is(fairq.cancel_job(-1), 'not_found', 'and is told when there is none');
set local session authorization default;
select is(g.actor, 'fairq_test_tenant', 'the log names who did it')
from fairq.job_log as g join mine as m using (job_id) where m.tenant = 'a';

select throws_ok('select fairq.cancel_job(null)', '22023', null, 'null is no job');

select * from finish();
rollback;
