--
-- enqueue: none -> queued, or scheduled when it is to run later
--
-- A producer writes rows of its own and no shared one: only two producers of one key wait for each other.

create or replace function fairq._is_traceparent(p_value text)
    returns boolean
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
-- The header traceparent of W3C Trace Context: version, trace id, parent id and flags in lower-case hexadecimals, the
-- ids not all zeros, no version ff. Only a version that is yet to come may have more behind it.
begin
    return octet_length(p_value) <= 200
        and p_value ~ '^(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?$';
end
$fn$;
comment on function fairq._is_traceparent(text) is 'Whether a text is a traceparent of W3C Trace Context. Internal.';
revoke all on function fairq._is_traceparent(text) from public;

create or replace function fairq._check_job(p_job fairq.new_job, p_settings fairq.queues)
    returns fairq.new_job
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- The job, with what its queue's settings say where it says nothing.
--
-- Raises: 22023 for the first argument that is out of its range; 54000 for a payload over the queue's limit.
begin
    perform fairq._check_name('p_task', p_job.task, 200);
    if p_job.payload is null or jsonb_typeof(p_job.payload) <> 'object' then
        perform fairq._refuse('p_payload', jsonb_typeof(p_job.payload), 'a JSON object');
    end if;
    if octet_length(p_job.payload::text) > p_settings.payload_limit then
        raise exception 'p_payload has % bytes, its queue allows %',
            octet_length(p_job.payload::text), p_settings.payload_limit
            using errcode = '54000', hint = 'Store it elsewhere and enqueue a reference to it.';
    end if;
    perform fairq._check_run_at(p_job.run_at, p_job.delay);
    if p_job.priority is null or p_job.priority not between 0 and 3 then
        perform fairq._refuse('p_priority', p_job.priority::text, 'a number from 0 (first) to 3');
    end if;
    if p_job.max_attempts not between 1 and 1000 then
        perform fairq._refuse('p_max_attempts', p_job.max_attempts::text, 'a number from 1 to 1000');
    end if;
    if p_job.cost is null or not (p_job.cost > 0 and p_job.cost <= 1000000) then
        perform fairq._refuse('p_cost', p_job.cost::text, 'above 0, at most 1000000');
    end if;
    if p_job.key is not null then
        perform fairq._check_name('p_key', p_job.key, 200);
    end if;
    if p_job.key_ttl is not null then
        perform fairq._check_span('p_key_ttl', p_job.key_ttl, interval '1 microsecond', interval '3650 days');
    end if;
    if p_job.traceparent is not null and not fairq._is_traceparent(p_job.traceparent) then
        raise exception 'p_traceparent must be like %, not %',
            '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', left(p_job.traceparent, 100)
            using
                errcode = '22023',
                hint = 'Give the header traceparent of W3C Trace Context as it is, or none. Nothing was changed.';
    end if;

    p_job.max_attempts := coalesce(p_job.max_attempts, p_settings.max_attempts);
    p_job.key_ttl := coalesce(p_job.key_ttl, p_settings.key_ttl);
    return p_job;
end
$fn$;
comment on function fairq._check_job(fairq.new_job, fairq.queues) is 'Checks a job to be enqueued and completes it from its queue''s settings. Internal.';
revoke all on function fairq._check_job(fairq.new_job, fairq.queues) from public;

create or replace function fairq._draw_id(p_job fairq.new_job, p_job_id bigint)
    returns fairq.enqueue_outcome
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- The id the job gets: p_job_id, or, when its key is taken, that of the job which has it: created, exists or conflict.
--
-- Locks:  the key: a second producer of it waits until the first has committed or rolled back, and then knows.
-- Raises: 40001 when the key kept changing hands.
declare
    v_now    timestamptz := clock_timestamp();
    v_hash   bytea;
    v_held   fairq.job_keys;
begin
    if p_job.key is null then
        return row(null, p_job_id, 'created')::fairq.enqueue_outcome;
    end if;

    v_hash := sha256(convert_to(p_job.task || ' ' || p_job.payload::text, 'UTF8'));
    for v_try in 1..10 loop
        -- looked up before inserting: a duplicate writes nothing
        select k.* into v_held from fairq.job_keys as k
        where k.tenant = p_job.tenant and k.operation_key = p_job.key;
        if found and v_held.expires_at > v_now then
            return row(
                null, v_held.job_id, case when v_held.payload_hash = v_hash then 'exists' else 'conflict' end
            )::fairq.enqueue_outcome;
        end if;

        insert into fairq.job_keys as k (tenant, operation_key, job_id, payload_hash, expires_at)
        values (p_job.tenant, p_job.key, p_job_id, v_hash, v_now + p_job.key_ttl)
        on conflict (tenant, operation_key) do update
        set job_id = excluded.job_id, payload_hash = excluded.payload_hash, expires_at = excluded.expires_at
        where k.expires_at <= v_now;
        if found then
            return row(null, p_job_id, 'created')::fairq.enqueue_outcome;
        end if;
    end loop;

    raise exception 'an idempotency key changed hands too often' using errcode = '40001', hint = 'Try again.';
end
$fn$;
comment on function fairq._draw_id(fairq.new_job, bigint) is 'Gives a new job its id, or finds the job its key stands for. Internal.';
revoke all on function fairq._draw_id(fairq.new_job, bigint) from public;

create or replace function fairq._insert_jobs(p_jobs fairq.new_job[], p_outcomes fairq.enqueue_outcome[])
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- none -> queued, scheduled: those of the jobs that are new, in their order.
declare
    v_now timestamptz := clock_timestamp();
begin
    insert into fairq.jobs (
        job_id, queue, tenant, task, payload, priority, state, max_attempts, run_at, cost, operation_key, traceparent,
        created_at
    )
    select
        u.job_id, u.queue, u.tenant, u.task, u.payload, u.priority,
        case when coalesce(u.run_at, v_now + u.delay) > v_now then 'scheduled' else 'queued' end,
        u.max_attempts, coalesce(u.run_at, v_now + u.delay, v_now), u.cost, u.key, u.traceparent, v_now
    from unnest(p_jobs, p_outcomes) as u(
        tenant, task, payload, queue, run_at, delay, priority, max_attempts, key, key_ttl, cost, traceparent,
        ordinal, job_id, outcome
    )
    where u.outcome = 'created';
    return true;
end
$fn$;
comment on function fairq._insert_jobs(fairq.new_job[], fairq.enqueue_outcome[]) is 'Writes the rows of new jobs. Internal.';
revoke all on function fairq._insert_jobs(fairq.new_job[], fairq.enqueue_outcome[]) from public;

create or replace function fairq.channel(p_queue text)
    returns text
    language sql
    immutable
    strict
    parallel safe
    set search_path = pg_catalog, pg_temp
as $fn$
    -- a channel's name has at most 63 bytes
    select 'fairq:' || case
        when octet_length(p_queue) <= 57 then p_queue
        else encode(substr(sha256(convert_to(p_queue, 'UTF8')), 1, 16), 'hex')
    end
$fn$;
comment on function fairq.channel(text) is 'The channel to LISTEN on for a queue; quote it as an identifier.';
revoke all on function fairq.channel(text) from public;
grant execute on function fairq.channel(text) to fairq_worker, fairq_producer, fairq_tenant, fairq_operator;

create or replace function fairq._is_due(p_run_at timestamptz, p_delay interval)
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- Whether a new job may run at once: there is nothing to wake anybody for before that.
begin
    return coalesce(p_run_at, clock_timestamp() + p_delay, '-infinity') <= clock_timestamp();
end
$fn$;
comment on function fairq._is_due(timestamptz, interval) is 'Whether a new job may run at once. Internal.';
revoke all on function fairq._is_due(timestamptz, interval) from public;

create or replace function fairq._wake(p_queue text)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- One NOTIFY when a worker found the queue empty, none while there is a backlog. The payload says nothing.
--
-- Index:  ticks_pkey, newest first.
begin
    if (select t.found_empty from fairq.ticks as t where t.queue = p_queue order by t.tick_id desc limit 1) then
        perform pg_notify(fairq.channel(p_queue), '');
    end if;
end
$fn$;
comment on function fairq._wake(text) is 'Wakes the listeners of a queue that was found empty. Internal.';
revoke all on function fairq._wake(text) from public;

create or replace function fairq.enqueue_job(
    p_tenant       text default null,
    p_task         text default null,
    p_payload      jsonb default '{}',
    p_queue        text default 'default',
    p_run_at       timestamptz default null,
    p_delay        interval default null,
    p_priority     integer default 2,
    p_max_attempts integer default null,
    p_key          text default null,
    p_key_ttl      interval default null,
    p_cost         double precision default 1,
    p_traceparent  text default null
)
    returns fairq.enqueued_job
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- a plan made while job_keys was empty would read all of it for each key (see claim_jobs())
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
as $fn$
-- none -> queued, scheduled
--
-- Long:   the short way and the other, side by side: a call that waits in the first for a rollback to the version
--         before must find all that the other calls.
-- Locks:  none, but for the key: a second producer of the same one waits for the first.
-- Raises: 22023 for a bad argument; 54000 for a payload over the queue's limit; 42501 for a tenant or queue not
--         granted; QF002 for a key in use for another payload.
declare
    v_attempts integer;
    v_notify   boolean;
    v_now      timestamptz;
    v_is_plain boolean;
    v_job_id   bigint;
    v_is_done  boolean;
    v_settings fairq.queues;
    v_job      fairq.new_job;
    v_outcome  fairq.enqueue_outcome;
begin
    -- most jobs are plain, and whoever may enqueue them is granted that by the name of the tenant: three questions say
    -- so. Each operator in them is prepared anew in every transaction: there are few, and what is rare is asked apart.
    -- As in _check_job:
    v_is_plain := p_run_at is null and p_delay is null and p_key is null and p_key_ttl is null
        and jsonb_typeof(p_payload) = 'object' and p_priority in (0, 1, 2, 3) and p_cost > 0 and p_cost <= 1000000;
    -- as in _check_name, of all names at once: the first character, if it is one of ASCII, says that none is blank;
    -- with a null among them the last line is not true, which greatest and least do not see
    if (
        p_max_attempts is null and p_traceparent is null
        and greatest(octet_length(p_queue), octet_length(p_tenant), octet_length(p_task)) <= 200
        and least(p_queue collate "C", p_tenant, p_task) > '*'
        and greatest(p_queue collate "C", p_tenant, p_task) <= '~'
        and '@own' not in (p_queue, p_tenant, p_task)
    ) is not true then
        v_is_plain := v_is_plain
            and octet_length(p_queue) <= 200 and p_queue not in ('*', '@own') and p_queue ~ '[^[:space:]]'
            and octet_length(p_tenant) <= 200 and p_tenant not in ('*', '@own') and p_tenant ~ '[^[:space:]]'
            and octet_length(p_task) <= 200 and p_task not in ('*', '@own') and p_task ~ '[^[:space:]]'
            and coalesce(p_max_attempts, 1) between 1 and 1000
            and (p_traceparent is null or fairq._is_traceparent(p_traceparent));
    end if;
    -- the settings and the right
    select
        coalesce(p_max_attempts, q.max_attempts), q.notify, clock_timestamp(),
        v_is_plain and octet_length(p_payload::text) <= q.payload_limit
        -- as in _granted_tenants and _caller
        and exists (
            select from fairq.access_grants as a
            where a.verb = 'enqueue' and a.tenant in (p_tenant, '*') and a.queue in (p_queue, '*')
              and pg_has_role(
                  case when current_setting('role') = 'none' then session_user else current_setting('role')::name end,
                  to_regrole(quote_ident(a.role_name))::oid, 'usage'
              )
        )
    into v_attempts, v_notify, v_now, v_is_plain
    from fairq.queues as q
    -- as in _queue_settings, without a sort
    where q.queue
        = case when exists (select from fairq.queues as qq where qq.queue = p_queue) then p_queue else '*' end;
    if v_is_plain then
        insert into fairq.jobs (
            queue, tenant, task, payload, priority, max_attempts, run_at, cost, traceparent, created_at
        )
        values (
            p_queue, p_tenant, p_task, p_payload, p_priority, v_attempts, v_now, p_cost, p_traceparent, v_now
        )
        returning job_id into v_job_id;
        if v_notify then
            -- as in _wake
            if (select t.found_empty from fairq.ticks as t where t.queue = p_queue order by t.tick_id desc limit 1) then
                perform pg_notify(fairq.channel(p_queue), '');
            end if;
        end if;
        return row(v_job_id, true)::fairq.enqueued_job;
    end if;

    -- assigned, not performed: an expression costs less than a statement
    v_is_done := fairq._check_name('p_queue', p_queue, 200);
    v_settings := fairq._queue_settings(p_queue);
    v_job := fairq._check_job(
        row(
            fairq._acting_tenant('enqueue', p_queue, p_tenant), p_task, p_payload, p_queue, p_run_at, p_delay,
            p_priority, p_max_attempts, p_key, p_key_ttl, p_cost, p_traceparent
        )::fairq.new_job,
        v_settings
    );
    v_outcome := fairq._draw_id(v_job, nextval('fairq.jobs_job_id_seq'));
    if v_outcome.outcome = 'conflict' then
        raise exception 'key % stands for another task or payload, that of job %', left(p_key, 100), v_outcome.job_id
            using errcode = 'QF002', hint = 'One key stands for one operation: choose another key.';
    end if;
    v_is_done := fairq._insert_jobs(array[v_job], array[v_outcome]);
    if v_settings.notify and v_outcome.outcome = 'created' and fairq._is_due(p_run_at, p_delay) then
        perform fairq._wake(p_queue);
    end if;
    return row(v_outcome.job_id, v_outcome.outcome = 'created')::fairq.enqueued_job;
end
$fn$;
comment on function fairq.enqueue_job(text, text, jsonb, text, timestamptz, interval, integer, integer, text, interval, double precision, text) is 'Enqueues a job for a tenant (without p_tenant: the session''s own), to run at once, at p_run_at or after p_delay. p_priority 0 goes first within the tenant. p_key makes it idempotent for p_key_ttl: used again, it returns the first job. p_traceparent (W3C Trace Context) goes to the workers as it is.';
revoke all on function fairq.enqueue_job(
    text, text, jsonb, text, timestamptz, interval, integer, integer, text, interval, double precision, text
) from public;
grant execute on function fairq.enqueue_job(
    text, text, jsonb, text, timestamptz, interval, integer, integer, text, interval, double precision, text
) to fairq_producer, fairq_tenant;

create or replace function fairq._read_jobs(p_jobs jsonb)
    returns fairq.new_job[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- The elements of enqueue_jobs()'s argument, in their order, with the defaults of enqueue_job().
--
-- Raises: 22023 for what is not an array of 1 to 10,000 objects with known fields.
declare
    v_fields  text[] := '{tenant,task,payload,queue,run_at,delay,priority,max_attempts,key,key_ttl,cost,traceparent}';
    v_strange text;
begin
    if p_jobs is null or jsonb_typeof(p_jobs) <> 'array' then
        perform fairq._refuse('p_jobs', jsonb_typeof(p_jobs), 'a JSON array');
    end if;
    if jsonb_array_length(p_jobs) not between 1 and 10000 then
        perform fairq._refuse('p_jobs', jsonb_array_length(p_jobs) || ' elements', 'an array of 1 to 10000 elements');
    end if;

    select format('%s as element %s', left(e.job::text, 60), e.ordinality) into v_strange
    from jsonb_array_elements(p_jobs) with ordinality as e(job)
    where case when jsonb_typeof(e.job) = 'object' then e.job - v_fields <> '{}' else true end
    limit 1;
    if found then
        perform fairq._refuse('p_jobs', v_strange, 'objects with fields among ' || array_to_string(v_fields, ', '));
    end if;

    return (
        select array_agg(
            row(
                r.tenant, r.task, coalesce(r.payload, '{}'), coalesce(r.queue, 'default'), r.run_at, r.delay,
                coalesce(r.priority, 2), r.max_attempts, r.key, r.key_ttl, coalesce(r.cost, 1),
                r.traceparent
            )::fairq.new_job
            order by e.ordinality
        )
        from jsonb_array_elements(p_jobs) with ordinality as e(job)
        cross join lateral jsonb_populate_record(null::fairq.new_job, e.job) as r
    );
exception when invalid_text_representation or invalid_datetime_format or datetime_field_overflow
               or interval_field_overflow or numeric_value_out_of_range then
    perform fairq._refuse('p_jobs', sqlerrm, 'objects with values of the types that enqueue_job() takes');
end
$fn$;
comment on function fairq._read_jobs(jsonb) is 'Reads the argument of enqueue_jobs(). Internal.';
revoke all on function fairq._read_jobs(jsonb) from public;

create or replace function fairq._check_jobs(p_jobs fairq.new_job[])
    returns fairq.new_job[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Each job checked and completed. Nothing has been written yet when this raises.
declare
    v_job      fairq.new_job;
    v_at       integer := 0;
    v_queue    text;
    v_settings fairq.queues;
    v_granted  text[];
begin
    foreach v_job in array p_jobs loop
        v_at := v_at + 1;
        if v_queue is distinct from v_job.queue then
            perform fairq._check_name('p_queue', v_job.queue, 200);
            v_queue := v_job.queue;
            v_settings := fairq._queue_settings(v_queue);
            v_granted := '{}';
        end if;
        -- a tenant is checked once, not once for each of its jobs
        if v_job.tenant is null or v_job.tenant <> all(v_granted) then
            v_job.tenant := fairq._acting_tenant('enqueue', v_queue, v_job.tenant);
            v_granted := v_job.tenant || v_granted[1:99];
        end if;
        p_jobs[v_at] := fairq._check_job(v_job, v_settings);
    end loop;
    return p_jobs;
exception when invalid_parameter_value or program_limit_exceeded then
    raise exception 'element % of p_jobs: %', v_at, sqlerrm using errcode = sqlstate, hint = 'Nothing was enqueued.';
end
$fn$;
comment on function fairq._check_jobs(fairq.new_job[]) is 'Checks the elements of enqueue_jobs(). Internal.';
revoke all on function fairq._check_jobs(fairq.new_job[]) from public;

create or replace function fairq._draw_ids(p_jobs fairq.new_job[])
    returns fairq.enqueue_outcome[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Ids in input order; then keys, in theirs, so that two batches never wait for each other crosswise.
declare
    v_outcomes fairq.enqueue_outcome[] := array(
        select row(null, nextval('fairq.jobs_job_id_seq'), 'created')::fairq.enqueue_outcome from unnest(p_jobs)
    );
    v_at       integer;
begin
    for v_at in
        select u.ordinality from unnest(p_jobs) with ordinality as u
        where u.key is not null
        order by u.tenant, u.key, u.ordinality
    loop
        v_outcomes[v_at] := fairq._draw_id(p_jobs[v_at], v_outcomes[v_at].job_id);
    end loop;
    return v_outcomes;
end
$fn$;
comment on function fairq._draw_ids(fairq.new_job[]) is 'Draws the ids of a batch of new jobs. Internal.';
revoke all on function fairq._draw_ids(fairq.new_job[]) from public;

create or replace function fairq._enqueue_plain_jobs(p_jobs jsonb)
    returns setof fairq.enqueue_outcome
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- enqueue_jobs(), when each of them is plain and granted; else nothing, and no row.
--
-- Long:   one statement, from the elements to the rows: what is handed from function to function costs as much again.
begin
    return query
    with job as materialized (
        select
            e.ordinality::integer as ordinal, coalesce(e.job ->> 'queue', 'default') as queue,
            e.job ->> 'tenant' as tenant, e.job ->> 'task' as task, coalesce(e.job -> 'payload', '{}') as payload,
            e.job ->> 'priority' as priority, e.job ->> 'max_attempts' as max_attempts, e.job ->> 'cost' as cost,
            e.job ->> 'traceparent' as traceparent,
            -- a date or a key, or what is no field
            case when jsonb_typeof(e.job) = 'object'
                then e.job - '{tenant,task,payload,queue,priority,max_attempts,cost,traceparent}'::text[] = '{}'
            end as is_all
        from jsonb_array_elements(
            case when jsonb_typeof(p_jobs) = 'array' and jsonb_array_length(p_jobs) <= 10000 then p_jobs else '[]' end
        ) with ordinality as e(job)
    ), here as materialized (
        select d.queue, q.*, clock_timestamp() as now
        from (select distinct j.queue from job as j) as d
        cross join lateral (
            select qq.payload_limit, qq.max_attempts from fairq.queues as qq
            where qq.queue in (d.queue, '*') order by qq.queue = '*' limit 1
        ) as q
    ), new as (
        -- in their order, in which the ids are drawn, too
        insert into fairq.jobs (
            queue, tenant, task, payload, priority, max_attempts, run_at, cost, traceparent, created_at
        )
        select
            j.queue, j.tenant, j.task, j.payload, coalesce(j.priority::smallint, 2),
            coalesce(j.max_attempts::integer, h.max_attempts), h.now, coalesce(j.cost::double precision, 1),
            j.traceparent, h.now
        from job as j
        join here as h on h.queue = j.queue
        where not exists (
            select from job as jj left join here as hh on hh.queue = jj.queue
            -- as in enqueue_job; numbers as most people write them
            where (
                jj.is_all
                and octet_length(jj.queue) <= 200 and jj.queue not in ('*', '@own')
                and (jj.queue >= '!' collate "C" and jj.queue <= '~' collate "C" or jj.queue ~ '[^[:space:]]')
                and octet_length(jj.tenant) <= 200 and jj.tenant not in ('*', '@own')
                and (jj.tenant >= '!' collate "C" and jj.tenant <= '~' collate "C" or jj.tenant ~ '[^[:space:]]')
                and octet_length(jj.task) <= 200 and jj.task not in ('*', '@own')
                and (jj.task >= '!' collate "C" and jj.task <= '~' collate "C" or jj.task ~ '[^[:space:]]')
                and jsonb_typeof(jj.payload) = 'object' and octet_length(jj.payload::text) <= hh.payload_limit
                and (jj.priority is null or jj.priority ~ '^[0-3]$')
                and (jj.max_attempts is null or jj.max_attempts ~ '^[1-9][0-9]{0,2}$')
                and (jj.cost is null or jj.cost ~ '^[1-9][0-9]{0,5}([.][0-9]{1,9})?$')
                and (jj.traceparent is null or fairq._is_traceparent(jj.traceparent))
            ) is not true
        ) and not exists (
            select from (select distinct jj.queue, jj.tenant from job as jj) as d
            -- as in _granted_tenants
            where not exists (
                select from fairq.access_grants as a
                where a.verb = 'enqueue' and a.tenant in (d.tenant, '*') and a.queue in (d.queue, '*')
                  and pg_has_role(fairq._caller()::name, to_regrole(quote_ident(a.role_name))::oid, 'usage')
            )
        )
        order by j.ordinal
        returning job_id
    )
    select row_number() over (order by n.job_id)::integer, n.job_id, 'created'::text from new as n order by n.job_id;
end
$fn$;
comment on function fairq._enqueue_plain_jobs(jsonb) is 'Enqueues a batch that needs no closer look. Internal.';
revoke all on function fairq._enqueue_plain_jobs(jsonb) from public;

create or replace function fairq.enqueue_jobs(p_jobs jsonb)
    returns setof fairq.enqueue_outcome
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- see enqueue_job()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
as $fn$
-- none -> queued, scheduled; many at once
--
-- Locks:  none, but for keys.
-- Raises: as enqueue_job(), naming the element, with nothing enqueued; but a key in use is an outcome, not an error.
declare
    v_jobs     fairq.new_job[];
    v_outcomes fairq.enqueue_outcome[];
    v_is_done  boolean;
    v_queue    text;
begin
    return query select e.* from fairq._enqueue_plain_jobs(p_jobs) as e;
    if found then
        for v_queue in
            select distinct coalesce(e.job ->> 'queue', 'default') from jsonb_array_elements(p_jobs) as e(job)
        loop
            if (fairq._queue_settings(v_queue)).notify then
                perform fairq._wake(v_queue);
            end if;
        end loop;
        return;
    end if;

    v_jobs := fairq._check_jobs(fairq._read_jobs(p_jobs));
    v_outcomes := fairq._draw_ids(v_jobs);
    -- assigned, not performed: an expression costs less than a statement
    v_is_done := fairq._insert_jobs(v_jobs, v_outcomes);
    for v_queue in select distinct u.queue from unnest(v_jobs) as u loop
        if (fairq._queue_settings(v_queue)).notify and exists (
            select from unnest(v_jobs) as u where u.queue = v_queue and fairq._is_due(u.run_at, u.delay)
        ) then
            perform fairq._wake(v_queue);
        end if;
    end loop;

    return query
    select u.ordinality::integer, u.job_id, u.outcome
    from unnest(v_outcomes) with ordinality as u
    order by u.ordinality;
end
$fn$;
comment on function fairq.enqueue_jobs(jsonb) is 'Enqueues an array of 1 to 10,000 objects whose fields are the arguments of enqueue_job(), without p_. One row per element, in input order.';
revoke all on function fairq.enqueue_jobs(jsonb) from public;
grant execute on function fairq.enqueue_jobs(jsonb) to fairq_producer, fairq_tenant;
