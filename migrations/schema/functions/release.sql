--
-- release: running -> queued, the attempt given back; scheduled when snoozed
--

create or replace function fairq._release(
    p_job_id bigint, p_token uuid, p_delay interval, p_now timestamptz default null
)
    returns text
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- running -> queued, scheduled, cancelled; null when the lease is lost.
--
-- Locks:  the lease's row, then the job's.
declare
    v_lease fairq.leases := fairq._hold_lease(p_job_id, p_token, fairq._caller(), p_now);
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
begin
    if v_lease.job_id is null then
        return null;
    end if;
    -- a snooze pays for the time it was held; a job given back unstarted does not
    perform fairq._settle(
        v_lease.queue,
        fairq._ending(
            v_lease,
            case when p_delay > interval '0' or v_lease.cancel_requested_at is not null then 'held' else 'nothing' end,
            v_now
        )
    );
    if v_lease.cancel_requested_at is not null then
        perform fairq._end_job(v_lease, 'cancelled', v_now, null);
        return 'cancelled';
    end if;

    perform fairq._put_back(
        v_lease, v_lease.attempt - 1, case when p_delay > interval '0' then v_now + p_delay end, null
    );
    perform fairq._log(
        v_lease, 'released', v_now,
        case
            when p_delay > interval '0'
                then jsonb_build_object('delay_seconds', round(extract(epoch from p_delay), 3))
            else '{}'
        end
    );
    return case when p_delay > interval '0' then 'scheduled' else 'queued' end;
end
$fn$;
comment on function fairq._release(bigint, uuid, interval, timestamptz) is 'Gives one job back. Internal.';
revoke all on function fairq._release(bigint, uuid, interval, timestamptz) from public;

create or replace function fairq.release_job(p_job_id bigint, p_token uuid, p_delay interval default null)
    returns text
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
as $fn$
-- running -> queued, scheduled, cancelled
--
-- Locks:  the lease's row, then the job's.
-- Raises: 22023 for a null id or token, or a delay out of range.
begin
    perform fairq._check_held(p_job_id, p_token);
    perform fairq._check_delay(p_delay);
    return fairq._release(p_job_id, p_token, p_delay);
end
$fn$;
comment on function fairq.release_job(bigint, uuid, interval) is 'running -> queued, or scheduled after p_delay (a snooze): the attempt does not count. Returns the new state (cancelled if that was asked for), null when the lease is lost.';
revoke all on function fairq.release_job(bigint, uuid, interval) from public;
grant execute on function fairq.release_job(bigint, uuid, interval) to fairq_worker;

create or replace function fairq.release_jobs(p_job_ids bigint[], p_tokens uuid[], p_delay interval default null)
    returns setof fairq.job_outcome
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
as $fn$
-- running -> queued, scheduled, cancelled; many at once
--
-- Locks:  by job id, the lease's row, then the job's.
-- Raises: 22023 for arrays or a delay out of range.
declare
    v_outcomes text[] := '{}';
    v_at       integer;
begin
    perform fairq._check_batch(p_job_ids, p_tokens);
    perform fairq._check_delay(p_delay);
    for v_at in
        select u.ordinality from unnest(p_job_ids) with ordinality as u(job_id) order by u.job_id, u.ordinality
    loop
        v_outcomes[v_at] := fairq._release(p_job_ids[v_at], p_tokens[v_at], p_delay);
    end loop;
    return query
    select u.job_id, coalesce(u.outcome, 'lost') from unnest(p_job_ids, v_outcomes) as u(job_id, outcome);
end
$fn$;
comment on function fairq.release_jobs(bigint[], uuid[], interval) is 'release_job() for many: queued, scheduled, cancelled or lost for each, in input order.';
revoke all on function fairq.release_jobs(bigint[], uuid[], interval) from public;
grant execute on function fairq.release_jobs(bigint[], uuid[], interval) to fairq_worker;
