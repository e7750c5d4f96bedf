-- traceparent: from enqueue to each claim, and to where the job ends, as it was given.
select plan(9);
\set trace '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
create function pg_temp.trace_of(p_job_id bigint) returns text language sql as $fn$
    select a.traceparent from fairq.all_jobs as a where a.job_id = p_job_id
$fn$;

-- a job that fails, dies, is revived and succeeds
create temp table job as
select * from fairq.enqueue_job('a', 'work', p_max_attempts => 2, p_traceparent => :'trace');
create temp table first as select * from fairq_test.claim();
select is(f.traceparent, :'trace', 'the worker is handed the trace of its job') from first as f;
select is(pg_temp.trace_of(j.job_id), :'trace', 'a running job shows its trace') from job as j;
select fairq.fail_job(f.job_id, f.lease_token, 'x', '0') from first as f;
create temp table second as select * from fairq_test.claim();
select is(s.traceparent, :'trace', 'a second attempt belongs to the same trace') from second as s;
select fairq.fail_job(s.job_id, s.lease_token, 'y') from second as s;
select is(pg_temp.trace_of(j.job_id), :'trace', 'a dead job keeps its trace') from job as j;
select fairq.retry_job(j.job_id) from job as j;
create temp table third as select * from fairq_test.claim();
select is(t.traceparent, :'trace', 'a revived job has kept its trace') from third as t;
select fairq.complete_job(t.job_id, t.lease_token) from third as t;
select is(pg_temp.trace_of(j.job_id), :'trace', 'a job that has succeeded keeps its trace') from job as j;

-- several at once: completed in one call, cancelled while they wait
create temp table many as
select * from fairq.enqueue_jobs((
    select jsonb_agg(jsonb_build_object(
        'tenant', 'b', 'task', 't', 'traceparent', case when n < 3 then replace(:'trace', '01', '0' || n) end
    ) order by n)
    from generate_series(0, 3) as n
));
create temp table claimed as select * from fairq_test.claim(3);
select results_eq(
    'select c.traceparent from claimed as c order by c.job_id',
    format(
        'select case when n < 3 then replace(%L, ''01'', ''0'' || n) end from generate_series(0, 2) as n', :'trace'
    ),
    'in a batch each job comes with its own trace'
);
select fairq.cancel_job(m.job_id) from many as m where m.ordinal = 4;
select count(*) from fairq.complete_jobs(
    array(select c.job_id from claimed as c order by c.job_id),
    array(select c.lease_token from claimed as c order by c.job_id)
);
select results_eq(
    $$ select f.state, f.traceparent from fairq.finished_jobs as f where f.tenant = 'b' order by f.job_id $$,
    format(
        'select case when n < 3 then ''succeeded'' else ''cancelled'' end, '
        'case when n < 3 then replace(%L, ''01'', ''0'' || n) end from generate_series(0, 3) as n', :'trace'
    ),
    'jobs completed in one call keep theirs'
);
create temp table waiting as select * from fairq.enqueue_job('c', 'work', p_traceparent => :'trace');
select fairq.cancel_job(w.job_id) from waiting as w;
select is(pg_temp.trace_of(w.job_id), :'trace', 'a job that was cancelled while it waited keeps its trace') from waiting as w;

select * from finish();
