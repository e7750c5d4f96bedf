-- pause_queue, resume_queue, pause_tenant_because: a pause says since when, by whom and why; pauses() lists them.
select plan(33);

create function pg_temp.told(p_tenant text) returns text[] language sql as $fn$
    select array[(p.paused_at > now() - interval '1 minute')::text, p.paused_by, p.reason]
    from fairq.pauses('q') as p where p.tenant is not distinct from p_tenant
$fn$;

-- given
select fairq_test.given_jobs('a', 2, 'q');
select fairq_test.given_jobs('b', 1, 'q');
select is_empty('select * from fairq.pauses()', 'nothing is paused at first');

-- when, then: a queue
select fairq.pause_queue('q', 'the mail server is down');
select is_empty('select * from fairq_test.claim(3, ''q'')', 'nothing of a paused queue is started');
select is(pg_temp.told(null), array['true', session_user::text, 'the mail server is down'], 'a pause says since when, by whom and why');
create temp table first as select p.paused_at from fairq.pauses('q') as p;
select fairq.pause_queue('q');
select is(pg_temp.told(null), array['true', session_user::text, 'the mail server is down'], 'paused again without a reason it keeps the one it has');
select fairq_test.as_role('fairq_operator');
select fairq.pause_queue('q', 'ticket 42');
select is(pg_temp.told(null), array['true', 'fairq_operator', 'ticket 42'], 'a new reason is that of who gives it');
select fairq_test.as_role('none');
select is(p.paused_at, f.paused_at, 'and the time stays') from fairq.pauses('q') as p cross join first as f;
select fairq.resume_queue('q');
select is_empty('select * from fairq.pauses()', 'with the pause all of it is forgotten');
select is(count(*), 1::bigint, 'and jobs are started again') from fairq_test.claim(1, 'q');
select fairq.set_queue('q', p_paused => true);
select is(pg_temp.told(null), array['true', session_user::text, null], 'set_queue() notes when and who, too');
select fairq.set_queue('q', p_paused => false, p_max_running => 100);
select is_empty('select * from fairq.pauses()', 'and forgets it');

-- all queues that have no settings of their own
select fairq.pause_queue('*', 'a release');
select is(p.reason, 'a release', 'all queues without settings may be paused') from fairq.pauses('*') as p;
select fairq.set_queue('r', p_max_running => 5);
select is(p.reason, null, 'a queue that begins with these settings is paused by who set it up') from fairq.pauses('r') as p;
select fairq.resume_queue('s');
select is_empty('select * from fairq.pauses(''s'')', 'one of them may be resumed alone');
select fairq.resume_queue('*');
select fairq.resume_queue('r');

-- a tenant
select fairq.set_tenant('q', 'a', 2, 5);
select fairq.pause_tenant_because('q', 'a', 'does not pay');
select is(pg_temp.told('a'), array['true', session_user::text, 'does not pay'], 'a tenant''s pause says it likewise');
select is(t.weight, 2::double precision, 'of its wish only the pause changes') from fairq.tenants as t where t.tenant = 'a';
select is(count(*) filter (where c.tenant = 'a'), 0::bigint, 'nothing of it is started') from fairq_test.claim(1, 'q') as c;
select fairq.pause_tenant('q', 'a');
select is(pg_temp.told('a'), array['true', session_user::text, 'does not pay'], 'pause_tenant() changes nothing of a pause that there is');
select fairq.set_tenant('q', 'a', 3, 5, p_paused => true);
select is(pg_temp.told('a'), array['true', session_user::text, 'does not pay'], 'nor does another wish that is a pause as well');
select fairq.resume_tenant('q', 'a');
select is_empty('select * from fairq.pauses()', 'resume_tenant() ends it');
select fairq.pause_tenant('q', 'b');
select is(pg_temp.told('b'), array['true', session_user::text, null], 'pause_tenant() notes when and who');

-- who is told what
select fairq.pause_tenant_because('q', 'b', 'looks like fraud');
create temp table waiting as
select job_id from fairq.enqueue_job('b', 'mail', p_queue => 'q');
grant select on waiting to public;
select fairq_test.as_role('fairq_operator');
select matches(
    (select (fairq.explain_wait(w.job_id)).sentence from waiting as w),
    '^its tenant is paused since \S+ \S+ by \S+: looks like fraud$', 'explain_wait() tells an operator all of it'
);
select fairq_test.as_role('fairq_producer');
select matches(
    (select (fairq.explain_wait(w.job_id)).sentence from waiting as w), '^its tenant is paused since \S+ \S+$',
    'and others since when'
);
select fairq_test.as_role('none');
select fairq.pause_queue('q', 'ticket 43');
select matches(
    (select (fairq.explain_wait(w.job_id)).sentence from waiting as w),
    '^its queue is paused since \S+ \S+ by \S+: ticket 43$', 'of a queue that is paused the same is told'
);
select results_eq(
    'select p.tenant from fairq.pauses(''q'') as p', 'values (''b''), (null)', 'what is paused longest comes first'
);
select is(count(*), 1::bigint, 'and no more than were asked for') from fairq.pauses(p_limit => 1);

-- refusals
select fairq_test.refuses(c.call, '22023', c.names, format('refused: %s', c.call))
from (values
    ('select fairq.pause_queue(null)', 'p_queue'),
    ('select fairq.pause_queue(''q'', '' '')', 'p_reason'),
    ('select fairq.pause_tenant_because(''q'', ''b'', repeat(''x'', 1001))', 'p_reason'),
    ('select fairq.pause_tenant_because(''q'', ''b'', null)', 'p_reason'),
    ('select fairq.pauses(p_limit => 1001)', 'p_limit')
) as c(call, names);
delete from fairq.tenants as t where t.queue = 'q' and t.tenant = 'b';
select is(pg_temp.told('b'), null, 'a deleted row takes its pause along');
select fairq_test.as_role('fairq_worker');
select throws_ok('select fairq.pause_queue(''q'', ''so'')', '42501', null, 'a worker may not pause');
select fairq_test.as_role('fairq_tenant');
select throws_ok('select * from fairq.pauses()', '42501', null, 'a tenant is not told what operators say of it');
select fairq_test.as_role('none');

select * from finish();
