-- events: the timeline of a job, complete and exact, whatever befell it.
select plan(19);

create function pg_temp.claimed(p_task text) returns fairq.claimed_job language sql as $fn$
    select c from fairq_test.claim(1, p_task, p_owner => 'w') as c
$fn$;
create temp table jobs as
select v.task, e.job_id
from (values ('good'), ('retried'), ('released'), ('expired'), ('died'), ('cancelled'), ('stopped'), ('revived'), ('moved')) as v(task)
cross join fairq.enqueue_job('a', v.task, p_queue => v.task, p_max_attempts => 2) as e;

-- given what befalls each
select fairq.complete_job(c.job_id, c.lease_token) from pg_temp.claimed('good') as c;

select fairq.fail_job(c.job_id, c.lease_token, 'one', '0') from pg_temp.claimed('retried') as c;
select fairq.complete_job(c.job_id, c.lease_token) from pg_temp.claimed('retried') as c;

select fairq.release_job(c.job_id, c.lease_token) from pg_temp.claimed('released') as c;
select fairq.release_job(c.job_id, c.lease_token, '1 microsecond') from pg_temp.claimed('released') as c;
select fairq.complete_job(c.job_id, c.lease_token) from pg_temp.claimed('released') as c;

select fairq_test.given_lease_over(c.job_id) from pg_temp.claimed('expired') as c;
select fairq.release_expired_jobs('expired');
select fairq.complete_job(c.job_id, c.lease_token) from pg_temp.claimed('expired') as c;

select fairq_test.given_lease_over(c.job_id) from pg_temp.claimed('died') as c;
select fairq.fail_job(c.job_id, c.lease_token, 'two', '0') from pg_temp.claimed('died') as c;

select fairq.cancel_job(j.job_id) from jobs as j where j.task = 'cancelled';

create temp table stopping as select c.* from pg_temp.claimed('stopped') as c;
select fairq.cancel_job(s.job_id) from stopping as s;
select fairq.release_job(s.job_id, s.lease_token) from stopping as s;

select fairq.fail_job(c.job_id, c.lease_token, 'for good', p_retry => false) from pg_temp.claimed('revived') as c;
select fairq.retry_job(j.job_id) from jobs as j where j.task = 'revived';
select fairq.complete_job(c.job_id, c.lease_token) from pg_temp.claimed('revived') as c;

select fairq.reschedule_job(j.job_id, p_priority => 0) from jobs as j where j.task = 'moved';
create temp table running as select c.* from pg_temp.claimed('moved') as c;

-- then the timelines are
create temp table expected (task text, timeline text);
insert into expected values
    ('good', 'created 0, claimed 1 by w, succeeded 1 by w'),
    ('retried', 'created 0, claimed 1 by w, retry_scheduled 1 by w, claimed 2 by w, succeeded 2 by w'),
    ('released', 'created 0, claimed 1 by w, released 1 by w, claimed 1 by w, released 1 by w, claimed 1 by w, succeeded 1 by w'),
    ('expired', 'created 0, claimed 1 by w, lease_expired 1 by w, claimed 2 by w, succeeded 2 by w'),
    ('died', 'created 0, claimed 1 by w, lease_expired 1 by w, claimed 2 by w, dead 2 by w'),
    ('cancelled', 'created 0, cancelled 0 by me'),
    ('stopped', 'created 0, claimed 1 by w, cancel_requested 1 by me, cancelled 1 by w'),
    ('revived', 'created 0, claimed 1 by w, dead 1 by w, revived 1 by me, claimed 1 by w, succeeded 1 by w'),
    ('moved', 'created 0, rescheduled 0 by me, claimed 1 by w');
select is(
    fairq_test.timeline(j.job_id), replace(e.timeline, 'by me', 'by ' || session_user),
    'the timeline of a job: ' || e.task
)
from expected as e join jobs as j using (task);

-- and whole
select is_empty(
    'select e.* from fairq.job_events as e where e.queue is null or e.tenant is null or e.event_type is null or e.attempt is null
     or e.details is null or e.created_at is null', 'every event says where, whose, what, which attempt and when'
);
select is_empty(
    'select e.* from fairq.job_events as e where (e.actor is null) <> (e.event_type = ''created'')',
    'and who, but for the creation'
);
select is_empty(
    'select v.job_id from fairq.all_jobs as v where not exists (select from fairq.job_events as e where e.job_id = v.job_id and e.event_type = ''created'')',
    'every job has a beginning'
);
select results_eq(
    'select count(*) from fairq.job_events as e where e.event_type = ''claimed''',
    'select count(*) + 1 from fairq.job_events as e where e.event_type in (''succeeded'', ''retry_scheduled'', ''released'', ''lease_expired'', ''dead'')
     or e.event_type = ''cancelled'' and e.attempt > 0', 'every attempt that began has ended once, but for the one that runs'
);
select is_empty(
    'select e.* from fairq.job_events as e join jobs using (job_id) where e.created_at < (
         select min(o.created_at) from fairq.job_events as o where o.job_id = e.job_id and o.event_type = ''created''
     )', 'nothing happens before the beginning'
);
select is(
    g.details, '{"error": {"message": "one", "length": 3}, "delay_seconds": 0.000}',
    'a failure says why, and how long to wait'
)
from fairq.job_events as g where g.event_type = 'retry_scheduled';
select is(
    g.details -> 'error' ->> 'code', 'LEASE_EXPIRED', 'an expiry has its code'
)
from fairq.job_events as g where g.event_type = 'lease_expired' and g.queue = 'expired';
select is(g.details -> 'error' ->> 'message', 'two', 'a death has its last error')
from fairq.job_events as g where g.event_type = 'dead' and g.queue = 'died';
select is_empty(
    'select e.* from fairq.job_events as e join running as r on e.details::text like ''%'' || r.lease_token || ''%''',
    'no event has a token'
);
select is(count(*), 0::bigint, 'a job that went well has cost no row of the log')
from fairq.job_log as g where g.queue = 'good';

select * from finish();
