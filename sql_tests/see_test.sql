-- see: what waits, what runs, and why a job has not started.
select plan(37);

-- given a queue that was claimed from
select is_empty('select * from fairq.queue_stats()', 'a queue nobody has claimed from is not known');
select fairq_test.given_jobs('a', 3);
select fairq_test.given_jobs('b', 2);
select fairq_test.given_jobs('a', 2, p_delay => '1 hour');
select fairq_test.given_tenant('capped', p_max_running => 1);
select fairq_test.given_jobs('capped', 2);
select fairq_test.given_tenant('paused', p_paused => true, p_weight => 4);
create temp table waits as select j as job_id from fairq_test.given_jobs('paused') as j;
create temp table held as select row_number() over () as n, c.* from fairq_test.claim(4) as c;

-- the queue
select results_eq(
    'select s.queue collate "default", s.paused, s.eligible_tenants, s.scheduled, s.running from fairq.queue_stats() as s',
    $$ values ('default', false, 2::bigint, 2::bigint, 4::bigint) $$,
    'a row tells of the queue: who may be picked, what waits, what runs'
);
select is(
    s.next_due_at, (select min(j.run_at) from fairq.jobs as j where j.state = 'scheduled'), 'when the next job is due'
)
from fairq.queue_stats('default') as s;
select ok(clock_timestamp() - s.ticked_at < interval '20 s', 'and when the scheduler was last there')
from fairq.queue_stats() as s;
select is_empty('select * from fairq.queue_stats(''nowhere'')', 'an unknown queue has no row');
select fairq_test.claim(1, 'other');
select results_eq(
    'select s.queue collate "default" from fairq.queue_stats() as s', array['default', 'other'],
    'without a name: every queue'
);
select fairq.set_queue('other', p_paused => true);
select is(s.paused, true, 'a paused queue says so') from fairq.queue_stats('other') as s;
select is(s.next_due_at, null, 'nothing is due where nothing waits') from fairq.queue_stats('other') as s;

-- its tenants
select set_eq(
    'select s.tenant collate "default", s.weight, s.max_running, s.paused, s.running, s.queued, s.blocked_by from fairq.tenant_stats(''default'') as s',
    $$ select v.tenant, v.weight, v.max_running, v.paused, h.running, v.jobs - h.running, v.blocked_by
       from (values
           ('a', 1::double precision, null::integer, false, 3::bigint, null), ('b', 1, null, false, 2, null),
           ('capped', 1, 1, false, 2, 'at its cap'), ('paused', 4, null, true, 1, 'paused')
       ) as v(tenant, weight, max_running, paused, jobs, blocked_by)
       cross join lateral (select count(*)::integer as running from held where held.tenant = v.tenant) as h $$,
    'a row tells of each tenant: its wishes, what runs and waits, and what keeps it from being picked'
);
select is((array_agg(s.tenant::text))[1:2], array['b', 'a'], 'those that may be picked come first, in their order')
from fairq.tenant_stats('default') as s;
select is_empty('select * from fairq.tenant_stats(''nowhere'')', 'an unknown queue has none');
select fairq.complete_job(h.job_id, h.lease_token) from held as h where h.tenant = 'b';
create temp table rest as select * from fairq_test.claim(1000);
select is(s.blocked_by, 'no work', 'a tenant with nothing to do')
from fairq.tenant_stats('default') as s where s.tenant = 'a';

-- one job
select is(fairq.explain_wait(w.job_id), 'its tenant is paused', 'why: the tenant is paused') from waits as w;
select is(fairq.explain_wait(j.job_id), 'its tenant is at its cap of 1', 'why: the tenant is at its cap')
from fairq.jobs as j
where j.tenant = 'capped' and not exists (select from fairq.leases as l where l.job_id = j.job_id);
select is(fairq.explain_wait(j.job_id), 'it is not due before ' || j.run_at, 'why: it is not due')
from fairq.jobs as j where j.state = 'scheduled' order by j.job_id limit 1;
select is(fairq.explain_wait(r.job_id), 'it runs', 'it does not wait') from rest as r order by r.job_id limit 1;
select fairq_test.given_lease_over(r.job_id) from rest as r;
select is(
    fairq.explain_wait(r.job_id), 'its lease is over: the next claim of the queue ends the attempt',
    'why: its worker is gone and nobody has noticed'
)
from rest as r order by r.job_id limit 1;
select is(fairq.explain_wait(h.job_id), 'finished', 'it has ended') from held as h where h.tenant = 'b' limit 1;
select is(fairq.explain_wait(-1), 'not found', 'there is none');
create temp table line as select row_number() over () as n, j as job_id from fairq_test.given_jobs('c', 3) as j;
select is(
    fairq.explain_wait(l.job_id), format('it is behind %s of its own tenant''s jobs', l.n - 1),
    format('why: %s before it', l.n - 1)
)
from line as l;
select fairq.reschedule_job(l.job_id, p_priority => 0) from line as l where l.n = 3;
select is(
    fairq.explain_wait(l.job_id), 'it is behind 1 of its own tenant''s jobs', 'a more urgent one has gone before'
)
from line as l where l.n = 1;
select fairq_test.given_jobs('a', 1, 'other');
select is(fairq.explain_wait(j.job_id), 'its queue is paused', 'why: the queue is paused')
from fairq.jobs as j where j.queue = 'other';

-- a tenant asks for its own
begin;
create role fairq_test_tenant login in role fairq_tenant;
grant select on line to public;
set local session authorization fairq_test_tenant;
set local app.tenant_id = 'c';
select is(fairq.explain_wait(l.job_id), 'it is behind 0 of its own tenant''s jobs', 'a tenant asks about its own job')
from line as l where l.n = 3;
set local app.tenant_id = 'd';
select is(fairq.explain_wait(l.job_id), 'not found', 'another one finds none') from line as l where l.n = 3;
reset session authorization;
commit;
drop role fairq_test_tenant;

-- refusals
select throws_ok('select fairq.explain_wait(null)', '22023', null, 'null is no job');
select fairq_test.refuses(
    format('select fairq.tenant_stats(%s)', c.value), '22023', 'p_queue', 'refused: tenant_stats ' || c.value
)
from (values ('null'), (''''''), ('''*''')) as c(value);

-- the view of all jobs
select is(count(*), count(distinct v.job_id), 'a job is in one place only') from fairq.all_jobs as v;
select set_eq(
    $$ select v.job_id from fairq.all_jobs as v $$,
    $$ select j.job_id from fairq.jobs as j union all select f.job_id from fairq.finished_jobs as f $$,
    'and none is missing'
);
select set_eq(
    'select distinct v.state from fairq.all_jobs as v', array['scheduled', 'queued', 'running', 'succeeded'],
    'states are those of users'
);
select is(v.lease_owner, 'worker', 'of a running job one sees the worker')
from fairq.all_jobs as v where v.state = 'running' limit 1;
select is_empty(
    'select from fairq.all_jobs as v where (v.state in (''running'', ''succeeded'')) <> (v.started_at is not null)',
    'and since when'
);
select hasnt_column('fairq', 'all_jobs', 'lease_token', 'but never its token');
select hasnt_column('fairq', 'job_events', 'lease_token', 'nor in the events');

select * from finish();
