--
-- erase: for the day the law asks; nothing of a tenant is left
--
-- Owned by fairq_owner, as prune().

create or replace function fairq._erase_jobs(p_tenant text, p_limit integer)
    returns setof fairq.upkeep
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- queued, scheduled, succeeded, dead, cancelled -> gone, with their log; running -> asked to stop
--
-- Locks:  the jobs', leases' and finished_jobs' rows, skipping those held by others.
declare
    v_ids  bigint[];
    v_done integer;
begin
    v_ids := array(
        select j.job_id from fairq.jobs as j
        where j.tenant = p_tenant and not exists (select from fairq.leases as l where l.job_id = j.job_id)
        limit p_limit
        for update skip locked
    );
    -- in a statement of its own: it sees what was claimed while the rows were locked
    delete from fairq.jobs as j
    where j.job_id = any (v_ids) and not exists (select from fairq.leases as l where l.job_id = j.job_id);
    get diagnostics v_done = row_count;
    return query
    select
        'jobs', v_done::bigint, exists (
            select from fairq.jobs as j
            where j.tenant = p_tenant and not exists (select from fairq.leases as l where l.job_id = j.job_id)
        ), null;

    v_ids := array(
        select l.job_id from fairq.leases as l
        where l.tenant = p_tenant and l.cancel_requested_at is null
        limit p_limit
        for update skip locked
    );
    update fairq.leases as l set cancel_requested_at = clock_timestamp() where l.job_id = any (v_ids);
    return query
    select
        'leases', 0::bigint, exists (select from fairq.leases as l where l.tenant = p_tenant), (
            select format('%s jobs run, and have been asked to stop', count(*))
            from fairq.leases as l where l.tenant = p_tenant having count(*) > 0
        );

    v_ids := array(
        select f.job_id from fairq.finished_jobs as f where f.tenant = p_tenant limit p_limit for update skip locked
    );
    delete from fairq.finished_jobs as f where f.job_id = any (v_ids);
    return query
    select
        'finished_jobs', cardinality(v_ids)::bigint,
        exists (select from fairq.finished_jobs as f where f.tenant = p_tenant), null;

    v_ids := array(
        select g.log_id from fairq.job_log as g
        where g.tenant = p_tenant
          and not exists (select from fairq.jobs as j where j.job_id = g.job_id)
          and not exists (select from fairq.finished_jobs as f where f.job_id = g.job_id)
        limit p_limit
    );
    delete from fairq.job_log as g where g.log_id = any (v_ids);
    return query
    select
        'job_log', cardinality(v_ids)::bigint, exists (select from fairq.job_log as g where g.tenant = p_tenant), null;
end
$fn$;
comment on function fairq._erase_jobs(text, integer) is 'Erases the jobs of a tenant. Internal.';
revoke all on function fairq._erase_jobs(text, integer) from public;

create or replace function fairq._erase_flow(p_queue text, p_tenant text, p_limit integer)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- What the scheduler knows of a tenant that has no job any more, and what operators want of it; false when that must
-- wait.
--
-- Locks:  the queue's lock, to the end of the transaction; false when somebody has it.
declare
    v_flow fairq.flows;
begin
    perform from fairq.schedulers as s where s.queue = p_queue for update skip locked;
    if not found and exists (select from fairq.schedulers as s where s.queue = p_queue) then
        return false;
    end if;
    if found then
        -- looks, so that no settlement and no pick speaks of the tenant any more, which would make its flow anew
        perform from fairq.reconcile(p_queue, p_limit);
        delete from fairq.flows as f where f.queue = p_queue and f.tenant = p_tenant and f.running = 0
        returning f.* into v_flow;
        if not found and exists (select from fairq.flows as f where f.queue = p_queue and f.tenant = p_tenant) then
            return false;
        end if;
        -- the floor stays where it is, without the name
        update fairq.ticks as t
        set
            backlogged  = t.backlogged - coalesce(v_flow.has_work, false)::integer,
            milliweight = t.milliweight
                - case when v_flow.has_work then round(v_flow.weight * 1000)::bigint else 0 end,
            pick_floor  = case
                when (t.pick_floor).tenant = p_tenant
                    then row((t.pick_floor).vtime, (t.pick_floor).charge, (t.pick_floor).served, '')::fairq.place
                else t.pick_floor
            end
        where t.queue = p_queue and (v_flow.tenant is not null or (t.pick_floor).tenant = p_tenant);
    end if;
    -- twice: the first leaves a row of the usual wishes, for the scheduler to know
    for v_try in 1..2 loop
        delete from fairq.tenants as t where t.queue = p_queue and t.tenant = p_tenant;
    end loop;
    return true;
end
$fn$;
comment on function fairq._erase_flow(text, text, integer) is 'Erases what one queue knows of a tenant. Internal.';
revoke all on function fairq._erase_flow(text, text, integer) from public;

create or replace function fairq.erase_tenant(p_tenant text, p_limit integer default 10000)
    returns setof fairq.upkeep
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- Everything of a tenant goes, in all queues, the jobs first; the scheduler forgets it when it has none any more.
--
-- History has no index by tenant, which every completion would pay for: a slice reads until it has p_limit rows.
-- Locks:  rows of the tenant, skipping those held by others; then each queue's lock, if it is free.
-- Raises: 22023 for a bad argument; 0A000 outside READ COMMITTED.
declare
    v_step  fairq.upkeep;
    v_left  boolean := false;
    v_queue text;
    v_busy  text[] := '{}';
    v_keys  integer;
    v_done  integer := 0;
begin
    if p_tenant is null or p_tenant in ('', '*', '@own') then
        -- _refuse() is not the owner's to call
        raise exception 'p_tenant must be the name of a tenant, not %', coalesce(p_tenant, 'null')
            using errcode = '22023', hint = 'Nothing was changed.';
    end if;
    if p_limit is null or p_limit not between 1 and 100000 then
        raise exception 'p_limit must be a number from 1 to 100000, not %', coalesce(p_limit::text, 'null')
            using errcode = '22023', hint = 'Nothing was changed.';
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'erase_tenant needs READ COMMITTED, not %', current_setting('transaction_isolation')
            using errcode = '0A000', hint = 'On an older snapshot it would not see what must go.';
    end if;

    for v_step in select e.* from fairq._erase_jobs(p_tenant, p_limit) as e loop
        v_left := v_left or v_step.lags;
        return query select v_step.*;
    end loop;

    delete from fairq.job_keys as k where (k.tenant, k.operation_key) in (
        select o.tenant, o.operation_key from fairq.job_keys as o where o.tenant = p_tenant limit p_limit
    );
    get diagnostics v_keys = row_count;
    return query
    select
        'job_keys', v_keys::bigint, exists (select from fairq.job_keys as k where k.tenant = p_tenant), null;
    delete from fairq.access_grants as a where a.tenant = p_tenant;
    get diagnostics v_keys = row_count;
    return query select 'access_grants', v_keys::bigint, false, null;

    if v_left then
        return query select 'flows', 0::bigint, true, 'when its jobs are gone';
        return;
    end if;
    for v_queue in
        select n.queue
        from (
            select f.queue from fairq.flows as f where f.tenant = p_tenant
            union
            select t.queue from fairq.tenants as t where t.tenant = p_tenant
            union
            select t.queue from fairq.ticks as t where (t.pick_floor).tenant = p_tenant
            union
            select s.queue from fairq.settlements as s cross join lateral unnest(s.endings) as e
            where e.tenant = p_tenant
            union
            select r.queue from fairq.ready_picks as r cross join lateral unnest(r.jobs) as p
            where p.tenant = p_tenant
        ) as n
        order by n.queue
    loop
        if fairq._erase_flow(v_queue, p_tenant, p_limit) then
            v_done := v_done + 1;
        else
            v_busy := v_busy || v_queue;
        end if;
    end loop;
    return query
    select
        'flows', v_done::bigint, v_busy <> '{}',
        case when v_busy <> '{}' then 'in use: ' || array_to_string(v_busy, ', ') end;
end
$fn$;
comment on function fairq.erase_tenant(text, integer) is 'Erases everything of one tenant, a slice of at most p_limit rows of each table at a time; what runs is asked to stop first. A row for each table: how many went, and whether some are left. Call it until none lags; enqueue nothing for the tenant meanwhile.';
revoke all on function fairq.erase_tenant(text, integer) from public;
grant execute on function fairq.erase_tenant(text, integer) to fairq_operator;
