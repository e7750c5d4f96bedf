--
-- shared: what several rooms use
--
-- A check returns true or raises: so it can be assigned, which costs less than to perform it.

create or replace function fairq._refuse(p_name text, p_value text, p_rule text)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Refuses an argument. What has to add something of its own to 22023, or may not call this (prune), raises it itself.
begin
    raise exception '% must be %, not %', p_name, p_rule, coalesce(left(p_value, 100), 'null')
        using errcode = '22023', hint = 'Nothing was changed.';
end
$fn$;
comment on function fairq._refuse(text, text, text) is 'Raises 22023: the argument, the rule and the value. Internal.';
revoke all on function fairq._refuse(text, text, text) from public;

create or replace function fairq._check_name(p_name text, p_value text, p_longest integer)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Names are kept as they are, never cut. enqueue_job, _enqueue_plain_jobs and claim_jobs ask the same by themselves
-- first.
--
-- Raises: 22023 for a name that is null, nothing but white space, reserved or too long.
begin
    if p_value is null or octet_length(p_value) > p_longest or p_value in ('*', '@own')
       or p_value !~ '[^[:space:]]' then
        perform fairq._refuse(
            p_name, p_value, format('a name of 1 to %s bytes, not blank, not * or @own', p_longest)
        );
    end if;
    return true;
end
$fn$;
comment on function fairq._check_name(text, text, integer) is 'Raises 22023 for a queue, tenant, task or owner that cannot be one. Internal.';
revoke all on function fairq._check_name(text, text, integer) from public;

create or replace function fairq._check_span(p_name text, p_value interval, p_least interval, p_most interval)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 for a span of time that is null or out of range; infinite ones are out of every range. And for one that
--         goes back in one unit and forward in another: compared, a month is 30 days, added, it may be 31.
begin
    if p_value is null or p_value < p_least or p_value > p_most
       or least(
           extract(year from p_value), extract(month from p_value), extract(day from p_value),
           extract(hour from p_value), extract(minute from p_value), extract(second from p_value)
       ) < 0 then
        perform fairq._refuse(
            p_name, p_value::text, format('an interval from %s to %s, no part of it negative', p_least, p_most)
        );
    end if;
    return true;
end
$fn$;
comment on function fairq._check_span(text, interval, interval, interval) is 'Raises 22023 for an interval out of range. Internal.';
revoke all on function fairq._check_span(text, interval, interval, interval) from public;

create or replace function fairq._check_delay(p_delay interval)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 for a delay that is given and negative, infinite or longer than ten years.
begin
    if p_delay is not null then
        perform fairq._check_span('p_delay', p_delay, interval '0', interval '3650 days');
    end if;
end
$fn$;
comment on function fairq._check_delay(interval) is 'Raises 22023 for a delay out of range. Internal.';
revoke all on function fairq._check_delay(interval) from public;

create or replace function fairq._check_run_at(p_run_at timestamptz, p_delay interval)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 for a time that is infinite, a delay out of range, or both a time and a delay.
begin
    if num_nonnulls(p_run_at, p_delay) = 2 then
        perform fairq._refuse('p_run_at and p_delay', format('%s and %s', p_run_at, p_delay), 'one or the other');
    elsif not isfinite(p_run_at) then
        perform fairq._refuse('p_run_at', p_run_at::text, 'a finite time');
    end if;
    perform fairq._check_delay(p_delay);
end
$fn$;
comment on function fairq._check_run_at(timestamptz, interval) is 'Raises 22023 for when a job is not to run. Internal.';
revoke all on function fairq._check_run_at(timestamptz, interval) from public;

create or replace function fairq._check_limit(p_value integer, p_most integer)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 for a p_limit that is null or out of range: nothing is unbounded.
begin
    if p_value is null or p_value not between 1 and p_most then
        perform fairq._refuse('p_limit', p_value::text, format('a number from 1 to %s', p_most));
    end if;
    return true;
end
$fn$;
comment on function fairq._check_limit(integer, integer) is 'Raises 22023 for a p_limit out of range. Internal.';
revoke all on function fairq._check_limit(integer, integer) from public;

create or replace function fairq._check_id(p_job_id bigint)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 for a null. An id that no job has is an outcome, not a mistake.
begin
    if p_job_id is null then
        perform fairq._refuse('p_job_id', null, 'a job''s id');
    end if;
end
$fn$;
comment on function fairq._check_id(bigint) is 'Raises 22023 for the id of no job. Internal.';
revoke all on function fairq._check_id(bigint) from public;

create or replace function fairq._check_held(p_job_id bigint, p_token uuid)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 for a null: a worker that lost its job's id or token must hear it, not that the lease is lost.
begin
    if p_job_id is null then
        perform fairq._refuse('p_job_id', null, 'the id of a claimed job');
    end if;
    if p_token is null then
        perform fairq._refuse('p_token', null, 'the lease_token of a claimed job');
    end if;
    return true;
end
$fn$;
comment on function fairq._check_held(bigint, uuid) is 'Raises 22023 for the id and token of a single verb. Internal.';
revoke all on function fairq._check_held(bigint, uuid) from public;

create or replace function fairq._check_batch(p_job_ids bigint[], p_tokens uuid[])
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 unless the two arrays are of one length, from 1 to 1,000, with no null in them.
begin
    if p_job_ids is null or p_tokens is null or cardinality(p_job_ids) <> cardinality(p_tokens)
       or cardinality(p_job_ids) not between 1 and 1000 then
        perform fairq._refuse(
            'p_job_ids and p_tokens', format('%s and %s elements', cardinality(p_job_ids), cardinality(p_tokens)),
            'two arrays of one length, from 1 to 1000'
        );
    end if;
    if array_ndims(p_job_ids) <> 1 or array_lower(p_job_ids, 1) <> 1
       or array_ndims(p_tokens) <> 1 or array_lower(p_tokens, 1) <> 1 then
        perform fairq._refuse(
            'p_job_ids and p_tokens', format('%s and %s', array_dims(p_job_ids), array_dims(p_tokens)),
            'arrays of one dimension, counted from 1'
        );
    end if;
    if array_position(p_job_ids, null) is not null or array_position(p_tokens, null) is not null then
        perform fairq._refuse('p_job_ids and p_tokens', 'null', 'free of nulls');
    end if;
    return true;
end
$fn$;
comment on function fairq._check_batch(bigint[], uuid[]) is 'Raises 22023 for the arrays of a batch verb. Internal.';
revoke all on function fairq._check_batch(bigint[], uuid[]) from public;

create or replace function fairq._check_beside(p_name text, p_value anyarray, p_length integer)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 for an array that is given beside p_job_ids and does not have an element for each of them.
begin
    if cardinality(p_value) <> p_length or array_ndims(p_value) <> 1 or array_lower(p_value, 1) <> 1 then
        perform fairq._refuse(
            p_name, format('%s elements as %s', cardinality(p_value), coalesce(array_dims(p_value), '{}')),
            'null, or of one dimension, counted from 1, and as long as p_job_ids'
        );
    end if;
end
$fn$;
comment on function fairq._check_beside(text, anyarray, integer) is 'Raises 22023 for an array that does not go with the ids of a batch verb. Internal.';
revoke all on function fairq._check_beside(text, anyarray, integer) from public;

create or replace function fairq._queue_settings(p_queue text)
    returns fairq.queues
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- The queue's own row, else that of *. A queue need not be declared.
declare
    v_settings fairq.queues;
begin
    select q.* into v_settings from fairq.queues as q
    where q.queue in (p_queue, '*') order by q.queue = '*' limit 1;
    return v_settings;
end
$fn$;
comment on function fairq._queue_settings(text) is 'The settings in force for a queue. Internal.';
revoke all on function fairq._queue_settings(text) from public;

create or replace function fairq._newest_tick(p_queue text)
    returns fairq.ticks
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- What the scheduler wrote down last, for those who only look; a claim reads it by _last_tick().
--
-- Index:  ticks_pkey, newest first.
declare
    v_tick fairq.ticks;
begin
    select t.* into v_tick from fairq.ticks as t where t.queue = p_queue order by t.tick_id desc limit 1;
    return v_tick;
end
$fn$;
comment on function fairq._newest_tick(text) is 'What the scheduler wrote down last. Internal.';
revoke all on function fairq._newest_tick(text) from public;

create or replace function fairq._log(
    p_lease fairq.leases, p_event text, p_now timestamptz, p_details jsonb default '{}'
)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- An attempt ended otherwise than well.
begin
    insert into fairq.job_log (job_id, queue, tenant, event_type, attempt, actor, started_at, details, created_at)
    values (
        (p_lease).job_id, (p_lease).queue, (p_lease).tenant, p_event, (p_lease).attempt, (p_lease).lease_owner,
        (p_lease).started_at, p_details, p_now
    );
end
$fn$;
comment on function fairq._log(fairq.leases, text, timestamptz, jsonb) is 'Writes the end of an attempt to job_log. Internal.';
revoke all on function fairq._log(fairq.leases, text, timestamptz, jsonb) from public;

create or replace function fairq._hold_lease(
    p_job_id bigint, p_token uuid, p_caller text, p_now timestamptz default null
)
    returns fairq.leases
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- The guard of renew, fail and release: the lease, locked, if it is this caller's under this token and still alive.
--
-- p_now:  the clock; null for the real one.
-- Locks:  the lease's row. Then the clock is read: a lease judged by a clock read before the wait would live too long.
declare
    v_lease fairq.leases;
begin
    select l.* into v_lease from fairq.leases as l where l.job_id = p_job_id for update;
    if found and v_lease.lease_token = p_token and v_lease.caller = p_caller
       and v_lease.lease_expires_at > coalesce(p_now, clock_timestamp()) then
        return v_lease;
    end if;
    -- wrong job, token, caller or too late: one answer
    return null;
end
$fn$;
comment on function fairq._hold_lease(bigint, uuid, text, timestamptz) is 'Locks a live lease and returns it, or null. Internal.';
revoke all on function fairq._hold_lease(bigint, uuid, text, timestamptz) from public;

create or replace function fairq._ending(p_lease fairq.leases, p_pays text, p_now timestamptz)
    returns fairq.ending
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
-- What the scheduler must know of an attempt that ends. p_pays says what its tenant pays for:
--
-- held:     the time the worker held it: success, failure, cancellation while running, snooze.
-- prepaid:  what was charged stays: a lost lease. Paid back, a job that kills workers would run free.
-- nothing:  it never started: given back by a worker that shuts down.
declare
    v_held bigint := greatest(1, round(extract(epoch from p_now - p_lease.started_at) * 1000));
begin
    if p_lease.prepaid is null or p_pays = 'prepaid' then
        return row(p_lease.tenant, p_lease.epoch, 1, 0, 0, 0, 0)::fairq.ending;
    elsif p_pays = 'nothing' then
        return row(
            p_lease.tenant, p_lease.epoch, 1, 0, 0, 0, round(p_lease.prepaid * 2520 / p_lease.weight)
        )::fairq.ending;
    end if;
    return row(
        p_lease.tenant, p_lease.epoch, 1, 1, v_held,
        round(greatest(0, v_held - p_lease.prepaid) * 2520 / p_lease.weight),
        round(greatest(0, p_lease.prepaid - v_held) * 2520 / p_lease.weight)
    )::fairq.ending;
end
$fn$;
comment on function fairq._ending(fairq.leases, text, timestamptz) is 'What an attempt that ends is charged in the end. Internal.';
revoke all on function fairq._ending(fairq.leases, text, timestamptz) from public;

create or replace function fairq._settle(p_queue text, p_ending fairq.ending)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Tells the scheduler, by a row of its own: no shared row is written.
begin
    insert into fairq.settlements (queue, endings) values (p_queue, array[p_ending]);
    return true;
end
$fn$;
comment on function fairq._settle(text, fairq.ending) is 'Tells the scheduler what became of an attempt. Internal.';
revoke all on function fairq._settle(text, fairq.ending) from public;

create or replace function fairq._put_back(
    p_lease fairq.leases, p_attempts integer, p_run_at timestamptz, p_error jsonb, p_is_fed boolean default false
)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- running -> queued, or scheduled when p_run_at is given
--
-- p_is_fed: the scheduler does this itself and feeds it to its own look: neither feed is to tell it again.
-- Locks:    the lease's row is held; the job's row.
begin
    update fairq.jobs as j
    set
        state       = case when p_run_at is null then 'queued' else 'scheduled' end,
        run_at      = coalesce(p_run_at, j.run_at),
        attempts    = p_attempts,
        last_error  = coalesce(p_error, j.last_error),
        changed_xid = case when p_is_fed then j.changed_xid else pg_current_xact_id() end
    where j.job_id = (p_lease).job_id;

    delete from fairq.leases as l where l.job_id = (p_lease).job_id;
end
$fn$;
comment on function fairq._put_back(fairq.leases, integer, timestamptz, jsonb, boolean) is 'Returns a running job to the waiting ones. Internal.';
revoke all on function fairq._put_back(fairq.leases, integer, timestamptz, jsonb, boolean) from public;

create or replace function fairq._finish(
    p_lease fairq.leases, p_state text, p_now timestamptz, p_error jsonb, p_result jsonb default null
)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Moves a running job's row to where the ended ones are; false when it is not there.
--
-- Locks:  the lease's row is held; the job's row.
declare
    v_job fairq.jobs;
begin
    delete from fairq.jobs as j where j.job_id = p_lease.job_id returning j.* into v_job;
    if not found then
        return false;
    end if;
    insert into fairq.finished_jobs (
        job_id, queue, tenant, task, payload, priority, state, attempts, max_attempts, run_at, cost, operation_key,
        traceparent, last_error, created_at, started_at, finished_at, lease_owner, token_hash, result
    )
    values (
        v_job.job_id, v_job.queue, v_job.tenant, v_job.task, v_job.payload, v_job.priority, p_state, p_lease.attempt,
        v_job.max_attempts, v_job.run_at, v_job.cost, v_job.operation_key, v_job.traceparent,
        coalesce(p_error, v_job.last_error), v_job.created_at, p_lease.started_at, p_now, p_lease.lease_owner,
        sha256(uuid_send(p_lease.lease_token)), p_result
    );
    return true;
end
$fn$;
comment on function fairq._finish(fairq.leases, text, timestamptz, jsonb, jsonb) is 'Moves the row of a running job to the ended ones. Internal.';
revoke all on function fairq._finish(fairq.leases, text, timestamptz, jsonb, jsonb) from public;

create or replace function fairq._end_job(
    p_lease fairq.leases, p_state text, p_now timestamptz, p_error jsonb
)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- running -> dead, cancelled
--
-- Locks:  the lease's row is held; the job's row.
begin
    perform fairq._finish(p_lease, p_state, p_now, p_error);
    delete from fairq.leases as l where l.job_id = (p_lease).job_id;
    perform fairq._log(
        p_lease, p_state, p_now,
        case when p_error is null then '{}' else jsonb_build_object('error', p_error) end
    );
end
$fn$;
comment on function fairq._end_job(fairq.leases, text, timestamptz, jsonb) is 'Ends a running job otherwise than well. Internal.';
revoke all on function fairq._end_job(fairq.leases, text, timestamptz, jsonb) from public;
