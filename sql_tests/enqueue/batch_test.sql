-- enqueue many at once: one row per element, in input order; all of them or, if one is wrong, none.
select plan(46);

-- order, defaults, and what each field does
create temp table done as
select * from fairq.enqueue_jobs('[
    {"tenant": "b", "task": "t1"},
    {"tenant": "a", "task": "t2", "payload": {"x": 1}, "queue": "q", "priority": 0, "max_attempts": 7, "cost": 3},
    {"tenant": "a", "task": "t3", "run_at": "2100-01-01T00:00:00Z"},
    {"tenant": "a", "task": "t4", "delay": "1 hour", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    {"tenant": "a", "task": "t5", "payload": null, "queue": null, "priority": null, "cost": null, "key": null}
]');
select results_eq('select ordinal from done', array[1, 2, 3, 4, 5], 'one row for each element, in input order');
select results_eq('select distinct outcome from done', array['created'], 'all are created');
select results_eq(
    'select d.job_id from done as d', 'select d.job_id from done as d order by 1', 'ids rise in input order'
);
select results_eq(
    $$ select j.task, j.tenant collate "default", j.queue collate "default", j.payload, j.priority::integer, j.max_attempts, j.cost, j.state
       from done as d join fairq.jobs as j on j.job_id = d.job_id order by d.ordinal $$,
    $$ values
        ('t1', 'b', 'default', '{}'::jsonb, 2, 5, 1::double precision, 'queued'),
        ('t2', 'a', 'q', '{"x": 1}', 0, 7, 3, 'queued'),
        ('t3', 'a', 'default', '{}', 2, 5, 1, 'scheduled'),
        ('t4', 'a', 'default', '{}', 2, 5, 1, 'scheduled'),
        ('t5', 'a', 'default', '{}', 2, 5, 1, 'queued') $$,
    'fields mean what the arguments of enqueue_job() mean, null is the default'
);

-- keys
create temp table keyed as
select * from fairq.enqueue_jobs('[
    {"tenant": "a", "task": "t", "key": "z"},
    {"tenant": "a", "task": "t", "key": "k", "payload": {"n": 1}},
    {"tenant": "b", "task": "t", "key": "k"},
    {"tenant": "a", "task": "t", "key": "k", "payload": {"n": 1}},
    {"tenant": "a", "task": "t", "key": "k", "payload": {"n": 2}},
    {"tenant": "a", "task": "t"},
    {"tenant": "a", "task": "t", "key": "b"}
]');
select results_eq(
    'select k.ordinal, k.outcome from keyed as k',
    $$ values (1, 'created'), (2, 'created'), (3, 'created'), (4, 'exists'), (5, 'conflict'), (6, 'created'), (7, 'created') $$,
    'a key twice in one batch: the first creates, the same again exists, another payload conflicts'
);
select results_eq(
    'select k.job_id from keyed as k where k.ordinal in (4, 5)',
    'select k.job_id from keyed as k cross join generate_series(1, 2) where k.ordinal = 2',
    'both name the job that has the key'
);
select is(count(*), 5::bigint, 'only what was created is stored')
from fairq.jobs as j where j.job_id in (select k.job_id from keyed as k);
select results_eq(
    $$ select e.outcome, e.job_id from fairq.enqueue_jobs('[{"tenant": "a", "task": "t", "key": "k", "payload": {"n": 1}},
       {"tenant": "a", "task": "t", "key": "k", "payload": {"n": 3}}, {"tenant": "c", "task": "t", "key": "k"}]') as e
       where e.ordinal < 3 $$,
    $$ select v.outcome, k.job_id from (values ('exists'), ('conflict')) as v(outcome) cross join keyed as k where k.ordinal = 2 $$,
    'a batch repeated after a lost reply creates nothing twice'
);
select is(j.operation_key, 'k', 'a conflict does not stop the rest of its batch')
from fairq.jobs as j where j.tenant = 'c';

-- one bad element: nothing is enqueued
create temp table before as select count(*) as jobs from fairq.jobs;
select fairq_test.refuses(
    format('select fairq.enqueue_jobs(%L)', format('[{"tenant": "d", "task": "t", "key": "kk"}, %s]', c.element)),
    c.code, 'element 2 of p_jobs: ' || c.names, 'refused: ' || c.element
)
from (values
    ('{}', '22023', 'p_tenant'),
    ('{"tenant": "d"}', '22023', 'p_task'),
    ('{"tenant": "", "task": "t"}', '22023', 'p_tenant'),
    ('{"tenant": "d", "task": "t", "queue": "*"}', '22023', 'p_queue'),
    ('{"tenant": "d", "task": "t", "payload": []}', '22023', 'p_payload'),
    ('{"tenant": "d", "task": "t", "run_at": "infinity"}', '22023', 'p_run_at'),
    ('{"tenant": "d", "task": "t", "run_at": "2100-01-01", "delay": "1 s"}', '22023', 'p_run_at'),
    ('{"tenant": "d", "task": "t", "delay": "-1 s"}', '22023', 'p_delay'),
    ('{"tenant": "d", "task": "t", "priority": 4}', '22023', 'p_priority'),
    ('{"tenant": "d", "task": "t", "max_attempts": 0}', '22023', 'p_max_attempts'),
    ('{"tenant": "d", "task": "t", "key": ""}', '22023', 'p_key'),
    ('{"tenant": "d", "task": "t", "key": "k", "key_ttl": "0"}', '22023', 'p_key_ttl'),
    ('{"tenant": "d", "task": "t", "cost": 0}', '22023', 'p_cost'),
    ('{"tenant": "d", "task": "t", "traceparent": "00-0-0-0"}', '22023', 'p_traceparent'),
    (format('{"tenant": "d", "task": "t", "payload": {"x": "%s"}}', repeat('x', 262144)), '54000', 'p_payload')
) as c(element, code, names);
select fairq_test.refuses(
    format('select fairq.enqueue_jobs(%L)', format('[{"tenant": "d", "task": "t"}, %s]', c.element)), '22023',
    c.names,
    'refused: ' || c.element
)
from (values
    ('1', '1 as element 2'),
    ('null', 'null as element 2'),
    ('[]', '[] as element 2'),
    ('{"tenant": "d", "task": "t", "prio": 1}', 'as element 2'),
    ('{"tenant": "d", "task": "t", "priority": "high"}', 'high'),
    ('{"tenant": "d", "task": "t", "priority": 2.5}', '2.5'),
    ('{"tenant": "d", "task": "t", "priority": 99999999999}', '99999999999'),
    ('{"tenant": "d", "task": "t", "run_at": "soon"}', 'soon'),
    ('{"tenant": "d", "task": "t", "run_at": "2024-13-40"}', '2024-13-40'),
    ('{"tenant": "d", "task": "t", "delay": "a while"}', 'a while'),
    ('{"tenant": "d", "task": "t", "delay": "99999999999 days"}', '99999999999 days'),
    ('{"tenant": "d", "task": "t", "cost": {}}', '{}')
) as c(element, names);
select fairq_test.refuses(
    format('select fairq.enqueue_jobs(%s)', c.argument), '22023', 'p_jobs', 'refused: ' || c.argument
)
from (values
    ('null'), ('''[]'''), ('''{}'''), ('''"x"'''), ('''null'''),
    ('(select jsonb_agg(jsonb_build_object(''tenant'', ''d'', ''task'', ''t'')) from generate_series(1, 10001))')
) as c(argument);
select is(count(*), (select b.jobs from before as b), 'nothing refused has left a job') from fairq.jobs;
select is_empty('select from fairq.job_keys where operation_key = ''kk''', 'nor a key');
select results_eq(
    'select j.traceparent from done as d join fairq.jobs as j on j.job_id = d.job_id order by d.ordinal',
    $$ values (null), (null), (null), ('00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'), (null) $$,
    'each element has the trace it names'
);
select is(count(*), 10000::bigint, 'the largest batch is taken')
from fairq.enqueue_jobs((select jsonb_agg(jsonb_build_object('tenant', 'e', 'task', 't')) from generate_series(1, 10000)));

select * from finish();
