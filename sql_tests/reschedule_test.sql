-- reschedule: another time or priority for a job that waits.
select plan(41);

create temp table job as select * from fairq.enqueue_job('a', 't');
create function pg_temp.look() returns table (state text, run_at timestamptz, priority integer) language sql as $fn$
    select j.state, j.run_at, j.priority::integer from fairq.jobs as j join job using (job_id)
$fn$;

-- time
select is(fairq.reschedule_job(j.job_id, '2100-01-01'), 'scheduled', 'a job that is put off to a time to come is scheduled') from job as j;
select results_eq(
    'select * from pg_temp.look()', $$ values ('scheduled', '2100-01-01'::timestamptz, 2) $$,
    'a job that is put off has the new time, and its old priority'
);
select is_empty('select * from fairq_test.claim()', 'a job that is put off is not claimed before its time');
select is(fairq.reschedule_job(j.job_id, p_delay => '1 hour'), 'scheduled', 'a job that is put off by a delay is scheduled') from job as j;
select ok(l.run_at - clock_timestamp() between interval '59 m' and interval '1 h', 'a delay counts from now')
from pg_temp.look() as l;
select is(fairq.reschedule_job(j.job_id, p_priority => 0), 'scheduled', 'a scheduled job that gets another priority stays scheduled') from job as j;
select ok(l.priority = 0 and l.run_at > clock_timestamp() + interval '59 m', 'a job that gets another priority keeps its time')
from pg_temp.look() as l;
select is(fairq.reschedule_job(j.job_id, p_delay => '0'), 'queued', 'a job with a delay of nothing is queued') from job as j;
select is(
    fairq.reschedule_job(j.job_id, '2000-01-01', p_priority => 3), 'queued', 'a job that is moved to a time that has passed is queued'
)
from job as j;
select results_eq(
    'select * from pg_temp.look()', $$ values ('queued', '2000-01-01'::timestamptz, 3) $$,
    'a job that was moved back has the time and the priority it was given'
);
select is(
    fairq_test.timeline(j.job_id), 'created 0' || repeat(format(', rescheduled 0 by %s', session_user), 5),
    'the timeline has every reschedule, with who did it'
)
from job as j;
select is(g.details, '{"run_at": "2000-01-01T00:00:00+00:00", "priority": 3}', 'the event of a reschedule says what was changed')
from fairq.job_log as g order by g.log_id desc limit 1;

-- the order follows
select fairq_test.given_jobs('a', 1, p_task => 'between', p_priority => 3);
select fairq.reschedule_job(j.job_id, p_delay => '0') from job as j;
create temp table held as select row_number() over () as n, c.* from fairq_test.claim(2) as c;
select results_eq('select h.task from held as h', array['between', 't'], 'jobs are claimed in their new order');

-- the scheduler hears of it, though it has seen the jobs before
create temp table seen as
select row_number() over () as n, j as job_id from fairq_test.given_jobs('a', 3, 'seen', p_priority => 3) as j;
select fairq_test.claim(1, 'seen', p_tenant => 'nobody');
select is(fairq.reschedule_job(s.job_id, p_delay => '1 day'), 'scheduled', 'a job that the scheduler has seen can be put off')
from seen as s where s.n = 1;
select is(fairq.reschedule_job(s.job_id, p_priority => 0), 'queued', 'a job that the scheduler has seen can be made more urgent')
from seen as s where s.n = 3;
select is(c.job_id, s.job_id, 'the job that was made more urgent is claimed first') from seen as s cross join fairq_test.claim(1, 'seen') as c where s.n = 3;
select is(fairq.reschedule_job(s.job_id, p_delay => '0'), 'queued', 'a job that was put off can be called back')
from seen as s where s.n = 1;
select results_eq(
    'select c.job_id from fairq_test.claim(3, ''seen'') as c',
    'select s.job_id from seen as s where s.n in (1, 2) order by s.n desc',
    'a job that was called back is claimed, at its new place'
);

-- jobs that do not wait
select is(fairq.reschedule_job(j.job_id, p_priority => 0), 'running', 'a running job cannot be rescheduled')
from job as j;
select fairq.complete_job(h.job_id, h.lease_token) from held as h where h.n = 2;
select is(fairq.reschedule_job(j.job_id, p_priority => 0), 'finished', 'a job that has ended cannot be rescheduled') from job as j;
select is(fairq.reschedule_job(-1, p_priority => 0), 'not_found', 'a job that does not exist cannot be rescheduled');
select is(count(*), 6::bigint, 'a reschedule that changes nothing leaves no event') from fairq.job_log as g where g.queue = 'default';
select is(
    fairq.fail_job(h.job_id, h.lease_token, p_retry_delay => '1 day'), 'scheduled', 'a job that failed waits for its next attempt'
)
from held as h where h.n = 1;
select is(fairq.reschedule_job(h.job_id, p_delay => '0'), 'queued', 'a job between two attempts can be rescheduled') from held as h where h.n = 1;
select is((select attempt from fairq_test.claim()), 2, 'a rescheduled job keeps the count of its attempts');

-- refusals
select fairq_test.refuses(
    format('select fairq.reschedule_job(%s)', c.arguments), '22023', c.names, 'refused: ' || c.arguments
)
from (values
    ('null, now()', 'p_job_id'),
    ('1', 'one of p_run_at, p_delay and p_priority'),
    ('1, null, null, null', 'one of p_run_at, p_delay and p_priority'),
    ('1, ''infinity''', 'p_run_at'),
    ('1, ''-infinity''', 'p_run_at'),
    ('1, now(), ''1 s''', 'p_run_at'),
    ('1, p_delay => ''-1 s''', 'p_delay'),
    ('1, p_delay => ''3651 days''', 'p_delay'),
    ('1, p_priority => -1', 'p_priority'),
    ('1, p_priority => 4', 'p_priority')
) as c(arguments, names);

-- who may: operators, and nobody else
select fairq_test.as_role('fairq_worker');
select throws_ok('select fairq.reschedule_job(1, p_priority => 0)', '42501', null, 'a worker may not reschedule a job');
select fairq_test.as_role('fairq_tenant');
select throws_ok(
    'select fairq.reschedule_job(1, p_priority => 0)', '42501', null, 'a tenant may not reschedule a job, not even its own'
);
select fairq_test.as_role('fairq_operator');
select is(
    fairq.reschedule_job(-1, p_priority => 0), 'not_found', 'an operator may, and is told when there is no such job'
);
select fairq_test.as_role('none');

-- an operator whose grant is narrowed to another tenant knows nothing of the job
begin;
delete from fairq.access_grants as g where g.role_name = 'fairq_operator';
create role fairq_test_narrowed in role fairq_operator;
insert into fairq.access_grants (role_name, verb, tenant) values ('fairq_test_narrowed', 'cancel', 'b');
create temp table theirs as
select v.tenant, e.job_id from (values ('a'), ('b')) as v(tenant) cross join fairq.enqueue_job(v.tenant, 't') as e;
grant select on theirs to public;
select fairq_test.as_role('fairq_test_narrowed');
select results_eq(
    'select fairq.reschedule_job(t.job_id, p_priority => 0) from theirs as t order by t.tenant',
    array['not_found', 'queued'], 'an operator reschedules jobs of the tenants it is granted, and finds no others'
);
select is(fairq.cancel_job(t.job_id), 'not_found', 'nor to cancel') from theirs as t where t.tenant = 'a';
select fairq_test.as_role('none');
select is(j.priority::integer, 2, 'which stay as they were')
from fairq.jobs as j join theirs as t using (job_id) where t.tenant = 'a';
rollback;

select * from finish();
