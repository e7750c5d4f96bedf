-- Every constraint violated once, by the owner, whom no function stands before. What every job passes through has few;
-- the race tests look for the states that functions alone keep away.
select plan(8);

-- a good row of each table
create temp table good (relation text primary key, fields jsonb);
insert into good values
    ('jobs', '{"job_id": -1, "queue": "q", "tenant": "t", "task": "k", "payload": {}, "priority": 2, "state": "queued",
        "attempts": 0, "max_attempts": 5, "run_at": "2024-01-01", "cost": 1, "created_at": "2024-01-01", "changed_xid": "3"}'),
    ('leases', '{"job_id": -1, "queue": "q", "tenant": "t", "caller": "c", "lease_owner": "w", "attempt": 1, "dispatch": 1, "epoch": 0,
        "lease_token": "00000000-0000-4000-8000-000000000000", "started_at": "2024-01-01", "lease_expires_at": "2024-01-02"}'),
    ('finished_jobs', '{"job_id": -1, "queue": "q", "tenant": "t", "task": "k", "payload": {}, "priority": 2, "attempts": 1,
        "state": "succeeded", "max_attempts": 5, "run_at": "2024-01-01", "cost": 1, "created_at": "2024-01-01", "result": {},
        "started_at": "2024-01-01", "finished_at": "2024-01-02", "lease_owner": "w", "token_hash": "\\x00", "slot": 0}'),
    ('job_log', '{"log_id": -1, "job_id": -1, "queue": "q", "tenant": "t", "event_type": "released", "attempt": 1,
        "actor": "w", "details": {}, "created_at": "2024-01-01", "slot": 0}'),
    ('job_keys', '{"tenant": "t", "operation_key": "k", "job_id": -1, "payload_hash": "\\x00", "expires_at": "2024-01-01"}'),
    ('queues', '{"queue": "q", "paused": false, "charge": "time", "burst": 1, "default_lease": "30 s", "longest_lease": "1 h", "max_attempts": 5,
        "backoff_base": "5 s", "backoff_cap": "1 h", "backoff_jitter": 0.2, "payload_limit": 1000, "key_ttl": "1 day",
        "retention": "1 day", "notify": false, "read_ahead": 0}'),
    -- a trigger sets changed_xid, so that it is never null
    ('tenants', '{"queue": "q", "tenant": "t", "weight": 1, "paused": false, "burst": 1, "changed_xid": "3"}'),
    ('pause_notes', '{"queue": "q", "tenant": "t", "paused_at": "2024-01-01", "paused_by": "me"}'),
    ('flows', '{"queue": "q", "tenant": "t", "weight": 1, "paused": false, "vtime": 0, "running": 0, "served": 0, "stamp": 0,
        "head_at": [null, null, null, null], "head_id": [null, null, null, null], "burst": 1, "limited": false, "epoch": 0,
        "estimate": 1000, "price": 1000, "minute": 0, "started": [0, 0], "spent": [0, 0]}'),
    ('schedulers', '{"queue": "q"}'),
    ('ticks', '{"queue": "q", "tick_id": 1, "ticked_at": "2024-01-01", "boot_at": "2024-01-01", "system_identifier": 1,
        "seen": "1:1:", "own_xid": "1", "virtual_time": 0, "promote_floor": "-infinity",
        "pick_floor": {"vtime": 0, "charge": 0, "served": 0, "tenant": ""},
        "expire_floor": "-infinity", "token_floor": "-infinity", "found_empty": false, "charge": "time", "running": 0,
        "backlogged": 0, "milliweight": 0, "activations": 0, "ready_floor": 0}'),
    ('settlements', '{"queue": "q", "ended_xid": "3", "endings": [{"tenant": "t", "epoch": 0, "ended": 1, "measured": 1,
        "elapsed": 0, "extra": 0, "refund": 0}]}'),
    ('ready_picks', '{"queue": "q", "dispatch": 1, "jobs": [{"turn": 1, "job_row": "(0,1)", "tenant": "t", "job_id": -1,
        "price": 1, "epoch": 0, "weight": 1, "step": 1}]}'),
    ('access_grants', '{"role_name": "r", "verb": "claim", "queue": "q", "tenant": "t"}');

-- stores a good row with some fields changed, and takes it back: the error it met, if any
create function pg_temp.store(p_relation text, p_change jsonb default '{}', p_times integer default 1) returns text
language plpgsql as $fn$
declare
    v_columns text := (
        select string_agg(quote_ident(a.attname), ', ' order by a.attnum) from pg_attribute as a
        where a.attrelid = ('fairq.' || p_relation)::regclass and a.attnum > 0 and a.attgenerated = ''
    );
    v_what text;
begin
    set local role fairq_owner;
    for i in 1..p_times loop
        execute format(
            'insert into fairq.%1$I (%2$s) select %2$s from jsonb_populate_record(null::fairq.%1$I, $1)', p_relation,
            v_columns
        ) using (select g.fields || p_change from good as g where g.relation = p_relation);
    end loop;
    raise exception 'stored' using errcode = 'QF999';
exception
    when sqlstate 'QF999' then
        return 'stored';
    when integrity_constraint_violation then
        get stacked diagnostics v_what = constraint_name;
        if v_what = '' then
            get stacked diagnostics v_what = column_name;
        end if;
        return sqlstate || ' ' || v_what;
end
$fn$;
grant select on good to fairq_owner;

select set_eq(
    'select c.relname::text from pg_class as c where c.relnamespace = ''fairq''::regnamespace and c.relkind in (''r'', ''p'') and not c.relispartition',
    'select g.relation from good as g', 'every table is tested'
);
select results_eq(
    'select g.relation, pg_temp.store(g.relation) from good as g order by 1',
    'select g.relation, ''stored'' from good as g order by 1', 'a good row is stored'
);

create temp table bad (relation text, rule text, change jsonb);
insert into bad values
    ('jobs', 'state_known', '{"state": "running"}'),
    ('jobs', 'state_known', '{"state": "succeeded"}'),
    ('jobs', 'attempts_within_limit', '{"attempts": -1}'),
    ('jobs', 'attempts_within_limit', '{"attempts": 5}'),
    ('jobs', 'attempts_within_limit', '{"max_attempts": 0}'),
    ('jobs', 'payload_is_object', '{"payload": []}'),
    ('job_log', 'event_known', '{"event_type": "succeeded"}'),
    ('job_log', 'details_is_object', '{"details": 1}'),
    ('job_log', 'slot_known', '{"slot": 4}'),
    ('job_log', 'slot_known', '{"slot": -1}'),
    ('queues', 'name_not_empty', '{"queue": ""}'),
    ('queues', 'charge_known', '{"charge": "weight"}'),
    ('queues', 'max_running_not_negative', '{"max_running": -1}'),
    ('queues', 'rate_in_range', '{"rate": 0}'),
    ('queues', 'rate_in_range', '{"rate": 1000001}'),
    ('queues', 'rate_in_range', '{"rate": "NaN"}'),
    ('queues', 'rate_in_range', '{"burst": 0}'),
    ('queues', 'rate_in_range', '{"burst": 1000001}'),
    ('queues', 'leases_in_range', '{"default_lease": "0"}'),
    ('queues', 'leases_in_range', '{"default_lease": "2 h"}'),
    ('queues', 'leases_in_range', '{"longest_lease": "8 days"}'),
    ('queues', 'max_attempts_in_range', '{"max_attempts": 0}'),
    ('queues', 'max_attempts_in_range', '{"max_attempts": 1001}'),
    ('queues', 'backoff_in_range', '{"backoff_base": "-1 s"}'),
    ('queues', 'backoff_in_range', '{"backoff_base": "2 h"}'),
    ('queues', 'backoff_in_range', '{"backoff_cap": "366 days"}'),
    ('queues', 'backoff_in_range', '{"backoff_jitter": 1.1}'),
    ('queues', 'backoff_in_range', '{"backoff_jitter": "NaN"}'),
    ('queues', 'payload_limit_in_range', '{"payload_limit": 1}'),
    ('queues', 'payload_limit_in_range', '{"payload_limit": 67108865}'),
    ('queues', 'read_ahead_in_range', '{"read_ahead": -1}'),
    ('queues', 'read_ahead_in_range', '{"read_ahead": 1001}'),
    ('queues', 'times_in_range', '{"key_ttl": "0"}'),
    ('queues', 'times_in_range', '{"key_ttl": "3651 days"}'),
    ('queues', 'times_in_range', '{"retention": "-1 s"}'),
    ('queues', 'times_in_range', '{"retention": "3651 days"}'),
    ('queues', 'times_in_range', '{"retention_failed": "-1 s"}'),
    ('queues', 'times_in_range', '{"retention_failed": "3651 days"}'),
    ('tenants', 'names_not_empty', '{"queue": ""}'),
    ('tenants', 'names_not_empty', '{"tenant": ""}'),
    ('tenants', 'weight_in_range', '{"weight": 0}'),
    ('tenants', 'weight_in_range', '{"weight": "NaN"}'),
    ('tenants', 'weight_in_range', '{"weight": 1000001}'),
    ('tenants', 'max_running_not_negative', '{"max_running": -1}'),
    ('tenants', 'rate_in_range', '{"rate": 0}'),
    ('tenants', 'rate_in_range', '{"rate": 1000001}'),
    ('tenants', 'rate_in_range', '{"rate": "NaN"}'),
    ('tenants', 'rate_in_range', '{"burst": 0}'),
    ('tenants', 'rate_in_range', '{"burst": 1000001}'),
    ('flows', 'running_not_negative', '{"running": -1}'),
    ('flows', 'limited_until_due', '{"limited": true, "token_due_at": "2024-01-01"}'),
    ('flows', 'limited_until_due', '{"limited": true, "rate": 1}'),
    ('access_grants', 'verb_known', '{"verb": "drop"}');

select results_eq(
    'select b.relation, b.change, pg_temp.store(b.relation, b.change) from bad as b order by 1, b.rule, 2',
    'select b.relation, b.change, format(''23514 %s_%s'', b.relation, b.rule) from bad as b order by 1, b.rule, 2',
    'each check refuses what it forbids'
);
select set_eq(
    $$ select k.conname::text from pg_constraint as k
       where k.connamespace = 'fairq'::regnamespace and k.contype not in ('n', 'p') and k.conrelid > 0 $$,
    $$ select b.relation || '_' || b.rule from bad as b $$,
    'every constraint is tested: a new one belongs into the list above'
);

select throws_ok(
    format(
        $$ insert into fairq.settlements (queue, endings)
           values ('q', array[row('t', 0, %s)::fairq.ending]) $$, array_to_string(array_fill(0, array[4]) || -1, ', ')
    ), '23514', null, 'nothing that ended is less than nothing'
);

-- keys
select results_eq(
    $$ select k.conname::text, pg_temp.store(c.relname, '{}', 2)
       from pg_constraint as k join pg_class as c on c.oid = k.conrelid
       where k.connamespace = 'fairq'::regnamespace and k.contype = 'p' and not c.relispartition order by 1 $$,
    $$ select k.conname::text, '23505 ' || case c.relkind when 'p' then c.relname || '_0_pkey' else k.conname end
       from pg_constraint as k join pg_class as c on c.oid = k.conrelid
       where k.connamespace = 'fairq'::regnamespace and k.contype = 'p' and not c.relispartition order by 1 $$,
    'each primary key refuses a second row'
);
select set_eq(
    $$ select c.relname::text from pg_class as c where c.relnamespace = 'fairq'::regnamespace and c.relkind = 'r'
       and not exists (select from pg_constraint as k where k.conrelid = c.oid and k.contype = 'p') $$,
    array['flows', 'settlements'],
    'every table has one but two: settlements are a bag, and flows are kept apart by the queue''s lock'
);

-- nulls
select results_eq(
    $$ select c.relname || '.' || a.attname, pg_temp.store(c.relname, jsonb_build_object(a.attname, null))
       from pg_attribute as a join pg_class as c on c.oid = a.attrelid
       where c.relnamespace = 'fairq'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition and a.attnum > 0 and a.attnotnull
         and a.attgenerated = '' order by 1 $$,
    $$ select c.relname || '.' || a.attname,
              case when (c.relname, a.attname) = ('tenants', 'changed_xid') then 'stored' else '23502 ' || a.attname end
       from pg_attribute as a join pg_class as c on c.oid = a.attrelid
       where c.relnamespace = 'fairq'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition and a.attnum > 0 and a.attnotnull
         and a.attgenerated = '' order by 1 $$,
    'no column that must have a value takes null'
);

select * from finish();
