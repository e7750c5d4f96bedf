--
-- prune: ended jobs go when their time is over
--
-- Owned by fairq_owner: the functions callers run have no right to make history disappear.

create or replace function fairq._ended_queues()
    returns setof text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- Index:  finished_jobs_prune_idx and finished_jobs_failed_idx, from one queue to the next.
begin
    return query
    with recursive good(name) as (
        (select f.queue from fairq.finished_jobs as f where f.state = 'succeeded' order by f.queue limit 1)
        union all
        select (
            select f.queue from fairq.finished_jobs as f
            where f.state = 'succeeded' and f.queue > g.name order by f.queue limit 1
        )
        from good as g where g.name is not null
    ), failed(name) as (
        (select f.queue from fairq.finished_jobs as f where f.state <> 'succeeded' order by f.queue limit 1)
        union all
        select (
            select f.queue from fairq.finished_jobs as f
            where f.state <> 'succeeded' and f.queue > d.name order by f.queue limit 1
        )
        from failed as d where d.name is not null
    )
    select n.name from (select g.name from good as g union select d.name from failed as d) as n
    where n.name is not null
    order by n.name;
end
$fn$;
comment on function fairq._ended_queues() is 'The queues that have ended jobs. Internal.';
revoke all on function fairq._ended_queues() from public;

create or replace function fairq._prune_queue(
    p_queue text, p_before timestamptz, p_failed_before timestamptz, p_limit integer
)
    returns integer
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- succeeded, dead, cancelled -> gone, with their log: those of one queue that ended before the moment for their state;
-- returns how many.
--
-- Locks:  finished_jobs' rows, skipping those held by others (a job being revived).
-- Index:  finished_jobs_prune_idx, finished_jobs_failed_idx; job_log_timeline_idx.
declare
    v_jobs bigint[];
begin
    with good as materialized (
        select f.job_id from fairq.finished_jobs as f
        where f.state = 'succeeded' and f.queue = p_queue and f.finished_at < p_before
        order by f.finished_at
        limit p_limit
        for update skip locked
    ), failed as materialized (
        select f.job_id from fairq.finished_jobs as f
        where f.state <> 'succeeded' and f.queue = p_queue and f.finished_at < p_failed_before
        order by f.finished_at
        limit (select p_limit - count(*) from good)
        for update skip locked
    )
    select coalesce(array_agg(o.job_id order by o.job_id), '{}') into v_jobs
    from (select g.job_id from good as g union all select d.job_id from failed as d) as o;

    -- by the primary key, in its order: a join might be turned round
    delete from fairq.finished_jobs as f where f.job_id = any (v_jobs);
    delete from fairq.job_log as g
    where g.log_id in (
        select l.log_id
        from unnest(v_jobs) as u(job_id)
        cross join lateral (select gg.log_id from fairq.job_log as gg where gg.job_id = u.job_id offset 0) as l
    );
    return cardinality(v_jobs);
end
$fn$;
comment on function fairq._prune_queue(text, timestamptz, timestamptz, integer) is 'Removes ended jobs of one queue. Internal.';
revoke all on function fairq._prune_queue(text, timestamptz, timestamptz, integer) from public;

create or replace function fairq._idle_tenants(p_queue text, p_limit integer, p_now timestamptz)
    returns text[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Tenants of a queue that have had no work for a day and owe nothing, and have no rate.
--
-- Index:  flows_pick_idx, the end that is not eligible.
begin
    return array(
        select f.tenant from fairq.flows as f
        where f.queue = p_queue and not f.eligible
          and f.vtime <= (
              select t.virtual_time from fairq.ticks as t where t.queue = p_queue order by t.tick_id desc limit 1
          )
          and not f.has_work and f.running = 0 and f.rate is null
          and f.minute < extract(epoch from p_now) / 60 - 1440
        order by f.vtime, f.charge, f.served, f.tenant
        limit p_limit
    );
end
$fn$;
comment on function fairq._idle_tenants(text, integer, timestamptz) is 'Tenants whose flows nobody needs. Internal.';
revoke all on function fairq._idle_tenants(text, integer, timestamptz) from public;

create or replace function fairq._prune_flows(p_limit integer, p_now timestamptz)
    returns integer
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Flows of tenants that have had no work for a day go, if they owe nothing: at or below the virtual time, which the
-- tick keeps. One with a rate stays: its tokens are spent.
--
-- Locks:  the queue's lock, to the end of the transaction, where there are some; a queue in use is left for the next
--         time.
-- Index:  flows_key_idx.
declare
    v_queue text;
    v_idle  text[];
    v_gone  integer;
    v_total integer := 0;
begin
    for v_queue in select s.queue from fairq.schedulers as s order by s.queue loop
        v_idle := fairq._idle_tenants(v_queue, p_limit, p_now);
        -- most of the time there is nobody, and no claim is to wait for that
        continue when v_idle = '{}';
        perform from fairq.schedulers as s where s.queue = v_queue for update skip locked;
        continue when not found;
        -- again, as they are under the lock
        v_idle := fairq._idle_tenants(v_queue, p_limit, p_now);
        delete from fairq.flows as f
        using unnest(v_idle) as t(tenant)
        cross join lateral (
            -- in an order that one index has: any other would walk all flows of the queue
            select ff.ctid as row_id from fairq.flows as ff
            where ff.queue = v_queue and ff.tenant = t.tenant
            order by ff.stamp desc
            limit 1
        ) as r
        where f.ctid = r.row_id;
        get diagnostics v_gone = row_count;
        v_total := v_total + v_gone;
    end loop;
    return v_total;
end
$fn$;
comment on function fairq._prune_flows(integer, timestamptz) is 'Removes flows nobody needs; returns how many. Internal.';
revoke all on function fairq._prune_flows(integer, timestamptz) from public;

create or replace function fairq._prune_keys(p_limit integer, p_now timestamptz)
    returns integer
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Locks:  job_keys' rows, skipping those held by others.
-- Index:  job_keys_prune_idx.
declare
    v_keys integer;
begin
    with old as materialized (
        select k.ctid as row_id from fairq.job_keys as k
        where k.expires_at < p_now
        order by k.expires_at
        limit p_limit
        for update skip locked
    )
    delete from fairq.job_keys as k using old as o where k.ctid = o.row_id;
    get diagnostics v_keys = row_count;
    return v_keys;
end
$fn$;
comment on function fairq._prune_keys(integer, timestamptz) is 'Removes expired keys. Internal.';
revoke all on function fairq._prune_keys(integer, timestamptz) from public;

create or replace function fairq.prune(p_limit integer default 10000)
    returns integer
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs(): what has ended may be nothing or everything when these plans are made
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
as $fn$
-- succeeded, dead, cancelled -> gone, with their log; keys that have expired; flows nobody needs. Never a job that has
-- not ended.
--
-- Locks:  finished_jobs' and job_keys' rows, skipping those held by others; then each queue's lock, if it is free.
-- Raises: 22023 when p_limit is out of range.
declare
    v_now      timestamptz := clock_timestamp();
    v_queue    text;
    v_settings fairq.queues;
    v_jobs     integer := 0;
    v_keys     integer;
begin
    if p_limit is null or p_limit not between 1 and 100000 then
        -- _refuse() is not the owner's to call
        raise exception 'p_limit must be a number from 1 to 100000, not %', coalesce(p_limit::text, 'null')
            using errcode = '22023', hint = 'Nothing was changed.';
    end if;

    for v_queue in select q.name from fairq._ended_queues() as q(name) loop
        select s.* into v_settings from fairq.queues as s
        where s.queue in (v_queue, '*') order by s.queue = '*' limit 1;
        v_jobs := v_jobs + fairq._prune_queue(
            v_queue, v_now - v_settings.retention, v_now - coalesce(v_settings.retention_failed, v_settings.retention),
            p_limit - v_jobs
        );
        exit when v_jobs >= p_limit;
    end loop;

    v_keys := fairq._prune_keys(p_limit, v_now);
    perform fairq._prune_flows(p_limit, v_now);
    return v_jobs + v_keys;
end
$fn$;
comment on function fairq.prune(integer) is 'Removes ended jobs older than their queue''s retention, with their log, and expired idempotency keys, at most p_limit of each; returns how many jobs and keys went. Call it until it returns 0.';
revoke all on function fairq.prune(integer) from public;
grant execute on function fairq.prune(integer) to fairq_operator;
