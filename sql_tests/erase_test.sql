-- erase: nothing of a tenant is left, and nothing of others is touched.
select plan(22);

-- every row of every table, as text
create function pg_temp.traces(p_word text) returns text language plpgsql as $fn$
declare
    v_table regclass;
    v_found boolean;
    v_all   text[] := '{}';
begin
    for v_table in
        select c.oid from pg_class as c
        where c.relnamespace = 'fairq'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition order by c.relname
    loop
        execute format('select exists (select from %s as t where t::text like %L)', v_table, '%' || p_word || '%') into v_found;
        if v_found then
            v_all := v_all || v_table::text;
        end if;
    end loop;
    return array_to_string(v_all, ', ');
end
$fn$;
-- everything but that of one tenant, as text
create function pg_temp.others() returns jsonb language sql as $fn$
    select jsonb_build_object(
        'jobs', (select jsonb_agg(v order by v.job_id) from fairq.all_jobs as v where v.tenant <> 'zyx'),
        'keys', (select jsonb_agg(k order by k.operation_key) from fairq.job_keys as k where k.tenant <> 'zyx'),
        'log', (select jsonb_agg(g order by g.log_id) from fairq.job_log as g where g.tenant <> 'zyx'),
        'pauses', (select jsonb_agg(n order by n.queue, n.tenant) from fairq.pause_notes as n where n.tenant <> 'zyx'),
        'wishes', (select jsonb_agg(to_jsonb(t) - 'changed_xid' order by t.queue, t.tenant) from fairq.tenants as t where t.tenant <> 'zyx'),
        'grants', (select jsonb_agg(a order by a.role_name, a.verb) from fairq.access_grants as a where a.tenant <> 'zyx')
    )
$fn$;
create function pg_temp.drift() returns bigint language sql as $fn$
    select count(*) from fairq.schedulers as s cross join lateral fairq._drift(s.queue, 100)
$fn$;

-- given two tenants in two queues, with jobs in every state, keys, wishes, a pause, grants and a log
select fairq.set_tenant(q, t, p_weight => 3) from (values ('default'), ('other'), ('unused')) as v(q), (values ('zyx'), ('b')) as w(t);
select fairq.pause_tenant_because('unused', t, 'does not pay') from (values ('zyx'), ('b')) as w(t);
insert into fairq.access_grants (role_name, verb, queue, tenant)
values ('fairq_producer', 'enqueue', 'q', 'zyx'), ('fairq_producer', 'enqueue', 'q', 'b');
create temp table jobs as
select q, t, s, e.job_id
from (values ('default'), ('other')) as v(q), (values ('zyx'), ('b')) as w(t),
     (values ('running'), ('succeeded'), ('dead'), ('retried')) as x(s)
cross join fairq.enqueue_job(t, s, jsonb_build_object('for', t), q, p_key => q || s) as e;
create temp table held as
select j.* from (values ('default'), ('other')) as v(q) cross join lateral fairq_test.claim(8, v.q) as j;
select fairq.complete_job(h.job_id, h.lease_token, '{"done": true}') from held as h where h.task = 'succeeded';
select fairq.fail_job(h.job_id, h.lease_token, p_error => 'no', p_retry => false) from held as h where h.task = 'dead';
select fairq.fail_job(h.job_id, h.lease_token, p_error => 'no', p_retry_delay => '1 hour') from held as h where h.task = 'retried';
select fairq_test.given_jobs(t, 3, q) from (values ('default'), ('other'), ('never claimed')) as v(q), (values ('zyx'), ('b')) as w(t);
select fairq_test.claim(1, 'other', p_tenant => 'nobody');
create temp table before as select pg_temp.others() as rows;
select is(
    pg_temp.traces('zyx'),
    'fairq.access_grants, fairq.finished_jobs, fairq.flows, fairq.job_keys, fairq.job_log, fairq.jobs, fairq.leases, '
    'fairq.pause_notes, fairq.settlements, fairq.tenants', 'given a tenant that is everywhere'
);

-- a slice
create temp table slice as select * from fairq.erase_tenant('zyx', 2);
select is(done, 2::bigint, 'a slice takes no more than its limit from a table') from slice where task = 'jobs';
select ok(lags, 'and says that some are left') from slice where task = 'jobs';
select is(why, '2 jobs run, and have been asked to stop', 'what runs is asked to stop') from slice where task = 'leases';
select is(bool_and(cancel_requested_at is not null), true, 'and is') from fairq.leases as l where l.tenant = 'zyx';
select is(bool_or(cancel_requested_at is not null), false, 'that of others is not') from fairq.leases as l where l.tenant = 'b';
select is(why, 'when its jobs are gone', 'the scheduler knows the tenant until then') from slice where task = 'flows';
do $do$ begin for i in 1..9 loop perform from fairq.erase_tenant('zyx', 2); end loop; end $do$;
select is(
    pg_temp.traces('zyx'),
    'fairq.flows, fairq.jobs, fairq.leases, fairq.pause_notes, fairq.settlements, fairq.tenants', 'what runs is left'
);
select set_eq(
    'select distinct j.task from fairq.jobs as j where j.tenant = ''zyx''', array['running'], 'and nothing else'
);
select is(pg_temp.drift(), 0::bigint, 'the books are right');

-- one worker hears of it and gives up, the other was faster
select is(fairq.release_job(h.job_id, h.lease_token), 'cancelled', 'a worker that gives the job back')
from held as h where h.task = 'running' and h.tenant = 'zyx' and h.queue = 'default';
select ok(fairq.complete_job(h.job_id, h.lease_token), 'and one that completes it')
from held as h where h.task = 'running' and h.tenant = 'zyx' and h.queue = 'other';
do $do$ begin for i in 1..9 loop perform from fairq.erase_tenant('zyx', 2); end loop; end $do$;
select is_empty('select * from fairq.erase_tenant(''zyx'') where lags or done > 0', 'then all is done');
select is(pg_temp.traces('zyx'), '', 'and nothing of the tenant is left in any table');
select is(pg_temp.others(), b.rows, 'what others have is as it was') from before as b;
select is(pg_temp.drift(), 0::bigint, 'the books are right again');
select is(count(*), 3::bigint, 'and the queue goes on') from fairq_test.claim(9, 'other');

-- a tenant of that name that comes later
select fairq_test.given_jobs('zyx', 1);
select is(count(*), 1::bigint, 'a tenant of that name may come again') from fairq_test.claim(9) as c where c.tenant = 'zyx';
select is(f.weight, 1::double precision, 'with none of the wishes of before') from fairq.flows as f where f.tenant = 'zyx';

-- refusals
select fairq_test.refuses(
    format('select * from fairq.erase_tenant(%s)', c.arguments), '22023', c.names, 'refused: ' || c.arguments
)
from (values ('null', 'p_tenant'), ('''*''', 'p_tenant'), ('''a'', 0', 'p_limit')) as c(arguments, names);

select * from finish();
