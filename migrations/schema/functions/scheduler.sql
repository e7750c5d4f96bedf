--
-- the scheduler: who goes next
--
-- One step, inside the claim that needs it, under the queue's lock. _dispatch() is the step; the others are its parts
-- in the order in which it takes them: lock, remember, look, promote and expire (in their own files), apply, pick,
-- lease, charge, write down. The rule is start-time fair queueing (Goyal, Vin, Cheng 1996), one flow for each tenant,
-- tagged when a job is claimed; docs/rooms.md says it in words.

create or replace function fairq._lock_holders(p_queue text)
    returns text
    language sql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
    -- Which session holds the queue's lock, for the message of one that could not have it. The row names the transaction
    -- that locked it; after a wait that is a subtransaction, which no view knows. Then: who has a lock on a row of the table
    -- and waits for none.
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
-- A holder that rolls back to a savepoint has let go of the lock, but who waits for it waits for the whole transaction, and
-- whoever comes next waits behind: also that holder, when it claims again, and that is a deadlock. So nobody waits longer
-- than half of the shortest sensible deadlock_timeout before looking again; a lock that is let go of wakes its waiter at once.
declare
    v_timeout  text := current_setting('lock_timeout');
    v_left     interval := p_until - clock_timestamp();
begin
    perform set_config(
        'lock_timeout', greatest(1, least(50, ceil(extract(epoch from v_left) * 1000)))::integer || 'ms', true
    );
    insert into fairq.schedulers (queue) values (p_queue) on conflict (queue) do nothing;
    perform from fairq.schedulers as s where s.queue = p_queue for update;
    if not found then
        -- a lock that is not taken and says nothing is the worst of all
        raise exception 'the lock of queue % could not be taken', p_queue using errcode = '55000';
    end if;
    perform set_config('lock_timeout', v_timeout, true);
    return true;
exception when lock_not_available then
    -- what was set here is undone with the rest of the block
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
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Takes the queue's lock, to the end of the transaction.
--
-- Locks:  the queue's row in schedulers; waits at most 10 s, or the caller's lock_timeout.
-- Raises: 55P03 when it was not free in time, saying which session holds it.
declare
    v_patience interval := current_setting('lock_timeout');
    v_until    timestamptz;
begin
    loop
        -- outside the block below, which is a subtransaction: pg_locks knows a holder by its transaction only
        perform from fairq.schedulers as s where s.queue = p_queue for update skip locked;
        if found then
            return;
        end if;

        v_until := coalesce(
            v_until,
            clock_timestamp() + case when v_patience = interval '0' then interval '10 seconds' else v_patience end
        );
        exit when fairq._wait_for_queue(p_queue, v_until);
    end loop;
end
$fn$;
comment on function fairq._lock_queue(text) is 'Takes the queue''s lock. Internal.';
revoke all on function fairq._lock_queue(text) from public;

create or replace function fairq._last_tick(p_queue text, p_now timestamptz)
    returns fairq.ticks
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- What the scheduler remembers of the queue. After a restart it makes sure that this is still the cluster it knew:
-- transaction ids of another one (a restored dump, a logical replica) mean nothing here.
--
-- Index:  ticks_pkey, newest first.
declare
    v_tick fairq.ticks;
    v_boot timestamptz := pg_postmaster_start_time();
    v_system bigint;
begin
    select t.* into v_tick from fairq.ticks as t where t.queue = p_queue order by t.tick_id desc limit 1;
    if v_tick.boot_at = v_boot then
        return v_tick;
    end if;

    select c.system_identifier into v_system from pg_control_system() as c;
    if v_tick.system_identifier is distinct from v_system then
        v_tick := fairq._rebuild(p_queue, v_tick, p_now);
        v_tick.system_identifier := v_system;
    end if;
    v_tick.boot_at := v_boot;
    return v_tick;
end
$fn$;
comment on function fairq._last_tick(text, timestamptz) is 'The scheduler''s memory of a queue. Internal.';
revoke all on function fairq._last_tick(text, timestamptz) from public;

create or replace function fairq._rebuild(p_queue text, p_tick fairq.ticks, p_now timestamptz)
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
        update fairq.flows as f
        set
            stamp   = f.stamp + 1,
            running = (select count(*) from fairq.leases as l where l.queue = f.queue and l.tenant = f.tenant)
        where f.queue = p_queue;
    else
        -- restored before they were ever claimed: transactions that are still to come here, though not those of other rows
        update fairq.jobs as j set changed_xid = '3'
        where j.queue = p_queue and j.changed_xid <> pg_current_xact_id()
          and j.changed_xid >= pg_snapshot_xmax(pg_current_snapshot());
    end if;

    return row(
        p_queue, coalesce(p_tick.tick_id, 0), p_now, null, null, '1:1:'::pg_snapshot, '1'::xid8,
        coalesce(p_tick.virtual_time, 0), row(0, 0, 0, '')::fairq.place, '-infinity'::timestamptz,
        '-infinity'::timestamptz, false
    )::fairq.ticks;
end
$fn$;
comment on function fairq._rebuild(text, fairq.ticks, timestamptz) is 'Starts the scheduler''s memory of a queue afresh. Internal.';
revoke all on function fairq._rebuild(text, fairq.ticks, timestamptz) from public;

create or replace function fairq._look(p_tick fairq.ticks, p_snap pg_snapshot, p_own xid8)
    returns fairq.news[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- What was committed since the last tick, each change exactly once: what its snapshot had not seen and p_snap has.
--
-- A transaction's own changes are in neither list of its own snapshot, so they are left to the next look, which knows
-- the tick's own_xid. Ended attempts are deleted as they are read: that alone makes them read once. Places are lower
-- bounds: the least time and the least id of the jobs of one tenant and priority.
-- Index:  jobs_look_idx, settlements_look_idx, tenants_look_idx.
declare
    v_since xid8 := pg_snapshot_xmax(p_tick.seen);
    -- those that were under way at the last tick and are done now
    v_late  xid8[] := array(
        select u.x
        from (
            select pg_snapshot_xip(p_tick.seen) as x
            union
            select p_tick.own_xid where p_tick.own_xid < v_since
        ) as u
        where pg_visible_in_snapshot(u.x, p_snap) and u.x <> p_own
    );
    v_news  fairq.news[];
begin
    with job as (
        select j.tenant, j.state, j.priority, j.run_at, j.job_id from fairq.jobs as j
        where j.queue = p_tick.queue and j.changed_xid >= v_since
          and pg_visible_in_snapshot(j.changed_xid, p_snap) and j.changed_xid <> p_own
        union all
        -- a probe for each: before PostgreSQL 17 "= any" may become a filter over the whole queue
        select j.* from unnest(v_late) as u(x)
        cross join lateral (
            select jj.tenant, jj.state, jj.priority, jj.run_at, jj.job_id from fairq.jobs as jj
            where jj.queue = p_tick.queue and jj.changed_xid = u.x
            offset 0
        ) as j
    ), settlement as materialized (
        select s.ctid as row_id from fairq.settlements as s
        where s.queue = p_tick.queue and s.ended_xid >= v_since
        union all
        select s.row_id from unnest(v_late) as u(x)
        cross join lateral (
            select ss.ctid as row_id from fairq.settlements as ss
            where ss.queue = p_tick.queue and ss.ended_xid = u.x
            offset 0
        ) as s
    ), ended as (
        delete from fairq.settlements as s using settlement as e where s.ctid = e.row_id
        returning s.tenant, s.attempts
    ), wish as (
        select t.tenant from fairq.tenants as t
        where t.queue = p_tick.queue and t.changed_xid >= v_since
          and pg_visible_in_snapshot(t.changed_xid, p_snap) and t.changed_xid <> p_own
        union all
        select t.tenant from unnest(v_late) as u(x)
        cross join lateral (
            select tt.tenant from fairq.tenants as tt
            where tt.queue = p_tick.queue and tt.changed_xid = u.x
            offset 0
        ) as t
    )
    select coalesce(array_agg(row(n.tenant, n.state, n.priority, n.run_at, n.job_id, n.ended)::fairq.news), '{}')
    into v_news
    from (
        select j.tenant, j.state, j.priority, min(j.run_at) as run_at, min(j.job_id) as job_id, 0 as ended
        from job as j group by j.tenant, j.state, j.priority
        union all
        select e.tenant, 'ended', null, null, null, sum(e.attempts)::integer from ended as e group by e.tenant
        union all
        select w.tenant, 'wish', null, null, null, 0 from wish as w
    ) as n;
    return v_news;
end
$fn$;
comment on function fairq._look(fairq.ticks, pg_snapshot, xid8) is 'What the scheduler has not heard of yet. Internal.';
revoke all on function fairq._look(fairq.ticks, pg_snapshot, xid8) from public;

create or replace function fairq._virtual_time(p_tick fairq.ticks)
    returns bigint
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- The least vtime of an eligible flow; when there is none, the greatest ever charged. Never below an earlier one:
-- a flow that comes back one job behind it (R11) must not let newcomers in at its level.
-- Index:  flows_pick_idx, both ends.
begin
    return greatest(
        p_tick.virtual_time,
        coalesce(
            (
                select f.vtime from fairq.flows as f
                where f.queue = p_tick.queue and f.eligible
                  and (f.vtime, f.charge, f.served, f.tenant) >= (
                      (p_tick.pick_floor).vtime, (p_tick.pick_floor).charge, (p_tick.pick_floor).served,
                      (p_tick.pick_floor).tenant
                  )
                order by f.vtime, f.charge, f.served, f.tenant
                limit 1
            ),
            (
                select f.vtime from fairq.flows as f
                where f.queue = p_tick.queue and not f.eligible
                order by f.vtime desc, f.charge desc, f.served desc, f.tenant desc
                limit 1
            ),
            0
        )
    );
end
$fn$;
comment on function fairq._virtual_time(fairq.ticks) is 'The virtual time of a queue. Internal.';
revoke all on function fairq._virtual_time(fairq.ticks) from public;

create or replace function fairq._apply(p_queue text, p_news fairq.news[], p_virtual_time bigint)
    returns fairq.place
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Writes the news into the flows, all of one tenant's in one update; returns the first place of a flow that is then
-- eligible.
--
-- R2:     a flow that becomes backlogged starts no lower than the virtual time. Its debt is kept.
-- R11:    one that was held up (cap, pause) and no longer is starts at most one job below it.
-- Locks:  the queue's lock is held.
-- Index:  flows_key_idx, newest version first; tenants_pkey.
declare
    v_first fairq.place;
begin
    with merged as (
        select
            n.tenant,
            coalesce(sum(n.ended), 0)::integer as ended,
            bool_or(n.state = 'queued') as arrived,
            array[
                min(n.run_at) filter (where n.priority = 0 and n.state = 'queued'),
                min(n.run_at) filter (where n.priority = 1 and n.state = 'queued'),
                min(n.run_at) filter (where n.priority = 2 and n.state = 'queued'),
                min(n.run_at) filter (where n.priority = 3 and n.state = 'queued')
            ] as head_at,
            array[
                min(n.job_id) filter (where n.priority = 0 and n.state = 'queued'),
                min(n.job_id) filter (where n.priority = 1 and n.state = 'queued'),
                min(n.job_id) filter (where n.priority = 2 and n.state = 'queued'),
                min(n.job_id) filter (where n.priority = 3 and n.state = 'queued')
            ] as head_id
        from unnest(p_news) as n
        where n.state <> 'scheduled'
        group by n.tenant
    ), known as materialized (
        -- offset 0: a probe for each tenant, never a join the planner may turn round
        select
            m.*, f.row_id, f.vtime, f.running, f.had_work, f.was_eligible, f.old_at, f.old_id,
            coalesce(t.weight, 1) as weight, t.max_running, coalesce(t.paused, false) as paused,
            -- as in flows.charge, at the weight it has now
            greatest(1, round(1000 * 2520 / coalesce(t.weight, 1)))::bigint as charge
        from merged as m
        left join lateral (
            select
                ff.ctid as row_id, ff.vtime, ff.running, ff.has_work as had_work, ff.eligible as was_eligible,
                ff.head_at as old_at, ff.head_id as old_id
            from fairq.flows as ff
            where ff.queue = p_queue and ff.tenant = m.tenant
            order by ff.stamp desc
            limit 1
        ) as f on true
        left join lateral (
            select tt.weight, tt.max_running, tt.paused from fairq.tenants as tt
            where tt.tenant = m.tenant and tt.queue = p_queue
            offset 0
        ) as t on true
    ), put as (
        update fairq.flows as f
        set
            weight      = k.weight,
            max_running = k.max_running,
            paused      = k.paused,
            running     = k.running - k.ended,
            vtime       = case
                when k.arrived and not k.had_work then greatest(k.vtime, p_virtual_time)
                when k.had_work and not k.was_eligible and not k.paused
                     and (k.max_running is null or k.running - k.ended < k.max_running)
                    then greatest(k.vtime, p_virtual_time - k.charge)
                else k.vtime
            end,
            head_at     = array[
                least(k.old_at[1], k.head_at[1]), least(k.old_at[2], k.head_at[2]),
                least(k.old_at[3], k.head_at[3]), least(k.old_at[4], k.head_at[4])
            ],
            head_id     = array[
                least(k.old_id[1], k.head_id[1]), least(k.old_id[2], k.head_id[2]),
                least(k.old_id[3], k.head_id[3]), least(k.old_id[4], k.head_id[4])
            ],
            stamp       = f.stamp + 1
        from known as k
        where f.ctid = k.row_id
        returning f.vtime, f.charge, f.served, f.tenant, f.eligible
    ), opened as (
        insert into fairq.flows (queue, tenant, weight, max_running, paused, vtime, head_at, head_id)
        select p_queue, k.tenant, k.weight, k.max_running, k.paused, p_virtual_time, k.head_at, k.head_id
        from known as k
        where k.row_id is null and k.arrived
        returning vtime, charge, served, tenant, eligible
    )
    select u.vtime, u.charge, u.served, u.tenant into v_first
    from (select p.* from put as p union all select o.* from opened as o) as u
    where u.eligible
    order by u.vtime, u.charge, u.served, u.tenant
    limit 1;
    return v_first;
end
$fn$;
comment on function fairq._apply(text, fairq.news[], bigint) is 'Writes the news of a look into the flows. Internal.';
revoke all on function fairq._apply(text, fairq.news[], bigint) from public;

create or replace function fairq._pick(
    p_tick fairq.ticks, p_snap pg_snapshot, p_own xid8, p_want integer, p_tenants text[], p_skip bigint[]
)
    returns fairq.pick[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- The next jobs in order, as many as are wanted or as one pass can be sure of; and the flows found empty on the way.
-- Null when no flow is eligible. Nothing is written or locked.
--
-- Fair:   start tags. A flow's nth job has the tag vtime + (n - 1) * charge; the least tags go first, ties by charge,
--         by how often the flow has been picked in this pass, by who was served longest ago, by name. Of each flow only the
--         first few jobs are read; one that has more bounds the pass: nothing at or above its next tag may be chosen yet.
--         Some flows read may turn out empty, so the flows not read bound it too.
-- Index:  flows_pick_idx from the floor, or flows_key_idx for the tenants named; jobs_claim_idx from each flow's heads.
declare
    v_picks fairq.pick[];
begin
    with flow as materialized (
        (
            select f.ctid as row_id, f.tenant, f.vtime, f.charge, f.served, f.head_at, f.head_id,
                   least(coalesce(f.max_running - f.running, p_want), p_want) as room
            from fairq.flows as f
            where p_tenants = '{*}' and f.queue = p_tick.queue and f.eligible
              and (f.vtime, f.charge, f.served, f.tenant) >= (
                  (p_tick.pick_floor).vtime, (p_tick.pick_floor).charge, (p_tick.pick_floor).served,
                  (p_tick.pick_floor).tenant
              )
            order by f.vtime, f.charge, f.served, f.tenant
            limit p_want
        )
        union all
        (
            select f.*
            from unnest(p_tenants) as t(tenant)
            cross join lateral (
                select ff.ctid as row_id, ff.tenant, ff.vtime, ff.charge, ff.served, ff.head_at, ff.head_id,
                       case when ff.eligible then least(coalesce(ff.max_running - ff.running, p_want), p_want) end as room
                from fairq.flows as ff
                where ff.queue = p_tick.queue and ff.tenant = t.tenant
                order by ff.stamp desc
                limit 1
            ) as f
            where p_tenants <> '{*}' and f.room is not null
            order by f.vtime, f.charge, f.served, f.tenant
            limit p_want
        )
    ), deep as materialized (
        -- Deep enough that one pass is mostly enough, shallow enough not to read n jobs of each of n flows; and where there
        -- are as many flows as jobs are wanted, each has one before any has one beyond the start tag of the last.
        select
            f.*, least(
                f.room,
                case when u.flows <= 1 then p_want else 4 + 2 * p_want / u.flows end,
                case when u.flows = p_want then (u.last - f.vtime) / f.charge + 1 end
            )::integer as depth
        from flow as f
        cross join (select count(*) as flows, max(x.vtime) as last from flow as x) as u
    ), head as materialized (
        select
            f.row_id as flow_row, f.tenant, f.charge, f.served, f.room, f.depth,
            h.job_row, h.job_id, h.priority, h.run_at, h.nth, f.vtime + (h.nth - 1) * f.charge as tag,
            h.next_priority, h.next_run_at, h.next_job_id
        from deep as f
        left join lateral (
            select
                q.*, row_number() over ()::integer as nth, lead(q.priority) over () as next_priority,
                lead(q.run_at) over () as next_run_at, lead(q.job_id) over () as next_job_id
            from (
                -- class by class in order, each from its head: the order of the index, with nothing to sort
                select j.*
                from unnest(f.head_at, f.head_id) with ordinality as c(run_at, job_id, class)
                cross join lateral (
                    select jj.ctid as job_row, jj.job_id, jj.priority, jj.run_at
                    from fairq.jobs as jj
                    where jj.queue = p_tick.queue and jj.tenant = f.tenant and jj.state = 'queued'
                      and jj.priority = c.class - 1
                      and (jj.run_at, jj.job_id) >= (c.run_at, c.job_id)
                      -- only what a look has seen: the rest is news for the next one
                      and jj.changed_xid <> p_own and pg_visible_in_snapshot(jj.changed_xid, p_snap)
                      and jj.job_id <> all (p_skip)
                      -- a probe for each job, never a join the planner may turn round
                      and not exists (select from fairq.leases as l where l.job_id = jj.job_id offset 0)
                    order by jj.run_at, jj.job_id
                    limit f.depth + 1
                ) as j
                where c.job_id is not null
                limit f.depth + 1
            ) as q
        ) as h on true
    ), chosen as (
        select h.*
        from head as h
        where h.nth <= h.depth
          and h.tag < coalesce(
              (
                  select min(x.tag + x.charge) from head as x
                  where x.nth = x.depth and x.nth < x.room and x.next_job_id is not null
              ),
              9223372036854775807
          )
          -- flows that were not read wait behind the last one that was: its first job may go, and what goes before it
          and (
              h.nth = 1
              or (select count(*) from flow) < p_want
              or (h.tag, h.charge) < (select x.vtime, x.charge from flow as x order by x.vtime desc, x.charge desc limit 1)
          )
        order by h.tag, h.charge, h.nth, h.served, h.tenant
        limit p_want
    )
    select array_agg(
        row(
            u.turn, u.flow_row, u.job_row, u.tenant, u.job_id, u.priority, u.run_at, u.nth, u.tag, u.charge,
            u.next_priority, u.next_run_at, u.next_job_id
        )::fairq.pick
    )
    into v_picks
    from (
        select
            row_number() over (order by c.tag, c.charge, c.nth, c.served, c.tenant)::integer as turn, c.*
        from chosen as c
        union all
        select null, h.* from head as h where h.job_id is null
    ) as u;
    return v_picks;
end
$fn$;
comment on function fairq._pick(fairq.ticks, pg_snapshot, xid8, integer, text[], bigint[]) is 'Chooses the next jobs of a queue in fair order. Internal.';
revoke all on function fairq._pick(fairq.ticks, pg_snapshot, xid8, integer, text[], bigint[]) from public;

create or replace function fairq._lease(
    p_queue text, p_picks fairq.pick[], p_dispatch bigint, p_owner text, p_caller text, p_now timestamptz,
    p_lease interval
)
    returns setof fairq.claimed_job
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- queued -> running: all of the chosen jobs, or none when one of them is held by somebody who may be taking it away.
--
-- Locks:  the jobs' rows, for key share, skipping those held for update: nothing waits under the queue's lock.
begin
    return query
    with held as materialized (
        select
            p.turn, j.job_id, j.tenant, j.task, j.payload, j.priority, j.attempts + 1 as attempt, j.max_attempts, j.run_at,
            j.created_at, gen_random_uuid() as lease_token
        from unnest(p_picks) as p
        cross join lateral (
            -- its state once more: a lock follows the row to a version that the pick has not seen
            select jj.* from fairq.jobs as jj
            where jj.ctid = p.job_row and jj.state = 'queued'
            for key share skip locked
        ) as j
        where p.turn is not null
    ), complete as materialized (
        select count(*) = (select count(*) from unnest(p_picks) as p where p.turn is not null) as yes from held
    ), leased as (
        insert into fairq.leases (
            job_id, queue, tenant, caller, lease_owner, lease_token, attempt, started_at, lease_expires_at, dispatch
        )
        select
            h.job_id, p_queue, h.tenant, p_caller, p_owner, h.lease_token, h.attempt, p_now, p_now + p_lease,
            p_dispatch + h.turn
        from held as h
        where (select c.yes from complete as c)
    )
    select
        h.job_id, p_queue, h.tenant, h.task, h.payload, h.priority, h.attempt, h.max_attempts, h.lease_token,
        p_now + p_lease, h.run_at, h.created_at
    from held as h
    where (select c.yes from complete as c)
    order by h.turn;
end
$fn$;
comment on function fairq._lease(text, fairq.pick[], bigint, text, text, timestamptz, interval) is 'Leases the chosen jobs to a worker. Internal.';
revoke all on function fairq._lease(text, fairq.pick[], bigint, text, text, timestamptz, interval) from public;

create or replace function fairq._held_by_others(p_picks fairq.pick[])
    returns bigint[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Those of the chosen jobs that _lease could not lock.
begin
    return array(
        select p.job_id from unnest(p_picks) as p
        where p.turn is not null
          and not exists (select from fairq.jobs as j where j.ctid = p.job_row for key share skip locked)
    );
end
$fn$;
comment on function fairq._held_by_others(fairq.pick[]) is 'Which of the chosen jobs are held by other sessions. Internal.';
revoke all on function fairq._held_by_others(fairq.pick[]) from public;

create or replace function fairq._charge(p_picks fairq.pick[], p_dispatch bigint)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Moves each picked flow past its jobs: charged, counted, its heads at the next one. A flow found empty only loses its
-- heads.
--
-- Locks:  the queue's lock is held.
begin
    update fairq.flows as f
    set
        vtime   = f.vtime + s.took * f.charge,
        running = f.running + s.took,
        served  = coalesce(p_dispatch + s.turn, f.served),
        stamp   = f.stamp + 1,
        -- priorities before the next job's are used up, those after it are as they were
        head_at = array[
            case when s.next_priority = 0 then s.next_run_at end,
            case when s.next_priority = 1 then s.next_run_at when s.next_priority < 1 then f.head_at[2] end,
            case when s.next_priority = 2 then s.next_run_at when s.next_priority < 2 then f.head_at[3] end,
            case when s.next_priority = 3 then s.next_run_at when s.next_priority < 3 then f.head_at[4] end
        ],
        head_id = array[
            case when s.next_priority = 0 then s.next_job_id end,
            case when s.next_priority = 1 then s.next_job_id when s.next_priority < 1 then f.head_id[2] end,
            case when s.next_priority = 2 then s.next_job_id when s.next_priority < 2 then f.head_id[3] end,
            case when s.next_priority = 3 then s.next_job_id when s.next_priority < 3 then f.head_id[4] end
        ]
    from (
        select distinct on (p.flow_row)
            p.flow_row, coalesce(p.nth, 0) as took, p.turn, p.next_priority, p.next_run_at, p.next_job_id
        from unnest(p_picks) as p
        order by p.flow_row, p.nth desc
    ) as s
    where f.ctid = s.flow_row;
end
$fn$;
comment on function fairq._charge(fairq.pick[], bigint) is 'Charges the flows for the chosen jobs. Internal.';
revoke all on function fairq._charge(fairq.pick[], bigint) from public;

create or replace function fairq._pick_floor(p_tick fairq.ticks)
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
    where f.queue = p_tick.queue and f.eligible
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
comment on function fairq._pick_floor(fairq.ticks) is 'Where the next pick may start to read. Internal.';
revoke all on function fairq._pick_floor(fairq.ticks) from public;

create or replace function fairq._write_tick(p_tick fairq.ticks)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- The memory for the next look: a new row, and the last one removed.
begin
    p_tick.pick_floor := fairq._pick_floor(p_tick);
    delete from fairq.ticks as t where t.queue = p_tick.queue and t.tick_id = p_tick.tick_id;
    p_tick.tick_id := p_tick.tick_id + 1;
    insert into fairq.ticks select p_tick.*;
end
$fn$;
comment on function fairq._write_tick(fairq.ticks) is 'Writes down what the scheduler must remember. Internal.';
revoke all on function fairq._write_tick(fairq.ticks) from public;

create or replace function fairq._catch_up(
    p_tick fairq.ticks, p_snap pg_snapshot, p_own xid8, p_now timestamptz, p_limit integer
)
    returns fairq.ticks
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Brings the flows up to date with all that p_snap can see, and with the clock; returns the tick as it is then.
-- Its ticked_at is p_now when it is worth writing down.
--
-- Locks:  the queue's lock is held.
declare
    v_news  fairq.news[] := fairq._look(p_tick, p_snap, p_own);
    v_moved fairq.moved;
begin
    p_tick.promote_floor := least(
        p_tick.promote_floor, (select min(n.run_at) from unnest(v_news) as n where n.state = 'scheduled')
    );

    v_moved := fairq._expire_due(p_tick, p_now, 100);
    v_news := v_news || v_moved.news;
    p_tick.expire_floor := v_moved.floor;

    v_moved := fairq._promote_due(p_tick, p_snap, p_own, p_now, greatest(p_limit, 100));
    v_news := v_news || v_moved.news;
    p_tick.promote_floor := v_moved.floor;

    if cardinality(v_news) > 0 then
        p_tick.virtual_time := fairq._virtual_time(p_tick);
        p_tick.pick_floor := least(p_tick.pick_floor, fairq._apply(p_tick.queue, v_news, p_tick.virtual_time));
    end if;
    if cardinality(v_news) > 0 or p_tick.ticked_at not between p_now - interval '1 second' and p_now then
        p_tick.ticked_at := p_now;
    end if;
    p_tick.seen := p_snap;
    p_tick.own_xid := p_own;
    return p_tick;
end
$fn$;
comment on function fairq._catch_up(fairq.ticks, pg_snapshot, xid8, timestamptz, integer) is 'Brings the scheduler up to date. Internal.';
revoke all on function fairq._catch_up(fairq.ticks, pg_snapshot, xid8, timestamptz, integer) from public;

create or replace function fairq._reopen(p_tick fairq.ticks, p_job_ids bigint[])
    returns fairq.place
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- A head must not move past a job that was skipped because somebody held it: if they let it go, nothing will tell of
-- it.
begin
    return fairq._apply(
        p_tick.queue,
        array(
            select row(j.tenant, 'queued', j.priority, j.run_at, j.job_id, 0)::fairq.news
            from unnest(p_job_ids) as s(job_id)
            cross join lateral (
                -- its state is looked at outside: in here it would make jobs_claim_idx a candidate
                select jj.tenant, jj.priority, jj.run_at, jj.job_id, jj.state from fairq.jobs as jj
                where jj.job_id = s.job_id
                offset 0
            ) as j
            where j.state = 'queued'
        ),
        p_tick.virtual_time
    );
end
$fn$;
comment on function fairq._reopen(fairq.ticks, bigint[]) is 'Sets heads back to jobs that were skipped. Internal.';
revoke all on function fairq._reopen(fairq.ticks, bigint[]) from public;

create or replace function fairq._dispatch(
    p_queue text, p_owner text, p_caller text, p_limit integer, p_lease interval, p_tenants text[],
    p_now timestamptz default null
)
    returns setof fairq.claimed_job
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- queued -> running: the scheduler's step, whole.
--
-- p_now:  the clock; null for the real one, read once the lock is held. Tests move time here and nowhere else.
-- Fair:   n jobs are n single picks in one hold of the lock; see _pick.
-- Locks:  the queue's lock, to the end of the transaction; everything else is skipped if held.
declare
    v_now      timestamptz;
    v_snap     pg_snapshot;
    v_own      xid8;
    v_tick     fairq.ticks;
    v_was      fairq.ticks;
    v_picks    fairq.pick[];
    v_skip     bigint[] := '{}';
    v_dispatch bigint;
    v_got      integer;
    v_left     integer := p_limit;
begin
    perform fairq._lock_queue(p_queue);
    v_now := coalesce(p_now, clock_timestamp());
    v_own := pg_current_xact_id();
    v_was := fairq._last_tick(p_queue, v_now);
    -- one snapshot judges everything that follows: two statements would have two
    v_snap := pg_current_snapshot();
    v_tick := fairq._catch_up(v_was, v_snap, v_own, v_now, p_limit);

    while v_left > 0 and not (fairq._queue_settings(p_queue)).paused loop
        v_picks := fairq._pick(v_tick, v_snap, v_own, v_left, p_tenants, v_skip);
        exit when v_picks is null;

        v_dispatch := nextval('fairq.dispatch_seq') * 1024;
        return query
        select c.* from fairq._lease(p_queue, v_picks, v_dispatch, p_owner, p_caller, v_now, p_lease) as c;
        get diagnostics v_got = row_count;
        if v_got = 0 and exists (select from unnest(v_picks) as p where p.turn is not null) then
            v_skip := v_skip || fairq._held_by_others(v_picks);
            continue;
        end if;
        perform fairq._charge(v_picks, v_dispatch);
        v_left := v_left - v_got;
        if v_left > 0 then
            -- or each pass would walk all that the passes before it emptied
            v_tick.pick_floor := fairq._pick_floor(v_tick);
        end if;
    end loop;

    if v_skip <> '{}' then
        v_tick.pick_floor := least(v_tick.pick_floor, fairq._reopen(v_tick, v_skip));
    end if;
    if p_tenants = '{*}' then
        v_tick.found_empty := v_left > 0;
    end if;
    if v_tick.ticked_at = v_now or v_tick.found_empty <> v_was.found_empty or v_skip <> '{}' then
        perform fairq._write_tick(v_tick);
    end if;
end
$fn$;
comment on function fairq._dispatch(text, text, text, integer, interval, text[], timestamptz) is 'The scheduler''s step: brings itself up to date, picks, leases and charges. Internal.';
revoke all on function fairq._dispatch(text, text, text, integer, interval, text[], timestamptz) from public;
