--
-- renew: running -> running, later lease
--

create or replace function fairq._renew(
    p_job_id bigint, p_token uuid, p_lease interval, p_now timestamptz default null
)
    returns text
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- running -> running: renewed, cancel_requested or lost.
--
-- Locks:  the lease's row.
-- Raises: 22023 for a lease the job's queue does not allow.
declare
    v_lease    fairq.leases := fairq._hold_lease(p_job_id, p_token, fairq._caller(), p_now);
    v_now      timestamptz := coalesce(p_now, clock_timestamp());
    v_prepaid  bigint;
    v_settings fairq.queues;
begin
    if v_lease.job_id is null then
        return 'lost';
    end if;
    if v_lease.cancel_requested_at is not null then
        return 'cancel_requested';
    end if;

    v_settings := fairq._queue_settings(v_lease.queue);
    p_lease := coalesce(p_lease, v_settings.default_lease);
    perform fairq._check_span('p_lease', p_lease, interval '1 millisecond', v_settings.longest_lease);
    -- charged for the time it has had and for that it asks for
    v_prepaid := greatest(
        v_lease.prepaid, round(extract(epoch from v_now - v_lease.started_at + p_lease) * 1000)::bigint
    );
    if v_lease.prepaid < v_prepaid then
        perform fairq._settle(
            v_lease.queue,
            row(
                v_lease.tenant, v_lease.epoch, 0, 0, 0,
                round((v_prepaid - v_lease.prepaid) * 2520 / v_lease.weight), 0
            )::fairq.ending
        );
    end if;
    update fairq.leases as l
    set
        -- a shorter renewal never takes back time already granted
        lease_expires_at = greatest(l.lease_expires_at, v_now + p_lease),
        prepaid          = case when l.prepaid is not null then v_prepaid end
    where l.job_id = p_job_id;
    return 'renewed';
end
$fn$;
comment on function fairq._renew(bigint, uuid, interval, timestamptz) is 'Renews one lease. Internal.';
revoke all on function fairq._renew(bigint, uuid, interval, timestamptz) from public;

create or replace function fairq.renew_job_lease(p_job_id bigint, p_token uuid, p_lease interval default null)
    returns boolean
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
as $fn$
-- running -> running
--
-- Locks:  the lease's row.
-- Raises: 22023 for a null argument or a lease out of range.
begin
    perform fairq._check_held(p_job_id, p_token);
    perform fairq._check_lease(p_lease);
    return fairq._renew(p_job_id, p_token, p_lease) = 'renewed';
end
$fn$;
comment on function fairq.renew_job_lease(bigint, uuid, interval) is 'running -> running: the lease now ends p_lease from now, or when it did if that is later. False: stop working, the lease is lost or the job''s cancellation was asked for.';
revoke all on function fairq.renew_job_lease(bigint, uuid, interval) from public;
grant execute on function fairq.renew_job_lease(bigint, uuid, interval) to fairq_worker;

create or replace function fairq._check_lease(p_lease interval)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Before any lock; what the job's queue allows is known once the lease is found.
begin
    if p_lease is not null then
        perform fairq._check_span('p_lease', p_lease, interval '1 millisecond', interval '7 days');
    end if;
end
$fn$;
comment on function fairq._check_lease(interval) is 'Raises 22023 for a lease that no queue allows. Internal.';
revoke all on function fairq._check_lease(interval) from public;

create or replace function fairq.renew_job_leases(p_job_ids bigint[], p_tokens uuid[], p_lease interval default null)
    returns setof fairq.job_outcome
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
as $fn$
-- running -> running; many at once
--
-- Locks:  the leases' rows, by job id.
-- Raises: 22023 for arrays or a lease out of range.
declare
    v_outcomes text[] := '{}';
    v_at       integer;
begin
    perform fairq._check_batch(p_job_ids, p_tokens);
    perform fairq._check_lease(p_lease);
    for v_at in
        select u.ordinality from unnest(p_job_ids) with ordinality as u(job_id) order by u.job_id, u.ordinality
    loop
        v_outcomes[v_at] := fairq._renew(p_job_ids[v_at], p_tokens[v_at], p_lease);
    end loop;
    return query select u.job_id, u.outcome from unnest(p_job_ids, v_outcomes) as u(job_id, outcome);
end
$fn$;
comment on function fairq.renew_job_leases(bigint[], uuid[], interval) is 'running -> running for many jobs: renewed, cancel_requested or lost for each, in input order.';
revoke all on function fairq.renew_job_leases(bigint[], uuid[], interval) from public;
grant execute on function fairq.renew_job_leases(bigint[], uuid[], interval) to fairq_worker;
