--
-- reconcile: the scheduler's counts, held against the rows that they count
--

create or replace function fairq._drift(p_queue text, p_limit integer)
    returns setof fairq.right_count
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- Tenants of which something else runs than their flows say, and, as tenant *, the queue, if its tick says something
-- else: each with what is right.
--
-- One statement, and no lock: whoever changes what is counted changes the count in the same transaction, or leaves a
-- settlement that says so; so the books are right in every snapshot, or they are wrong.
-- Index: leases_expire_idx, ready_picks_pkey, settlements_look_idx, flows_pick_idx, ticks_pkey: all of one queue.
begin
    return query
    with held as (
        select l.tenant, 1::bigint as n from fairq.leases as l where l.queue = p_queue
        union all
        select p.tenant, 1 from fairq.ready_picks as r cross join lateral unnest(r.jobs) as p where r.queue = p_queue
        union all
        select e.tenant, e.ended
        from fairq.settlements as s cross join lateral unnest(s.endings) as e
        where s.queue = p_queue
    ), counted as materialized (
        select h.tenant, sum(h.n)::bigint as running from held as h group by h.tenant
    ), flow as materialized (
        select f.tenant, f.running, f.has_work, f.weight from fairq.flows as f where f.queue = p_queue
    ), whole as (
        select
            (select coalesce(sum(c.running), 0)::bigint from counted as c) as running,
            count(*) filter (where f.has_work) as backlogged,
            coalesce(sum(round(f.weight * 1000)) filter (where f.has_work), 0)::bigint as milliweight
        from flow as f
    )
    (
        select '*'::text, w.running, w.backlogged, w.milliweight
        from fairq.ticks as t cross join whole as w
        where t.queue = p_queue
          and (t.running, t.backlogged, t.milliweight) <> (w.running, w.backlogged, w.milliweight)
    )
    union all
    (
        select coalesce(f.tenant, c.tenant), coalesce(c.running, 0), null::bigint, null::bigint
        from flow as f full join counted as c on c.tenant = f.tenant
        where f.running is distinct from coalesce(c.running, 0)
        limit p_limit
    );
end
$fn$;
comment on function fairq._drift(text, integer) is 'What the scheduler has counted wrong. Internal.';
revoke all on function fairq._drift(text, integer) from public;

create or replace function fairq._correct(p_queue text, p_limit integer)
    returns integer
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Looks, so that whatever can be known is; then sets right what is still wrong; returns how many counts that were. A
-- lease without a flow is left: the next job of its tenant makes one.
--
-- Locks:  the queue's lock is held.
declare
    v_drift fairq.right_count;
    v_when  timestamptz := (fairq._newest_tick(p_queue)).ticked_at;
    v_tick  fairq.ticks;
    v_fixed integer := 0;
begin
    -- a claim for a tenant that cannot be
    perform fairq._dispatch(p_queue, 'reconcile', fairq._caller(), 1, null, '{@own}');
    for v_drift in select d.* from fairq._drift(p_queue, p_limit) as d where d.tenant <> '*' loop
        update fairq.flows as f set running = v_drift.running, stamp = f.stamp + 1
        where f.queue = p_queue and f.tenant = v_drift.tenant;
        v_fixed := v_fixed + found::integer;
    end loop;
    v_tick := fairq._newest_tick(p_queue);
    -- now that the flows are right
    select d.* into v_drift from fairq._drift(p_queue, 1) as d where d.tenant = '*';
    if found then
        v_tick.running := v_drift.running;
        v_tick.backlogged := v_drift.backlogged;
        v_tick.milliweight := v_drift.milliweight;
        v_fixed := v_fixed + 1;
    end if;
    if v_fixed > 0 then
        -- who has become eligible may be anywhere in the order
        v_tick.pick_floor := row(-9223372036854775808, 0, 0, '')::fairq.place;
    end if;
    if v_fixed > 0 or v_tick.ticked_at > v_when then
        -- it was no claim: whoever asks since when there is none is not to be told of it
        v_tick.ticked_at := coalesce(v_when, v_tick.ticked_at);
        perform fairq._write_tick(v_tick);
    end if;
    return v_fixed;
end
$fn$;
comment on function fairq._correct(text, integer) is 'Sets right what the scheduler has counted wrong. Internal.';
revoke all on function fairq._correct(text, integer) from public;

create or replace function fairq.reconcile(p_queue text default null, p_limit integer default 1000)
    returns setof fairq.upkeep
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- Also a look, at the queue that is named, and at those that nobody claims from, so that what has ended there is not
-- kept for ever.
--
-- Locks:  the lock of each queue in which it looks or something is wrong, to the end of the transaction; one that is
--         held is left for the next time.
-- Raises: 22023 when p_limit is out of range; 0A000 outside READ COMMITTED.
declare
    v_queue text;
    v_wrong bigint;
    v_fixed integer;
    v_stale boolean;
begin
    perform fairq._check_limit(p_limit, 100000);
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'reconcile needs READ COMMITTED, not %', current_setting('transaction_isolation')
            using errcode = '0A000', hint = 'An older snapshot would call right counts wrong.';
    end if;

    for v_queue in
        select s.queue from fairq.schedulers as s where p_queue is null or s.queue = p_queue order by s.queue
    loop
        select count(*) into v_wrong from fairq._drift(v_queue, p_limit) as d;
        v_stale := p_queue is not null or exists (
            select from fairq.settlements as s
            where s.queue = v_queue
              and (fairq._newest_tick(v_queue)).ticked_at < clock_timestamp() - interval '1 minute'
        );
        continue when v_wrong = 0 and not v_stale;

        v_fixed := 0;
        perform from fairq.schedulers as s where s.queue = v_queue for update skip locked;
        if found then
            v_fixed := fairq._correct(v_queue, p_limit);
        end if;
        continue when v_wrong = 0;
        return query
        select
            v_queue, v_fixed::bigint, v_fixed < v_wrong, format('%s counts of the scheduler were wrong', v_wrong);
    end loop;
end
$fn$;
comment on function fairq.reconcile(text, integer) is 'Holds the scheduler''s counts against the rows they count, corrects what differs and returns a row for each queue in which something did: no row, no drift.';
revoke all on function fairq.reconcile(text, integer) from public;
-- the owner calls it in maintain() and erase_tenant()
grant execute on function fairq.reconcile(text, integer) to fairq_operator, fairq_owner;
