-- renew: running -> running, later lease.
select plan(52);

create function pg_temp.ends(p_job_id bigint) returns timestamptz language sql as $fn$
    select l.lease_expires_at from fairq.leases as l where l.job_id = p_job_id
$fn$;
select fairq_test.given_jobs('a', 8);
create temp table held as select row_number() over () as n, c.* from fairq_test.claim(8) as c;
grant select on held to public;

-- one
select is(fairq.renew_job_lease(h.job_id, h.lease_token, '10 minutes'), true, 'a lease is renewed')
from held as h where h.n = 1;
select ok(
    pg_temp.ends(h.job_id) between clock_timestamp() + interval '9 minutes' and clock_timestamp() + interval '10 minutes',
    'it ends the time asked for from now'
)
from held as h where h.n = 1;
select is(fairq.renew_job_lease(h.job_id, h.lease_token, '1 millisecond'), true, 'a renewal for a shorter time')
from held as h where h.n = 1;
select ok(pg_temp.ends(h.job_id) > clock_timestamp() + interval '9 minutes', 'takes nothing back')
from held as h where h.n = 1;
select is(fairq.renew_job_lease(h.job_id, h.lease_token), true, 'without a time') from held as h where h.n = 2;
select ok(pg_temp.ends(h.job_id) > h.lease_expires_at, 'it is the queue''s') from held as h where h.n = 2;
select is(fairq_test.timeline(h.job_id), 'created 0, claimed 1 by worker', 'a renewal is no event')
from held as h where h.n = 1;

-- whatever is wrong, one answer
create temp table before as select * from fairq.leases;
select is(fairq.renew_job_lease(h.job_id, gen_random_uuid(), '1 hour'), false, 'not under another token')
from held as h where h.n = 1;
select is(fairq.renew_job_lease(h.job_id, o.lease_token, '1 hour'), false, 'nor under the token of another job')
from held as h cross join held as o where h.n = 1 and o.n = 2;
select is(fairq.renew_job_lease(-1, h.lease_token, '1 hour'), false, 'an unknown job') from held as h where h.n = 1;
select fairq_test.as_role('fairq_worker');
select is(
    fairq.renew_job_lease(h.job_id, h.lease_token, '1 hour'), false, 'nor by another caller with the right token'
)
from held as h where h.n = 1;
select fairq_test.as_role('none');
select results_eq(
    'select * from fairq.leases order by 1', 'select * from before order by 1', 'and no lease has changed'
);
select fairq_test.given_lease_over(h.job_id) from held as h where h.n = 2;
select is(
    fairq.renew_job_lease(h.job_id, h.lease_token, '1 hour'), false,
    'a lease that is over cannot be renewed, though nobody took it'
)
from held as h where h.n = 2;
select fairq_test.claim(1);
select is(
    fairq.renew_job_lease(h.job_id, h.lease_token, '1 hour'), false, 'nor once the job is held under a new token'
)
from held as h where h.n = 2;
select is(l.attempt, 2, 'which lives on') from held as h join fairq.leases as l using (job_id) where h.n = 2;
select fairq.complete_job(h.job_id, h.lease_token) from held as h where h.n = 3;
select is(fairq.renew_job_lease(h.job_id, h.lease_token, '1 hour'), false, 'nor when the job has ended')
from held as h where h.n = 3;

-- cancellation
select fairq.cancel_job(h.job_id) from held as h where h.n = 4;
select is(
    fairq.renew_job_lease(h.job_id, h.lease_token, '1 hour'), false, 'a job that is to be cancelled: stop working'
)
from held as h where h.n = 4;
select is(pg_temp.ends(h.job_id), h.lease_expires_at, 'its lease runs out as it was') from held as h where h.n = 4;

-- many
select fairq_test.given_lease_over(h.job_id) from held as h where h.n = 5;
select results_eq(
    $$ select o.job_id, o.outcome
       from (select array_agg(h.job_id order by h.n desc) as ids, array_agg(h.lease_token order by h.n desc) as tokens from held as h) as b
       cross join fairq.renew_job_leases(b.ids, b.tokens, '20 minutes') as o $$,
    $$ select h.job_id, v.outcome from held as h join (values
           (8, 'renewed'), (7, 'renewed'), (6, 'renewed'), (5, 'lost'), (4, 'cancel_requested'), (3, 'lost'), (2, 'lost'), (1, 'renewed')
       ) as v(n, outcome) on v.n = h.n order by h.n desc $$,
    'a batch says of each what became of it, in input order'
);
select ok(bool_and(pg_temp.ends(h.job_id) > clock_timestamp() + interval '19 minutes'), 'and renews what it can')
from held as h where h.n in (1, 6, 7, 8);
select results_eq(
    $$ select o.outcome from held as h cross join fairq.renew_job_leases(array[h.job_id, h.job_id], array[h.lease_token, gen_random_uuid()]) as o
       where h.n = 6 $$,
    array['renewed', 'lost'], 'a job named twice is judged by each token'
);
select fairq_test.as_role('fairq_worker');
select results_eq(
    'select o.outcome from held as h cross join fairq.renew_job_leases(array[h.job_id], array[h.lease_token]) as o where h.n = 6',
    array['lost'], 'another caller has lost them all'
);
select fairq_test.as_role('none');

-- refusals
select fairq.set_queue('short', p_default_lease => '1 s', p_longest_lease => '1 minute');
select fairq_test.given_jobs('a', 1, 'short');
create temp table short as select * from fairq_test.claim(1, 'short');
select throws_ok(
    format('select fairq.renew_job_lease(%s, %L, ''2 minutes'')', s.job_id, s.lease_token), '22023', null,
    'a lease longer than the job''s queue allows'
)
from short as s;
select is(fairq.renew_job_lease(s.job_id, s.lease_token, '1 minute'), true, 'its longest lease is allowed')
from short as s;
select fairq_test.refuses(
    format('select fairq.renew_job_lease(%s)', c.arguments), '22023', c.names, 'refused: ' || c.arguments
)
from (values
    ('null, gen_random_uuid()', 'p_job_id'),
    ('1, null', 'p_token'),
    ('1, gen_random_uuid(), ''0''', 'p_lease'),
    ('1, gen_random_uuid(), ''-1 s''', 'p_lease'),
    ('1, gen_random_uuid(), ''999 microseconds''', 'p_lease'),
    ('1, gen_random_uuid(), ''8 days''', 'p_lease')
) as c(arguments, names);
-- the four batch verbs read their arrays in one place
select fairq_test.refuses(
    format('select fairq.%s(%s)', f.name, c.arrays), '22023', 'p_job_ids and p_tokens',
    f.name || ' refuses ' || c.arrays
)
from (values ('renew_job_leases'), ('complete_jobs'), ('fail_jobs'), ('release_jobs')) as f(name)
cross join (values
    ('null, array[gen_random_uuid()]'), ('array[1], null'), ('array[1], ''{}'''), ('''{}'', ''{}''')
) as c(arrays);
select fairq_test.refuses(
    format('select fairq.renew_job_leases(%s)', c.arrays), '22023', 'p_job_ids and p_tokens', 'refused: ' || c.arrays
)
from (values
    ('array[1, null], array[gen_random_uuid(), gen_random_uuid()]'),
    ('array[1], array[null::uuid]'),
    ('array[[1, 2]], array[[gen_random_uuid(), gen_random_uuid()]]'),
    ('''[0:0]={1}'', array[gen_random_uuid()]'),
    ('array_fill(1, array[1001]), array_fill(gen_random_uuid(), array[1001])')
) as c(arrays);
select is(count(*), 1000::bigint, 'the largest batch')
from fairq.renew_job_leases(array_fill(1, array[1000])::bigint[], array_fill(gen_random_uuid(), array[1000]));

select * from finish();
