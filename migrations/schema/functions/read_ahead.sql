--
-- read_ahead: what a claim has picked for the claims that follow
--
-- A claim of a queue that reads ahead picks more than it was asked for, under the queue's lock and in the usual order,
-- and leaves the rest in ready_picks: chosen, charged, counted among those that run, and still queued. The claims that
-- follow lease from there, without the lock; the one that finds too little picks again, and first puts back what is
-- left. So that this happens seldom, and nobody waits for it, who leaves a quarter or less has the scheduler pick as
-- many as are missing, if the lock is free, while the others go on. A pick is a promise to its tenant and no right to
-- the job: whoever takes it looks whether the job is still there.

create or replace function fairq._make_ready(
    p_queue text, p_picks fairq.pick[], p_dispatch bigint, p_size integer, p_by_time boolean
)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Leaves picks for the claims that follow, p_size in a row: as many as this claim wanted.
--
-- p_by_time: for a scheduler of version 1; picks have no price now where their queue does not charge by time.
-- Locks:  the queue's lock is held.
begin
    if p_size = 1 then
        insert into fairq.ready_picks (queue, dispatch, jobs)
        select p_queue, p_dispatch + p.turn, array[p]
        from unnest(p_picks) as p;
    else
        insert into fairq.ready_picks (queue, dispatch, jobs)
        select p_queue, p_dispatch + a.jobs[i].turn, a.jobs[i : i + p_size - 1]
        -- with nothing behind it: the variable itself would be copied for each slice
        from (select p_picks || '{}' as jobs offset 0) as a
        cross join lateral generate_series(1, cardinality(a.jobs), p_size) as i;
    end if;
    return true;
end
$fn$;
comment on function fairq._make_ready(text, fairq.pick[], bigint, integer, boolean) is 'Leaves picks for the claims that follow. Internal.';
revoke all on function fairq._make_ready(text, fairq.pick[], bigint, integer, boolean) from public;

create or replace function fairq._lease_each(
    p_queue text, p_picks fairq.pick[], p_dispatch bigint, p_owner text, p_caller text, p_now timestamptz,
    p_lease interval
)
    returns fairq.claimed_job[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- _lease(), one by one, for picks not all of whose jobs can be had any more. One that is held by somebody stays ready;
-- of one that no longer waits its tenant gets back what it was charged.
--
-- By the job's id: its row may have moved since.
-- Locks:  the queue's lock, if it is free. Without it nothing is given up: a step that passes by what is being taken
--         may just be reading that the job waits again, and nothing would tell of it any more.
-- Index:  jobs_pkey.
declare
    v_claimed   fairq.claimed_job[] := '{}';
    v_pick      fairq.pick;
    v_state     text;
    v_is_locked boolean;
begin
    perform from fairq.schedulers as s where s.queue = p_queue for update skip locked;
    v_is_locked := found;
    foreach v_pick in array p_picks loop
        select j.ctid, j.state into v_pick.job_row, v_state from fairq.jobs as j where j.job_id = v_pick.job_id;
        if v_is_locked and v_state is distinct from 'queued' then
            perform fairq._settle(
                p_queue, row(v_pick.tenant, v_pick.epoch, 1, 0, 0, 0, v_pick.step)::fairq.ending
            );
            continue;
        end if;
        v_claimed := v_claimed
            || fairq._lease(p_queue, array[v_pick], p_dispatch, p_owner, p_caller, p_now, p_lease, true);
        if v_claimed[cardinality(v_claimed)].job_id is distinct from v_pick.job_id then
            insert into fairq.ready_picks (queue, dispatch, jobs)
            values (p_queue, p_dispatch + v_pick.turn, array[v_pick]);
        end if;
    end loop;
    return v_claimed;
end
$fn$;
comment on function fairq._lease_each(text, fairq.pick[], bigint, text, text, timestamptz, interval) is 'Leases what is left of ready picks. Internal.';
revoke all on function fairq._lease_each(
    text, fairq.pick[], bigint, text, text, timestamptz, interval
) from public;

create or replace function fairq._take(
    p_queue text, p_owner text, p_caller text, p_limit integer, p_lease interval, p_is_open boolean,
    p_now timestamptz default null
)
    returns fairq.claimed_job[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- queued -> running: up to p_limit of the jobs that are ready, in the order in which they were picked, as far as nobody
-- else is taking them. None when the last pick was more than a second ago: then it is time to look again, for who has
-- arrived, for jobs that are due and for leases that are over. Null when this caller may not claim for all.
--
-- p_is_open: whether the claim is for jobs of all tenants.
-- p_now:  the clock; null for the real one, read once the picks are had: no lease ends before they were picked, which
--         is where the expire floor waits. By a clock that was set back it would: then nothing is taken, but picked
--         anew.
-- Fair:   they are charged and counted already. Of a queue that is paused none is taken, nor any beside those of a
--         tenant that is.
-- More:   the numbers of a pass end at 1,000 (see _dispatch): each says how many were to come behind it. In the last
--         quarter of what a queue reads ahead up to four of them have more picked. Where some of an earlier pass are
--         left, since their tenant is paused or who takes them is slow, nobody has: a step that picks anew puts back
--         what it can. A queue that reads less than four ahead picks when all is taken.
-- Two questions, and neither waits. Between them the floor may move on, past what is taken: what is found then was
-- picked later still. A pause that comes between them came while this claim was made.
-- Long:   both questions stand in full, and call nothing: every claim asks the first.
-- Locks:  rows of ready_picks, skipping those held by others; then as _lease. To pick more, the queue's lock, if it is
--         free.
-- Index:  ready_picks_pkey, from the ready floor; ticks_pkey, tenants_pause_idx, tenants_pkey.
-- Raises: 22023 for a lease that is longer than the queue allows, before it takes anything.
declare
    v_claimed       fairq.claimed_job[] := '{}';
    v_is_for_all    boolean;
    v_default_lease interval;
    v_longest_lease interval;
    v_ahead         integer;
    v_floor         bigint;
    v_dispatch      bigint;
    v_picks         fairq.pick[];
    v_got           fairq.claimed_job[];
    v_behind        integer;
    v_step          integer;
begin
    loop
        select
            -- as in _granted_tenants
            exists (
                select from fairq.access_grants as a
                where a.verb = 'claim' and a.tenant = '*' and a.queue in (p_queue, '*')
                  and pg_has_role(p_caller::name, to_regrole(quote_ident(a.role_name))::oid, 'usage')
            ),
            q.default_lease, q.longest_lease, q.read_ahead,
            case
                when q.read_ahead > 0 and not q.paused and p_is_open
                    and (p_lease <= q.longest_lease) is not false then (
                    select case
                        when t.expire_floor <= n.now
                          and t.ticked_at between n.now - interval '1 second' and n.now
                            then nullif(t.ready_floor, 0)
                    end
                    from fairq.ticks as t cross join (select coalesce(p_now, clock_timestamp()) as now offset 0) as n
                    where t.queue = p_queue order by t.tick_id desc limit 1
                )
            end
        into v_is_for_all, v_default_lease, v_longest_lease, v_ahead, v_floor
        from fairq.queues as q
        -- as in _queue_settings, without a sort
        where q.queue
            = case when exists (select from fairq.queues as qq where qq.queue = p_queue) then p_queue else '*' end;
        if v_floor is null or not v_is_for_all then
            if p_lease > v_longest_lease then
                perform fairq._check_span('p_lease', p_lease, interval '1 millisecond', v_longest_lease);
            end if;
            exit;
        end if;

        delete from fairq.ready_picks as r
        where r.ctid = (
            select rr.ctid from fairq.ready_picks as rr
            where rr.queue = p_queue and rr.dispatch >= v_floor
              and (
                  -- most of the time nobody is paused
                  (
                      select t.tenant from fairq.tenants as t
                      where t.queue = p_queue and t.paused order by t.tenant limit 1
                  ) is null
                  or not exists (
                      select from unnest(rr.jobs) as p
                      where (
                          select t.paused from fairq.tenants as t
                          where t.tenant in (p.tenant, '*') and t.queue = p_queue
                          order by t.tenant = '*'
                          limit 1
                      )
                  )
              )
            order by rr.dispatch
            limit 1
            for update skip locked
        )
        returning r.dispatch, r.jobs into v_dispatch, v_picks;
        exit when not found;

        if cardinality(v_picks) > p_limit then
            insert into fairq.ready_picks (queue, dispatch, jobs)
            values (
                p_queue, v_dispatch - v_picks[1].turn + v_picks[p_limit + 1].turn, v_picks[p_limit + 1:]
            );
            v_picks := v_picks[1 : p_limit];
        end if;
        v_got := fairq._lease(
            p_queue, v_picks, v_dispatch - v_picks[1].turn, p_owner, p_caller, coalesce(p_now, clock_timestamp()),
            coalesce(p_lease, v_default_lease), true
        );
        if v_got is null then
            -- and no more: the one that somebody holds would come again
            v_got := fairq._lease_each(
                p_queue, v_picks, v_dispatch - v_picks[1].turn, p_owner, p_caller, coalesce(p_now, clock_timestamp()),
                coalesce(p_lease, v_default_lease)
            );
            p_limit := -1;
        end if;
        v_claimed := v_claimed || v_got;
        p_limit := p_limit - cardinality(v_got);
        exit when p_limit <= 0;
    end loop;
    v_behind := 1001 - v_dispatch % 1024 - cardinality(v_picks);
    if v_behind <= v_ahead / 4 then
        v_step := greatest(1, v_ahead / 16);
        -- the version before knows of no -p_limit: a claim may have waited for the way back to it
        if p_limit = 0 and v_ahead > 3 and (v_behind + cardinality(v_claimed)) / v_step > v_behind / v_step
           and fairq.schema_version() > 1 then
            perform from fairq.schedulers as s
            where s.queue = p_queue and not exists (
                select from fairq.ready_picks as r
                where r.queue = p_queue and r.dispatch >= v_floor and r.dispatch < v_dispatch - v_dispatch % 1024
            )
            for update skip locked;
            if found then
                perform fairq._dispatch(
                    p_queue, p_owner, p_caller, -cardinality(v_claimed), coalesce(p_lease, v_default_lease), '{*}',
                    p_now
                );
            end if;
        end if;
    end if;
    -- whoever could claim when it began has what it got
    return case when v_is_for_all or v_claimed <> '{}' then v_claimed end;
end
$fn$;
comment on function fairq._take(text, text, text, integer, interval, boolean, timestamptz) is 'Leases what is ready to a worker that may claim for all. Internal.';
revoke all on function fairq._take(text, text, text, integer, interval, boolean, timestamptz) from public;

create or replace function fairq._put_ready_back(p_tick fairq.ticks)
    returns fairq.moved
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- What is ready and cannot be taken, or not by this claim, waits again as if it had not been picked: its news and
-- endings, for the look of this step.
--
-- Locks:  the queue's lock is held; rows of ready_picks, skipping those held by others.
-- Index:  ready_picks_pkey, from the ready floor.
declare
    v_picks fairq.pick[];
    v_moved fairq.moved;
begin
    with free as (
        select r.ctid as row_id from fairq.ready_picks as r
        where r.queue = p_tick.queue and r.dispatch >= p_tick.ready_floor
        for update skip locked
    ), gone as (
        delete from fairq.ready_picks as r using free as f where r.ctid = f.row_id
        returning r.jobs
    )
    select array_agg(p) into v_picks from gone as g cross join lateral unnest(g.jobs) as p;
    if v_picks is not null then
        v_moved.news := fairq._news_of(array(select p.job_id from unnest(v_picks) as p));
        v_moved.endings := array(
            select row(p.tenant, p.epoch, 1, 0, 0, 0, p.step)::fairq.ending from unnest(v_picks) as p
        );
        -- nor did they start: the tokens of a rate come back, and the counters of the minute go down
        update fairq.flows as f
        set
            tokens  = f.tokens + n.returned,
            started = array[greatest(0, f.started[1] - n.returned), f.started[2]],
            spent   = array[greatest(0, f.spent[1] - round(n.steps * f.weight / 2520)::bigint), f.spent[2]],
            stamp   = f.stamp + 1
        from (
            select p.tenant, count(*)::integer as returned, sum(p.step) as steps from unnest(v_picks) as p
            group by p.tenant
        ) as n
        cross join lateral (
            select ff.ctid as row_id from fairq.flows as ff
            where ff.queue = p_tick.queue and ff.tenant = n.tenant
            order by ff.stamp desc
            limit 1
        ) as r
        where f.ctid = r.row_id;
    end if;
    return v_moved;
end
$fn$;
comment on function fairq._put_ready_back(fairq.ticks) is 'Makes what is ready wait again. Internal.';
revoke all on function fairq._put_ready_back(fairq.ticks) from public;

create or replace function fairq._being_taken(p_tick fairq.ticks)
    returns bigint[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Jobs that are ready and have not been put back: those whose leases other claims are writing at this moment, which no
-- look can see yet; and while more is picked, those that nobody takes yet.
--
-- Locks:  the queue's lock is held, so nobody makes more of them.
-- Index:  ready_picks_pkey, from the ready floor.
begin
    return array(
        select p.job_id
        from fairq.ready_picks as r
        cross join lateral unnest(r.jobs) as p
        where r.queue = p_tick.queue and r.dispatch >= p_tick.ready_floor
    );
end
$fn$;
comment on function fairq._being_taken(fairq.ticks) is 'Which jobs are ready, or just being leased. Internal.';
revoke all on function fairq._being_taken(fairq.ticks) from public;
