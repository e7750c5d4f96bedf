-- see: what waits, what runs, and why a job has not started.
select plan(91);

-- given a queue that was claimed from, where every job costs the same
select fairq.set_queue('default', p_charge => 'jobs');
select results_eq(
    'select s.queue collate "default", s.charge, s.queued, s.ticked_at from fairq.queue_stats() as s',
    $$ values ('default', 'jobs', 0::bigint, null::timestamptz) $$, 'a queue that an operator has set is known'
);
select fairq_test.given_jobs('z', 2, 'Aaa');
select fairq_test.given_jobs('z', 1, 'e');
select fairq_test.given_jobs('z', 1, 'zz');
select results_eq(
    'select s.queue collate "default", s.queued, s.oldest_wait > ''0'', s.ticked_at from fairq.queue_stats() as s',
    $$ values ('Aaa', 2::bigint, true, null::timestamptz), ('default', 0, null, null), ('e', 1, true, null),
              ('zz', 1, true, null) $$,
    'so is one with jobs that nobody has claimed from, wherever its name stands'
);
select fairq.cancel_job(j.job_id) from fairq.jobs as j where j.tenant = 'z';
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
    'select s.queue collate "default", s.paused, s.charge, s.max_running, s.rate, s.burst, s.backlogged, s.eligible_tenants,
            s.queued, s.scheduled, s.running, s.started > 3.9, s.expired, s.dead
     from fairq.queue_stats() as s',
    $$ values ('default', false, 'jobs', null::integer, null::double precision, 1, 4::bigint, 2::bigint, 4::bigint, 2::bigint,
               4::bigint, true, 0::bigint, 0::bigint) $$,
    'a row tells of the queue: how it is set, who has work, who may be picked, what waits, what runs'
);
select is(
    s.next_due_at, (select min(j.run_at) from fairq.jobs as j where j.state = 'scheduled'), 'when the next job is due'
)
from fairq.queue_stats('default') as s;
select ok(clock_timestamp() - s.ticked_at < interval '60 s', 'and when the scheduler was last there')
from fairq.queue_stats() as s;
select ok(
    clock_timestamp() - s.oldest_wait - (
        select min(j.run_at) from fairq.jobs as j
        where j.state = 'queued' and not exists (select from held as h where h.job_id = j.job_id)
    ) between interval '0' and interval '20 s', 'and how long the oldest job waits, of those that do not run'
)
from fairq.queue_stats() as s;
select is_empty('select * from fairq.queue_stats(''nowhere'')', 'an unknown queue has no row');
select fairq_test.claim(1, 'other');
select results_eq(
    'select s.queue collate "default" from fairq.queue_stats() as s', array['default', 'other'],
    'without a name: every queue'
);
select fairq.set_queue('other', p_paused => true, p_max_running => 7, p_rate => 2, p_burst => 3);
select results_eq(
    'select s.paused, s.max_running, s.rate, s.burst from fairq.queue_stats(''other'') as s',
    'values (true, 7, 2::double precision, 3)', 'a queue shows its pause, cap and rate at once'
);
select results_eq(
    'select s.backlogged, s.queued, s.running, s.oldest_wait, s.next_due_at from fairq.queue_stats(''other'') as s',
    'values (0::bigint, 0::bigint, 0::bigint, null::interval, null::timestamptz)',
    'nothing is due and nothing is old where nothing waits'
);

-- what has changed since the last claim
select fairq.pause_tenant('default', 'a');
select is(s.eligible_tenants, 1::bigint, 'a pause counts before the next claim knows of it') from fairq.queue_stats('default') as s;
select fairq.resume_tenant('default', 'a');
select fairq.resume_tenant('default', 'paused');
select is(s.eligible_tenants, 3::bigint, 'and so does its end') from fairq.queue_stats('default') as s;
select fairq.pause_tenant('default', 'paused');
select fairq.set_tenant('default', '*', p_max_running => 1);
select is(s.eligible_tenants, 1::bigint, 'a wish for all counts for those without one of their own')
from fairq.queue_stats('default') as s;
select fairq.set_tenant('default', '*');

-- its tenants
select set_eq(
    'select s.tenant collate "default", s.weight, s.max_running, s.paused, s.running, s.queued, s.started, s.blocked_by
     from fairq.tenant_stats(''default'') as s',
    $$ select v.tenant, v.weight, v.max_running, v.paused, h.running, v.jobs - h.running as queued, h.running::double precision as started,
              v.blocked_by
       from (values
           ('a', 1::double precision, null::integer, false, 3::bigint, null), ('b', 1, null, false, 2, null),
           ('capped', 1, 1, false, 2, 'at its cap of 1'), ('paused', 4, null, true, 1, 'paused')
       ) as v(tenant, weight, max_running, paused, jobs, blocked_by)
       cross join lateral (select count(*) as running from held where held.tenant = v.tenant) as h $$,
    'a row tells of each tenant: its wishes, what runs and waits, what was started, and what keeps it from being picked'
);
select is((array_agg(s.tenant::text))[1:2], array['b', 'a'], 'those that may be picked come first, in their order')
from fairq.tenant_stats('default') as s;
select is((array_agg(s.tenant::text)), array['b', 'a'], 'as many as are asked for')
from fairq.tenant_stats('default', p_limit => 2) as s;
select results_eq(
    'select s.tenant collate "default", s.running from fairq.tenant_stats(''default'', ''capped'') as s',
    $$ values ('capped', 1::bigint) $$, 'or one alone'
);
select is_empty('select * from fairq.tenant_stats(''default'', ''nobody'')', 'if it is known');
select is_empty('select * from fairq.tenant_stats(''nowhere'')', 'an unknown queue has none');
select results_eq(
    'select s.tenant collate "default", s.share, s.entitled from fairq.tenant_stats(''default'') as s order by 1',
    $$ values ('a', 0.5::double precision, 1 / 7::double precision), ('b', 0.25, 1 / 7::double precision),
              ('capped', 0.25, 1 / 7::double precision), ('paused', 0, 4 / 7::double precision) $$,
    'shares are of what was spent, and what is due goes by weight among those that had work'
);
select results_eq(
    'select s.tenant collate "default", s.lag_jobs, s.lag_seconds from fairq.tenant_stats(''default'') as s order by 1',
    $$ values ('a', -1::double precision, null::double precision), ('b', 0, null), ('capped', 0, null), ('paused', 4, null) $$,
    'who has had more than the others is ahead, who could not be served is behind, in jobs of its own'
);
select fairq.complete_job(h.job_id, h.lease_token) from held as h where h.tenant = 'b';
create temp table rest as select * from fairq_test.claim(1000);
select results_eq(
    'select s.blocked_by, s.lag_jobs from fairq.tenant_stats(''default'', ''a'') as s',
    'values (''no work'', 0::double precision)', 'a tenant with nothing to do is owed nothing'
);
select fairq.complete_job(h.job_id, h.lease_token) from held as h where h.tenant = 'capped';
select results_eq(
    'select s.running, s.blocked_by from fairq.tenant_stats(''default'', ''capped'') as s',
    'values (0::bigint, null::text)', 'a slot is free as soon as its job has ended'
);
select fairq.set_tenant('default', 'capped', 2, 0);
select results_eq(
    'select s.weight, s.max_running, s.blocked_by from fairq.tenant_stats(''default'', ''capped'') as s',
    'values (2::double precision, 0, ''at its cap of 0'')', 'a wish shows before the next claim knows of it'
);

-- in another order, and whose the backlog is
select fairq.set_queue('flood', p_charge => 'jobs');
select fairq_test.given_jobs('small' || n, 1, 'flood') from generate_series(1, 3) as n;
select fairq_test.given_jobs('elephant', 17, 'flood');
select fairq_test.given_tenant('small2', p_weight => 3, p_queue => 'flood');
select fairq_test.claim(1, 'flood', p_tenant => 'elephant');
select results_eq(
    'select s.tenant collate "default", s.backlog_share, s.oldest_wait > ''0''
     from fairq.tenant_stats(''flood'', p_by => ''backlog'', p_limit => 1) as s',
    $$ values ('elephant', 0.85::double precision, true) $$, 'who has most of the backlog comes first, with its part of it'
);
select is((array_agg(s.tenant::text))[4], 'elephant', 'also when its turn comes last')
from fairq.tenant_stats('flood') as s;
select fairq_test.claim(1, 'flood', p_tenant => 'small2');
select fairq_test.claim(1, 'flood', p_tenant => 'small3');
select fairq_test.claim(2, 'flood', p_tenant => 'elephant');
select is((array_agg(s.tenant::text))[1], 'elephant', 'or who had most of the last minute')
from fairq.tenant_stats('flood', p_by => 'share') as s;
select results_eq(
    'select s.oldest_wait is null, s.backlog_share is null from fairq.tenant_stats(''flood'', ''small2'') as s',
    'values (true, true)', 'where nothing waits there is no oldest, and one that is asked for by name is in no sample'
);

-- rates
select fairq.set_queue('rates', p_charge => 'jobs');
select fairq.set_tenant('rates', 'slow', p_rate => 0.001);
select fairq_test.given_jobs('slow', 3, 'rates');
select is(count(*), 1::bigint, 'a bucket of one gives one') from fairq_test.claim(3, 'rates');
select results_eq(
    'select s.rate, s.burst, s.queued, s.blocked_by, s.blocked_until
     from fairq.tenant_stats(''rates'') as s',
    'select 0.001::double precision, 1, 2::bigint, ''rate-limited until '' || f.token_due_at, f.token_due_at
     from fairq.flows as f where f.queue = ''rates''',
    'a tenant without tokens says when the next comes'
);
select ok(
    s.blocked_until - clock_timestamp() between interval '900 s' and interval '1000 s', 'which is a thousand seconds from its start'
)
from fairq.tenant_stats('rates') as s;
select results_eq(
    'select e.state, e.reason, e.sentence, e.until, e.ahead, e.picks
     from fairq.flows as f
     join fairq.jobs as j on j.queue = f.queue
     cross join lateral fairq.explain_wait(j.job_id) as e
     where f.queue = ''rates'' and not exists (select from fairq.leases as l where l.job_id = j.job_id)
     order by j.job_id',
    'select ''queued'', ''tenant_rate_limited'', ''its tenant is rate-limited until '' || f.token_due_at, f.token_due_at,
            n.ahead, null::bigint
     from fairq.flows as f cross join generate_series(0::bigint, 1) as n(ahead) where f.queue = ''rates''',
    'why: its tenant is out of tokens'
);
select fairq.set_tenant('rates', 'slow');
select is(s.blocked_by, null, 'a rate that was taken away keeps nobody') from fairq.tenant_stats('rates') as s;
select is(s.eligible_tenants, 1::bigint, 'who was out of tokens may be picked as soon as there is no rate')
from fairq.queue_stats('rates') as s;
select fairq.set_tenant('rates', 'slow', p_rate => 0.001);
select fairq_test.claim(1, 'rates');
select is(s.eligible_tenants, 0::bigint, 'who is out of tokens may not be picked') from fairq.queue_stats('rates') as s;
update fairq.flows as f set token_due_at = clock_timestamp(), tokens_at = f.tokens_at - interval '1000 s'
where f.queue = 'rates';
select is(s.eligible_tenants, 1::bigint, 'and may again as soon as the next has come') from fairq.queue_stats('rates') as s;
select fairq.set_tenant('rates', 'slow');

-- time
select fairq_test.given_jobs('a', 2, 'time');
select fairq_test.given_jobs('b', 2, 'time');
create temp table timed as select * from fairq_test.claim(1, 'time');
select results_eq(
    'select s.tenant collate "default", s.lag_jobs, s.lag_seconds from fairq.tenant_stats(''time'') as s order by 1',
    $$ values ('a', -1::double precision, -1::double precision), ('b', 0, 0) $$,
    'where time is charged the lag is in seconds as well'
);

-- the last minute
select is(
    fairq._in_last_minute(c.minute, array[60, 30], '2024-01-01 00:00:15+00'), c.counted::double precision,
    'counters of ' || c.what
)
from (values
    (28401120, 60 + 30 * 0.75, 'this minute and the last'), (28401119, 60 * 0.75, 'the minute before'),
    (28401118, 0, 'one long ago'), (0, 0, 'no minute at all')
) as c(minute, counted, what);

-- one job: what it does not wait for
create function pg_temp.why(p_job_id bigint) returns text language sql as $fn$
    select concat_ws('/', e.state, e.reason, e.ahead, e.picks) || ': ' || e.sentence from fairq.explain_wait(p_job_id) as e
$fn$;
select is(pg_temp.why(-1), 'not_found: not found', 'there is none');
select is(pg_temp.why(r.job_id), 'running/running: it runs', 'it runs') from rest as r order by r.job_id limit 1;
select fairq_test.given_lease_over(r.job_id) from rest as r;
select is(
    pg_temp.why(r.job_id), 'running/lease_expired: its lease is over: the next claim of its queue ends the attempt',
    'its worker is gone and nobody has noticed'
)
from rest as r order by r.job_id limit 1;
select is(pg_temp.why(h.job_id), 'succeeded/finished: it has succeeded', 'it has succeeded')
from held as h where h.tenant = 'b' limit 1;
select fairq.cancel_job(j.job_id) from fairq.jobs as j where j.queue = 'rates' order by j.job_id desc limit 1;
select is(pg_temp.why(f.job_id), 'cancelled/finished: it was cancelled', 'it was cancelled')
from fairq.finished_jobs as f where f.queue = 'rates';
select fairq.fail_job(t.job_id, t.lease_token, p_retry => false) from timed as t;
select is(pg_temp.why(t.job_id), 'dead/finished: it is dead', 'it is dead') from timed as t;

-- the dead, and leases that are over
select results_eq(
    'select d.job_id, d.queue collate "default", d.state, d.last_error from fairq.dead_jobs() as d',
    'select t.job_id, ''time'', ''dead'', null::jsonb from timed as t', 'who is dead is found'
);
select fairq_test.given_jobs('a', 3, 'dying', p_max_attempts => 1);
create temp table dying as select * from fairq_test.claim(3, 'dying');
select fairq.fail_job(d.job_id, d.lease_token, 'no ' || d.job_id) from dying as d order by d.job_id limit 2;
select results_eq(
    'select d.job_id, d.last_error ->> ''message'' from fairq.dead_jobs(''dying'') as d',
    'select d.job_id, ''no '' || d.job_id from dying as d where d.job_id < (select max(x.job_id) from dying as x) order by 1 desc',
    'the last one first, with what it died of'
);
select results_eq(
    'select d.job_id from fairq.dead_jobs(p_limit => 1) as d', 'select d.job_id from fairq.dead_jobs() as d limit 1',
    'as many as are wanted of all queues'
);
update fairq.leases as l
set started_at = l.started_at - interval '1 h', lease_expires_at = l.lease_expires_at - interval '1 h'
where l.queue = 'dying';
update fairq.ticks as t set expire_floor = '-infinity' where t.queue = 'dying';
select results_eq(
    'select s.running, s.expired, s.dead from fairq.queue_stats(''dying'') as s', 'values (1::bigint, 1::bigint, 2::bigint)',
    'a queue tells of its dead, and of leases that are over with nobody to notice'
);

-- what it waits for
select is(
    format('%s %s %s', e.state, e.reason, e.until = j.run_at), 'scheduled not_due t', 'why: it is not due'
)
from fairq.jobs as j cross join lateral fairq.explain_wait(j.job_id) as e where j.state = 'scheduled' limit 1;
select fairq_test.given_jobs('late', 1, 'late', p_delay => '1 microsecond') as late \gset
select is(
    pg_temp.why(:late),
    'scheduled/not_looked_at/0/0: nobody has claimed from its queue yet; it is the first of its own tenant''s jobs',
    'why: it is due, and nobody has ever claimed'
);
select fairq_test.claim(1, 'again');
select fairq_test.given_jobs('late', 1, 'again') as again \gset
select is(
    pg_temp.why(:again),
    'queued/not_looked_at/0/0: no claim has looked at its queue since it came; it is the first of its own tenant''s jobs',
    'why: no claim has looked at it'
);
select fairq_test.claim(1, 'again', p_tenant => 'nobody');
select is(
    pg_temp.why(:again), 'queued/in_line/0/0: it is the first of its own tenant''s jobs and the next of all',
    'why: it is next'
);
select matches(pg_temp.why(w.job_id), '^queued/tenant_paused/0: its tenant is paused since ', 'why: the tenant is paused')
from waits as w;
select is(pg_temp.why(j.job_id), 'queued/tenant_at_cap/0: its tenant is at its cap of 0', 'why: the tenant is at its cap')
from fairq.jobs as j
where j.tenant = 'capped' and not exists (select from fairq.leases as l where l.job_id = j.job_id);
select fairq_test.given_jobs('a', 1, 'other');
select matches(pg_temp.why(j.job_id), '^queued/queue_paused/0: its queue is paused since ', 'why: the queue is paused')
from fairq.jobs as j where j.queue = 'other';
select fairq.set_queue('other', p_paused => false, p_max_running => 0);
select is(pg_temp.why(j.job_id), 'queued/queue_at_cap/0: its queue is at its cap of 0', 'why: the queue is at its cap')
from fairq.jobs as j where j.queue = 'other';
select fairq.set_queue('other', p_max_running => 7, p_rate => 0.001, p_burst => 1);
select fairq_test.given_jobs('a', 1, 'other');
select is(count(*), 1::bigint, 'one token, one job') from fairq_test.claim(2, 'other');
select ok(
    e.reason = 'queue_rate_limited' and e.until - clock_timestamp() between interval '900 s' and interval '1000 s'
    and e.sentence = 'its queue is rate-limited until ' || e.until, 'why: the queue is out of tokens'
)
from fairq.jobs as j
cross join lateral fairq.explain_wait(j.job_id) as e
where j.queue = 'other' and not exists (select from fairq.leases as l where l.job_id = j.job_id);

-- its turn
select fairq.set_queue('line', p_charge => 'jobs');
create temp table line as
select row_number() over () as n, j as job_id from fairq_test.given_jobs('c', 3, 'line') as j;
select is(
    pg_temp.why(l.job_id),
    format('queued/not_looked_at/%1$s/%1$s: nobody has claimed from its queue yet; it is ', l.n - 1)
    || case l.n when 1 then 'the first' else 'behind ' || l.n - 1 end || ' of its own tenant''s jobs',
    'why: nobody asks for work, with ' || l.n - 1 || ' before it'
)
from line as l;
select fairq.reschedule_job(l.job_id, p_priority => 0) from line as l where l.n = 3;
select is(e.ahead, 1::bigint, 'a more urgent one has gone before')
from line as l cross join lateral fairq.explain_wait(l.job_id) as e where l.n = 1;
select fairq.set_tenant('line', 'heavy', 3);
select fairq_test.given_jobs('heavy', 7, 'line');
select fairq_test.given_jobs('short', 2, 'line');
select fairq_test.given_jobs('d', 9, 'line');
select fairq_test.claim(1, 'line', p_tenant => 'nobody');
create temp table said as
select j.job_id, j.tenant, e.reason, e.sentence, e.ahead, e.picks
from fairq.jobs as j cross join lateral fairq.explain_wait(j.job_id) as e
where j.queue = 'line';
select is(
    s.sentence, 'it is behind 1 of its own tenant''s jobs and next after about 7 picks', 'why: others are before it'
)
from said as s join line as l using (job_id) where l.n = 1;
select is(count(*), 21::bigint, 'all of them are in line') from said as s where s.reason = 'in_line';
do $$ begin for i in 1..21 loop perform fairq_test.claim(1, 'line'); commit; end loop; end $$;
create temp table picked as
select row_number() over (order by l.dispatch) - 1 as turn, l.job_id, l.tenant from fairq.leases as l where l.queue = 'line';
select results_eq(
    'select s.job_id, s.picks from said as s order by 1', 'select p.job_id, p.turn from picked as p order by 1',
    'where jobs cost the same and nothing else happens, each is started after as many picks as was said'
);

-- a tenant asks for its own
begin;
create role fairq_test_tenant login in role fairq_tenant;
select fairq_test.given_jobs('c', 1, 'own') as mine \gset
set local session authorization fairq_test_tenant;
set local app.tenant_id = 'c';
select is(e.ahead, 0::bigint, 'a tenant asks about its own job') from fairq.explain_wait(:mine) as e;
set local app.tenant_id = 'd';
select is(pg_temp.why(:mine), 'not_found: not found', 'another one finds none');
reset session authorization;
commit;
drop role fairq_test_tenant;

-- refusals
select throws_ok('select fairq.explain_wait(null)', '22023', null, 'null is no job');
select fairq_test.refuses(
    format('select fairq.tenant_stats(%s)', c.arguments), '22023', c.names, 'refused: tenant_stats ' || c.arguments
)
from (values
    ('null', 'p_queue'), ('''''', 'p_queue'), ('''*''', 'p_queue'), ('''q'', ''''', 'p_tenant'), ('''q'', ''*''', 'p_tenant'),
    ('''q'', p_limit => 0', 'p_limit'), ('''q'', p_limit => 1001', 'p_limit'), ('''q'', p_limit => null', 'p_limit'),
    ('''q'', p_by => ''weight''', 'p_by'), ('''q'', p_by => null', 'p_by')
) as c(arguments, names);
select fairq_test.refuses(
    format('select fairq.dead_jobs(%s)', c.arguments), '22023', c.names, 'refused: dead_jobs ' || c.arguments
)
from (values ('''''', 'p_queue'), ('p_limit => 0', 'p_limit'), ('p_limit => null', 'p_limit')) as c(arguments, names);

-- the view of all jobs
select is(count(*), count(distinct v.job_id), 'a job is in one place only') from fairq.all_jobs as v;
select set_eq(
    $$ select v.job_id from fairq.all_jobs as v $$,
    $$ select j.job_id from fairq.jobs as j union all select f.job_id from fairq.finished_jobs as f $$,
    'and none is missing'
);
select set_eq(
    'select distinct v.state from fairq.all_jobs as v',
    array['scheduled', 'queued', 'running', 'succeeded', 'dead', 'cancelled'], 'states are those of users'
);
select is(v.lease_owner, 'worker', 'of a running job one sees the worker')
from fairq.all_jobs as v where v.state = 'running' limit 1;
select is_empty(
    'select from fairq.all_jobs as v
     where (v.state in (''running'', ''succeeded'', ''dead'')) <> (v.started_at is not null)',
    'and since when'
);
select hasnt_column('fairq', 'all_jobs', 'lease_token', 'but never its token');
select hasnt_column('fairq', 'job_events', 'lease_token', 'nor in the events');

select * from finish();
