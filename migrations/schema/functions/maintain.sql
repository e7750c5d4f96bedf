--
-- maintain: upkeep without a daemon, in slices
--
-- The ring: finished_jobs and job_log lie in four partitions each, of which one is written, for half of the longest
-- retention. So when the turn of the next one comes, what is in it ended at least one and a half retentions ago: it is
-- empty already. Only what has a shorter retention than others, or whose partition could not be emptied in time, is
-- deleted row by row.
--
-- Owned by fairq_owner, as prune().

create or replace function fairq._slice(p_task text, p_done integer, p_is_more boolean)
    returns fairq.upkeep
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
begin
    return row(p_task, p_done, p_is_more, case when p_is_more then 'call again' end)::fairq.upkeep;
end
$fn$;
comment on function fairq._slice(text, integer, boolean) is 'What a slice of a task did. Internal.';
revoke all on function fairq._slice(text, integer, boolean) from public;

create or replace function fairq._written()
    returns integer
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- As the default of the columns slot.
begin
    return coalesce(pg_sequence_last_value('fairq.slot_seq'::regclass) % 4, 0);
end
$fn$;
comment on function fairq._written() is 'The partition that is written. Internal.';
revoke all on function fairq._written() from public;

create or replace function fairq._partition(p_whole regclass, p_slot integer)
    returns regclass
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
begin
    return (
        select c.oid from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
        where i.inhparent = p_whole and right(c.relname, 2) = '_' || p_slot
    );
end
$fn$;
comment on function fairq._partition(regclass, integer) is 'The partition for a slot; null when somebody has taken it away. Internal.';
revoke all on function fairq._partition(regclass, integer) from public;

create or replace function fairq._empty(p_table text)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- One partition, and nothing else. Written out, since there is no dynamic SQL here.
--
-- Locks: the partition, against readers too.
begin
    case p_table
        when 'finished_jobs_0' then truncate only fairq.finished_jobs_0;
        when 'finished_jobs_1' then truncate only fairq.finished_jobs_1;
        when 'finished_jobs_2' then truncate only fairq.finished_jobs_2;
        when 'finished_jobs_3' then truncate only fairq.finished_jobs_3;
        when 'job_log_0' then truncate only fairq.job_log_0;
        when 'job_log_1' then truncate only fairq.job_log_1;
        when 'job_log_2' then truncate only fairq.job_log_2;
        when 'job_log_3' then truncate only fairq.job_log_3;
    end case;
end
$fn$;
comment on function fairq._empty(text) is 'Empties a partition. Internal.';
revoke all on function fairq._empty(text) from public;

create or replace function fairq._lock_partition(p_table text)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Locks: the partition, against readers too: once it is had, nobody is in the middle of writing it.
begin
    case p_table
        when 'finished_jobs_0' then lock table only fairq.finished_jobs_0 in access exclusive mode;
        when 'finished_jobs_1' then lock table only fairq.finished_jobs_1 in access exclusive mode;
        when 'finished_jobs_2' then lock table only fairq.finished_jobs_2 in access exclusive mode;
        when 'finished_jobs_3' then lock table only fairq.finished_jobs_3 in access exclusive mode;
        when 'job_log_0' then lock table only fairq.job_log_0 in access exclusive mode;
        when 'job_log_1' then lock table only fairq.job_log_1 in access exclusive mode;
        when 'job_log_2' then lock table only fairq.job_log_2 in access exclusive mode;
        when 'job_log_3' then lock table only fairq.job_log_3 in access exclusive mode;
    end case;
end
$fn$;
comment on function fairq._lock_partition(text) is 'Locks a partition. Internal.';
revoke all on function fairq._lock_partition(text) from public;

create or replace function fairq._is_over(p_slot integer, p_now timestamptz)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Whether no job of the partition is within the retention of its queue and state; so it is when there is none.
-- Volatile: it is asked again under the lock, and must see then what was committed last.
--
-- Index:  finished_jobs_prune_idx and finished_jobs_failed_idx, from one queue to the next.
begin
    return not exists (
        with recursive good(name) as (
            (
                select f.queue from fairq.finished_jobs as f
                where f.slot = p_slot and f.state = 'succeeded' order by f.queue limit 1
            )
            union all
            select (
                select f.queue from fairq.finished_jobs as f
                where f.slot = p_slot and f.state = 'succeeded' and f.queue > g.name order by f.queue limit 1
            )
            from good as g where g.name is not null
        ), failed(name) as (
            (
                select f.queue from fairq.finished_jobs as f
                where f.slot = p_slot and f.state <> 'succeeded' order by f.queue limit 1
            )
            union all
            select (
                select f.queue from fairq.finished_jobs as f
                where f.slot = p_slot and f.state <> 'succeeded' and f.queue > d.name order by f.queue limit 1
            )
            from failed as d where d.name is not null
        )
        select
        from good as g
        cross join lateral (
            select q.retention as kept from fairq.queues as q
            where q.queue in (g.name, '*') order by q.queue = '*' limit 1
        ) as s
        where exists (
            select from fairq.finished_jobs as f
            where f.slot = p_slot and f.state = 'succeeded' and f.queue = g.name and f.finished_at >= p_now - s.kept
        )
        union all
        select
        from failed as d
        cross join lateral (
            select coalesce(q.retention_failed, q.retention) as kept from fairq.queues as q
            where q.queue in (d.name, '*') order by q.queue = '*' limit 1
        ) as s
        where exists (
            select from fairq.finished_jobs as f
            where f.slot = p_slot and f.state <> 'succeeded' and f.queue = d.name and f.finished_at >= p_now - s.kept
        )
    );
end
$fn$;
comment on function fairq._is_over(integer, timestamptz) is 'Whether all jobs of a partition are past their time. Internal.';
revoke all on function fairq._is_over(integer, timestamptz) from public;

create or replace function fairq._recycle(p_whole regclass, p_slot integer, p_now timestamptz)
    returns text
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Empties a partition that is not written, if it has pages and nothing that must be kept: of the log no row at all.
-- Returns what is in the way.
--
-- Locks:  the partition, against readers too: who reads it is waited for no longer than maintain() says, and nobody
--         waits longer behind this.
declare
    v_table   regclass := fairq._partition(p_whole, p_slot);
    v_name    text := (select c.relname from pg_class as c where c.oid = v_table);
    v_is_free boolean;
begin
    -- twice: for nothing nobody is to wait, and what was committed during the wait is to be seen
    for v_try in 1..2 loop
        v_is_free := case
            when pg_relation_size(v_table) = 0 then false
            when v_name like 'job_log%' then not exists (select from fairq.job_log as g where g.slot = p_slot)
            else fairq._is_over(p_slot, p_now)
        end;
        if not v_is_free then
            return null;
        end if;
        if v_try = 1 then
            perform fairq._lock_partition(v_name);
        end if;
    end loop;
    perform fairq._empty(v_name);
    return null;
exception when lock_not_available then
    return format(
        '%s is read by a transaction that is not over: process %s', v_table,
        coalesce((
            select string_agg(l.pid::text, ', ') from pg_locks as l
            where l.relation = v_table and l.granted and l.pid <> pg_backend_pid()
        ), 'unknown')
    );
end
$fn$;
comment on function fairq._recycle(regclass, integer, timestamptz) is 'Empties a partition whose time is over. Internal.';
revoke all on function fairq._recycle(regclass, integer, timestamptz) from public;

create or replace function fairq._move_log(p_from integer, p_to integer, p_limit integer)
    returns integer
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- The first rows of a partition of the log: those whose jobs are gone go, the others move on to another partition, in
-- the same transaction; returns how many that were.
--
-- Index:  job_log_pkey; jobs_pkey, finished_jobs_pkey.
declare
    v_rows bigint[] := array(
        select g.log_id from fairq.job_log as g where g.slot = p_from order by g.log_id limit p_limit
    );
begin
    insert into fairq.job_log (
        log_id, job_id, queue, tenant, event_type, attempt, actor, started_at, details, created_at, slot
    )
    select
        g.log_id, g.job_id, g.queue, g.tenant, g.event_type, g.attempt, g.actor, g.started_at, g.details,
        g.created_at, p_to
    from fairq.job_log as g
    where g.slot = p_from and g.log_id = any (v_rows)
      and (
          exists (select from fairq.jobs as j where j.job_id = g.job_id offset 0)
          or exists (select from fairq.finished_jobs as f where f.job_id = g.job_id offset 0)
      );
    delete from fairq.job_log as g where g.slot = p_from and g.log_id = any (v_rows);
    return cardinality(v_rows);
end
$fn$;
comment on function fairq._move_log(integer, integer, integer) is 'Clears a partition of the log. Internal.';
revoke all on function fairq._move_log(integer, integer, integer) from public;

create or replace function fairq._maintain_ended(p_longest interval, p_limit integer, p_now timestamptz)
    returns fairq.upkeep
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Ended jobs that are not left to their partition: whose retention is not the longest, and those twice past it.
declare
    v_queue  text;
    v_good   interval;
    v_failed interval;
    v_done   integer := 0;
begin
    for v_queue in select q.name from fairq._ended_queues() as q(name) loop
        select s.retention, coalesce(s.retention_failed, s.retention) into v_good, v_failed
        from fairq.queues as s where s.queue in (v_queue, '*') order by s.queue = '*' limit 1;
        v_done := v_done + fairq._prune_queue(
            v_queue, p_now - v_good * case when v_good < p_longest then 1 else 2 end,
            p_now - v_failed * case when v_failed < p_longest then 1 else 2 end, p_limit - v_done
        );
        exit when v_done >= p_limit;
    end loop;
    return fairq._slice('ended jobs', v_done, v_done >= p_limit);
end
$fn$;
comment on function fairq._maintain_ended(interval, integer, timestamptz) is 'Removes ended jobs row by row. Internal.';
revoke all on function fairq._maintain_ended(interval, integer, timestamptz) from public;

create or replace function fairq._log_to_clear()
    returns integer
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- A partition of the log that has rows and is not written, and whose jobs are gone: but for those that had not ended by
-- then. Null when there is none.
declare
    v_slot integer := fairq._written();
begin
    return (
        select s.slot from generate_series(0, 3) as s(slot)
        where s.slot <> v_slot
          and not exists (select from fairq.finished_jobs as f where f.slot = s.slot)
          and exists (select from fairq.job_log as g where g.slot = s.slot)
        limit 1
    );
end
$fn$;
comment on function fairq._log_to_clear() is 'A partition of the log to be cleared. Internal.';
revoke all on function fairq._log_to_clear() from public;

create or replace function fairq._maintain_ring(p_longest interval, p_now timestamptz)
    returns fairq.upkeep
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Empties partitions whose time is over, and turns the ring when it is time and the next partition is empty.
--
-- A job that ends meanwhile may still be written to the partition before: it is emptied a retention later at the
-- earliest, and only if that job is past its time, too.
declare
    v_since  bigint := pg_sequence_last_value('fairq.slot_seq'::regclass) / 4;
    v_slot   integer := fairq._written();
    v_now    bigint := extract(epoch from p_now);
    v_next   integer := (v_slot + 1) % 4;
    v_turns  bigint := greatest(60, extract(epoch from p_longest) / 2);
    v_is_due boolean;
    v_other  integer;
    v_done   integer := 0;
    v_why    text[] := '{}';
begin
    if (select count(*) from pg_inherits as i where i.inhparent = 'fairq.finished_jobs'::regclass) <> 4
       or (select count(*) from pg_inherits as i where i.inhparent = 'fairq.job_log'::regclass) <> 4 then
        -- its rows go to partition 0: nothing is lost, and nothing is emptied
        return row('partitions', 0, true, 'a partition is missing: see fairq check')::fairq.upkeep;
    end if;
    foreach v_other in array array[(v_slot + 1) % 4, (v_slot + 2) % 4, (v_slot + 3) % 4] loop
        v_why := v_why || fairq._recycle('fairq.finished_jobs'::regclass, v_other, p_now)
            || fairq._recycle('fairq.job_log'::regclass, v_other, p_now);
    end loop;

    -- the clock may have been ahead when the ring was turned last
    v_is_due := v_since is null or v_since > v_now or v_now - v_since >= v_turns;
    if v_is_due and exists (select from fairq.finished_jobs as f where f.slot = v_next) then
        v_why := v_why || format('partition %s, whose turn it is, has jobs that must be kept', v_next);
    elsif v_is_due and exists (select from fairq.job_log as g where g.slot = v_next) then
        v_why := v_why || format('partition %s, whose turn it is, has rows of the log', v_next);
    elsif v_is_due then
        perform setval('fairq.slot_seq', v_now * 4 + case when v_since is null then v_slot else v_next end);
        v_done := 1;
    end if;
    v_why := array_remove(v_why, null);
    return row('partitions', v_done, v_why <> '{}', nullif(array_to_string(v_why, '; '), ''))::fairq.upkeep;
end
$fn$;
comment on function fairq._maintain_ring(interval, timestamptz) is 'Empties partitions and turns the ring. Internal.';
revoke all on function fairq._maintain_ring(interval, timestamptz) from public;

create or replace function fairq.maintain(p_limit integer default 10000)
    returns setof fairq.upkeep
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- as long as a worker or a reader may have to wait behind this
    set lock_timeout = '50ms'
    -- see prune()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
as $fn$
-- succeeded, dead, cancelled -> gone, with their log, when their time is over; keys that have expired; flows nobody
-- needs; the scheduler's counts. Never a job that has not ended.
--
-- A slice, of at most p_limit rows for each task: it may be cut off anywhere, and goes on where it was.
-- Locks:  the row of * in queues, so that of two at once one does nothing; else what its tasks say.
-- Raises: 22023 when p_limit is out of range; 0A000 outside READ COMMITTED.
declare
    v_now     timestamptz := clock_timestamp();
    v_longest interval;
    v_slot    integer;
    v_log     integer := 0;
    v_keys    integer;
    v_flows   integer;
begin
    if p_limit is null or p_limit not between 1 and 100000 then
        -- _refuse() is not the owner's to call
        raise exception 'p_limit must be a number from 1 to 100000, not %', coalesce(p_limit::text, 'null')
            using errcode = '22023', hint = 'Nothing was changed.';
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'maintain needs READ COMMITTED, not %', current_setting('transaction_isolation')
            using errcode = '0A000', hint = 'On an older snapshot it would not see what must be kept.';
    end if;
    perform from fairq.queues as q where q.queue = '*' for update skip locked;
    if not found then
        return query select 'maintain', 0::bigint, false, 'another one is at work';
        return;
    end if;

    v_longest := (select max(greatest(q.retention, q.retention_failed)) from fairq.queues as q);
    return query select u.* from fairq._maintain_ended(v_longest, p_limit, v_now) as u;
    v_slot := fairq._log_to_clear();
    if v_slot is not null then
        v_log := fairq._move_log(v_slot, fairq._written(), p_limit);
    end if;
    v_keys := fairq._prune_keys(p_limit, v_now);
    return query select u.* from fairq._slice('keys', v_keys, v_keys >= p_limit) as u;
    v_flows := fairq._prune_flows(p_limit, v_now);
    return query select u.* from fairq._slice('flows', v_flows, v_flows >= p_limit) as u;
    return query
    select
        'scheduler', coalesce(sum(r.done), 0)::bigint, coalesce(bool_or(r.lags), false),
        string_agg(r.task || ': ' || r.why, '; ')
    from fairq.reconcile(null, p_limit) as r;
    -- last: who looks for a job by its id waits while a partition is locked
    return query select u.* from fairq._maintain_ring(v_longest, v_now) as u;
    return query select u.* from fairq._slice('log', v_log, fairq._log_to_clear() is not null) as u;
end
$fn$;
comment on function fairq.maintain(integer) is 'One slice of upkeep: ended jobs past their retention and their log, partitions, expired keys, idle flows, and the scheduler''s counts. A row for each task: what was done, whether it lags and why. Call it every few minutes, by cron or from a worker, and again while a task says so.';
revoke all on function fairq.maintain(integer) from public;
grant execute on function fairq.maintain(integer) to fairq_operator;
