--
-- fail: running -> scheduled (another attempt later), dead, or cancelled
--

create or replace function fairq._retry_delay(p_settings fairq.queues, p_attempt integer, p_random double precision)
    returns interval
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
-- Base, doubled with each attempt, capped; a share of it drawn at random (p_random, 0 to 1). Clamped as a number before
-- it becomes an interval: 2^1000 seconds is not one.
begin
    return make_interval(secs =>
        least(
            extract(epoch from p_settings.backoff_cap)::double precision,
            extract(epoch from p_settings.backoff_base)::double precision * power(2, least(p_attempt - 1, 62))
        ) * (1 - p_settings.backoff_jitter * p_random)
    );
end
$fn$;
comment on function fairq._retry_delay(fairq.queues, integer, double precision) is 'The wait after a failed attempt. Internal.';
revoke all on function fairq._retry_delay(fairq.queues, integer, double precision) from public;

create or replace function fairq._error_document(p_error text)
    returns jsonb
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
-- What a worker says went wrong, as JSON that can always be stored: its own object when it is one and of bearable size,
-- else the beginning of the text and its length. What JSON cannot hold (NUL, lone surrogates) is kept as text; so are
-- numbers with large exponents, which as JSON would be written out: 1e131071 has as many digits.
begin
    if p_error is null then
        return null;
    end if;
    if octet_length(p_error) <= 16384 and left(ltrim(p_error), 1) = '{' and p_error !~ '[0-9][eE][+-]?[0-9]{4}' then
        begin
            return p_error::jsonb;
        exception when others then
            null;
        end;
    end if;
    return jsonb_build_object('message', left(p_error, 2000), 'length', length(p_error));
end
$fn$;
comment on function fairq._error_document(text) is 'Turns an error of any kind into JSON. Internal.';
revoke all on function fairq._error_document(text) from public;

create or replace function fairq._fail(
    p_job_id bigint, p_token uuid, p_error jsonb, p_retry_delay interval, p_retry boolean,
    p_now timestamptz default null
)
    returns text
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- running -> scheduled, queued, dead, cancelled; null when the lease is lost.
--
-- Locks:  the lease's row, then the job's.
declare
    v_lease fairq.leases := fairq._hold_lease(p_job_id, p_token, fairq._caller(), p_now);
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_delay interval;
    v_ends  text;
begin
    if v_lease.job_id is null then
        return null;
    end if;
    perform fairq._settle(v_lease.queue, fairq._ending(v_lease, 'held', v_now));

    select case
        when v_lease.cancel_requested_at is not null then 'cancelled'
        when not p_retry or v_lease.attempt >= j.max_attempts then 'dead'
    end
    into v_ends from fairq.jobs as j where j.job_id = p_job_id;
    if v_ends is not null then
        perform fairq._end_job(v_lease, v_ends, v_now, p_error);
        return v_ends;
    end if;

    v_delay := coalesce(
        p_retry_delay, fairq._retry_delay(fairq._queue_settings(v_lease.queue), v_lease.attempt, random())
    );
    perform fairq._put_back(
        v_lease, v_lease.attempt, case when v_delay > interval '0' then v_now + v_delay end, p_error
    );
    perform fairq._log(
        v_lease, 'retry_scheduled', v_now,
        -- not jsonb_strip_nulls: it would reach into the worker's error
        case when p_error is null then '{}' else jsonb_build_object('error', p_error) end
        || jsonb_build_object('delay_seconds', round(extract(epoch from v_delay), 3))
    );
    return case when v_delay > interval '0' then 'scheduled' else 'queued' end;
end
$fn$;
comment on function fairq._fail(bigint, uuid, jsonb, interval, boolean, timestamptz) is 'Ends one failed attempt. Internal.';
revoke all on function fairq._fail(bigint, uuid, jsonb, interval, boolean, timestamptz) from public;

create or replace function fairq._check_failure(p_retry_delay interval, p_retry boolean)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
begin
    if p_retry_delay is not null then
        perform fairq._check_span('p_retry_delay', p_retry_delay, interval '0', interval '3650 days');
    end if;
    if p_retry is null then
        perform fairq._refuse('p_retry', null, 'true or false');
    end if;
end
$fn$;
comment on function fairq._check_failure(interval, boolean) is 'Raises 22023 for bad arguments of fail. Internal.';
revoke all on function fairq._check_failure(interval, boolean) from public;

create or replace function fairq.fail_job(
    p_job_id      bigint,
    p_token       uuid,
    p_error       text default null,
    p_retry_delay interval default null,
    p_retry       boolean default true
)
    returns text
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
as $fn$
-- running -> scheduled, queued, dead, cancelled
--
-- Locks:  the lease's row, then the job's.
-- Raises: 22023 for a null id or token, or a delay out of range; never for an error text.
begin
    perform fairq._check_held(p_job_id, p_token);
    perform fairq._check_failure(p_retry_delay, p_retry);
    return fairq._fail(p_job_id, p_token, fairq._error_document(p_error), p_retry_delay, p_retry);
end
$fn$;
comment on function fairq.fail_job(bigint, uuid, text, interval, boolean) is 'running -> scheduled (again after p_retry_delay, or after the queue''s backoff), dead (attempts used up, or p_retry false) or cancelled (if that was asked for): returns the new state, null when the lease is lost. p_error is any text; a JSON object is kept as one.';
revoke all on function fairq.fail_job(bigint, uuid, text, interval, boolean) from public;
grant execute on function fairq.fail_job(bigint, uuid, text, interval, boolean) to fairq_worker;

create or replace function fairq.fail_jobs(
    p_job_ids     bigint[],
    p_tokens      uuid[],
    p_errors      text[] default null,
    p_retry_delay interval default null,
    p_retry       boolean default true
)
    returns setof fairq.job_outcome
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
as $fn$
-- running -> scheduled, queued, dead, cancelled; many at once
--
-- Locks:  by job id, the lease's row, then the job's.
-- Raises: 22023 for arrays or a delay out of range.
declare
    v_outcomes text[] := '{}';
    v_at       integer;
begin
    perform fairq._check_batch(p_job_ids, p_tokens);
    perform fairq._check_failure(p_retry_delay, p_retry);
    perform fairq._check_beside('p_errors', p_errors, cardinality(p_job_ids));

    for v_at in
        select u.ordinality from unnest(p_job_ids) with ordinality as u(job_id) order by u.job_id, u.ordinality
    loop
        v_outcomes[v_at] := fairq._fail(
            p_job_ids[v_at], p_tokens[v_at], fairq._error_document(p_errors[v_at]), p_retry_delay, p_retry
        );
    end loop;
    return query
    select u.job_id, coalesce(u.outcome, 'lost') from unnest(p_job_ids, v_outcomes) as u(job_id, outcome);
end
$fn$;
comment on function fairq.fail_jobs(bigint[], uuid[], text[], interval, boolean) is 'fail_job() for many: scheduled, queued, dead, cancelled or lost for each, in input order.';
revoke all on function fairq.fail_jobs(bigint[], uuid[], text[], interval, boolean) from public;
grant execute on function fairq.fail_jobs(bigint[], uuid[], text[], interval, boolean) to fairq_worker;
