--
-- promote: scheduled -> queued, when its time has come
--

create or replace function fairq._promote_one(p_job_id bigint, p_is_fed boolean)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- scheduled -> queued, after a batch could not be: false when it is this job that cannot. It stays as it is.
--
-- p_is_fed: as in _put_back().
-- Locks:    the job's row is held.
begin
    update fairq.jobs as j
    set state = 'queued', changed_xid = case when p_is_fed then j.changed_xid else pg_current_xact_id() end
    where j.job_id = p_job_id;
    return true;
exception
    when lock_not_available or transaction_rollback or insufficient_resources then
        raise;
    when others then
        raise warning 'job % could not be promoted and stays scheduled: %', p_job_id, sqlerrm
            using hint = 'Undo what keeps its row from being changed, and call promote_due_jobs().';
        return false;
end
$fn$;
comment on function fairq._promote_one(bigint, boolean) is 'Promotes one job, whatever is wrong with others. Internal.';
revoke all on function fairq._promote_one(bigint, boolean) from public;

create or replace function fairq._promote_each(
    p_tick fairq.ticks, p_snap pg_snapshot, p_own xid8, p_now timestamptz, p_limit integer
)
    returns fairq.moved
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- _promote_due() job by job, for a batch that has one in it that cannot be promoted: one bad row stops nobody. The
-- limit counts those that could be, or as many bad ones at one moment would hide what is due after them; the floor
-- moves past the bad ones. promote_due_jobs() tries them again, and so does a scheduler that starts afresh.
--
-- Locks:  jobs' rows, skipping those held by others.
-- Index:  jobs_promote_idx, from the promote floor.
declare
    v_moved fairq.moved;
    v_stays bigint[] := '{}';
    v_job   fairq.jobs;
begin
    for v_job in
        select j.* from fairq.jobs as j
        where j.queue = p_tick.queue and j.state = 'scheduled'
          and j.run_at >= p_tick.promote_floor and j.run_at <= p_now
          and j.changed_xid <> p_own and pg_visible_in_snapshot(j.changed_xid, p_snap)
        order by j.run_at, j.job_id
        for update skip locked
    loop
        exit when cardinality(v_moved.news) >= p_limit;
        if fairq._promote_one(v_job.job_id, true) then
            v_moved.news := v_moved.news || row(
                v_job.tenant, 'queued', v_job.priority, v_job.run_at, v_job.job_id
            )::fairq.news;
        else
            v_stays := v_stays || v_job.job_id;
        end if;
    end loop;

    select j.run_at into v_moved.floor from fairq.jobs as j
    where j.queue = p_tick.queue and j.state = 'scheduled' and j.job_id <> all (v_stays)
      and j.run_at >= p_tick.promote_floor and j.run_at <= p_now + interval '1 second'
    order by j.run_at
    limit 1;
    v_moved.floor := coalesce(v_moved.floor, p_now + interval '1 second');
    return v_moved;
end
$fn$;
comment on function fairq._promote_each(fairq.ticks, pg_snapshot, xid8, timestamptz, integer) is 'Promotes what is due inside a claim, job by job. Internal.';
revoke all on function fairq._promote_each(fairq.ticks, pg_snapshot, xid8, timestamptz, integer) from public;

create or replace function fairq._promote_due(
    p_tick fairq.ticks, p_snap pg_snapshot, p_own xid8, p_now timestamptz, p_limit integer
)
    returns fairq.moved
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- scheduled -> queued, inside a claim: what is due goes straight into its look.
--
-- changed_xid stays as it is, so that no later look reads the job again; and a job that no look has read yet waits for
-- one.
-- Locks:  jobs' rows, skipping those held by others.
-- Index:  jobs_promote_idx, from the promote floor.
declare
    v_moved fairq.moved;
begin
    begin
        with due as materialized (
            select j.ctid as row_id from fairq.jobs as j
            where j.queue = p_tick.queue and j.state = 'scheduled'
              and j.run_at >= p_tick.promote_floor and j.run_at <= p_now
              and j.changed_xid <> p_own and pg_visible_in_snapshot(j.changed_xid, p_snap)
            order by j.run_at, j.job_id
            limit p_limit
            for update skip locked
        ), promoted as (
            update fairq.jobs as j
            set state = 'queued'
            from due as d
            where j.ctid = d.row_id
            returning j.tenant, j.priority, j.run_at, j.job_id
        )
        select array_agg(row(n.tenant, 'queued', n.priority, n.run_at, n.job_id)::fairq.news) into v_moved.news
        from (
            select p.tenant, p.priority, min(p.run_at) as run_at, min(p.job_id) as job_id
            from promoted as p
            group by p.tenant, p.priority
        ) as n;
    exception
        when lock_not_available or transaction_rollback or insufficient_resources then
            raise;
        when others then
            return fairq._promote_each(p_tick, p_snap, p_own, p_now, p_limit);
    end;

    -- what is still due (over the limit, locked, or not yet read by a look) holds the floor; else what is due next, if
    -- it is within a second: most claims need not ask
    select j.run_at into v_moved.floor from fairq.jobs as j
    where j.queue = p_tick.queue and j.state = 'scheduled'
      and j.run_at >= p_tick.promote_floor and j.run_at <= p_now + interval '1 second'
    order by j.run_at
    limit 1;
    v_moved.floor := coalesce(v_moved.floor, p_now + interval '1 second');
    return v_moved;
end
$fn$;
comment on function fairq._promote_due(fairq.ticks, pg_snapshot, xid8, timestamptz, integer) is 'Promotes what is due inside a claim. Internal.';
revoke all on function fairq._promote_due(fairq.ticks, pg_snapshot, xid8, timestamptz, integer) from public;

create or replace function fairq._promote_singly(p_queue text, p_now timestamptz, p_limit integer)
    returns integer
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- promote_due_jobs() job by job, for a batch that has one in it that cannot be promoted: how many could.
--
-- Locks:  jobs' rows, skipping those held by others.
-- Index:  jobs_promote_idx.
declare
    v_job_id bigint;
    v_count  integer := 0;
begin
    for v_job_id in
        select j.job_id from fairq.jobs as j
        where j.queue = p_queue and j.state = 'scheduled' and j.run_at <= p_now
        order by j.run_at, j.job_id
        for update skip locked
    loop
        exit when v_count >= p_limit;
        v_count := v_count + fairq._promote_one(v_job_id, false)::integer;
    end loop;
    return v_count;
end
$fn$;
comment on function fairq._promote_singly(text, timestamptz, integer) is 'Promotes what is due from outside, job by job. Internal.';
revoke all on function fairq._promote_singly(text, timestamptz, integer) from public;

create or replace function fairq.promote_due_jobs(p_queue text default null, p_limit integer default 1000)
    returns integer
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- the queue's jobs may be none or a million when this plan is made, and it must serve both
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
as $fn$
-- scheduled -> queued
--
-- Claims do this by themselves; from outside it only makes states and counts true sooner.
-- Locks:  jobs' rows, skipping those held by others.
-- Index:  jobs_promote_idx.
-- Raises: 22023 when p_limit is out of range.
declare
    -- a variable, since no index is searched by a function that changes while the query runs
    v_now   timestamptz := clock_timestamp();
    v_queue text;
    v_count integer;
    v_total integer := 0;
begin
    perform fairq._check_limit(p_limit, 10000);

    for v_queue in
        -- from one queue to the next in the index: a queue may hold a million jobs, and there is no list of queues
        with recursive queue(name) as (
            select coalesce(p_queue, (
                select j.queue from fairq.jobs as j where j.state = 'scheduled' order by j.queue limit 1
            ))
            union all
            select (
                select j.queue from fairq.jobs as j
                where j.state = 'scheduled' and j.queue > q.name
                order by j.queue
                limit 1
            )
            from queue as q where q.name is not null and p_queue is null
        )
        select q.name from queue as q where q.name is not null
    loop
        begin
            with due as materialized (
                select j.ctid as row_id from fairq.jobs as j
                where j.queue = v_queue and j.state = 'scheduled' and j.run_at <= v_now
                order by j.run_at, j.job_id
                limit p_limit - v_total
                for update skip locked
            )
            update fairq.jobs as j
            set state = 'queued', changed_xid = pg_current_xact_id()
            from due as d
            where j.ctid = d.row_id;
            get diagnostics v_count = row_count;
        exception
            when lock_not_available or transaction_rollback or insufficient_resources then
                raise;
            when others then
                v_count := fairq._promote_singly(v_queue, v_now, p_limit - v_total);
        end;
        v_total := v_total + v_count;
        exit when v_total >= p_limit;
    end loop;
    return v_total;
end
$fn$;
comment on function fairq.promote_due_jobs(text, integer) is 'scheduled -> queued: promotes jobs that are due, at most p_limit; returns how many. Claims do it by themselves.';
revoke all on function fairq.promote_due_jobs(text, integer) from public;
grant execute on function fairq.promote_due_jobs(text, integer) to fairq_worker, fairq_operator;
