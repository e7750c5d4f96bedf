--
-- version 1: what calls that began under it may still call
--
-- _is_plain: enqueue_job and enqueue_jobs by _check_job. _take_ready: claim_jobs and _dispatch. _room: _dispatch.
-- Nothing of this version calls them; the next one drops them. The p_result of _finish is of that kind, too
-- (_complete_one), the p_by_time of _make_ready (_dispatch), and the p_spent of _write_touched and the is_touched of
-- what is spent (_charge).

create or replace function fairq._is_plain(p_job fairq.new_job, p_settings fairq.queues)
    returns boolean
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
-- Whether there is nothing to refuse about a job: one expression, as most jobs are good. When it says no, the checks
-- say why, one by one.
begin
    return coalesce(
        octet_length(p_job.task) <= 200 and p_job.task not in ('*', '@own') and p_job.task ~ '[^[:space:]]'
        and jsonb_typeof(p_job.payload) = 'object'
        and octet_length(p_job.payload::text) <= p_settings.payload_limit
        and p_job.run_at is null and p_job.delay is null
        and p_job.priority between 0 and 3
        and (p_job.max_attempts is null or p_job.max_attempts between 1 and 1000)
        and p_job.cost > 0 and p_job.cost <= 1000000
        and p_job.key is null and p_job.key_ttl is null
        and (p_job.traceparent is null or fairq._is_traceparent(p_job.traceparent)),
        false
    );
end
$fn$;
comment on function fairq._is_plain(fairq.new_job, fairq.queues) is 'Whether a job has no key and no date, and nothing wrong with it. Internal.';
revoke all on function fairq._is_plain(fairq.new_job, fairq.queues) from public;

create or replace function fairq._take_ready(
    p_queue text, p_owner text, p_caller text, p_limit integer, p_lease interval, p_is_paused boolean,
    p_now timestamptz default null
)
    returns fairq.claimed_job[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- queued -> running: up to p_limit of the jobs that are ready, in the order in which they were picked, as far as nobody
-- else is taking them. None that was picked more than a second ago: then it is time to look again, for who has arrived,
-- for jobs that are due and for leases that are over.
--
-- p_now:  the clock; null for the real one, read once the picks are had: no lease ends before they were picked, which
--         is where the expire floor waits. By a clock that was set back it would: then nothing is taken, but picked
--         anew.
-- Fair:   they are charged and counted already. Of a queue that is paused none is taken, nor any beside those of a
--         tenant that is.
-- Long:   what may be taken is asked in one statement: between two, it could change.
-- Locks:  rows of ready_picks, skipping those held by others; then as _lease.
-- Index:  ready_picks_pkey, from the ready floor; ticks_pkey, tenants_pkey.
declare
    v_claimed fairq.claimed_job[] := '{}';
    v_ready   fairq.ready_picks;
    v_base    bigint;
    v_now     timestamptz;
    v_got     fairq.claimed_job[];
begin
    while p_limit > 0 and not p_is_paused loop
        v_now := coalesce(p_now, clock_timestamp());
        with first as (
            select r.ctid as row_id from fairq.ready_picks as r
            where r.queue = p_queue
              and r.dispatch >= (
                  select case
                      when t.expire_floor <= v_now
                        and t.ticked_at between v_now - interval '1 second' and v_now + interval '1 second'
                          then nullif(t.ready_floor, 0)
                  end
                  from fairq.ticks as t
                  where t.queue = p_queue order by t.tick_id desc limit 1
              )
              and not exists (
                  select from unnest(r.jobs) as p
                  where (
                      select t.paused from fairq.tenants as t
                      where t.tenant in (p.tenant, '*') and t.queue = p_queue
                      order by t.tenant = '*'
                      limit 1
                  )
              )
            order by r.dispatch
            limit 1
            for update skip locked
        )
        delete from fairq.ready_picks as r using first as f where r.ctid = f.row_id
        returning r.* into v_ready;
        exit when not found;

        v_now := coalesce(p_now, clock_timestamp());
        v_base := v_ready.dispatch - v_ready.jobs[1].turn;
        if cardinality(v_ready.jobs) > p_limit then
            insert into fairq.ready_picks (queue, dispatch, jobs)
            values (p_queue, v_base + v_ready.jobs[p_limit + 1].turn, v_ready.jobs[p_limit + 1:]);
            v_ready.jobs := v_ready.jobs[1 : p_limit];
        end if;
        v_got := fairq._lease(p_queue, v_ready.jobs, v_base, p_owner, p_caller, v_now, p_lease, true);
        if v_got is null then
            -- and no more: the one that somebody holds would come again
            return v_claimed || fairq._lease_each(p_queue, v_ready.jobs, v_base, p_owner, p_caller, v_now, p_lease);
        end if;
        v_claimed := v_claimed || v_got;
        p_limit := p_limit - cardinality(v_got);
    end loop;
    return v_claimed;
end
$fn$;
comment on function fairq._take_ready(text, text, text, integer, interval, boolean, timestamptz) is 'Leases what is ready to a worker. Internal.';
revoke all on function fairq._take_ready(text, text, text, integer, interval, boolean, timestamptz) from public;

create or replace function fairq._room(p_tick fairq.ticks, p_settings fairq.queues, p_limit integer)
    returns integer
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
-- How many jobs the queue as a whole may start now, of those asked for.
begin
    return case
        when p_settings.paused then 0
        else greatest(0, least(p_limit, p_settings.max_running - p_tick.running, floor(p_tick.tokens)))
    end;
end
$fn$;
comment on function fairq._room(fairq.ticks, fairq.queues, integer) is 'What cap and rate of a queue leave of a claim. Internal.';
revoke all on function fairq._room(fairq.ticks, fairq.queues, integer) from public;
