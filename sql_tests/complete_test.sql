-- complete: running -> succeeded.
select plan(52);

select fairq_test.given_jobs('a', 10, p_payload => '{"in": 1}');
create temp table held as select row_number() over () as n, c.* from fairq_test.claim(10) as c;
grant select on held to public;
create temp table waiting as select * from fairq.enqueue_job('a', 't', p_delay => '1 day');

-- one
create temp table lease as select l.* from fairq.leases as l join held as h using (job_id) where h.n = 1;
create temp table job as select j.* from fairq.jobs as j join held as h using (job_id) where h.n = 1;
select is(fairq.complete_job(h.job_id, h.lease_token, '{"out": [1]}'), true, 'a job succeeds')
from held as h where h.n = 1;
select is(
    to_jsonb(f) - '{finished_at, slot}'::text[],
    to_jsonb(j) - '{changed_xid}'::text[] || jsonb_build_object(
        'state', 'succeeded', 'attempts', 1, 'result', '{"out": [1]}'::jsonb, 'started_at', l.started_at,
        'lease_owner', 'worker',
        'token_hash', sha256(uuid_send(l.lease_token))
    ),
    'all that was known of it is kept, with the result; of the token only a hash'
)
from job as j join fairq.finished_jobs as f using (job_id) cross join lease as l;
select ok(f.finished_at between l.started_at and clock_timestamp(), 'and when it ended')
from fairq.finished_jobs as f cross join lease as l;
select is_empty(
    'select from fairq.jobs join job using (job_id) union all select from fairq.leases join job using (job_id)',
    'it has left the other tables'
);
select is(
    fairq_test.timeline(h.job_id), 'created 0, claimed 1 by worker, succeeded 1 by worker', 'its timeline is whole'
)
from held as h where h.n = 1;
select is_empty('select from fairq.job_log', 'and cost no row of the log');
select is(fairq.complete_job(h.job_id, h.lease_token), true, 'without a result') from held as h where h.n = 2;
select is(f.result, null, 'there is none') from fairq.finished_jobs as f join held as h using (job_id) where h.n = 2;

-- again, after a lost reply
create temp table first as select f.* from fairq.finished_jobs as f;
select is(
    fairq.complete_job(h.job_id, h.lease_token, '{"out": "other"}'), true, 'the same token again: it has succeeded'
)
from held as h where h.n = 1;
select results_eq(
    'select * from fairq.finished_jobs order by 1', 'select * from first order by 1',
    'and nothing has changed, the result neither'
);
select is(count(*), 2::bigint, 'the scheduler was told once for each') from fairq.settlements;

-- whatever is wrong, one answer
select is(fairq.complete_job(h.job_id, gen_random_uuid()), false, 'not under another token')
from held as h where h.n = 3;
select is(fairq.complete_job(h.job_id, o.lease_token), false, 'nor under the token of another job')
from held as h cross join held as o where h.n = 3 and o.n = 4;
select is(fairq.complete_job(h.job_id, o.lease_token), false, 'nor under that of a job that succeeded')
from held as h cross join held as o where h.n = 3 and o.n = 1;
select is(fairq.complete_job(h.job_id, o.lease_token), false, 'a job that succeeded, under another token')
from held as h cross join held as o where h.n = 1 and o.n = 3;
select is(fairq.complete_job(-1, h.lease_token), false, 'an unknown job') from held as h where h.n = 3;
select is(fairq.complete_job(w.job_id, gen_random_uuid()), false, 'a job that waits') from waiting as w;
select fairq_test.as_role('fairq_worker');
select is(fairq.complete_job(h.job_id, h.lease_token), false, 'nor by another caller with the right token')
from held as h where h.n = 3;
select fairq_test.as_role('none');
select is(fairq_test.state_of(h.job_id), 'running', 'the job runs on') from held as h where h.n = 3;
select fairq_test.given_lease_over(h.job_id) from held as h where h.n = 4;
select is(
    fairq.complete_job(h.job_id, h.lease_token), false, 'a lease that is over: too late, though nobody took the job'
)
from held as h where h.n = 4;
create temp table second as select * from fairq_test.claim(1);
select is(s.job_id, h.job_id, 'somebody else gets it') from second as s cross join held as h where h.n = 4;
select is(fairq.complete_job(h.job_id, h.lease_token), false, 'then it is later still') from held as h where h.n = 4;
select is(fairq.complete_job(s.job_id, s.lease_token), true, 'and the second attempt succeeds') from second as s;
select is(fairq.complete_job(h.job_id, h.lease_token), false, 'which the first has no part in')
from held as h where h.n = 4;
select is(
    fairq_test.timeline(h.job_id),
    'created 0, claimed 1 by worker, lease_expired 1 by worker, claimed 2 by worker, succeeded 2 by worker',
    'the timeline has both'
)
from held as h where h.n = 4;

-- cancellation asked for too late
select fairq.cancel_job(h.job_id) from held as h where h.n = 5;
select is(
    fairq.complete_job(h.job_id, h.lease_token), true, 'a job done before it heard of its cancellation has succeeded'
)
from held as h where h.n = 5;
select matches(
    fairq_test.timeline(h.job_id),
    '^created 0, claimed 1 by worker, cancel_requested 1 by [a-z]+, succeeded 1 by worker$',
    'the timeline knows of both'
)
from held as h where h.n = 5;

-- results over the limit
select fairq.set_queue('default', p_payload_limit => 10000);
select fairq_test.refuses(
    format('select fairq.complete_job(%s, %L, to_jsonb(repeat(''x'', 9999)))', h.job_id, h.lease_token), '54000',
    'p_result',
    'a result longer than the queue allows is refused'
)
from held as h where h.n = 6;
select is(fairq_test.state_of(h.job_id), 'running', 'and may be given again, shorter') from held as h where h.n = 6;
select is(fairq.complete_job(h.job_id, h.lease_token, to_jsonb(repeat('x', 9998))), true, 'the longest is taken')
from held as h where h.n = 6;

select fairq.set_queue('default', p_payload_limit => 10);
select fairq_test.refuses(
    format('select fairq.complete_job(%s, %L, to_jsonb(repeat(''x'', 9)))', h.job_id, h.lease_token), '54000', 'p_result',
    'a limit of ten bytes refuses eleven'
)
from held as h where h.n = 7;
select results_eq(
    $$ select o.outcome from held as h
       cross join fairq.complete_jobs(array[h.job_id], array[h.lease_token], array[to_jsonb(repeat('x', 9))]) as o where h.n = 7 $$,
    array['too_large'], 'in a batch too'
);
select is(fairq._is_oversized(h.job_id, to_jsonb(repeat('x', 8))), false, 'and takes ten')
from held as h where h.n = 7;
select fairq.set_queue('default', p_payload_limit => 10000);

-- many
select results_eq(
    $$ select o.job_id, o.outcome
       from (select array_agg(h.job_id order by h.n desc) as ids, array_agg(h.lease_token order by h.n desc) as tokens,
                    array_agg(case h.n when 8 then to_jsonb(repeat('x', 20000)) when 9 then '{"n": 9}' end order by h.n desc) as results
             from held as h where h.n in (1, 3, 4, 7, 8, 9)) as b
       cross join fairq.complete_jobs(b.ids || -1::bigint, b.tokens || gen_random_uuid(), b.results || null::jsonb) as o $$,
    $$ select coalesce(h.job_id, -1), v.outcome from (values
           (1, 9, 'succeeded'), (2, 8, 'too_large'), (3, 7, 'succeeded'), (4, 4, 'lost'), (5, 3, 'succeeded'),
           (6, 1, 'already_succeeded'), (7, null, 'lost')
       ) as v(at, n, outcome) left join held as h on h.n = v.n order by v.at $$,
    'a batch says of each what became of it, in input order; an oversized result fails its job alone'
);
select is(f.result, '{"n": 9}', 'each job has its own result')
from fairq.finished_jobs as f join held as h using (job_id) where h.n = 9;
select is(f.result, null, 'or none') from fairq.finished_jobs as f join held as h using (job_id) where h.n = 7;
select is(fairq_test.state_of(h.job_id), 'running', 'what was too large runs on') from held as h where h.n = 8;
select results_eq(
    $$ select o.outcome from held as h
       cross join fairq.complete_jobs(array[h.job_id, h.job_id, h.job_id], array[gen_random_uuid(), h.lease_token, h.lease_token]) as o
       where h.n = 8 $$,
    array['lost', 'succeeded', 'already_succeeded'],
    'a job named three times succeeds once, and each token is judged for itself'
);
select results_eq(
    $$ select o.outcome from held as h cross join held as p
       cross join fairq.complete_jobs(array[h.job_id, p.job_id], array[p.lease_token, h.lease_token]) as o where h.n = 10 and p.n = 9 $$,
    array['lost', 'lost'], 'tokens in the wrong order are wrong tokens'
);
select fairq_test.as_role('fairq_worker');
select results_eq(
    'select o.outcome from held as h cross join fairq.complete_jobs(array[h.job_id], array[h.lease_token]) as o where h.n = 10',
    array['lost'], 'another caller has lost them all'
);
select fairq_test.as_role('none');
select is(count(*), 1::bigint, 'one job is left running') from fairq.leases;
select results_eq(
    $$ select o.outcome from held as h
       cross join fairq.complete_jobs(array[h.job_id], array[h.lease_token], array[to_jsonb(repeat('x', 20000))]) as o where h.n = 10 $$,
    array['too_large'], 'a batch of nothing but oversized results'
);

-- refusals
select fairq_test.refuses(format('select fairq.%s', c.call), '22023', c.names, 'refused: ' || c.call)
from (values
    ('complete_job(null, gen_random_uuid())', 'p_job_id'),
    ('complete_job(1, null)', 'p_token'),
    ('complete_jobs(array[1], array[gen_random_uuid()], ''{}'')', 'p_results'),
    ('complete_jobs(array[1], array[gen_random_uuid()], array[null, null]::jsonb[])', 'p_results'),
    ('complete_jobs(array[1, 2], array[gen_random_uuid(), gen_random_uuid()], ''[0:1]={1,2}'')', 'p_results'),
    ('complete_jobs(array[1, 2], array[gen_random_uuid(), gen_random_uuid()], ''{{1,2}}'')', 'p_results'),
    ('complete_jobs(array[1, null], array[gen_random_uuid(), null])', 'p_job_ids and p_tokens')
) as c(call, names);

-- the books
select fairq_test.claim(1, p_tenant => 'nobody');
select is(f.running, 1, 'the scheduler counts what runs') from fairq.flows as f;
select is_empty('select from fairq.settlements', 'and has read every settlement');
select is(count(*), 9::bigint, 'each job ended once') from fairq.finished_jobs;

select * from finish();
