-- Each state and each verb: what comes of it, as docs/rooms.md tells it.
select plan(5);

-- a job of each state, made anew for each verb; of what does not run, the token is made up
create function pg_temp.given(p_state text) returns fairq.claimed_job language plpgsql as $fn$
declare
    v_queue text := gen_random_uuid();
    v_job   fairq.claimed_job;
begin
    v_job.job_id := (fairq.enqueue_job('a', 't', p_queue => v_queue, p_delay => case p_state when 'scheduled' then interval '1 day' end)).job_id;
    v_job.lease_token := gen_random_uuid();
    v_job.queue := v_queue;
    return v_job;
end
$fn$;
-- a job is claimable once it is committed: these two steps are statements of their own
create temp table cells (verb text, state text, expected text, job fairq.claimed_job, came text, became text);
insert into cells (verb, state, expected)
select v.verb, s.state, e.expected
from (values
    --                scheduled                queued                   running                          stopping                    over                             succeeded            dead                 cancelled
    ('claim',       'nothing scheduled',     'got running',           'nothing running',               'nothing running',          'got running',                   'nothing succeeded', 'nothing dead',      'nothing cancelled'),
    ('renew',       'false scheduled',       'false queued',          'true running',                  'false running',            'false running',                 'false succeeded',   'false dead',        'false cancelled'),
    ('complete',    'false scheduled',       'false queued',          'true succeeded',                'true succeeded',           'false running',                 'true succeeded',    'false dead',        'false cancelled'),
    ('fail',        '- scheduled',           '- queued',              'scheduled scheduled',           'cancelled cancelled',      '- running',                     '- succeeded',       '- dead',            '- cancelled'),
    ('fail at once', '- scheduled',          '- queued',              'queued queued',                 'cancelled cancelled',      '- running',                     '- succeeded',       '- dead',            '- cancelled'),
    ('fail for good', '- scheduled',         '- queued',              'dead dead',                     'cancelled cancelled',      '- running',                     '- succeeded',       '- dead',            '- cancelled'),
    ('release',     '- scheduled',           '- queued',              'queued queued',                 'cancelled cancelled',      '- running',                     '- succeeded',       '- dead',            '- cancelled'),
    ('snooze',      '- scheduled',           '- queued',              'scheduled scheduled',           'cancelled cancelled',      '- running',                     '- succeeded',       '- dead',            '- cancelled'),
    ('expire',      '0 scheduled',           '0 queued',              '0 running',                     '0 running',                '1 queued',                      '0 succeeded',       '0 dead',            '0 cancelled'),
    ('promote',     '0 scheduled',           '0 queued',              '0 running',                     '0 running',                '0 running',                     '0 succeeded',       '0 dead',            '0 cancelled'),
    ('cancel',      'cancelled cancelled',   'cancelled cancelled',   'cancel_requested running',      'cancel_requested running', 'cancel_requested running',      'finished succeeded', 'finished dead',    'finished cancelled'),
    ('reschedule',  'scheduled scheduled',   'scheduled scheduled',   'running running',               'running running',          'running running',               'finished succeeded', 'finished dead',    'finished cancelled'),
    ('urge',        'scheduled scheduled',   'queued queued',         'running running',               'running running',          'running running',               'finished succeeded', 'finished dead',    'finished cancelled'),
    ('retry',       'not_finished scheduled', 'not_finished queued',  'not_finished running',          'not_finished running',     'not_finished running',          'succeeded succeeded', 'queued queued',   'queued queued'),
    ('prune',       '0 scheduled',           '0 queued',              '0 running',                     '0 running',                '0 running',                     '0 succeeded',       '0 dead',            '0 cancelled')
) as v(verb, scheduled, queued, running, stopping, over, succeeded, dead, cancelled)
cross join lateral (values
    ('scheduled', v.scheduled), ('queued', v.queued), ('running', v.running), ('stopping', v.stopping), ('over', v.over),
    ('succeeded', v.succeeded), ('dead', v.dead), ('cancelled', v.cancelled)
) as e(state, expected)
join (values ('scheduled'), ('queued'), ('running'), ('stopping'), ('over'), ('succeeded'), ('dead'), ('cancelled')) as s(state) using (state);

update cells set job = pg_temp.given(state);
update cells as c set job = h.job
from cells as o
cross join lateral (select j as job from fairq_test.claim(1, (o.job).queue) as j where o.state not in ('scheduled', 'queued', 'cancelled')) as h
where (o.job).job_id = (c.job).job_id;
select is(
    count(*), (select count(*) from cells as c where c.state not in ('scheduled', 'queued', 'cancelled')),
    'given every state: what runs, or has run'
)
from fairq.leases;
select fairq.complete_job((c.job).job_id, (c.job).lease_token) from cells as c where c.state = 'succeeded';
select fairq.fail_job((c.job).job_id, (c.job).lease_token, p_retry => false) from cells as c where c.state = 'dead';
select fairq.cancel_job((c.job).job_id) from cells as c where c.state in ('cancelled', 'stopping');
select fairq_test.given_lease_over((c.job).job_id) from cells as c where c.state = 'over';
select is_empty(
    $$ select c.verb, c.state, fairq_test.state_of((c.job).job_id) from cells as c
       where fairq_test.state_of((c.job).job_id) <> case when c.state in ('stopping', 'over') then 'running' else c.state end $$,
    'given every state: what waits, or has ended'
);

create function pg_temp.act(p_verb text, p_job fairq.claimed_job) returns text language plpgsql as $fn$
begin
    return case p_verb
        when 'claim' then (select coalesce(max('got'), 'nothing') from fairq_test.claim(1, p_job.queue))
        when 'renew' then fairq.renew_job_lease(p_job.job_id, p_job.lease_token)::text
        when 'complete' then fairq.complete_job(p_job.job_id, p_job.lease_token)::text
        when 'fail' then fairq.fail_job(p_job.job_id, p_job.lease_token)
        when 'fail at once' then fairq.fail_job(p_job.job_id, p_job.lease_token, p_retry_delay => '0')
        when 'fail for good' then fairq.fail_job(p_job.job_id, p_job.lease_token, p_retry => false)
        when 'release' then fairq.release_job(p_job.job_id, p_job.lease_token)
        when 'snooze' then fairq.release_job(p_job.job_id, p_job.lease_token, '1 hour')
        when 'expire' then fairq.release_expired_jobs(p_job.queue)::text
        when 'promote' then fairq.promote_due_jobs(p_job.queue)::text
        when 'cancel' then fairq.cancel_job(p_job.job_id)
        when 'reschedule' then fairq.reschedule_job(p_job.job_id, p_delay => '1 hour')
        when 'urge' then fairq.reschedule_job(p_job.job_id, p_priority => 0)
        when 'retry' then fairq.retry_job(p_job.job_id)
        when 'prune' then fairq.prune()::text
    end;
end
$fn$;
update cells as c set came = coalesce(pg_temp.act(c.verb, c.job), '-');
update cells as c set became = fairq_test.state_of((c.job).job_id);

select is_empty(
    $$ select c.verb, c.state, c.expected, 'found', c.came || ' ' || c.became from cells as c
       where (c.came || ' ' || c.became) is distinct from c.expected $$,
    'each verb does to each state what the table says'
);
select is(count(*), 15 * 8::bigint, 'the table has no hole') from cells;

-- and the books are right
select fairq_test.claim(1, q.queue, p_tenant => 'nobody')
from (select distinct (c.job).queue as queue from cells as c) as q;
select is_empty(
    $$ select f.queue from fairq.flows as f
       where f.running <> (select count(*) from fairq.leases as l where l.queue = f.queue and l.tenant = f.tenant) $$,
    'the scheduler has counted every beginning and every end'
);

select * from finish();
