-- enqueue: none -> queued, or scheduled when it is to run later; each argument in and out of its range.
select plan(73);

-- given a call with everything by default
create temp table first as select * from fairq.enqueue_job('a', 'work');
select is(f.created, true, 'a new job is created') from first as f;
select is(
    to_jsonb(j) - '{job_id, created_at, run_at, changed_xid}'::text[],
    '{"queue": "default", "tenant": "a", "task": "work", "payload": {}, "priority": 2, "state": "queued", "attempts": 0,
      "max_attempts": 5, "cost": 1, "operation_key": null, "traceparent": null, "last_error": null}',
    'what is not said has its default'
)
from first as f join fairq.jobs as j on j.job_id = f.job_id;
select is(j.run_at, j.created_at, 'it may run from the moment it was enqueued')
from first as f join fairq.jobs as j on j.job_id = f.job_id;
select is(fairq_test.timeline(f.job_id), 'created 0', 'its timeline begins') from first as f;

-- given a call with everything said
create temp table second as
select * from fairq.enqueue_job(
    p_tenant => 'ä b', p_task => 'mail.send', p_payload => '{"to": ["x"], "n": 1e400}', p_queue => 'Mails "1"',
    p_run_at => '2100-01-01', p_priority => 0, p_max_attempts => 1000, p_key => 'k', p_key_ttl => '1 hour',
    p_cost => 0.5, p_traceparent => '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
);
select is(
    to_jsonb(j) - '{job_id, created_at, changed_xid}'::text[],
    '{"queue": "Mails \"1\"", "tenant": "ä b", "task": "mail.send", "priority": 0, "state": "scheduled",
      "attempts": 0, "max_attempts": 1000, "run_at": "2100-01-01T00:00:00+00:00", "cost": 0.5, "operation_key": "k",
      "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "last_error": null}'::jsonb || jsonb_build_object('payload', '{"to": ["x"], "n": 1e400}'::jsonb),
    'what is said is kept as it is'
)
from second as s join fairq.jobs as j on j.job_id = s.job_id;

-- a trace
select is((fairq.enqueue_job('a', 't', p_traceparent => c.value)).created, true, 'a traceparent that is taken: ' || left(c.value, 60))
from (values
    ('00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00'),
    ('fe-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff'),
    ('01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes' || repeat('.', 134))
) as c(value);

-- when it runs
select is(
    fairq_test.state_of((fairq.enqueue_job('a', 't', p_run_at => '2000-01-01')).job_id), 'queued',
    'a time that has passed: queued'
);
select is(
    fairq_test.state_of((fairq.enqueue_job('a', 't', p_run_at => '294276-01-01')).job_id), 'scheduled',
    'the last of times: scheduled'
);
select is(fairq_test.state_of((fairq.enqueue_job('a', 't', p_delay => '0')).job_id), 'queued', 'no delay: queued');
select is(
    fairq_test.state_of((fairq.enqueue_job('a', 't', p_delay => '3650 days')).job_id), 'scheduled',
    'the longest delay: scheduled'
);
select ok(
    j.run_at - j.created_at = interval '90 seconds', 'a delay counts from the enqueue, by the clock of the server'
)
from fairq.jobs as j where j.job_id = (select (fairq.enqueue_job('a', 't', p_delay => '90 s')).job_id);

-- the queue's settings
select fairq.set_queue('small', p_max_attempts => 2, p_payload_limit => 20);
select is(j.max_attempts, 2, 'attempts not said are those of the queue')
from fairq.jobs as j where j.job_id = (select (fairq.enqueue_job('a', 't', p_queue => 'small')).job_id);
select is(
    (fairq.enqueue_job('a', 't', '{"x": "0123456789a"}', 'small')).created, true,
    'a payload of the longest length is taken'
);

-- arguments out of range: what is wrong is named
create temp table before as select count(*) as jobs from fairq.jobs;
select fairq_test.refuses(
    format('select fairq.enqueue_job(%s)', c.arguments), c.code, c.names, 'refused: ' || c.arguments
)
from (values
    ('null, ''t''', '22023', 'p_tenant'),
    ('p_task => ''t''', '22023', 'p_tenant'),
    (''''', ''t''', '22023', 'p_tenant'),
    ('''  '', ''t''', '22023', 'p_tenant'),
    ('''*'', ''t''', '22023', 'p_tenant'),
    ('''@own'', ''t''', '22023', 'p_tenant'),
    ('repeat(''é'', 101), ''t''', '22023', 'p_tenant'),
    ('''a'', null', '22023', 'p_task'),
    ('''a'', ''''', '22023', 'p_task'),
    ('''a''', '22023', 'p_task'),
    ('''a'', repeat(''x'', 201)', '22023', 'p_task'),
    ('''a'', ''t'', p_queue => null', '22023', 'p_queue'),
    ('''a'', ''t'', p_queue => ''''', '22023', 'p_queue'),
    ('''a'', ''t'', p_queue => ''*''', '22023', 'p_queue'),
    ('''a'', ''t'', p_queue => repeat(''x'', 201)', '22023', 'p_queue'),
    ('''a'', ''t'', null', '22023', 'p_payload'),
    ('''a'', ''t'', ''[]''', '22023', 'p_payload'),
    ('''a'', ''t'', ''"x"''', '22023', 'p_payload'),
    ('''a'', ''t'', ''null''', '22023', 'p_payload'),
    ('''a'', ''t'', ''{"x": "0123456789ab"}'', ''small''', '54000', 'p_payload'),
    ('''a'', ''t'', jsonb_build_object(''x'', repeat(''x'', 262144))', '54000', 'p_payload'),
    ('''a'', ''t'', p_run_at => ''infinity''', '22023', 'p_run_at'),
    ('''a'', ''t'', p_run_at => ''-infinity''', '22023', 'p_run_at'),
    ('''a'', ''t'', p_run_at => now(), p_delay => ''1 s''', '22023', 'p_run_at and p_delay'),
    ('''a'', ''t'', p_delay => ''-1 microsecond''', '22023', 'p_delay'),
    ('''a'', ''t'', p_delay => ''3651 days''', '22023', 'p_delay'),
    ('''a'', ''t'', p_delay => ''178000000 years''', '22023', 'p_delay'),
    ('''a'', ''t'', p_priority => null', '22023', 'p_priority'),
    ('''a'', ''t'', p_priority => -1', '22023', 'p_priority'),
    ('''a'', ''t'', p_priority => 4', '22023', 'p_priority'),
    ('''a'', ''t'', p_priority => 2147483647', '22023', 'p_priority'),
    ('''a'', ''t'', p_max_attempts => 0', '22023', 'p_max_attempts'),
    ('''a'', ''t'', p_max_attempts => -1', '22023', 'p_max_attempts'),
    ('''a'', ''t'', p_max_attempts => 1001', '22023', 'p_max_attempts'),
    ('''a'', ''t'', p_key => ''''', '22023', 'p_key'),
    ('''a'', ''t'', p_key => repeat(''x'', 201)', '22023', 'p_key'),
    ('''a'', ''t'', p_key => ''x'', p_key_ttl => ''0''', '22023', 'p_key_ttl'),
    ('''a'', ''t'', p_key => ''x'', p_key_ttl => ''-1 s''', '22023', 'p_key_ttl'),
    ('''a'', ''t'', p_key => ''x'', p_key_ttl => ''3651 days''', '22023', 'p_key_ttl'),
    ('''a'', ''t'', p_cost => null', '22023', 'p_cost'),
    ('''a'', ''t'', p_cost => 0', '22023', 'p_cost'),
    ('''a'', ''t'', p_cost => ''-1''', '22023', 'p_cost'),
    ('''a'', ''t'', p_cost => ''NaN''', '22023', 'p_cost'),
    ('''a'', ''t'', p_cost => ''infinity''', '22023', 'p_cost'),
    ('''a'', ''t'', p_cost => 1000001', '22023', 'p_cost'),
    ('''a'', ''t'', p_traceparent => ''''', '22023', 'p_traceparent'),
    ('''a'', ''t'', p_traceparent => ''00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01''', '22023', 'p_traceparent'),
    ('''a'', ''t'', p_traceparent => ''00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331''', '22023', 'p_traceparent'),
    ('''a'', ''t'', p_traceparent => ''00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-02''', '22023', 'p_traceparent'),
    ('''a'', ''t'', p_traceparent => ''ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01''', '22023', 'p_traceparent'),
    ('''a'', ''t'', p_traceparent => ''00-00000000000000000000000000000000-b7ad6b7169203331-01''', '22023', 'p_traceparent'),
    ('''a'', ''t'', p_traceparent => ''00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01''', '22023', 'p_traceparent'),
    ('''a'', ''t'', p_traceparent => E''00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n''', '22023', 'p_traceparent'),
    ('''a'', ''t'', p_traceparent => ''01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-'' || repeat(''x'', 145)', '22023', 'p_traceparent')
) as c(arguments, code, names);
select is(count(*), (select b.jobs from before as b), 'nothing refused has left a job') from fairq.jobs;
select is(count(*), 1::bigint, 'nor a key') from fairq.job_keys;

-- the message says what is wrong, and what would be right
select throws_ok(
    'select fairq.enqueue_job(''a'', ''t'', p_priority => 9)', '22023',
    'p_priority must be a number from 0 (first) to 3, not 9',
    'a refusal names the argument, the rule and the value'
);
create temp table customers (name text collate "POSIX");
insert into customers values ('a');
select throws_ok(
    'select fairq.enqueue_job(c.name, ''t'') from customers as c', '42P22', null,
    'a name with a collation of its own is not compared'
);
select lives_ok(
    'select fairq.enqueue_job(c.name collate "default", ''t'') from customers as c', 'and with the usual one it is'
);
select throws_ok(
    'select fairq.enqueue_job(''a'', ''t'', p_traceparent => ''x'')', '22023',
    'p_traceparent must be like 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01, not x',
    'a refusal of a trace shows one that is right'
);

select * from finish();
