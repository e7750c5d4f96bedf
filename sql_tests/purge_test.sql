-- purge_tenant: queued, scheduled -> cancelled, all of one tenant in one queue.
select plan(22);

-- given
select fairq.set_queue('q', p_charge => 'jobs');
create temp table mine as select j as job_id from fairq_test.given_jobs('a', 4, 'q') as j;
insert into mine select j from fairq_test.given_jobs('a', 1, 'q', p_priority => 0) as j;
insert into mine select j from fairq_test.given_jobs('a', 2, 'q', p_delay => '1 hour') as j;
select fairq_test.given_jobs('b', 2, 'q');
select fairq_test.given_jobs('b', 1, 'q', p_delay => '1 hour');
select fairq_test.given_jobs('a', 1, 'other');
create temp table running as select * from fairq_test.claim(1, 'q', p_tenant => 'a');

-- when, then
select is(fairq.purge_tenant('q', 'a', 2), 2, 'as many as are asked for');
select results_eq(
    'select e.job_id, e.event_type, e.actor from fairq.job_events as e where e.event_type = ''cancelled'' order by 1',
    'select m.job_id, ''cancelled'', current_user::text collate "default" from mine as m order by 1 limit 2',
    'those that would have run first, each with its event'
);
select is(fairq.purge_tenant('q', 'a'), 4, 'then the rest, those not due yet included');
select is(fairq.purge_tenant('q', 'a'), 0, 'and then nothing');
select results_eq(
    'select j.state, count(*) from fairq.all_jobs as j join mine using (job_id) group by 1 order by 1',
    $$ values ('cancelled', 6::bigint), ('running', 1::bigint) $$, 'what runs is left alone'
);
select results_eq(
    'select j.queue collate "default", j.tenant collate "default", j.state, count(*) from fairq.all_jobs as j
     where not exists (select from mine as m where m.job_id = j.job_id) group by 1, 2, 3 order by 1, 2, 3',
    $$ values ('other', 'a', 'queued', 1::bigint), ('q', 'b', 'queued', 2), ('q', 'b', 'scheduled', 1) $$,
    'and so is everything else'
);
select is(fairq.complete_job(r.job_id, r.lease_token), true, 'the running one completes') from running as r;
select bag_eq(
    'select c.tenant::text from fairq_test.claim(9, ''q'') as c', array['b', 'b'], 'the next claim finds the others'
);
select is(fairq.purge_tenant('nowhere', 'a'), 0, 'there is nothing in a queue nobody knows');
select fairq_test.given_jobs('a', 1, 'q');
select is(count(*), 1::bigint, 'a purged tenant may enqueue and be served again') from fairq_test.claim(9, 'q');
select is(
    fairq.retry_job(m.job_id), 'queued', 'a purged job can be revived as any cancelled one'
)
from mine as m order by m.job_id desc limit 1;

-- refusals
select fairq_test.refuses(
    format('select fairq.purge_tenant(%s)', c.arguments), '22023', c.names, 'refused: purge_tenant ' || c.arguments
)
from (values
    ('null, ''a''', 'p_queue'), ('''*'', ''a''', 'p_queue'), ('''q'', null', 'p_tenant'), ('''q'', ''*''', 'p_tenant'),
    ('''q'', ''''', 'p_tenant'), ('''q'', ''a'', 0', 'p_limit'), ('''q'', ''a'', -1', 'p_limit'),
    ('''q'', ''a'', 100001', 'p_limit'), ('''q'', ''a'', null', 'p_limit')
) as c(arguments, names);
select fairq_test.as_role('fairq_worker');
select throws_ok('select fairq.purge_tenant(''q'', ''a'')', '42501', null, 'a worker may not purge');
select fairq_test.as_role('fairq_tenant');
select throws_ok('select fairq.purge_tenant(''q'', ''a'')', '42501', null, 'nor may a tenant');
select fairq_test.as_role('none');

select * from finish();
