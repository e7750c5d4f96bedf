--
-- the scheduler: who goes next
--
-- One step, inside the claim that needs it, under the queue's lock. _dispatch(), the last function here, is the step;
-- read it first. Its parts stand before it, roughly in the order in which it takes them: lock, remember, look, settle
-- and apply the news, pick, lease, charge, write down; promote and expire are in their own files. The rule is
-- start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996), one flow for each tenant, tagged when a job is claimed;
-- charging times that are not known yet is SFQ(D) (Jin, Chase, Kaur 2004) and the Virtual Token Counter (Sheng et al.,
-- OSDI 2024). docs/fairness.md says it in words.

create or replace function fairq._lock_holders(p_queue text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
    -- Which session holds the queue's lock, for the message of one that could not have it. The row names the
    -- transaction that locked it; after a wait that is a subtransaction, which no view knows. Then: who has a lock on a
    -- row of the table and waits for none.
    select coalesce(
        (
            select string_agg(distinct l.pid::text, ', ')
            from fairq.schedulers as s
            join pg_locks as l on l.transactionid = s.xmax and l.granted
            where s.queue = p_queue
        ),
        (
            select string_agg(distinct l.pid::text, ', ')
            from pg_locks as l
            where l.relation = 'fairq.schedulers'::regclass and l.mode = 'RowShareLock' and l.pid <> pg_backend_pid()
              and l.database = (select d.oid from pg_database as d where d.datname = current_database())
              and not exists (select from pg_locks as w where w.pid = l.pid and not w.granted)
        )
    )
$fn$;
comment on function fairq._lock_holders(text) is 'Who holds the queue''s lock. Internal.';
revoke all on function fairq._lock_holders(text) from public;

create or replace function fairq._wait_for_queue(p_queue text, p_until timestamptz)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Waits for the queue's lock, a little: true when it has it, false when it may be free now.
--
-- A holder that rolls back to a savepoint has let go of the lock, but who waits for it waits for the whole transaction,
-- and whoever comes next waits behind: also that holder, when it claims again, and that is a deadlock. So nobody waits
-- longer than a part of the usual deadlock_timeout before looking again, and who is told of a deadlock looks
-- again, too. Not much shorter: who looks again has lost its place in line. A lock that is let go of wakes its waiter at
-- once.
--
-- To lock a row for which somebody waits already is to wait twice, for a place in line and for the holder; of a timeout
-- that strikes between the two PostgreSQL says 57014, that the user cancelled. One that comes when the timeout is due
-- is taken for the timeout; before that it is what it says.
declare
    v_timeout  text := current_setting('lock_timeout');
    v_from     timestamptz := clock_timestamp();
    v_slice    integer := greatest(1, least(400, ceil(extract(epoch from p_until - v_from) * 1000)));
begin
    perform set_config('lock_timeout', v_slice || 'ms', true);
    perform from fairq.schedulers as s where s.queue = p_queue for update;
    if not found then
        insert into fairq.schedulers (queue) values (p_queue) on conflict (queue) do nothing;
        perform from fairq.schedulers as s where s.queue = p_queue for update;
        if not found then
            -- a lock that is not taken and says nothing is the worst of all
            raise exception 'the lock of queue % could not be taken', p_queue using errcode = '55000';
        end if;
    end if;
    perform set_config('lock_timeout', v_timeout, true);
    return true;
exception when lock_not_available or deadlock_detected or query_canceled then
    -- what was set here is undone with the rest of the block
    if sqlstate = '57014' and clock_timestamp() < v_from + make_interval(secs => v_slice / 1000.0) then
        raise;
    end if;
    if clock_timestamp() < p_until then
        return false;
    end if;
    raise exception 'the lock of queue % was not free in time', p_queue
        using
            errcode = '55P03',
            detail = format('Held by process %s.', coalesce(fairq._lock_holders(p_queue), 'unknown')),
            hint = 'A claim holds it until its transaction ends: claim in a transaction of its own, and try again.';
end
$fn$;
comment on function fairq._wait_for_queue(text, timestamptz) is 'Waits for the queue''s lock. Internal.';
revoke all on function fairq._wait_for_queue(text, timestamptz) from public;

create or replace function fairq._lock_queue(p_queue text)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Takes the queue's lock, to the end of the transaction.
--
-- Locks:  the queue's row in schedulers; waits at most 10 s, or the caller's lock_timeout.
-- Raises: 55P03 when it was not free in time, saying which session holds it.
declare
    v_patience interval;
    v_until    timestamptz;
begin
    loop
        -- not in _wait_for_queue(), whose block is a subtransaction: pg_locks knows a holder by its transaction only
        perform from fairq.schedulers as s where s.queue = p_queue for update skip locked;
        if found then
            return true;
        end if;

        v_patience := current_setting('lock_timeout');
        v_until := coalesce(
            v_until,
            clock_timestamp() + case when v_patience = interval '0' then interval '10 seconds' else v_patience end
        );
        exit when fairq._wait_for_queue(p_queue, v_until);
    end loop;
    return true;
end
$fn$;
comment on function fairq._lock_queue(text) is 'Takes the queue''s lock. Internal.';
revoke all on function fairq._lock_queue(text) from public;

create or replace function fairq._last_tick(p_queue text, p_settings fairq.queues, p_now timestamptz)
    returns fairq.ticks
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- What the scheduler remembers of the queue. After a restart it makes sure that this is still the cluster it knew:
-- transaction ids of another one (a restored dump, a logical replica) mean nothing here. One that was copied from it
-- has its identifier, and is told by a look that lies in the future.
--
-- Index:  ticks_pkey, newest first.
declare
    v_tick   fairq.ticks;
    v_boot   timestamptz := pg_postmaster_start_time();
    v_system bigint;
begin
    select t.* into v_tick from fairq.ticks as t where t.queue = p_queue order by t.tick_id desc limit 1;
    if v_tick.boot_at = v_boot then
        return v_tick;
    end if;

    select c.system_identifier into v_system from pg_control_system() as c;
    if v_tick.system_identifier is distinct from v_system
       or pg_snapshot_xmax(v_tick.seen) > pg_snapshot_xmax(pg_current_snapshot()) then
        v_tick := fairq._rebuild(p_queue, v_tick, p_settings, p_now);
        v_tick.pick_floor := fairq._pick_floor(v_tick);
        v_tick.system_identifier := v_system;
    end if;
    v_tick.boot_at := v_boot;
    return v_tick;
end
$fn$;
comment on function fairq._last_tick(text, fairq.queues, timestamptz) is 'The scheduler''s memory of a queue. Internal.';
revoke all on function fairq._last_tick(text, fairq.queues, timestamptz) from public;

create or replace function fairq._rebuild(
    p_queue text, p_tick fairq.ticks, p_settings fairq.queues, p_now timestamptz
)
    returns fairq.ticks
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- The memory of a queue that has none that counts here: nothing seen, so that the next look reads every job; no floors;
-- what runs counted from the leases. Virtual times are kept, and with them who is owed what.
--
-- Locks:  the queue's lock is held.
begin
    if p_tick.queue is not null then
        -- 3, the first transaction there can be: read by this look, and by no later one
        update fairq.jobs as j set changed_xid = '3' where j.queue = p_queue;
        -- its trigger stamps this transaction
        update fairq.tenants as t set weight = t.weight where t.queue = p_queue;
        -- an attempt that ends meanwhile waits for its job's row, which the first statement has changed
        delete from fairq.settlements as s where s.queue = p_queue;
        -- their jobs are queued, and news like all
        delete from fairq.ready_picks as r where r.queue = p_queue;
        update fairq.flows as f
        set
            stamp   = f.stamp + 1,
            running = (select count(*) from fairq.leases as l where l.queue = f.queue and l.tenant = f.tenant)
        where f.queue = p_queue;
    else
        -- restored before they were ever claimed: transactions that are still to come here, though not those of other
        -- rows
        update fairq.jobs as j set changed_xid = '3'
        where j.queue = p_queue and j.changed_xid <> pg_current_xact_id()
          and j.changed_xid >= pg_snapshot_xmax(pg_current_snapshot());
    end if;

    return row(
        p_queue, coalesce(p_tick.tick_id, 0), p_now, null, null, '1:1:'::pg_snapshot, '1'::xid8,
        coalesce(p_tick.virtual_time, 0), row(-9223372036854775808, 0, 0, '')::fairq.place, '-infinity'::timestamptz,
        '-infinity'::timestamptz, '-infinity'::timestamptz, false, coalesce(p_tick.charge, p_settings.charge),
        (select count(*) from fairq.leases as l where l.queue = p_queue), coalesce(p_tick.backlogged, 0),
        coalesce(p_tick.milliweight, 0), coalesce(p_tick.activations, 0), p_tick.mean, p_settings.burst, p_now, 0
    )::fairq.ticks;
end
$fn$;
comment on function fairq._rebuild(text, fairq.ticks, fairq.queues, timestamptz) is 'Starts the scheduler''s memory of a queue afresh. Internal.';
revoke all on function fairq._rebuild(text, fairq.ticks, fairq.queues, timestamptz) from public;

create or replace function fairq._news_since(
    p_tick fairq.ticks, p_snap pg_snapshot, p_own xid8, p_from xid8[], p_to xid8[]
)
    returns fairq.moved
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- The jobs and wishes of a look, which has found that there are some. Places are lower bounds: the least time and the
-- least id of the jobs of one tenant and priority.
--
-- Index:  jobs_look_idx, tenants_look_idx: a probe for each range of transactions.
declare
    v_moved fairq.moved;
begin
    with job as (
        select j.tenant, j.state, j.priority, min(j.run_at) as run_at, min(j.job_id) as job_id
        from unnest(p_from, p_to) as u(a, z)
        cross join lateral (
            select jj.tenant, jj.state, jj.priority, jj.run_at, jj.job_id, jj.changed_xid from fairq.jobs as jj
            where jj.queue = p_tick.queue and jj.changed_xid >= u.a and jj.changed_xid <= u.z
            offset 0
        ) as j
        where pg_visible_in_snapshot(j.changed_xid, p_snap) and j.changed_xid <> p_own
        group by j.tenant, j.state, j.priority
    ), wish as (
        select t.tenant
        from unnest(p_from, p_to) as u(a, z)
        cross join lateral (
            select tt.tenant, tt.changed_xid from fairq.tenants as tt
            where tt.queue = p_tick.queue and tt.changed_xid >= u.a and tt.changed_xid <= u.z
            offset 0
        ) as t
        where pg_visible_in_snapshot(t.changed_xid, p_snap) and t.changed_xid <> p_own
    ), news as (
        select j.* from job as j
        union all
        select w.tenant, 'wish', null, null, null from wish as w
    )
    select
        array_agg(row(n.tenant, n.state, n.priority, n.run_at, n.job_id)::fairq.news),
        min(n.run_at) filter (where n.state = 'scheduled')
    into v_moved.news, v_moved.floor
    from news as n;
    return v_moved;
end
$fn$;
comment on function fairq._news_since(fairq.ticks, pg_snapshot, xid8, xid8[], xid8[]) is 'The jobs and wishes the scheduler has not heard of yet. Internal.';
revoke all on function fairq._news_since(fairq.ticks, pg_snapshot, xid8, xid8[], xid8[]) from public;

create or replace function fairq._look(p_tick fairq.ticks, p_snap pg_snapshot, p_own xid8)
    returns fairq.moved
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- What was committed since the last tick, each change exactly once: what its snapshot had not seen and p_snap has.
--
-- A transaction's own changes are in neither list of its own snapshot, so they are left to the next look, which knows
-- the tick's own_xid. Ended attempts are deleted as they are read: that alone makes them read once.
-- Index:  jobs_look_idx, settlements_look_idx, tenants_look_idx: a probe for each range of transactions.
declare
    v_since xid8 := pg_snapshot_xmax(p_tick.seen);
    -- all that came after the last tick; and those that were under way then and are done now, each a range of its own
    v_from  xid8[] := array[v_since];
    v_to    xid8[] := '{18446744073709551615}';
    v_moved fairq.moved;
begin
    if pg_snapshot_xmin(p_tick.seen) < v_since or p_tick.own_xid < v_since then
        v_from := v_since || array(
            select u.x
            from (
                select pg_snapshot_xip(p_tick.seen) as x
                union
                select p_tick.own_xid where p_tick.own_xid < v_since
            ) as u
            where pg_visible_in_snapshot(u.x, p_snap) and u.x <> p_own
        );
        v_to := v_to || v_from[2:];
    end if;

    -- most of the time there is nothing new but attempts that ended: two probes say so
    perform from unnest(v_from, v_to) as u(a, z)
    where exists (
        select from fairq.jobs as j
        where j.queue = p_tick.queue and j.changed_xid >= u.a and j.changed_xid <= u.z offset 0
    ) or exists (
        select from fairq.tenants as t
        where t.queue = p_tick.queue and t.changed_xid >= u.a and t.changed_xid <= u.z offset 0
    );
    if found then
        v_moved := fairq._news_since(p_tick, p_snap, p_own, v_from, v_to);
    end if;

    with ended as (
        delete from fairq.settlements as s
        using unnest(v_from, v_to) as u(a, z)
        cross join lateral (
            select ss.ctid as row_id from fairq.settlements as ss
            where ss.queue = p_tick.queue and ss.ended_xid >= u.a and ss.ended_xid <= u.z
            offset 0
        ) as e
        where s.ctid = e.row_id
        returning s.endings
    )
    select array_agg(e) into v_moved.endings from ended as d cross join lateral unnest(d.endings) as e;
    return v_moved;
end
$fn$;
comment on function fairq._look(fairq.ticks, pg_snapshot, xid8) is 'What the scheduler has not heard of yet. Internal.';
revoke all on function fairq._look(fairq.ticks, pg_snapshot, xid8) from public;

create or replace function fairq._virtual_time(p_tick fairq.ticks, p_without text[] default '{}')
    returns bigint
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- The least vtime of an eligible flow, which the tick's pick floor tells: it must be exact, not only a bound. When
-- there is none, the greatest ever charged. Never below an earlier one: a flow that comes back one job behind it (R11)
-- must not let newcomers in at its level.
--
-- Index:  flows_pick_idx, the end that is not eligible; the other by _pick_floor().
declare
    v_first fairq.place := p_tick.pick_floor;
begin
    if p_without <> '{}' then
        v_first := fairq._pick_floor(p_tick, p_without);
    end if;
    if v_first.vtime < 9223372036854775807 then
        return greatest(p_tick.virtual_time, v_first.vtime);
    end if;
    return greatest(p_tick.virtual_time, (
        select f.vtime from fairq.flows as f
        where f.queue = p_tick.queue and not f.eligible
        order by f.vtime desc, f.charge desc, f.served desc, f.tenant desc
        limit 1
    ));
end
$fn$;
comment on function fairq._virtual_time(fairq.ticks, text[]) is 'The virtual time of a queue, as it is without these tenants. Internal.';
revoke all on function fairq._virtual_time(fairq.ticks, text[]) from public;

create or replace function fairq._wish(p_queue text, p_tenant text)
    returns fairq.tenants
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- What the operator wants of a tenant: its own row, else that of *, else the defaults.
declare
    v_wish fairq.tenants;
begin
    select t.* into v_wish from fairq.tenants as t
    where t.tenant in (p_tenant, '*') and t.queue = p_queue
    order by t.tenant = '*'
    limit 1;
    if not found then
        -- by name: a call that waits here while a column is added goes on
        v_wish.queue := p_queue;
        v_wish.tenant := p_tenant;
        v_wish.weight := 1;
        v_wish.paused := false;
        v_wish.burst := 1;
    end if;
    return v_wish;
end
$fn$;
comment on function fairq._wish(text, text) is 'The wishes in force for a tenant. Internal.';
revoke all on function fairq._wish(text, text) from public;

create or replace function fairq._open_flows(p_tick fairq.ticks, p_tenants text[])
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- A flow for each of these tenants that has none: idle, owing nothing.
begin
    insert into fairq.flows (queue, tenant, weight, paused, vtime, head_at, head_id, estimate)
    select
        p_tick.queue, t.tenant, 1, false, 0, array[null, null, null, null]::timestamptz[],
        array[null, null, null, null]::bigint[], coalesce(p_tick.mean, 1000)
    from unnest(p_tenants) as t(tenant)
    where not exists (
        -- in an order that one index has: a plan made when there were no flows would take any
        select from fairq.flows as f where f.queue = p_tick.queue and f.tenant = t.tenant order by f.stamp desc offset 0
    );
end
$fn$;
comment on function fairq._open_flows(fairq.ticks, text[]) is 'Makes flows for tenants the scheduler does not know yet. Internal.';
revoke all on function fairq._open_flows(fairq.ticks, text[]) from public;

create or replace function fairq._average(p_was double precision, p_sum numeric, p_count bigint)
    returns double precision
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
-- A moving average of weight 1/8, moved on by p_count values whose sum is p_sum, as if each were their mean. After a
-- thousand nothing is left of what was; after some more what is left is a number that PostgreSQL refuses (22003).
begin
    if coalesce(p_count, 0) = 0 then
        return p_was;
    end if;
    return coalesce(
        p_sum::double precision / p_count
        + (p_was - p_sum::double precision / p_count)
        * power(0.875::double precision, least(p_count, 1000)::double precision),
        p_sum::double precision / p_count
    );
end
$fn$;
comment on function fairq._average(double precision, numeric, bigint) is 'Moves an average on. Internal.';
revoke all on function fairq._average(double precision, numeric, bigint) from public;

create or replace function fairq._tokens(
    p_tokens double precision, p_since timestamptz, p_rate double precision, p_burst integer, p_now timestamptz
)
    returns double precision
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
-- R10: what is in a token bucket now; null without a bucket. A clock that was set back takes none away.
begin
    if p_tokens is null or p_rate is null then
        return null;
    end if;
    return least(p_burst, p_tokens + p_rate * greatest(0, extract(epoch from p_now - p_since)::double precision));
end
$fn$;
comment on function fairq._tokens(double precision, timestamptz, double precision, integer, timestamptz) is 'The tokens in a bucket. Internal.';
revoke all on function fairq._tokens(double precision, timestamptz, double precision, integer, timestamptz) from public;

create or replace function fairq._spread(p_tick fairq.ticks, p_weight double precision, p_charge bigint)
    returns bigint
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- R3: how far above the virtual time an entrant starts when many tenants are backlogged and some weigh more than it
-- does: else a crowd that enters together is served whole before a heavy tenant's next job. A share of its charge, or
-- of one round of all, drawn without chance: the golden ratio times its number.
--
-- Index:  tenants_weight_idx; tenants_pkey.
declare
    v_greatest double precision;
begin
    if p_tick.backlogged <= 32 then
        return 0;
    end if;
    select t.weight into v_greatest from fairq.tenants as t
    where t.queue = p_tick.queue order by t.weight desc limit 1;
    if p_weight >= greatest(v_greatest, (fairq._wish(p_tick.queue, null)).weight) then
        return 0;
    end if;
    return floor(
        -- numeric: there may be more activations than a bigint has room for after this
        (p_tick.activations::numeric * 2654435769 % 4294967296)::double precision / 4294967296
        * least(p_charge, p_charge * p_weight * p_tick.backlogged * 1000 / p_tick.milliweight)
    );
end
$fn$;
comment on function fairq._spread(fairq.ticks, double precision, bigint) is 'Spreads entrants over a round. Internal.';
revoke all on function fairq._spread(fairq.ticks, double precision, bigint) from public;

create or replace function fairq._by_tenant(p_queue text, p_news fairq.news[], p_endings fairq.ending[])
    returns fairq.tenant_news[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- All the news of a tenant in one, beside its flow and, when that may have changed, what its operator wants; in the
-- order of tenants' names.
--
-- A flow with work hears of every wish, one without asks as it enters. What was prepaid and not used is paid back only
-- to a flow that has not been lifted since: otherwise whoever estimates too much would have a bank account.
-- Long:   one attempt that ended, and nothing else, is what most claims of one job hear of: there is nothing to gather.
-- Index:  flows_key_idx, newest version first; tenants_pkey.
begin
    if p_news is null and cardinality(p_endings) = 1 then
        return array(
            select row(
                e.tenant, false, false, null, null, e.ended, e.measured, e.elapsed, e.extra,
                case when e.epoch = (f.flow).epoch then e.refund end, f.row_id, f.flow, null
            )::fairq.tenant_news
            from unnest(p_endings) as e
            left join lateral (
                select ff.ctid as row_id, ff as flow from fairq.flows as ff
                where ff.queue = p_queue and ff.tenant = e.tenant
                order by ff.stamp desc
                limit 1
            ) as f on true
        );
    end if;

    return array(
        select row(
            t.tenant, t.arrived, t.has_token, t.head_at, t.head_id, t.ended, t.measured, t.elapsed, t.extra, case
                when t.first_epoch < t.last_epoch
                    then (select sum(e.refund) from unnest(t.endings) as e where e.epoch = (f.flow).epoch)
                when t.last_epoch = (f.flow).epoch then t.refund
            end,
            f.row_id, f.flow, case
                when t.wished or t.arrived and (f.flow).has_work is not true then fairq._wish(p_queue, t.tenant)
            end
        )::fairq.tenant_news
        from (
            select
                u.tenant, coalesce(bool_or(u.state = 'queued'), false) as arrived,
                coalesce(bool_or(u.state = 'token'), false) as has_token,
                coalesce(bool_or(u.state = 'wish'), false) as wished,
                array[
                    min(u.run_at) filter (where u.priority = 0), min(u.run_at) filter (where u.priority = 1),
                    min(u.run_at) filter (where u.priority = 2), min(u.run_at) filter (where u.priority = 3)
                ] as head_at,
                array[
                    min(u.job_id) filter (where u.priority = 0), min(u.job_id) filter (where u.priority = 1),
                    min(u.job_id) filter (where u.priority = 2), min(u.job_id) filter (where u.priority = 3)
                ] as head_id,
                sum((u.ending).ended) as ended, sum((u.ending).measured) as measured,
                sum((u.ending).elapsed) as elapsed, sum((u.ending).extra) as extra, sum((u.ending).refund) as refund,
                min((u.ending).epoch) as first_epoch, max((u.ending).epoch) as last_epoch,
                array_agg(u.ending) filter (where u.state is null) as endings
            from (
                select n.tenant, n.state, n.priority, n.run_at, n.job_id, null::fairq.ending as ending
                from unnest(p_news) as n
                where n.state <> 'scheduled'
                union all
                select e.tenant, null, null, null, null, e from unnest(p_endings) as e
            ) as u
            group by u.tenant
        ) as t
        left join lateral (
            select ff.ctid as row_id, ff as flow from fairq.flows as ff
            where ff.queue = p_queue and ff.tenant = t.tenant
            order by ff.stamp desc
            limit 1
        ) as f on true
        order by t.tenant collate "C"
    );
end
$fn$;
comment on function fairq._by_tenant(text, fairq.news[], fairq.ending[]) is 'Gathers the news by tenant. Internal.';
revoke all on function fairq._by_tenant(text, fairq.news[], fairq.ending[]) from public;

create or replace function fairq._wished(p_flow fairq.flows, p_wish fairq.tenants)
    returns fairq.flows
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
-- The flow as its operator wants it.
begin
    p_flow.weight := p_wish.weight;
    p_flow.max_running := p_wish.max_running;
    p_flow.paused := p_wish.paused;
    p_flow.rate := p_wish.rate;
    p_flow.burst := p_wish.burst;
    return p_flow;
end
$fn$;
comment on function fairq._wished(fairq.flows, fairq.tenants) is 'Applies an operator''s wishes to a flow. Internal.';
revoke all on function fairq._wished(fairq.flows, fairq.tenants) from public;

create or replace function fairq._refilled(
    p_flow fairq.flows, p_was fairq.flows, p_has_token boolean, p_now timestamptz
)
    returns fairq.flows
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
-- R10: the flow with the tokens that are in its bucket now, which had been as in p_was. A new rate finds it full.
declare
    v_tokens double precision;
begin
    if p_flow.rate is not null then
        v_tokens := least(
            p_flow.burst,
            coalesce(fairq._tokens(p_was.tokens, p_was.tokens_at, p_was.rate, p_was.burst, p_now), p_flow.burst)
        );
        if p_has_token then
            -- its time has come; what rounding left short of one is one
            v_tokens := greatest(v_tokens, 1);
        end if;
    end if;
    p_flow.tokens := v_tokens;
    p_flow.tokens_at := case when v_tokens is not null then p_now end;
    p_flow.limited := coalesce(v_tokens < 1, false);
    p_flow.token_due_at := case
        when p_flow.limited then p_now + make_interval(secs => (1 - v_tokens) / p_flow.rate)
    end;
    return p_flow;
end
$fn$;
comment on function fairq._refilled(fairq.flows, fairq.flows, boolean, timestamptz) is 'Counts a flow''s tokens anew. Internal.';
revoke all on function fairq._refilled(fairq.flows, fairq.flows, boolean, timestamptz) from public;

create or replace function fairq._headed(p_flow fairq.flows, p_head_at timestamptz[], p_head_id bigint[])
    returns fairq.flows
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
-- The flow, with heads no later than the places of its new jobs: lower bounds, each half for itself.
begin
    p_flow.head_at := array[
        least(p_flow.head_at[1], p_head_at[1]), least(p_flow.head_at[2], p_head_at[2]),
        least(p_flow.head_at[3], p_head_at[3]), least(p_flow.head_at[4], p_head_at[4])
    ];
    p_flow.head_id := array[
        least(p_flow.head_id[1], p_head_id[1]), least(p_flow.head_id[2], p_head_id[2]),
        least(p_flow.head_id[3], p_head_id[3]), least(p_flow.head_id[4], p_head_id[4])
    ];
    p_flow.has_work := true;
    return p_flow;
end
$fn$;
comment on function fairq._headed(fairq.flows, timestamptz[], bigint[]) is 'Sets heads back to new jobs. Internal.';
revoke all on function fairq._headed(fairq.flows, timestamptz[], bigint[]) from public;

create or replace function fairq._lifted(p_flow fairq.flows, p_start bigint)
    returns fairq.flows
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
-- The flow, starting no lower than p_start. What was prepaid before it rose is no longer paid back.
begin
    if p_start > p_flow.vtime then
        p_flow.vtime := p_start;
        p_flow.epoch := p_flow.epoch + 1;
    end if;
    return p_flow;
end
$fn$;
comment on function fairq._lifted(fairq.flows, bigint) is 'Lifts a flow. Internal.';
revoke all on function fairq._lifted(fairq.flows, bigint) from public;

create or replace function fairq._apply(
    p_tick fairq.ticks, p_news fairq.news[], p_endings fairq.ending[], p_charge text, p_now timestamptz
)
    returns fairq.caught_up
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Brings the news to the flows, tenant by tenant; returns the tick and the flows as they are then. Nothing is written
-- but flows for tenants that had none: the step writes a flow once, when it knows what it picked.
--
-- The virtual time has been taken before. Ended attempts are settled first: what they used beyond the prepaid time
-- always counts; then what operators want is in force; then:
-- R2:     a flow that becomes backlogged starts no lower than the virtual time (R3: or a little above). Debt is kept.
-- R11:    one that was held up (cap, pause, rate) and no longer is starts at most one job below it.
-- Long:   the rules side by side. Few and plain expressions: the first use of each in a transaction is what costs.
-- Locks:  the queue's lock is held.
declare
    v_all     fairq.tenant_news[] := fairq._by_tenant(p_tick.queue, p_news, p_endings);
    v_new     fairq.tenant_news;
    v_was     fairq.flows;
    v_flow    fairq.flows;
    v_touched fairq.touched[] := '{}';
    v_unknown text[];
begin
    if p_news is not null then
        foreach v_new in array v_all loop
            if v_new.arrived and v_new.row_id is null then
                v_unknown := v_unknown || v_new.tenant;
            end if;
        end loop;
        if v_unknown is not null then
            perform fairq._open_flows(p_tick, v_unknown);
            v_all := fairq._by_tenant(p_tick.queue, p_news, p_endings);
        end if;
        -- R3 asks for all entrants to be counted in before any of them is placed; by the wish that is then in force
        foreach v_new in array v_all loop
            if v_new.arrived and not (v_new.flow).has_work then
                p_tick.backlogged := p_tick.backlogged + 1;
                p_tick.milliweight := p_tick.milliweight + round((v_new.wish).weight * 1000)::bigint;
            end if;
        end loop;
    end if;

    foreach v_new in array v_all loop
        p_tick.running := p_tick.running - coalesce(v_new.ended, 0);
        continue when v_new.row_id is null;

        v_was := v_new.flow;
        v_flow := v_was;
        if v_new.ended is not null then
            v_flow.running := v_flow.running - v_new.ended;
            if v_new.extra > 0 or v_new.refund > 0 then
                -- a debt of 2^62 is as good as any: beyond it the dearest thousand jobs there can be would not fit
                v_flow.vtime := greatest(-4611686018427387904, least(
                    4611686018427387904, v_flow.vtime + v_new.extra - coalesce(v_new.refund, 0)
                ));
            end if;
            v_flow.estimate := fairq._average(v_flow.estimate, v_new.elapsed, v_new.measured);
        end if;
        if (v_new.wish).weight is not null then
            v_flow := fairq._wished(v_flow, v_new.wish);
        end if;
        if v_flow.rate is not null or v_was.rate is not null then
            v_flow := fairq._refilled(v_flow, v_was, v_new.has_token, p_now);
            p_tick.token_floor := least(p_tick.token_floor, v_flow.token_due_at);
        end if;
        v_flow.price := case when p_charge = 'time' then greatest(1, round(v_flow.estimate)) else 1000 end;
        -- as the columns compute them
        v_flow.charge := greatest(1, round(v_flow.price * 2520 / v_flow.weight));
        if v_new.arrived then
            v_flow := fairq._headed(v_flow, v_new.head_at, v_new.head_id);
        end if;
        v_flow.eligible := v_flow.has_work and not v_flow.paused and not v_flow.limited
            and (v_flow.max_running is null or v_flow.running < v_flow.max_running);

        if v_flow.has_work and not v_was.has_work then
            p_tick.activations := p_tick.activations + 1;
            v_flow := fairq._lifted(v_flow, p_tick.virtual_time + case
                when v_flow.vtime <= p_tick.virtual_time then fairq._spread(p_tick, v_flow.weight, v_flow.charge)
                else 0
            end);
        elsif v_was.has_work then
            if v_flow.weight <> v_was.weight then
                p_tick.milliweight := p_tick.milliweight
                    + (round(v_flow.weight * 1000) - round(v_was.weight * 1000))::bigint;
            end if;
            if v_flow.eligible and not v_was.eligible then
                v_flow := fairq._lifted(v_flow, p_tick.virtual_time - v_flow.charge);
            end if;
        end if;
        if v_flow.eligible then
            p_tick.pick_floor := least(
                p_tick.pick_floor, row(v_flow.vtime, v_flow.charge, v_flow.served, v_flow.tenant)::fairq.place
            );
        end if;
        v_touched := v_touched || row(v_new.row_id, v_flow)::fairq.touched;
    end loop;
    return row(p_tick, v_touched);
end
$fn$;
comment on function fairq._apply(fairq.ticks, fairq.news[], fairq.ending[], text, timestamptz) is 'Brings the news of a look to the flows. Internal.';
revoke all on function fairq._apply(fairq.ticks, fairq.news[], fairq.ending[], text, timestamptz) from public;

create or replace function fairq._pick(
    p_tick fairq.ticks, p_touched fairq.touched[], p_snap pg_snapshot, p_own xid8, p_now timestamptz, p_want integer,
    p_wide integer, p_longest bigint, p_by_cost boolean, p_tenants text[], p_skip bigint[], p_stuck text[]
)
    returns fairq.picked
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- The next jobs in order, as many as are wanted or as one pass over p_wide flows can be sure of; and what their flows
-- spend, with the flows found empty on the way. No flows when none is eligible. Nothing is written or locked.
--
-- Fair:   start tags. A flow's nth job has the tag vtime + (n - 1) * charge; the least tags go first, ties by charge,
--         by who was served longest ago, by name; who has been picked in this pass was so one step before the tag, and
--         of equal steps the one picked less often goes first. Of each flow only the first few jobs are read; one that
--         has more bounds the pass: nothing at or above its next tag may be chosen yet. Some flows read may turn out
--         empty, so the flows not read bound it too.
-- room:   what a flow may start, by its cap and its tokens.
-- step:   what a job adds to its vtime: a claim prepays no more than its lease.
-- depth:  how many of its jobs are read: those whose start tags are below the level at which all that is wanted would
--         be taken if no flow ran out of jobs, and two more. It is a guess: too low costs a pass. Where there may be
--         more flows than were read, no deeper than the start tag of the last of them.
-- place:  of the flow in pick order. It breaks the last ties, by who was served longest ago and by name: flows that are
--         equal in all that is compared before it are so in vtime and charge.
-- again:  less the step, of a job that is not the first of its flow; else the least there is.
-- read:   a flow, and its jobs in arrays: in rows, each would have the flow with it, and its neighbour looked for.
--         They are unnested, not read by place: a row that holds the arrays would be copied with them for each job.
-- next_tag: of a flow with more jobs than were to be read, the tag of the next one, if that may start; else the greatest
--         there is.
-- Long:   one statement, from the flows to the jobs in turn: between two, what a job or a flow is could change. Split
--         into functions it was started three times.
-- Index:  flows_pick_idx from the floor, or flows_key_idx for the tenants named; jobs_claim_idx from each flow's heads;
--         leases_pkey.
declare
    v_picked fairq.picked;
begin
    with open as materialized (
        select
            f.*,
            least(
                p_want, (f.flow).max_running - (f.flow).running,
                floor(fairq._tokens(
                    (f.flow).tokens, (f.flow).tokens_at, (f.flow).rate, (f.flow).burst, p_now
                ))::integer
            ) as room,
            least((f.flow).price, p_longest) as paid,
            case
                when (f.flow).price > p_longest then greatest(1, round(p_longest * 2520 / (f.flow).weight))::bigint
                else f.charge
            end as step
        from (
            -- the first in pick order; or those of the tenants named; the news have touched some, which are taken as
            -- they are then, and not from the table
            select u.* from (
                (
                    select ff.ctid as row_id, false as is_touched, ff.tenant, ff.vtime, ff.charge, ff.served, ff as flow
                    from fairq.flows as ff
                    where p_tenants = '{*}' and ff.queue = p_tick.queue and ff.eligible and ff.tenant <> all (p_stuck)
                      and (ff.vtime, ff.charge, ff.served, ff.tenant) >= (
                          (p_tick.pick_floor).vtime, (p_tick.pick_floor).charge, (p_tick.pick_floor).served,
                          (p_tick.pick_floor).tenant
                      )
                      and ff.tenant not in (select (t.flow).tenant from unnest(p_touched) as t)
                    order by ff.vtime, ff.charge, ff.served, ff.tenant
                    limit p_wide
                )
                union all
                select n.row_id, false, n.tenant, n.vtime, n.charge, n.served, n.flow
                from unnest(p_tenants) as a(tenant)
                cross join lateral (
                    select ff.ctid as row_id, ff.tenant, ff.vtime, ff.charge, ff.served, ff.eligible, ff as flow
                    from fairq.flows as ff
                    where ff.queue = p_tick.queue and ff.tenant = a.tenant
                    order by ff.stamp desc
                    limit 1
                ) as n
                where p_tenants <> '{*}' and n.eligible and n.tenant <> all (p_stuck)
                  and n.tenant not in (select (t.flow).tenant from unnest(p_touched) as t)
                union all
                select t.row_id, true, (t.flow).tenant, (t.flow).vtime, (t.flow).charge, (t.flow).served, t.flow
                from unnest(p_touched) as t
                where (t.flow).eligible and (t.flow).tenant <> all (p_stuck)
                  and (p_tenants = '{*}' or (t.flow).tenant = any (p_tenants))
            ) as u
            order by u.vtime, u.charge, u.served, u.tenant
            limit p_wide
        ) as f
    ), flow as materialized (
        select
            f.*,
            row_number() over ()::integer as place,
            least(
                p_want, f.room,
                case when count(*) over () > 1 then greatest(1, floor((
                    (p_want - count(*) over () + sum(f.vtime / f.step::double precision) over ())
                    / sum(1 / f.step::double precision) over () - f.vtime
                ) / f.step) + 3) end,
                case when count(*) over () = p_wide then (max(f.vtime) over () - f.vtime) / f.step + 1 end
            )::integer as depth
        from open as f
    ), read as materialized (
        select
            f.*, h.job_rows, h.job_ids, h.priorities, h.run_ats, h.costs, coalesce(cardinality(h.job_ids), 0) as found,
            case
                when cardinality(h.job_ids) > f.depth and f.depth < f.room then f.vtime + f.depth * f.step
                else 9223372036854775807
            end as next_tag
        from flow as f
        cross join lateral (
            select
                array_agg(q.job_row) as job_rows, array_agg(q.job_id) as job_ids, array_agg(q.priority) as priorities,
                array_agg(q.run_at) as run_ats, array_agg(q.cost) filter (where p_by_cost) as costs
            from (
                -- class by class in order, each from its head: the order of the index, with nothing to sort
                select j.*
                from unnest((f.flow).head_at, (f.flow).head_id) with ordinality as c(run_at, job_id, class)
                cross join lateral (
                    select jj.ctid as job_row, jj.job_id, jj.priority, jj.run_at, jj.cost
                    from fairq.jobs as jj
                    where jj.queue = p_tick.queue and jj.tenant = f.tenant and jj.state = 'queued'
                      and jj.priority = c.class - 1
                      and (jj.run_at, jj.job_id) >= (c.run_at, c.job_id)
                      -- only what a look has seen: the rest is news for the next one
                      and jj.changed_xid <> p_own and pg_visible_in_snapshot(jj.changed_xid, p_snap)
                      -- hashed once, where an array would be walked for each job
                      and jj.job_id not in (select s.job_id from unnest(p_skip) as s(job_id))
                      -- a probe for each job, never a join the planner may turn round
                      and not exists (select from fairq.leases as l where l.job_id = jj.job_id offset 0)
                    order by jj.run_at, jj.job_id
                    limit f.depth + 1
                ) as j
                where c.job_id is not null
                limit f.depth + 1
            ) as q
        ) as h
    ), head as (
        -- what is compared comes first and is never null: there it is found fastest
        select
            n.vtime + (n.nth - 1) * n.step as tag, n.charge,
            case when n.nth > 1 then -n.step else -9223372036854775808 end as again, n.nth, n.place, n.job_row,
            n.job_id, n.tenant, n.epoch, n.weight,
            case when p_by_cost then greatest(1, round(n.cost * 1000 * 2520 / n.weight))::bigint else n.step end as costs,
            case when p_by_cost then greatest(1, round(n.cost * 1000))::bigint else n.paid end as price
        from (
            select
                r.place, r.tenant, r.vtime, r.charge, r.step, r.paid, r.depth, (r.flow).epoch, (r.flow).weight,
                generate_series(1, r.found) as nth, unnest(r.job_rows) as job_row, unnest(r.job_ids) as job_id,
                unnest(r.costs) as cost
            from read as r
        ) as n
        where n.nth <= n.depth
    ), chosen as materialized (
        select
            h.*,
            row_number() over (order by h.tag, h.charge, h.again, h.nth, h.place)::integer as turn
        from head as h
        where h.tag < (select min(r.next_tag) from read as r)
          -- flows that were not read wait behind the last one that was: its first job may go, and what goes before it
          and (
              h.nth = 1
              or (select count(*) from flow) < p_wide
              or (h.tag, h.charge)
              < (select x.vtime, x.charge from flow as x order by x.vtime desc, x.charge desc limit 1)
          )
        order by h.tag, h.charge, h.again, h.nth, h.place
        limit p_want
    ), spent as (
        -- the jobs of a pass cost a flow the same; by cost one is wanted, or nobody asks
        select
            r.row_id, r.is_touched, r.flow, coalesce(c.took, 0) as took, coalesce(c.charge, 0) as charge,
            coalesce(c.price, 0) as price, c.turn, r.priorities[c.took + 1] as next_priority,
            r.run_ats[c.took + 1] as next_run_at, r.job_ids[c.took + 1] as next_job_id
        from read as r
        -- each has its flow; but a full join is never turned into a loop, whatever the statistics
        full join (
            select
                cc.place, max(cc.nth) as took, max(cc.nth) * max(cc.costs) as charge,
                max(cc.nth) * max(cc.price) as price, max(cc.turn) as turn
            from chosen as cc
            group by cc.place
        ) as c on c.place = r.place
        where c.took > 0 or r.found = 0
    )
    select
        (
            -- they come as they were chosen
            select array_agg(
                row(
                    c.turn, c.job_row, c.tenant, c.job_id, case when p_longest is not null then c.price end, c.epoch,
                    case when p_longest is not null then c.weight end, c.costs
                )::fairq.pick
            )
            from chosen as c
        ),
        (
            select array_agg(
                row(
                    s.row_id, s.is_touched, s.flow, s.took, s.charge, s.price, s.turn, s.next_priority, s.next_run_at,
                    s.next_job_id
                )::fairq.spent
            )
            from spent as s
        ),
        exists (select from open)
    into v_picked.jobs, v_picked.flows, v_picked.is_open;
    return v_picked;
end
$fn$;
comment on function fairq._pick(fairq.ticks, fairq.touched[], pg_snapshot, xid8, timestamptz, integer, integer, bigint, boolean, text[], bigint[], text[]) is 'Chooses the next jobs of a queue in fair order. Internal.';
revoke all on function fairq._pick(
    fairq.ticks, fairq.touched[], pg_snapshot, xid8, timestamptz, integer, integer, bigint, boolean, text[], bigint[],
    text[]
) from public;

create or replace function fairq._pick_one(
    p_tick fairq.ticks, p_touched fairq.touched[], p_snap pg_snapshot, p_own xid8, p_longest bigint, p_by_cost boolean
)
    returns fairq.picked
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- What _pick chooses when one job is wanted, of all tenants: the first flow's first job, or that the flow is empty.
-- Most claims are this one, and need none of the rest.
--
-- Long:   two probes in plain statements; a function for each would cost as much as the probe.
-- Index:  flows_pick_idx from the floor; jobs_claim_idx from the flow's heads; leases_pkey.
declare
    v_tenants text[] := '{}';
    v_touched fairq.touched;
    v_first   fairq.touched;
    v_flow    fairq.flows;
    v_is_new  boolean := false;
    v_job     record;
    v_step    bigint;
    v_paid    bigint;
begin
    foreach v_touched in array p_touched loop
        v_tenants := v_tenants || (v_touched.flow).tenant;
        if (v_touched.flow).eligible and (
            v_first.row_id is null
            or ((v_touched.flow).vtime, (v_touched.flow).charge, (v_touched.flow).served, (v_touched.flow).tenant)
            < ((v_first.flow).vtime, (v_first.flow).charge, (v_first.flow).served, (v_first.flow).tenant)
        ) then
            v_first := v_touched;
        end if;
    end loop;
    v_flow := v_first.flow;
    select f.ctid as row_id, f as flow into v_job from fairq.flows as f
    where f.queue = p_tick.queue and f.eligible
      and (f.vtime, f.charge, f.served, f.tenant) >= (
          (p_tick.pick_floor).vtime, (p_tick.pick_floor).charge, (p_tick.pick_floor).served,
          (p_tick.pick_floor).tenant
      )
      and f.tenant <> all (v_tenants)
      and (
          v_first.row_id is null
          or (f.vtime, f.charge, f.served, f.tenant) < (v_flow.vtime, v_flow.charge, v_flow.served, v_flow.tenant)
      )
    order by f.vtime, f.charge, f.served, f.tenant
    limit 1;
    if found then
        v_first.row_id := v_job.row_id;
        v_flow := v_job.flow;
        v_is_new := true;
    elsif v_first.row_id is null then
        return row(false, null::fairq.pick[], null::fairq.spent[]);
    end if;

    select
        q.job_row, q.job_id, q.cost, lead(q.priority) over () as next_priority, lead(q.run_at) over () as next_run_at,
        lead(q.job_id) over () as next_job_id
    into v_job
    from (
        select j.*
        from unnest(v_flow.head_at, v_flow.head_id) with ordinality as c(run_at, job_id, class)
        cross join lateral (
            select jj.ctid as job_row, jj.job_id, jj.priority, jj.run_at, jj.cost
            from fairq.jobs as jj
            where jj.queue = p_tick.queue and jj.tenant = v_flow.tenant and jj.state = 'queued'
              and jj.priority = c.class - 1
              and (jj.run_at, jj.job_id) >= (c.run_at, c.job_id)
              and jj.changed_xid <> p_own and pg_visible_in_snapshot(jj.changed_xid, p_snap)
              and not exists (select from fairq.leases as l where l.job_id = jj.job_id offset 0)
            order by jj.run_at, jj.job_id
            limit 2
        ) as j
        where c.job_id is not null
        limit 2
    ) as q
    limit 1;
    if not found then
        return row(
            true, null::fairq.pick[],
            array[row(v_first.row_id, not v_is_new, v_flow, 0, 0, 0, null, null, null, null)::fairq.spent]
        );
    end if;

    v_paid := case when p_by_cost then greatest(1, round(v_job.cost * 1000)) else least(v_flow.price, p_longest) end;
    v_step := case
        when p_by_cost then greatest(1, round(v_job.cost * 1000 * 2520 / v_flow.weight))
        when v_flow.price > p_longest then greatest(1, round(p_longest * 2520 / v_flow.weight))
        else v_flow.charge
    end;
    return row(
        true,
        array[row(
            1, v_job.job_row, v_flow.tenant, v_job.job_id, case when p_longest is not null then v_paid end,
            v_flow.epoch, case when p_longest is not null then v_flow.weight end, v_step
        )::fairq.pick],
        array[row(
            v_first.row_id, not v_is_new, v_flow, 1, v_step, v_paid, 1, v_job.next_priority, v_job.next_run_at,
            v_job.next_job_id
        )::fairq.spent]
    );
end
$fn$;
comment on function fairq._pick_one(fairq.ticks, fairq.touched[], pg_snapshot, xid8, bigint, boolean) is 'Chooses the next job of a queue in fair order. Internal.';
revoke all on function fairq._pick_one(fairq.ticks, fairq.touched[], pg_snapshot, xid8, bigint, boolean) from public;

create or replace function fairq._lease(
    p_queue text, p_picks fairq.pick[], p_dispatch bigint, p_owner text, p_caller text, p_now timestamptz,
    p_lease interval, p_by_time boolean
)
    returns fairq.claimed_job[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- queued -> running: all of the chosen jobs, or none when one of them is held by somebody who may be taking it away.
--
-- Long:   one job by plain statements, which start sooner, and many at once.
-- Locks:  the jobs' rows, for key share, skipping those held for update: nothing waits under the queue's lock.
declare
    v_claimed fairq.claimed_job[];
    v_pick    fairq.pick;
    v_job     fairq.claimed_job;
begin
    if cardinality(p_picks) = 1 then
        v_pick := p_picks[1];
        select
            j.job_id, p_queue, j.tenant, j.task, j.payload, j.priority, j.attempts + 1, j.max_attempts,
            gen_random_uuid(), p_now + p_lease, j.run_at, j.created_at, j.traceparent
        into v_job
        from fairq.jobs as j
        -- its state once more: a lock follows the row to a version that the pick has not seen
        where j.ctid = v_pick.job_row and j.job_id = v_pick.job_id and j.state = 'queued'
        for key share skip locked;
        if not found then
            return null;
        end if;
        insert into fairq.leases (
            job_id, queue, tenant, caller, lease_owner, lease_token, attempt, started_at, lease_expires_at, dispatch,
            prepaid, weight, epoch
        )
        values (
            v_job.job_id, p_queue, v_job.tenant, p_caller, p_owner, v_job.lease_token, v_job.attempt, p_now,
            v_job.lease_expires_at, p_dispatch + v_pick.turn, case when p_by_time then v_pick.price end,
            case when p_by_time then v_pick.weight end, v_pick.epoch
        );
        return array[v_job];
    end if;

    select array_agg(
        row(
            j.job_id, p_queue, j.tenant, j.task,
            -- a great one is fetched when it is sent: a thousand of them do not fit into one array
            case when pg_column_size(j.payload) < 2000 then j.payload end, j.priority,
            j.attempts + 1, j.max_attempts,
            gen_random_uuid(), p_now + p_lease, j.run_at, j.created_at, j.traceparent
        )::fairq.claimed_job
    )
    into v_claimed
    -- the picks are in turn
    from unnest(p_picks) as p
    cross join lateral (
        -- its state once more, as above
        select
            jj.job_id, jj.tenant, jj.task, jj.payload, jj.priority, jj.attempts, jj.max_attempts, jj.run_at,
            jj.created_at, jj.traceparent
        from fairq.jobs as jj
        where jj.ctid = p.job_row and jj.job_id = p.job_id and jj.state = 'queued'
        for key share skip locked
    ) as j;
    if cardinality(v_claimed) is distinct from cardinality(p_picks) then
        return null;
    end if;

    insert into fairq.leases (
        job_id, queue, tenant, caller, lease_owner, lease_token, attempt, started_at, lease_expires_at, dispatch,
        prepaid, weight, epoch
    )
    select
        c.job_id, p_queue, c.tenant, p_caller, p_owner, c.lease_token, c.attempt, p_now, c.lease_expires_at,
        p_dispatch + c.turn, case when p_by_time then c.price end,
        case when p_by_time then c.weight end, c.epoch
    -- and so are the jobs
    from rows from (unnest(p_picks), unnest(v_claimed)) as c(
        turn, job_row, picked_tenant, picked_id, price, epoch, weight, step,
        job_id, queue, tenant, task, payload, priority, attempt, max_attempts, lease_token, lease_expires_at, run_at,
        created_at, traceparent
    );
    return v_claimed;
end
$fn$;
comment on function fairq._lease(text, fairq.pick[], bigint, text, text, timestamptz, interval, boolean) is 'Leases the chosen jobs to a worker. Internal.';
revoke all on function fairq._lease(text, fairq.pick[], bigint, text, text, timestamptz, interval, boolean) from public;

create or replace function fairq._held_by_others(p_picks fairq.pick[])
    returns bigint[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Those of the chosen jobs that _lease could not lock.
begin
    return array(
        select p.job_id from unnest(p_picks) as p
        where not exists (select from fairq.jobs as j where j.ctid = p.job_row for key share skip locked)
    );
end
$fn$;
comment on function fairq._held_by_others(fairq.pick[]) is 'Which of the chosen jobs are held by other sessions. Internal.';
revoke all on function fairq._held_by_others(fairq.pick[]) from public;

create or replace function fairq._write_touched(p_touched fairq.touched[], p_spent fairq.spent[])
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Writes the flows that the news have touched and no pass has spent.
--
-- By its place in the table: under the queue's lock a flow stays where it was read.
begin
    update fairq.flows as f
    set
        weight = (t.flow).weight, max_running = (t.flow).max_running, paused = (t.flow).paused, rate = (t.flow).rate,
        burst = (t.flow).burst, tokens = (t.flow).tokens, tokens_at = (t.flow).tokens_at,
        limited = (t.flow).limited, token_due_at = (t.flow).token_due_at, vtime = (t.flow).vtime,
        epoch = (t.flow).epoch, estimate = (t.flow).estimate, price = (t.flow).price, running = (t.flow).running,
        head_at = (t.flow).head_at, head_id = (t.flow).head_id, stamp = f.stamp + 1
    from unnest(p_touched) as t
    where f.ctid = t.row_id and (t.flow).tenant not in (select (s.flow).tenant from unnest(p_spent) as s);
end
$fn$;
comment on function fairq._write_touched(fairq.touched[], fairq.spent[]) is 'Writes the flows that the news have changed. Internal.';
revoke all on function fairq._write_touched(fairq.touched[], fairq.spent[]) from public;

create or replace function fairq._charge(
    p_tick fairq.ticks, p_touched fairq.touched[], p_spent fairq.spent[], p_dispatch bigint, p_now timestamptz
)
    returns fairq.ticks
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Moves each picked flow past its jobs: charged, counted, its heads at the next one. A flow found empty only loses its
-- heads. And writes the flows that only the news have touched, which keep theirs, and their counters: what is put back
-- is taken off the minute it was counted in. Returns the tick, with what runs and who is backlogged counted anew.
--
-- By its place in the table: under the queue's lock a flow stays where it was read.
-- Long:   one update: a second one of the same row would cost its indexes twice, and one of another row what it takes
--         to begin.
-- Locks:  the queue's lock is held.
declare
    v_minute bigint := floor(extract(epoch from p_now) / 60);
    v_sum    record;
begin
    with spent as (
        select
            s.*, true as is_spent, case when (s.flow).rate is not null then fairq._tokens(
                (s.flow).tokens, (s.flow).tokens_at, (s.flow).rate, (s.flow).burst, p_now
            ) - s.took end as tokens
        from unnest(p_spent) as s
        union all
        -- whose tokens have just been counted
        select t.row_id, true, t.flow, 0, 0, 0, null, null, null, null, false, (t.flow).tokens
        from unnest(p_touched) as t
        where (t.flow).tenant not in (select (s.flow).tenant from unnest(p_spent) as s)
    ), moved as (
        update fairq.flows as f
        set
            weight       = (s.flow).weight,
            max_running  = (s.flow).max_running,
            paused       = (s.flow).paused,
            rate         = (s.flow).rate,
            burst        = (s.flow).burst,
            epoch        = (s.flow).epoch,
            estimate     = (s.flow).estimate,
            vtime        = least((s.flow).vtime + s.charge, 4611686018427387904),
            price        = (s.flow).price,
            running      = (s.flow).running + s.took,
            served       = coalesce(p_dispatch + s.turn, f.served),
            stamp        = f.stamp + 1,
            tokens       = s.tokens,
            tokens_at    = case when s.tokens is not null then p_now end,
            limited      = coalesce(s.tokens < 1, false),
            -- no earlier than now: a full bucket, taken back at a slow rate, would be before all calendars
            token_due_at = p_now + make_interval(secs => greatest(0, 1 - s.tokens) / (s.flow).rate),
            minute       = case when s.is_spent then v_minute else f.minute end,
            started      = case when not s.is_spent then f.started else array[
                s.took + case when f.minute = v_minute then f.started[1] else 0 end,
                case f.minute when v_minute then f.started[2] when v_minute - 1 then f.started[1] else 0 end
            ] end,
            spent        = case when not s.is_spent then f.spent else array[
                s.price + case when f.minute = v_minute then f.spent[1] else 0 end,
                case f.minute when v_minute then f.spent[2] when v_minute - 1 then f.spent[1] else 0 end
            ] end,
            -- priorities before the next job's are used up, those after it are as they were
            head_at      = case when not s.is_spent then (s.flow).head_at else array[
                case when s.next_priority = 0 then s.next_run_at end,
                case when s.next_priority = 1 then s.next_run_at when s.next_priority < 1 then (s.flow).head_at[2] end,
                case when s.next_priority = 2 then s.next_run_at when s.next_priority < 2 then (s.flow).head_at[3] end,
                case when s.next_priority = 3 then s.next_run_at when s.next_priority < 3 then (s.flow).head_at[4] end
            ] end,
            head_id      = case when not s.is_spent then (s.flow).head_id else array[
                case when s.next_priority = 0 then s.next_job_id end,
                case when s.next_priority = 1 then s.next_job_id when s.next_priority < 1 then (s.flow).head_id[2] end,
                case when s.next_priority = 2 then s.next_job_id when s.next_priority < 2 then (s.flow).head_id[3] end,
                case when s.next_priority = 3 then s.next_job_id when s.next_priority < 3 then (s.flow).head_id[4] end
            ] end
        from spent as s
        where f.ctid = s.row_id
        returning s.took, (s.flow).has_work as had_work, f.has_work, f.weight, f.limited, f.token_due_at
    )
    select
        coalesce(sum(m.took), 0) as took,
        count(*) filter (where m.had_work and not m.has_work) as gone,
        coalesce(sum(round(m.weight * 1000)) filter (where m.had_work and not m.has_work), 0) as milliweight,
        min(m.token_due_at) filter (where m.limited) as token_due_at
    into v_sum
    from moved as m;

    p_tick.running := p_tick.running + v_sum.took;
    p_tick.backlogged := p_tick.backlogged - v_sum.gone;
    p_tick.milliweight := p_tick.milliweight - v_sum.milliweight;
    p_tick.tokens := p_tick.tokens - v_sum.took;
    p_tick.token_floor := least(p_tick.token_floor, v_sum.token_due_at);
    return p_tick;
end
$fn$;
comment on function fairq._charge(fairq.ticks, fairq.touched[], fairq.spent[], bigint, timestamptz) is 'Charges the flows of a pass, and writes those the news have changed. Internal.';
revoke all on function fairq._charge(fairq.ticks, fairq.touched[], fairq.spent[], bigint, timestamptz) from public;

create or replace function fairq._pick_floor(p_tick fairq.ticks, p_without text[] default '{}')
    returns fairq.place
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- The place of the first eligible flow; with none eligible, beyond every place: who becomes eligible lowers it again.
--
-- Index:  flows_pick_idx, from the last floor.
declare
    v_floor fairq.place;
begin
    select f.vtime, f.charge, f.served, f.tenant into v_floor from fairq.flows as f
    where f.queue = p_tick.queue and f.eligible and f.tenant <> all (p_without)
      and (f.vtime, f.charge, f.served, f.tenant) >= (
          (p_tick.pick_floor).vtime, (p_tick.pick_floor).charge, (p_tick.pick_floor).served,
          (p_tick.pick_floor).tenant
      )
    order by f.vtime, f.charge, f.served, f.tenant
    limit 1;
    if not found then
        v_floor := row(9223372036854775807, 9223372036854775807, 9223372036854775807, '');
    end if;
    return v_floor;
end
$fn$;
comment on function fairq._pick_floor(fairq.ticks, text[]) is 'The first place in the pick order. Internal.';
revoke all on function fairq._pick_floor(fairq.ticks, text[]) from public;

create or replace function fairq._write_tick(p_tick fairq.ticks)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- The memory for the next look: a new row, and the last one removed.
begin
    p_tick.pick_floor := fairq._pick_floor(p_tick);
    p_tick.tick_id := p_tick.tick_id + 1;
    with last as (
        delete from fairq.ticks as t where t.queue = p_tick.queue and t.tick_id = p_tick.tick_id - 1
    )
    insert into fairq.ticks select p_tick.*;
    return true;
end
$fn$;
comment on function fairq._write_tick(fairq.ticks) is 'Writes down what the scheduler must remember. Internal.';
revoke all on function fairq._write_tick(fairq.ticks) from public;

create or replace function fairq._tokens_due(p_tick fairq.ticks, p_now timestamptz, p_limit integer)
    returns fairq.moved
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- R10: flows whose next token has come. They come back by themselves, at the first claim after it.
--
-- Index:  flows_token_idx, from the token floor; a second ahead, so that most claims need not ask.
declare
    v_moved fairq.moved;
begin
    select
        array_agg(row(d.tenant, 'token', null, null, null)::fairq.news) filter (where d.token_due_at <= p_now),
        -- what is due within the second holds the floor, also when there was more than could be read
        coalesce(
            min(d.token_due_at) filter (where d.token_due_at > p_now),
            case when count(*) < p_limit then p_now + interval '1 second' else max(d.token_due_at) end
        )
    into v_moved.news, v_moved.floor
    from (
        select f.tenant, f.token_due_at from fairq.flows as f
        where f.queue = p_tick.queue and f.limited
          and f.token_due_at >= p_tick.token_floor and f.token_due_at <= p_now + interval '1 second'
        order by f.token_due_at
        limit p_limit
    ) as d;
    return v_moved;
end
$fn$;
comment on function fairq._tokens_due(fairq.ticks, timestamptz, integer) is 'Finds limited flows whose next token has come. Internal.';
revoke all on function fairq._tokens_due(fairq.ticks, timestamptz, integer) from public;

create or replace function fairq._everyones_news(p_queue text)
    returns fairq.news[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- The wishes for * or the way of charging have changed: every flow with work, waiting or running, is gone through,
-- once. One without learns of it with its next job.
begin
    return array(
        select row(f.tenant, 'wish', null, null, null)::fairq.news from fairq.flows as f
        where f.queue = p_queue and (f.has_work or f.running > 0)
    );
end
$fn$;
comment on function fairq._everyones_news(text) is 'News for every flow of a queue. Internal.';
revoke all on function fairq._everyones_news(text) from public;

create or replace function fairq._rebased(p_tick fairq.ticks)
    returns fairq.ticks
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Virtual time is an integer that only rises: once in a while all of a queue's is moved down by the same amount, which
-- changes no order and forgets no debt. Begun at 2^60, where the dearest thousand jobs there can be still fit below
-- 2^63.
--
-- Locks:  the queue's lock is held.
declare
    v_by bigint := p_tick.virtual_time;
begin
    -- a flow that is idle for ages has no credit to lose, and an integer has an end
    update fairq.flows as f
    set vtime = greatest(f.vtime, v_by - 4611686018427387904) - v_by, stamp = f.stamp + 1
    where f.queue = p_tick.queue;
    p_tick.virtual_time := 0;
    if (p_tick.pick_floor).vtime < 9223372036854775807 then
        p_tick.pick_floor := row(
            (p_tick.pick_floor).vtime - v_by, (p_tick.pick_floor).charge, (p_tick.pick_floor).served,
            (p_tick.pick_floor).tenant
        );
    end if;
    return p_tick;
end
$fn$;
comment on function fairq._rebased(fairq.ticks) is 'Moves the virtual times of a queue down when they have grown too great. Internal.';
revoke all on function fairq._rebased(fairq.ticks) from public;

create or replace function fairq._catch_up(
    p_tick fairq.ticks, p_snap pg_snapshot, p_own xid8, p_settings fairq.queues, p_now timestamptz, p_limit integer,
    p_back fairq.moved default null
)
    returns fairq.caught_up
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Brings the scheduler up to date with all that p_snap can see, and with the clock; returns the tick as it is then, and
-- the flows that changed, which are still to be written. Its ticked_at is p_now when it is worth writing down.
--
-- p_back: picks that were ready and are put back, as if they had not been picked: before the virtual time is taken, and
--         nobody is lifted by it. Else whoever had no other work would forget its debt, and lose its turn.
-- The floors say when there is nothing to ask the clock for.
-- Long:   all that may be news, side by side.
-- Locks:  the queue's lock is held.
declare
    v_moved   fairq.moved := fairq._look(p_tick, p_snap, p_own);
    v_news    fairq.news[] := v_moved.news;
    v_endings fairq.ending[] := v_moved.endings;
    v_caught  fairq.caught_up;
    v_all     boolean := p_tick.charge <> p_settings.charge;
    v_was     fairq.ticks := p_tick;
begin
    if p_back.endings is not null then
        p_tick.virtual_time := -4611686018427387904;
        v_caught := fairq._apply(p_tick, p_back.news, p_back.endings, p_settings.charge, p_now);
        perform fairq._write_touched(v_caught.touched, '{}');
        p_tick := v_caught.tick;
        p_tick.virtual_time := v_was.virtual_time;
        p_tick.activations := v_was.activations;
    end if;
    if v_news is not null then
        v_all := v_all or exists (select from unnest(v_news) as n where n.tenant = '*' and n.state = 'wish');
    end if;
    p_tick.promote_floor := least(p_tick.promote_floor, v_moved.floor);
    if p_tick.expire_floor <= p_now then
        v_moved := fairq._expire_due(p_tick, p_now, 100);
        v_news := v_news || v_moved.news;
        v_endings := v_endings || v_moved.endings;
        p_tick.expire_floor := v_moved.floor;
    end if;
    if p_tick.token_floor <= p_now then
        v_moved := fairq._tokens_due(p_tick, p_now, greatest(p_limit, 100));
        v_news := v_news || v_moved.news;
        p_tick.token_floor := v_moved.floor;
    end if;
    if p_tick.promote_floor <= p_now then
        v_moved := fairq._promote_due(p_tick, p_snap, p_own, p_now, greatest(p_limit, 100));
        v_news := v_news || v_moved.news;
        p_tick.promote_floor := v_moved.floor;
    end if;
    if v_all then
        v_news := v_news || fairq._everyones_news(p_tick.queue);
        p_tick.charge := p_settings.charge;
    end if;

    if cardinality(v_news) > 0 or cardinality(v_endings) > 0 then
        p_tick.virtual_time := fairq._virtual_time(p_tick);
        if p_tick.virtual_time >= 1152921504606846976 then
            p_tick := fairq._rebased(p_tick);
        end if;
        v_caught := fairq._apply(p_tick, v_news, v_endings, p_settings.charge, p_now);
        if v_endings is not null then
            v_caught.tick := fairq._averaged(v_caught.tick, v_endings);
        end if;
        v_caught.tick.ticked_at := p_now;
    else
        v_caught.tick := p_tick;
        v_caught.touched := '{}';
        if p_tick.ticked_at not between p_now - interval '1 second' and p_now or p_back.endings is not null
           -- or what could not be promoted would be tried again by every claim
           or p_tick.promote_floor <> v_was.promote_floor then
            v_caught.tick.ticked_at := p_now;
        end if;
    end if;
    v_caught.tick.seen := p_snap;
    v_caught.tick.own_xid := p_own;
    return v_caught;
end
$fn$;
comment on function fairq._catch_up(fairq.ticks, pg_snapshot, xid8, fairq.queues, timestamptz, integer, fairq.moved) is 'Brings the scheduler up to date. Internal.';
revoke all on function fairq._catch_up(
    fairq.ticks, pg_snapshot, xid8, fairq.queues, timestamptz, integer, fairq.moved
) from public;

create or replace function fairq._averaged(p_tick fairq.ticks, p_endings fairq.ending[])
    returns fairq.ticks
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
-- What attempts of the queue take, moved on by those that ended.
declare
    v_ending   fairq.ending;
    v_measured bigint := 0;
    v_elapsed  numeric := 0;
begin
    foreach v_ending in array p_endings loop
        v_measured := v_measured + v_ending.measured;
        v_elapsed := v_elapsed + v_ending.elapsed;
    end loop;
    p_tick.mean := fairq._average(p_tick.mean, v_elapsed, v_measured);
    return p_tick;
end
$fn$;
comment on function fairq._averaged(fairq.ticks, fairq.ending[]) is 'Moves on the mean of a queue. Internal.';
revoke all on function fairq._averaged(fairq.ticks, fairq.ending[]) from public;

create or replace function fairq._queue_tokens(p_tick fairq.ticks, p_settings fairq.queues, p_now timestamptz)
    returns double precision
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
-- The tokens in the queue's own bucket; full when its rate is new, none counted without one.
begin
    return case
        when p_settings.rate is null then null
        else coalesce(
            fairq._tokens(p_tick.tokens, p_tick.tokens_at, p_settings.rate, p_settings.burst, p_now), p_settings.burst
        )
    end;
end
$fn$;
comment on function fairq._queue_tokens(fairq.ticks, fairq.queues, timestamptz) is 'The tokens of a queue. Internal.';
revoke all on function fairq._queue_tokens(fairq.ticks, fairq.queues, timestamptz) from public;

create or replace function fairq._news_of(p_job_ids bigint[])
    returns fairq.news[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Jobs that were skipped because somebody held them, as news.
begin
    return array(
        select row(j.tenant, 'queued', j.priority, j.run_at, j.job_id)::fairq.news
        from unnest(p_job_ids) as s(job_id)
        cross join lateral (
            -- its state is looked at outside: in here it would make jobs_claim_idx a candidate
            select jj.tenant, jj.priority, jj.run_at, jj.job_id, jj.state from fairq.jobs as jj
            where jj.job_id = s.job_id
            offset 0
        ) as j
        where j.state = 'queued'
    );
end
$fn$;
comment on function fairq._news_of(bigint[]) is 'Makes news of jobs that were skipped. Internal.';
revoke all on function fairq._news_of(bigint[]) from public;

create or replace function fairq._stuck(p_picks fairq.pick[], p_skip bigint[])
    returns text[]
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
-- Tenants of which somebody holds job after job (a purge under way): the rest of this claim goes without them, rather
-- than feel its way through all of them.
begin
    return array(
        select p.tenant from unnest(p_picks) as p
        where p.job_id = any (p_skip)
        group by p.tenant
        having count(*) >= 10
    );
end
$fn$;
comment on function fairq._stuck(fairq.pick[], bigint[]) is 'Tenants whose jobs are held by others. Internal.';
revoke all on function fairq._stuck(fairq.pick[], bigint[]) from public;

create or replace function fairq._pass_by(
    p_tick fairq.ticks, p_skip bigint[], p_stuck text[], p_settings fairq.queues, p_now timestamptz
)
    returns fairq.ticks
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- The heads go back to jobs that were skipped because somebody held them: if they are let go, nothing will tell of it.
--
-- A tenant of which all that could run is held counts as one without work, for as long as that lasts: it comes back at
-- the virtual time of the others. Else it would hold that time down, and earn by it; and whoever enters would profit.
-- Locks:  the queue's lock is held.
declare
    v_caught  fairq.caught_up;
    v_touched fairq.touched;
    v_written fairq.touched[] := '{}';
begin
    -- exact again: the passes have moved flows since it was taken
    p_tick.pick_floor := fairq._pick_floor(p_tick);
    p_tick.virtual_time := fairq._virtual_time(p_tick, p_stuck);
    v_caught := fairq._apply(p_tick, fairq._news_of(p_skip), '{}', p_settings.charge, p_now);
    foreach v_touched in array v_caught.touched loop
        if (v_touched.flow).tenant = any (p_stuck) then
            v_touched.flow := fairq._lifted(v_touched.flow, p_tick.virtual_time);
        end if;
        v_written := v_written || v_touched;
    end loop;
    perform fairq._write_touched(v_written, '{}');
    return v_caught.tick;
end
$fn$;
comment on function fairq._pass_by(fairq.ticks, bigint[], text[], fairq.queues, timestamptz) is 'Leaves behind jobs that others hold. Internal.';
revoke all on function fairq._pass_by(fairq.ticks, bigint[], text[], fairq.queues, timestamptz) from public;

create or replace function fairq._dispatch(
    p_queue text, p_owner text, p_caller text, p_limit integer, p_lease interval, p_tenants text[],
    p_now timestamptz default null
)
    returns fairq.claimed_job[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- queued -> running: the scheduler's step, whole.
--
-- p_now:  the clock; null for the real one, read once the lock is held. Tests move time here and nowhere else.
-- Fair:   n jobs are n single picks in one hold of the lock; see _pick. Where jobs declare their cost, no two of a
--         tenant need cost the same, and they are picked one by one.
-- Ahead:  where a queue reads ahead, what others have made ready is taken first, and more is picked than asked for; see
--         functions/read_ahead.sql. A p_limit below 0 leases nothing: what is ready stays so, and as many are picked as
--         are missing, if that is more than a quarter, to be taken -p_limit at a time. Picks are numbered from behind:
--         the last that was wanted, before caps and tokens, ends in 1,000.
-- Long:   the one place where the step is read from top to bottom.
-- Locks:  the queue's lock, to the end of the transaction; everything else is skipped if held.
declare
    v_now      timestamptz;
    v_is_done  boolean;
    v_settings fairq.queues;
    v_snap     pg_snapshot;
    v_own      xid8;
    v_was      fairq.ticks;
    v_caught   fairq.caught_up;
    v_tick     fairq.ticks;
    v_longest  bigint;
    v_picked   fairq.picked;
    v_skip     bigint[] := '{}';
    v_stuck    text[] := '{}';
    v_dispatch bigint;
    v_got      fairq.claimed_job[];
    v_claimed  fairq.claimed_job[] := '{}';
    v_left     integer;
    v_want     integer;
    v_wide     integer := 0;
    v_ahead    integer := 0;
    v_size     integer := abs(p_limit);
    v_is_more  boolean := p_limit < 0;
    v_floor    bigint;
    v_made     timestamptz;
    v_over     integer;
    v_back     fairq.moved;
    v_away     bigint[] := '{}';
begin
    -- assigned, not performed: an expression costs less than a statement
    v_is_done := fairq._lock_queue(p_queue);
    v_now := coalesce(p_now, clock_timestamp());
    v_settings := fairq._queue_settings(p_queue);
    if v_is_more then
        p_limit := 0;
        v_ahead := v_settings.read_ahead;
    elsif v_settings.read_ahead > 0 and p_tenants = '{*}' then
        v_claimed := coalesce(fairq._take(p_queue, p_owner, p_caller, p_limit, p_lease, true, p_now), '{}');
        p_limit := p_limit - cardinality(v_claimed);
        if p_limit = 0 then
            return v_claimed;
        end if;
        v_ahead := least(v_settings.read_ahead, 1000 - p_limit);
    end if;
    p_lease := coalesce(p_lease, v_settings.default_lease);
    v_own := pg_current_xact_id();
    v_was := fairq._last_tick(p_queue, v_settings, v_now);
    if v_was.ready_floor > 0 then
        if not v_is_more then
            v_back := fairq._put_ready_back(v_was);
            v_was.tokens := v_was.tokens + coalesce(cardinality(v_back.endings), 0);
        end if;
        v_away := fairq._being_taken(v_was);
        if v_is_more then
            v_ahead := v_ahead - cardinality(v_away);
            if v_ahead <= v_settings.read_ahead / 4 then
                return '{}';
            end if;
        end if;
        -- the floors for what is left
        if v_away <> '{}' then
            select min(r.dispatch), min(coalesce(r.made_at, v_was.expire_floor)) into v_floor, v_made
            from fairq.ready_picks as r where r.queue = p_queue and r.dispatch >= v_was.ready_floor;
        end if;
    end if;
    -- one snapshot judges everything that follows: two statements would have two
    v_snap := pg_current_snapshot();
    v_caught := fairq._catch_up(v_was, v_snap, v_own, v_settings, v_now, p_limit + v_ahead, v_back);
    v_tick := v_caught.tick;
    v_tick.ready_floor := 0;
    if v_away <> '{}' then
        -- without those that have been taken by now: what became of them may be news of this look
        v_away := fairq._being_taken(v_was);
        v_tick.ready_floor := coalesce(v_floor, v_was.ready_floor);
        -- leases of those that are just being taken, which cannot be seen yet, may be over already; by a clock that was
        -- set back they start before made_at, but not before the last pick: a second, and what a step takes
        v_tick.expire_floor := least(
            v_tick.expire_floor, greatest(v_was.expire_floor, v_made - interval '2 seconds')
        );
    end if;
    v_tick.tokens := fairq._queue_tokens(v_tick, v_settings, v_now);
    v_tick.tokens_at := v_now;

    v_longest := case when v_settings.charge = 'time' then extract(epoch from p_lease) * 1000 end;
    -- what the cap and the rate of the queue leave of it
    v_left := case
        when v_settings.paused then 0
        else greatest(0, least(p_limit + v_ahead, v_settings.max_running - v_tick.running, floor(v_tick.tokens)))
    end;
    v_over := p_limit + v_ahead - v_left;
    while v_left > 0 loop
        v_want := case when v_settings.charge = 'cost' then 1 else v_left end;
        v_wide := greatest(v_want, v_wide);
        if v_wide = 1 and p_tenants = '{*}' and v_skip = '{}' and v_away = '{}' then
            v_picked := fairq._pick_one(
                v_tick, v_caught.touched, v_snap, v_own, v_longest, v_settings.charge = 'cost'
            );
        else
            v_picked := fairq._pick(
                v_tick, v_caught.touched, v_snap, v_own, v_now, v_want, v_wide, v_longest,
                v_settings.charge = 'cost', p_tenants, v_skip || v_away, v_stuck
            );
        end if;
        -- none of the two would be a pass that changes nothing, and another one like it
        exit when not v_picked.is_open or v_picked.jobs is null and v_picked.flows is null;

        v_dispatch := nextval('fairq.dispatch_seq') * 1024 + 1000 - v_left - v_over;
        v_got := '{}';
        if p_limit > 0 and v_picked.jobs is not null then
            v_got := fairq._lease(
                p_queue, v_picked.jobs[1 : p_limit], v_dispatch, p_owner, p_caller, v_now, p_lease,
                v_settings.charge = 'time'
            );
            if v_got is null then
                -- where one is held, many may be: the next thousand are tried before the next pass
                v_picked := fairq._pick(
                    v_tick, v_caught.touched, v_snap, v_own, v_now, 1000, 1000, v_longest,
                    v_settings.charge = 'cost', p_tenants, v_skip || v_away, v_stuck
                );
                v_skip := v_skip || fairq._held_by_others(v_picked.jobs);
                v_stuck := v_stuck || fairq._stuck(v_picked.jobs, v_skip);
                continue;
            end if;
            v_claimed := v_claimed || v_got;
            v_tick.expire_floor := least(v_tick.expire_floor, v_now + p_lease);
        end if;
        if cardinality(v_picked.jobs) > p_limit then
            v_is_done := fairq._make_ready(
                p_queue, v_picked.jobs[p_limit + 1:], v_dispatch, v_size, v_settings.charge = 'time'
            );
            v_tick.ready_floor := coalesce(nullif(v_tick.ready_floor, 0), v_dispatch);
            -- whoever takes them does not move it, and may want the shortest of leases
            v_tick.expire_floor := least(v_tick.expire_floor, v_now);
        end if;
        p_limit := p_limit - cardinality(v_got);
        -- a pass that only found flows empty is followed by a wider one
        v_wide := case when v_picked.jobs is null then least(1000, v_wide * 4) else 0 end;
        v_tick := fairq._charge(v_tick, v_caught.touched, v_picked.flows, v_dispatch, v_now);
        v_tick.ticked_at := v_now;
        v_caught.touched := '{}';
        v_left := v_left - coalesce(cardinality(v_picked.jobs), 0);
        if v_left > 0 then
            -- or each pass would walk all that the passes before it emptied
            v_tick.pick_floor := fairq._pick_floor(v_tick);
        end if;
    end loop;

    if v_caught.touched <> '{}' then
        perform fairq._write_touched(v_caught.touched, '{}');
    end if;
    if v_skip <> '{}' then
        v_tick := fairq._pass_by(v_tick, v_skip, v_stuck, v_settings, v_now);
        v_tick.ticked_at := v_now;
    end if;
    v_tick.found_empty := v_left > 0 and p_limit > 0 or v_is_more and v_was.found_empty;
    if v_tick.ticked_at = v_now or v_tick.found_empty <> v_was.found_empty
       or v_tick.ready_floor <> v_was.ready_floor then
        v_is_done := fairq._write_tick(v_tick);
    end if;
    return v_claimed;
end
$fn$;
comment on function fairq._dispatch(text, text, text, integer, interval, text[], timestamptz) is 'The scheduler''s step: brings itself up to date, picks, leases and charges. Internal.';
revoke all on function fairq._dispatch(text, text, text, integer, interval, text[], timestamptz) from public;
