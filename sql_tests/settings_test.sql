-- settings: what operators want of queues and tenants.
select plan(90);

-- a tenant: the whole wish
create function pg_temp.tenant(p_tenant text) returns jsonb language sql as $fn$
    select to_jsonb(t) - '{queue, tenant, changed_xid}'::text[] from fairq.tenants as t
    where t.queue = 'q' and t.tenant = p_tenant
$fn$;
select fairq.set_tenant('q', 'a');
select is(pg_temp.tenant('a'), '{"weight": 1, "max_running": null, "paused": false, "rate": null, "burst": 1}', 'a tenant without wishes');
select fairq.set_tenant('q', 'a', 2.5, 10, true, 0.5, 7);
select is(pg_temp.tenant('a'), '{"weight": 2.5, "max_running": 10, "paused": true, "rate": 0.5, "burst": 7}', 'with all of them');
select fairq.set_tenant('q', 'a', p_max_running => 0);
select is(
    pg_temp.tenant('a'), '{"weight": 1, "max_running": 0, "paused": false, "rate": null, "burst": 1}',
    'what is not said goes back to its default'
);
select fairq.set_tenant('q', 'b', c.weight) from (values (0.001), (1000000)) as c(weight);
select is(
    pg_temp.tenant('b'), '{"weight": 1000000, "max_running": null, "paused": false, "rate": null, "burst": 1}',
    'the least and the greatest weight are taken'
);
select is(count(*), 2::bigint, 'there is one row for each') from fairq.tenants;

-- the scheduler learns of it, whoever writes it and however
select fairq_test.given_jobs('a', 3, 'q');
select is_empty('select * from fairq_test.claim(3, ''q'')', 'a cap of 0 is in force at the next claim');
delete from fairq.tenants as t where t.tenant = 'a';
select is(
    pg_temp.tenant('a'), '{"weight": 1, "max_running": null, "paused": false, "rate": null, "burst": 1}', 'a deleted row leaves one of defaults'
);
select is(count(*), 3::bigint, 'which are in force at the next claim') from fairq_test.claim(3, 'q');
update fairq.tenants as t set changed_xid = '3', weight = 7 where t.tenant = 'a';
select isnt(t.changed_xid, '3'::xid8, 'nobody can hide a change from the scheduler')
from fairq.tenants as t where t.tenant = 'a';
select fairq_test.claim(1, 'q');
select is(f.weight, 7::double precision, 'which has heard of it') from fairq.flows as f where f.tenant = 'a';

-- all tenants that have no row of their own
select fairq_test.given_jobs('r', 2, 'shared');
select fairq_test.given_jobs('s', 2, 'shared');
select fairq.set_tenant('shared', '*', p_max_running => 1);
select fairq.set_tenant('shared', 's');
create function pg_temp.claim_all() returns jsonb language sql as $fn$
    select jsonb_object_agg(c.tenant, c.jobs) from (
        select cc.tenant, count(*) as jobs from fairq_test.claim(9, 'shared') as cc group by 1
    ) as c
$fn$;
select is(pg_temp.claim_all(), '{"r": 1, "s": 2}', 'the wish for * is in force where there is no other');
select fairq_test.given_jobs(t.tenant, 2, 'shared') from (values ('r'), ('s'), ('t')) as t(tenant);
select fairq.set_tenant('shared', '*', 2, 2, p_rate => 10, p_burst => 3);
select is(
    pg_temp.claim_all(), '{"r": 1, "s": 2, "t": 2}', 'a change of it reaches those who are known and those who come'
);
create function pg_temp.wish(p_tenant text) returns jsonb language sql as $fn$
    select to_jsonb(t) - '{queue, tenant, changed_xid}'::text[] from fairq.tenants as t
    where t.queue = 'shared' and t.tenant = p_tenant
$fn$;
delete from fairq.tenants as t where t.queue = 'shared' and t.tenant = 's';
select is(pg_temp.wish('s'), pg_temp.wish('*'), 'a deleted row leaves one of what * gives');
delete from fairq.tenants as t where t.queue = 'shared' and t.tenant = '*';
select is(
    pg_temp.wish('*'), '{"weight": 1, "max_running": null, "paused": false, "rate": null, "burst": 1}',
    'and that of * the defaults'
);
select is(pg_temp.claim_all(), '{"r": 2}', 'which are in force at the next claim');
delete from fairq.tenants as t where t.queue = 'shared';

-- a queue: what is said changes
create function pg_temp.queue(p_queue text) returns jsonb language sql as $fn$
    select to_jsonb(q) from fairq.queues as q where q.queue = p_queue
$fn$;
create temp table general as select pg_temp.queue('*') as settings;
select is(
    g.settings,
    '{"queue": "*", "paused": false, "charge": "time", "max_running": null, "rate": null, "burst": 1,
      "default_lease": "00:00:30", "longest_lease": "01:00:00", "max_attempts": 5,
      "backoff_base": "00:00:05", "backoff_cap": "01:00:00", "backoff_jitter": 0.2, "payload_limit": 262144,
      "key_ttl": "1 day", "retention": "7 days", "retention_failed": null, "notify": false, "read_ahead": 0}',
    'the settings a new installation has'
)
from general as g;
select fairq.set_queue('q', p_max_attempts => 9);
select is(
    pg_temp.queue('q'), g.settings || '{"queue": "q", "max_attempts": 9}', 'a queue starts from the settings of all'
)
from general as g;
select fairq.set_queue(
    'q', p_paused => true, p_charge => 'cost', p_max_running => 3, p_rate => 0.5, p_burst => 4, p_default_lease => '1 s', p_longest_lease => '2 s', p_backoff_base => '3 s',
    p_backoff_cap => '4 s',
    p_backoff_jitter => 0, p_payload_limit => 5, p_key_ttl => '6 s', p_retention => '7 s', p_notify => true,
    p_retention_failed => '8 s', p_read_ahead => 8
);
select is(
    pg_temp.queue('q'),
    '{"queue": "q", "paused": true, "charge": "cost", "max_running": 3, "rate": 0.5, "burst": 4,
      "default_lease": "00:00:01", "longest_lease": "00:00:02", "max_attempts": 9,
      "backoff_base": "00:00:03", "backoff_cap": "00:00:04", "backoff_jitter": 0, "payload_limit": 5, "key_ttl": "00:00:06",
      "retention": "00:00:07", "retention_failed": "00:00:08", "notify": true, "read_ahead": 8}',
    'what is not said stays as it is'
);
select fairq.set_queue('q', p_retention_failed => '-1 s');
select is(pg_temp.queue('q') ->> 'retention_failed', null, 'a retention of -1 second takes that of failed jobs away');
select fairq.set_queue('*', p_max_attempts => 3);
select is((pg_temp.queue('q') ->> 'max_attempts')::integer, 9, 'a queue with settings of its own keeps them');
select is(j.max_attempts, 3, 'the others have those of all')
from fairq.jobs as j join fairq.enqueue_job('a', 't', p_queue => 'other') using (job_id);
select fairq.set_queue(
    'wide', false, 'jobs', 2147483647, 1000000, 1000000, '7 days', '7 days', 1000, '365 days', '365 days', 1, 67108864, '3650 days', '3650 days', false, '3650 days', 1000
);
select is((pg_temp.queue('wide') ->> 'payload_limit')::integer, 67108864, 'the greatest settings are taken');
select fairq.set_queue(
    'narrow', false, 'time', 0, 0.000001, 1, '1 millisecond', '1 millisecond', 1, '0', '0', 0, 2, '1 microsecond', '0', false, '0', 0
);
select is((pg_temp.queue('narrow') ->> 'payload_limit')::integer, 2, 'and the least');
select fairq.set_queue('wide', p_max_running => -1, p_rate => 0);
select is(
    pg_temp.queue('wide') @> '{"max_running": null, "rate": null, "burst": 1000000, "charge": "jobs"}', true,
    'a cap of -1 and a rate of 0 take them away'
);
select fairq.set_queue('*', p_max_running => 5, p_rate => 2);
select fairq.set_queue('new', p_burst => 9);
select is(
    pg_temp.queue('new') @> '{"max_running": 5, "rate": 2, "burst": 9}', true, 'a new one starts from the cap and rate of all'
);
select is(pg_temp.queue('wide') @> '{"max_running": null, "rate": null}', true, 'one that has its own keeps them');
select fairq.set_queue('*', p_max_running => -1, p_rate => 0);

-- the channel to listen on
select is(fairq.channel('mails'), 'fairq:mails', 'a channel has its queue''s name');
select is(octet_length(fairq.channel(repeat('x', 57))), 63, 'as long as a name may be');
select is(length(fairq.channel(repeat('x', 58))), 38, 'and a hash of it beyond that');
select isnt(fairq.channel(repeat('x', 200)), fairq.channel(repeat('x', 199)), 'so that no two queues share one');

-- refusals
create temp table before as
select (select jsonb_agg(q) from fairq.queues as q) as queues, (select jsonb_agg(t) from fairq.tenants as t) as tenants;
select fairq_test.refuses(
    format('select fairq.set_tenant(%s)', c.arguments), '22023', c.names, 'refused: set_tenant ' || c.arguments
)
from (values
    ('null, ''a''', 'p_queue'), (''''', ''a''', 'p_queue'), ('''*'', ''a''', 'p_queue'),
    ('e''\t\n'', ''a''', 'p_queue'), ('''q'', e'' \r\n\f\x0b''', 'p_tenant'),
    ('''q'', null', 'p_tenant'), ('''q'', ''''', 'p_tenant'), ('''q'', ''@own''', 'p_tenant'),
    ('''q'', ''a'', null', 'p_weight'), ('''q'', ''a'', 0', 'p_weight'), ('''q'', ''a'', ''-1''', 'p_weight'),
    ('''q'', ''a'', 0.0009', 'p_weight'), ('''q'', ''a'', 1000001', 'p_weight'),
    ('''q'', ''a'', ''NaN''', 'p_weight'),
    ('''q'', ''a'', ''infinity''', 'p_weight'), ('''q'', ''a'', p_max_running => -1', 'p_max_running'),
    ('''q'', ''a'', p_paused => null', 'p_paused'), ('''q'', ''a'', p_rate => 0', 'p_rate'),
    ('''q'', ''a'', p_rate => -1', 'p_rate'), ('''q'', ''a'', p_rate => 1000001', 'p_rate'),
    ('''q'', ''a'', p_rate => ''NaN''', 'p_rate'), ('''q'', ''a'', p_rate => ''infinity''', 'p_rate'),
    ('''q'', ''a'', p_burst => 0', 'p_burst'), ('''q'', ''a'', p_burst => 1000001', 'p_burst'),
    ('''q'', ''a'', p_burst => null', 'p_burst')
) as c(arguments, names);
select fairq_test.refuses(
    format('select fairq.set_queue(%s)', c.arguments), '22023', c.names, 'refused: set_queue ' || c.arguments
)
from (values
    ('null', 'p_queue'), ('''''', 'p_queue'), ('''@own''', 'p_queue'), ('repeat(''x'', 201)', 'p_queue'),
    ('''r'', p_charge => ''money''', 'p_charge'), ('''r'', p_charge => ''''', 'p_charge'),
    ('''r'', p_max_running => -2', 'p_max_running'), ('''r'', p_rate => -1', 'p_rate'),
    ('''r'', p_rate => 0.0000001', 'p_rate'), ('''r'', p_rate => 1000001', 'p_rate'), ('''r'', p_rate => ''NaN''', 'p_rate'),
    ('''r'', p_burst => 0', 'p_burst'), ('''r'', p_burst => 1000001', 'p_burst'),
    ('''r'', p_default_lease => ''0''', 'p_default_lease'), ('''r'', p_default_lease => ''2 h''', 'p_default_lease'),
    ('''r'', p_longest_lease => ''8 days''', 'p_longest_lease'),
    ('''r'', p_longest_lease => ''1 s''', 'p_default_lease'),
    ('''r'', p_max_attempts => 0', 'p_max_attempts'), ('''r'', p_max_attempts => 1001', 'p_max_attempts'),
    ('''r'', p_backoff_base => ''-1 s''', 'p_backoff_base'), ('''r'', p_backoff_base => ''2 h''', 'p_backoff_base'),
    ('''r'', p_backoff_cap => ''366 days''', 'p_backoff_cap'), ('''r'', p_backoff_jitter => 1.1', 'p_backoff_jitter'),
    ('''r'', p_backoff_jitter => ''-0.1''', 'p_backoff_jitter'),
    ('''r'', p_backoff_jitter => ''NaN''', 'p_backoff_jitter'),
    ('''r'', p_payload_limit => 1', 'p_payload_limit'), ('''r'', p_payload_limit => 67108865', 'p_payload_limit'),
    ('''r'', p_read_ahead => -1', 'p_read_ahead'), ('''r'', p_read_ahead => 1001', 'p_read_ahead'),
    ('''r'', p_key_ttl => ''0''', 'p_key_ttl'), ('''r'', p_key_ttl => ''3651 days''', 'p_key_ttl'),
    ('''r'', p_retention => ''-1 s''', 'p_retention'), ('''r'', p_retention => ''3651 days''', 'p_retention')
) as c(arguments, names);
select results_eq(
    'select (select jsonb_agg(q) from fairq.queues as q), (select jsonb_agg(t) from fairq.tenants as t)',
    'select * from before',
    'nothing refused has changed a setting'
);
select fairq_test.as_role('fairq_tenant');
select throws_ok('select fairq.set_tenant(''q'', ''a'', 1000)', '42501', null, 'a tenant may not raise its weight');
select throws_ok('select fairq.set_queue(''q'')', '42501', null, 'nor change a queue');
select fairq_test.as_role('none');

select * from finish();
