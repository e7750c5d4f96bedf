-- 0002 pause reasons, the way back

do $fn$
begin
    perform pg_catalog.set_config('fairq_install.path', pg_catalog.current_setting('search_path'), true);
end
$fn$;
set local search_path = pg_catalog, pg_temp;
set local lock_timeout = '500ms';

--
-- schema/roles.sql
--

--
-- Roles and schema
--
-- fairq_owner owns the tables and does DDL; fairq_api owns the functions callers run and holds only the rights those
-- functions need. Neither can log in, neither is inherited. The others are groups to grant to logins.

do $fn$
begin
    perform set_config('fairq_install.in_transaction', 'yes', true);
    perform set_config('fairq_install.by', current_user::text, true);
end
$fn$;

do $fn$
declare
    v_role    text;
    v_version integer := current_setting('server_version_num')::integer;
    v_super   boolean := (select r.rolsuper from pg_catalog.pg_roles as r where r.rolname = current_user);
begin
    -- outside a transaction, set local does nothing: everything below would then belong to whoever runs it
    if current_setting('fairq_install.in_transaction', true) is distinct from 'yes' then
        raise exception 'this migration must run in one transaction'
            using errcode = '25P01', hint = 'With psql: psql -X -1 -v ON_ERROR_STOP=1 -f FILE.';
    end if;
    if v_version < 150000 then
        raise exception 'fairq needs PostgreSQL 15 or later, this is %', current_setting('server_version')
            using errcode = '0A000';
    end if;

    if v_version >= 160000 then
        -- a role made here must not be inherited by the login that happens to install fairq
        perform set_config('createrole_self_grant', '', true);
    end if;

    foreach v_role in array array[
        'fairq_owner', 'fairq_api', 'fairq_worker', 'fairq_producer', 'fairq_tenant', 'fairq_operator'
    ] loop
        if to_regrole(quote_ident(v_role)) is null then
            if current_setting('fairq_install.make_roles', true) = 'no' then
                raise exception 'role % does not exist, and no role was to be made', v_role
                    using
                        errcode = '42704',
                        hint = format('Run first: create role %I nologin noinherit;', v_role);
            end if;
            begin
                execute format('create role %I nologin noinherit', v_role);
            exception when insufficient_privilege then
                raise exception 'role % does not exist and % may not create it', v_role, current_user
                    using
                        errcode = '42501',
                        hint = format(
                            'Ask a role with CREATEROLE to run: create role %I nologin noinherit;', v_role
                        );
            when duplicate_object or unique_violation then
                -- another database of this cluster is being installed at the same moment
                null;
            end;
        end if;
    end loop;

    -- The installer acts as the two powers for this transaction only; finish.sql gives back what was taken here.
    perform set_config('fairq_install.taken', '', true);
    foreach v_role in array array['fairq_owner', 'fairq_api'] loop
        continue when v_super
            or pg_has_role(current_user, v_role, case when v_version >= 160000 then 'SET' else 'MEMBER' end);
        begin
            execute format(
                'grant %I to current_user %s', v_role,
                case when v_version >= 160000 then 'with inherit false, set true' else '' end
            );
        exception when insufficient_privilege then
            raise exception '% may not act as %', current_user, v_role
                using
                    errcode = '42501',
                    hint = format(
                        'Ask its administrator to run: grant %I to %I%s;', v_role, current_user,
                        case when v_version >= 160000 then ' with inherit false, set true' else '' end
                    );
        end;
        perform set_config('fairq_install.taken', current_setting('fairq_install.taken') || ' ' || v_role, true);
    end loop;
end
$fn$;

-- What the powers rest on: nobody but an installer is one of them, and they have no power beyond their grants.
do $fn$
declare
    v_role  text;
    v_found text;
begin
    foreach v_role in array array['fairq_owner', 'fairq_api'] loop
        -- one role for everything, which installs too: no separation, so nothing to check; see docs/security.md
        continue when v_role = current_user;

        select concat_ws(
            ' ', case when r.rolcanlogin then 'login' end, case when r.rolsuper then 'superuser' end,
            case when r.rolbypassrls then 'bypassrls' end, case when r.rolcreaterole then 'createrole' end,
            case when r.rolcreatedb then 'createdb' end, case when r.rolreplication then 'replication' end
        ) into v_found
        from pg_catalog.pg_roles as r
        where r.rolname = v_role;
        if v_found <> '' then
            raise exception 'role % has %, and must have no such right', v_role, v_found
                using
                    errcode = '55000',
                    hint = format(
                        'Ask its administrator to run: alter role %I no%s;', v_role, replace(v_found, ' ', ' no')
                    );
        end if;

        select string_agg(quote_ident(r.rolname), ', ' order by r.rolname) into v_found
        from pg_catalog.pg_roles as r
        where r.rolcanlogin and not r.rolsuper and r.rolname not in (v_role, current_user)
          and (
              pg_has_role(r.oid, v_role, 'USAGE')
              or pg_has_role(
                  r.oid, v_role,
                  case when current_setting('server_version_num')::integer >= 160000 then 'SET' else 'MEMBER' end
              )
          );
        if v_found <> '' and current_setting('fairq_install.trust_members', true) is distinct from 'yes' then
            raise exception 'role % can be used by %', v_role, v_found
                using
                    errcode = '55000',
                    hint = format('Revoke it: revoke %I from %s; ', v_role, v_found)
                        || 'or trust them with every row: set fairq_install.trust_members = ''yes'';';
        end if;
    end loop;

    -- a list, which is empty where nobody plays the tenant
    select string_agg(quote_ident(r.rolname), ', ') into v_found
    from pg_catalog.pg_roles as r
    where r.rolname in ('', 'fairq_tenant') and (r.rolsuper or r.rolbypassrls);
    if v_found <> '' then
        raise exception 'role % is not bound by row-level security: its members would see every tenant', v_found
            using
                errcode = '55000',
                hint = format('Ask its administrator to run: alter role %s nosuperuser nobypassrls;', v_found);
    end if;
end
$fn$;

do $fn$
begin
    if to_regnamespace('fairq') is null then
        begin
            create schema fairq authorization fairq_owner;
        exception when insufficient_privilege then
            raise exception '% may not create a schema in database %', current_user, current_database()
                using
                    errcode = '42501',
                    hint = format(
                        'Ask its owner for the schema, with authorization %I, or for: grant create on database %I to %I;',
                        'fairq_owner', current_database(), current_user
                    );
        end;
    elsif (select n.nspowner from pg_catalog.pg_namespace as n where n.oid = 'fairq'::regnamespace)
          <> 'fairq_owner'::regrole then
        raise exception 'schema fairq exists and belongs to another role'
            using
                errcode = '42501',
                hint = format('Drop it, or run: alter schema fairq owner to %I;', 'fairq_owner');
    end if;
end
$fn$;

set local role fairq_owner;
comment on schema fairq is 'A fair, multi-tenant, durable job queue.';
grant usage, create on schema fairq to fairq_api;

-- The global form: the IN SCHEMA form does not take away what PUBLIC has by default. A login that plays these parts
-- itself has habits of its own, which stay: what else it makes elsewhere is its own affair.
do $fn$
begin
    if current_user <> current_setting('fairq_install.by') then
        alter default privileges revoke execute on functions from public;
        alter default privileges revoke usage on types from public;
    end if;
end
$fn$;
set local role fairq_api;
do $fn$
begin
    if current_user <> current_setting('fairq_install.by') then
        alter default privileges revoke execute on functions from public;
    end if;
end
$fn$;

--
-- changes
--

set local role fairq_owner;
lock table fairq.queues, fairq.tenants in access exclusive mode;

set local role fairq_api;
drop function fairq.pauses(text, integer);
drop function fairq.pause_tenant_because(text, text, text);
drop function fairq.resume_queue(text);
drop function fairq.pause_queue(text, text);
drop function fairq._say_why(text, text, text);
drop function fairq._check_reason(text);
drop function fairq._pause_words(text, text);
set local role fairq_owner;
drop trigger queues_note_pause on fairq.queues;
drop trigger tenants_note_pause on fairq.tenants;
drop trigger tenants_forget_pause on fairq.tenants;
drop function fairq._note_pause();
drop index fairq.tenants_pause_idx;
drop table fairq.pause_notes;
drop type fairq.pause_stat;

--
-- schema/install.sql
--

-- owned by fairq_owner: what the data is, and who may see it
set local role fairq_owner;

--
-- schema/install.sql
--

-- owned by fairq_owner: the few functions that need its power

--
-- schema/functions/version.sql
--

--
-- version: which schema this is, for whoever has no other record
--

create or replace function fairq.schema_version()
    returns integer
    language sql
    immutable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $fn$
    select 1
$fn$;
comment on function fairq.schema_version() is 'The schema version installed here: the number of the last migration.';
revoke all on function fairq.schema_version() from public;
grant execute on function fairq.schema_version(
) to fairq_api, fairq_worker, fairq_producer, fairq_tenant, fairq_operator;

--
-- schema/functions/operator_rows.sql
--

--
-- operators' rows: a change of a tenant's row reaches the scheduler through its look
--

create or replace function fairq._mark_tenant_changed()
    returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
begin
    new.changed_xid := pg_current_xact_id();
    return new;
end
$fn$;
comment on function fairq._mark_tenant_changed() is 'Trigger: stamps a tenant''s row with the transaction that changed it.';
revoke all on function fairq._mark_tenant_changed() from public;

create or replace trigger tenants_mark_changed
before insert or update on fairq.tenants
for each row execute function fairq._mark_tenant_changed();

create or replace function fairq._keep_tenant_row()
    returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- A row that is gone cannot say so; one that says the same can: what * gives, else the defaults. If it did so already,
-- there is nothing to say.
begin
    insert into fairq.tenants (queue, tenant, weight, max_running, paused, rate, burst)
    select
        old.queue, old.tenant, coalesce(t.weight, 1), t.max_running, coalesce(t.paused, false), t.rate,
        coalesce(t.burst, 1)
    from (values (old.queue)) as q(queue)
    left join fairq.tenants as t on t.queue = q.queue and t.tenant = '*' and old.tenant <> '*'
    where (old.weight, old.max_running, old.paused, old.rate, old.burst) is distinct from (
        coalesce(t.weight, 1), t.max_running, coalesce(t.paused, false), t.rate, coalesce(t.burst, 1)
    );
    return null;
end
$fn$;
comment on function fairq._keep_tenant_row() is 'Trigger: a deleted tenant''s row leaves one of the wishes of *, or of defaults, so that the scheduler learns of it.';
revoke all on function fairq._keep_tenant_row() from public;

create or replace trigger tenants_keep_row
after delete on fairq.tenants
for each row execute function fairq._keep_tenant_row();

--
-- schema/install.sql
--

-- owned by fairq_api: everything callers run, in the order of a job's life
set local role fairq_api;

--
-- schema/functions/see.sql
--

--
-- see: what waits, what runs, and why a job has not started
--
-- Counts stop at 10,000, of one tenant among many at 1,000: a look at a queue must cost the same whatever its
-- backlog. Wishes, caps and rates are shown as the next claim will find them; virtual times and the minute's counters
-- as the last one left them. What no count can tell at a bounded cost, whose the backlog is, a sample tells.

create or replace function fairq._in_last_minute(p_minute bigint, p_counts bigint[], p_now timestamptz)
    returns double precision
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
-- Counters of a minute of the clock and of the one before, as of the sixty seconds up to p_now: this minute, and as
-- much of the one before as belongs to them, as if it had been even.
declare
    v_minute bigint := floor(extract(epoch from p_now) / 60);
    v_rest   double precision := 1 - (extract(epoch from p_now) / 60 - v_minute);
begin
    return case p_minute
        when v_minute then p_counts[1] + v_rest * p_counts[2]
        when v_minute - 1 then v_rest * p_counts[1]
        else 0
    end;
end
$fn$;
comment on function fairq._in_last_minute(bigint, bigint[], timestamptz) is 'What two counters say of the last minute. Internal.';
revoke all on function fairq._in_last_minute(bigint, bigint[], timestamptz) from public;

create or replace function fairq._next_queue(p_after text, p_before text)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- The first queue with jobs whose name is above p_after and below p_before; null is no bound.
--
-- Index:  jobs_look_idx, one probe.
begin
    -- one condition with "or" would be no bound for the index
    if p_before is null then
        return (select j.queue from fairq.jobs as j where j.queue > p_after order by j.queue limit 1);
    end if;
    return (
        select j.queue from fairq.jobs as j
        where j.queue > p_after and j.queue < p_before
        order by j.queue
        limit 1
    );
end
$fn$;
comment on function fairq._next_queue(text, text) is 'The next queue that has jobs. Internal.';
revoke all on function fairq._next_queue(text, text) from public;

create or replace function fairq._queue_names()
    returns setof text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- Every queue there is: claimed from, set by an operator, or with jobs that wait for their first claim.
--
-- Jobs are looked for in the gaps between the names that are known already, and only there: a queue in use may begin
-- with any number of dead entries.
-- Index:  jobs_look_idx: a probe for each queue.
begin
    return query
    with recursive known as materialized (
        select s.queue as name from fairq.schedulers as s
        union
        select q.queue from fairq.queues as q where q.queue <> '*'
    ), gap as (
        select b.name as low, lead(b.name) over (order by b.name collate "C") as high
        from (select '' as name union all select k.name from known as k) as b
    ), new(name, high) as (
        select fairq._next_queue(g.low, g.high), g.high from gap as g
        union all
        select fairq._next_queue(n.name, n.high), n.high from new as n where n.name is not null
    )
    select a.name
    from (select k.name from known as k union all select n.name from new as n) as a
    where a.name is not null
    order by a.name collate "C";
end
$fn$;
comment on function fairq._queue_names() is 'The names of all queues. Internal.';
revoke all on function fairq._queue_names() from public;

create or replace function fairq._count_queued(p_queue text, p_tenant text, p_running bigint, p_most bigint)
    returns bigint
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- How many jobs of a tenant wait, p_most at most: those in state queued without the ones that run.
--
-- Index:  jobs_claim_idx.
begin
    return greatest(0, count(*) - p_running)
    from (
        select from fairq.jobs as j
        where j.queue = p_queue and j.tenant = p_tenant and j.state = 'queued'
        order by j.priority, j.run_at, j.job_id
        limit p_most + p_running
    ) as n;
end
$fn$;
comment on function fairq._count_queued(text, text, bigint, bigint) is 'Counts the waiting jobs of a tenant. Internal.';
revoke all on function fairq._count_queued(text, text, bigint, bigint) from public;

create or replace function fairq._oldest_wait(p_queue text, p_now timestamptz)
    returns interval
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- How long the longest waiting queued job could have started; of the first 1,000 tenants and priorities, by name.
--
-- Index:  jobs_claim_idx: from one tenant's priority to the next, and past the jobs that run.
begin
    return (
        with recursive class as (
            (
                select j.tenant, j.priority, 1 as nth from fairq.jobs as j
                where j.queue = p_queue and j.state = 'queued'
                order by j.tenant, j.priority
                limit 1
            )
            union all
            select n.tenant, n.priority, c.nth + 1
            from class as c
            cross join lateral (
                select j.tenant, j.priority from fairq.jobs as j
                where j.queue = p_queue and j.state = 'queued' and (j.tenant, j.priority) > (c.tenant, c.priority)
                order by j.tenant, j.priority
                limit 1
            ) as n
            where c.nth < 1000
        )
        select max(greatest(interval '0', p_now - greatest(h.run_at, h.created_at)))
        from class as c
        cross join lateral (
            select j.run_at, j.created_at from fairq.jobs as j
            where j.queue = p_queue and j.state = 'queued' and j.tenant = c.tenant and j.priority = c.priority
              and not exists (select from fairq.leases as l where l.job_id = j.job_id offset 0)
            order by j.run_at, j.job_id
            limit 1
        ) as h
    );
end
$fn$;
comment on function fairq._oldest_wait(text, timestamptz) is 'How long the longest waiting job waits. Internal.';
revoke all on function fairq._oldest_wait(text, timestamptz) from public;

create or replace function fairq._oldest_wait_of(p_queue text, p_tenant text, p_now timestamptz)
    returns interval
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- How long the longest waiting queued job of a tenant could have started.
--
-- Index:  jobs_claim_idx: the head of each priority, past the jobs that run.
begin
    return (
        select max(greatest(interval '0', p_now - greatest(h.run_at, h.created_at)))
        from generate_series(0, 3) as p(priority)
        cross join lateral (
            select j.run_at, j.created_at from fairq.jobs as j
            where j.queue = p_queue and j.state = 'queued' and j.tenant = p_tenant
              and j.priority = p.priority::smallint
              and not exists (select from fairq.leases as l where l.job_id = j.job_id offset 0)
            order by j.run_at, j.job_id
            limit 1
        ) as h
    );
end
$fn$;
comment on function fairq._oldest_wait_of(text, text, timestamptz) is 'How long the longest waiting job of a tenant waits. Internal.';
revoke all on function fairq._oldest_wait_of(text, text, timestamptz) from public;

create or replace function fairq._started_lately(p_queue text, p_now timestamptz)
    returns double precision
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- Jobs started in the last minute; of tenants that were served in it among those furthest in virtual time.
--
-- Index:  flows_pick_idx, both ends, at most 10,000 entries of each.
begin
    return coalesce(sum(fairq._in_last_minute(f.minute, f.started::bigint[], p_now)), 0)
    from (
        (
            select ff.minute, ff.started from fairq.flows as ff
            where ff.queue = p_queue and ff.eligible
            order by ff.vtime desc, ff.charge desc, ff.served desc, ff.tenant desc
            limit 10000
        )
        union all
        (
            select ff.minute, ff.started from fairq.flows as ff
            where ff.queue = p_queue and not ff.eligible
            order by ff.vtime desc, ff.charge desc, ff.served desc, ff.tenant desc
            limit 10000
        )
    ) as f
    where f.minute >= floor(extract(epoch from p_now) / 60) - 1;
end
$fn$;
comment on function fairq._started_lately(text, timestamptz) is 'Counts the jobs of a queue that were started in the last minute. Internal.';
revoke all on function fairq._started_lately(text, timestamptz) from public;

create or replace function fairq.queue_stats(p_queue text default null)
    returns setof fairq.queue_stat
    language plpgsql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
as $fn$
-- Long:   one row of columns that have nothing to do with each other.
-- Index:  jobs_claim_idx, jobs_promote_idx, leases_expire_idx, flows_pick_idx, finished_jobs_failed_idx; at most 10,000
--         entries of each for a queue, of the ends of flows_pick_idx 30,000.
declare
    v_now timestamptz := clock_timestamp();
begin
    return query
    select
        s.queue, q.paused, q.charge, q.max_running, q.rate, q.burst, coalesce(t.backlogged, 0),
        (select count(*) from (
            select from fairq.flows as f where f.queue = s.queue and f.eligible limit 10000
        ) as n) + fairq._eligible_change(s.queue, t, q, v_now),
        (select greatest(0, count(*) - r.running) from (
            select from fairq.jobs as j where j.queue = s.queue and j.state = 'queued'
            order by j.tenant, j.priority, j.run_at, j.job_id
            limit 10000 + r.running
        ) as n),
        (select count(*) from (
            select from fairq.jobs as j where j.queue = s.queue and j.state = 'scheduled'
            order by j.run_at, j.job_id
            limit 10000
        ) as n),
        r.running, fairq._oldest_wait(s.queue, v_now),
        (select min(j.run_at) from fairq.jobs as j where j.queue = s.queue and j.state = 'scheduled'), t.ticked_at,
        fairq._started_lately(s.queue, v_now),
        (select count(*) from (
            select from fairq.leases as l
            where l.queue = s.queue and l.lease_expires_at >= t.expire_floor and l.lease_expires_at <= v_now
            order by l.lease_expires_at
            limit 10000
        ) as n),
        (select count(*) from (
            select f.state from fairq.finished_jobs as f
            where f.queue = s.queue and f.state <> 'succeeded'
            order by f.finished_at desc
            limit 10000
        ) as n where n.state = 'dead')
    from fairq._queue_names() as s(queue)
    cross join lateral fairq._queue_settings(s.queue) as q
    cross join lateral fairq._newest_tick(s.queue) as t
    cross join lateral (
        select count(*) as running from (
            -- none ends before the floor: so no dead beginning is walked
            select from fairq.leases as l where l.queue = s.queue and l.lease_expires_at >= t.expire_floor
            order by l.lease_expires_at
            limit 10000
        ) as n
    ) as r
    where p_queue is null or s.queue = p_queue
    order by s.queue collate "C";
end
$fn$;
comment on function fairq.queue_stats(text) is 'One row for each queue that was claimed from, set by an operator or has jobs: its settings, how many tenants and jobs wait and run (counts stop at 10,000), how long the oldest waits, when the next scheduled one is due, the scheduler''s last tick (null: never claimed from), how many jobs were started in the last minute, whose leases are over, and are dead.';
revoke all on function fairq.queue_stats(text) from public;
grant execute on function fairq.queue_stats(text) to fairq_operator, fairq_worker;

create or replace function fairq._foreseen(
    p_queue text, p_tenant text, p_tick fairq.ticks, p_settings fairq.queues, p_now timestamptz
)
    returns fairq.flows
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- A tenant's flow as a claim would find it now, but for attempts and jobs the scheduler has not heard of yet.
--
-- Index:  flows_key_idx, newest version first; tenants_pkey.
declare
    v_flow fairq.flows;
    v_was  fairq.flows;
begin
    select f.* into v_was from fairq.flows as f
    where f.queue = p_queue and f.tenant = p_tenant
    order by f.stamp desc
    limit 1;
    v_flow := fairq._wished(v_was, fairq._wish(p_queue, p_tenant));
    v_flow.queue := p_queue;
    v_flow.tenant := p_tenant;
    v_flow.vtime := coalesce(v_was.vtime, 0);
    v_flow.estimate := coalesce(v_was.estimate, p_tick.mean, 1000);
    v_flow.running := coalesce(v_was.running, 0);
    v_flow.served := coalesce(v_was.served, 0);
    v_flow.has_work := coalesce(v_was.has_work, false);
    v_flow := fairq._refilled(v_flow, v_was, coalesce(v_was.limited and v_was.token_due_at <= p_now, false), p_now);
    v_flow.price := case when p_settings.charge = 'time' then greatest(1, round(v_flow.estimate)) else 1000 end;
    v_flow.charge := greatest(1, round(v_flow.price * 2520 / v_flow.weight));
    return v_flow;
end
$fn$;
comment on function fairq._foreseen(text, text, fairq.ticks, fairq.queues, timestamptz) is 'A flow as the next claim will find it. Internal.';
revoke all on function fairq._foreseen(text, text, fairq.ticks, fairq.queues, timestamptz) from public;

create or replace function fairq._eligible_change(
    p_queue text, p_tick fairq.ticks, p_settings fairq.queues, p_now timestamptz
)
    returns bigint
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- How many more tenants may be picked now than the last look has left: what operators have changed since, and tokens
-- that have come. Of each at most 1,000; where the wish for all (*) has changed, of the tenants, too.
--
-- Index:  tenants_look_idx, flows_token_idx, flows_pick_idx; flows_key_idx for each tenant.
begin
    return (
        with news as materialized (
            select t.tenant from fairq.tenants as t
            where t.queue = p_queue and t.changed_xid >= pg_snapshot_xmin(p_tick.seen)
              and not pg_visible_in_snapshot(t.changed_xid, p_tick.seen)
            limit 1000
        ), restless as (
            select n.tenant from news as n
            union
            (
                select f.tenant from fairq.flows as f
                where f.queue = p_queue and f.limited and f.token_due_at <= p_now
                order by f.token_due_at
                limit 1000
            )
            union
            (
                select f.tenant from fairq.flows as f
                where f.queue = p_queue and f.eligible and exists (select from news as n where n.tenant = '*')
                limit 1000
            )
            union
            (
                select f.tenant from fairq.flows as f
                where f.queue = p_queue and not f.eligible and exists (select from news as n where n.tenant = '*')
                limit 1000
            )
        )
        select coalesce(
            sum((
                n.has_work and not n.paused and not n.limited and coalesce(n.running < n.max_running, true)
            )::integer - f.eligible::integer), 0
        )
        from restless as r
        cross join lateral (
            select ff.eligible from fairq.flows as ff
            where ff.tenant = r.tenant and ff.queue = p_queue
            order by ff.stamp desc
            limit 1
        ) as f
        cross join lateral fairq._foreseen(p_queue, r.tenant, p_tick, p_settings, p_now) as n
    );
end
$fn$;
comment on function fairq._eligible_change(text, fairq.ticks, fairq.queues, timestamptz) is 'What has changed since the last look in how many tenants may be picked. Internal.';
revoke all on function fairq._eligible_change(text, fairq.ticks, fairq.queues, timestamptz) from public;

create or replace function fairq._sampled_backlog(p_queue text)
    returns jsonb
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- Whose the backlog is: of the thousand tenants with the most of a queue's jobs, each one's part of them, as a sample
-- of a thousand pages tells it; all of the table while it has no more. Where one tenant floods a queue of thousands,
-- nothing else finds it at a bounded cost.
--
-- Index:  none, by design: 1,000 pages of jobs, drawn at random.
declare
    v_percent double precision := least(
        100, 100 * 1000 * current_setting('block_size')::double precision
        / greatest(1, pg_relation_size('fairq.jobs'::regclass))
    );
begin
    return coalesce(
        (
            select jsonb_object_agg(t.tenant, t.part)
            from (
                select n.tenant, n.jobs / sum(n.jobs) over () as part
                from (
                    select j.tenant, count(*)::double precision as jobs
                    from fairq.jobs as j tablesample system (v_percent)
                    where j.queue = p_queue and j.state = 'queued'
                    group by j.tenant
                ) as n
                order by n.jobs desc
                limit 1000
            ) as t
        ), '{}'
    );
end
$fn$;
comment on function fairq._sampled_backlog(text) is 'Whose the backlog of a queue is, from a sample. Internal.';
revoke all on function fairq._sampled_backlog(text) from public;

create or replace function fairq._running_by_tenant(p_queue text)
    returns jsonb
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- How many jobs of each tenant run; null where there are too many to count.
--
-- Index:  leases_expire_idx, at most 10,000 entries.
declare
    v_running jsonb;
    v_sum     bigint;
begin
    select coalesce(jsonb_object_agg(r.tenant, r.running), '{}'), coalesce(sum(r.running), 0) into v_running, v_sum
    from (
        select l.tenant, count(*) as running
        from (
            select ll.tenant from fairq.leases as ll where ll.queue = p_queue limit 10000
        ) as l
        group by l.tenant
    ) as r;
    return case when v_sum < 10000 then v_running end;
end
$fn$;
comment on function fairq._running_by_tenant(text) is 'Counts running jobs by tenant. Internal.';
revoke all on function fairq._running_by_tenant(text) from public;

create or replace function fairq.tenant_stats(
    p_queue text, p_tenant text default null, p_limit integer default 100, p_by text default 'turn'
)
    returns setof fairq.tenant_stat
    language plpgsql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
as $fn$
-- A tenant had work in the last minute if it has some now or was served in it. Its share is of what was spent, at the
-- price of the claim; the share it was entitled to is its weight's among all that had work.
--
-- Measured with 300,000 jobs of 2,000 tenants, never vacuumed: 70,000 pages for a hundred tenants, 8,000 for the ten
-- with most of the backlog, 1,000 for one; with 12,000 tenants, 12,000 for one: a page for each that may have been
-- served in the last minute.
-- Long:   one statement: the shares are of a whole that must be read with them.
-- Index:  flows_key_idx for one tenant; flows_pick_idx, both ends, at most 10,000 entries of each; leases_expire_idx;
--         jobs_claim_idx, at most 1,000 entries for a tenant beyond what runs. And 1,000 pages of jobs, see
--         _sampled_backlog().
-- Raises: 22023 for a bad queue, tenant, limit or order.
declare
    v_now      timestamptz := clock_timestamp();
    v_tick     fairq.ticks := fairq._newest_tick(p_queue);
    v_settings fairq.queues := fairq._queue_settings(p_queue);
    v_virtual  bigint := fairq._virtual_time(v_tick);
    v_running  jsonb := fairq._running_by_tenant(p_queue);
    v_backlog  jsonb;
    v_named    text[];
begin
    perform fairq._check_name('p_queue', p_queue, 200);
    perform fairq._check_limit(p_limit, 1000);
    if coalesce(p_by, '') not in ('turn', 'backlog', 'share') then
        perform fairq._refuse('p_by', p_by, 'turn, backlog or share');
    end if;
    if p_tenant is not null then
        perform fairq._check_name('p_tenant', p_tenant, 200);
        v_named := array[p_tenant];
    else
        v_backlog := fairq._sampled_backlog(p_queue);
    end if;
    if p_tenant is null and p_by = 'backlog' then
        v_named := array(
            select b.key from jsonb_each(v_backlog) as b order by b.value::double precision desc limit p_limit
        );
    end if;

    return query
    with known as materialized (
        -- the one asked for, or those with the most jobs, wherever they are
        select f.*
        from unnest(v_named) as u(tenant)
        cross join lateral (
            select
                ff.tenant, ff.eligible, ff.weight, ff.has_work, ff.vtime, ff.charge, ff.served, ff.minute, ff.spent,
                ff.started
            from fairq.flows as ff
            where ff.queue = p_queue and ff.tenant = u.tenant
            order by ff.stamp desc
            limit 1
        ) as f
        union
        -- those that are picked next
        (
            select f.tenant, f.eligible, f.weight, f.has_work, f.vtime, f.charge, f.served, f.minute, f.spent, f.started
            from fairq.flows as f
            where f.queue = p_queue and f.eligible
            order by f.vtime, f.charge, f.served, f.tenant
            limit case when p_tenant is null then p_limit else 0 end
        )
        union
        -- and those that were served lately, which are the furthest
        (
            select f.tenant, f.eligible, f.weight, f.has_work, f.vtime, f.charge, f.served, f.minute, f.spent, f.started
            from fairq.flows as f
            where f.queue = p_queue and f.eligible
            order by f.vtime desc, f.charge desc, f.served desc, f.tenant desc
            limit 10000
        )
        union
        (
            select f.tenant, f.eligible, f.weight, f.has_work, f.vtime, f.charge, f.served, f.minute, f.spent, f.started
            from fairq.flows as f
            where f.queue = p_queue and not f.eligible
            order by f.vtime desc, f.charge desc, f.served desc, f.tenant desc
            limit 10000
        )
    ), minute as materialized (
        select
            k.*, fairq._in_last_minute(k.minute, k.spent, v_now) as cost,
            fairq._in_last_minute(k.minute, k.started::bigint[], v_now) as starts
        from known as k
    ), total as (
        select
            sum(m.cost) as cost,
            v_tick.milliweight / 1000.0::double precision
            + coalesce(sum(m.weight) filter (where m.cost > 0 and not m.has_work), 0) as weight
        from minute as m
    ), shown as materialized (
        select m.*, row_number() over (
            order by
                case p_by when 'backlog' then (v_backlog ->> m.tenant)::double precision when 'share' then m.cost end
                desc nulls last, m.eligible desc, m.vtime, m.charge, m.served, m.tenant
        ) as place
        from minute as m
        where p_tenant is null or m.tenant = p_tenant
        order by place
        limit p_limit
    )
    select
        s.tenant, f.weight, f.max_running, f.rate, f.burst, f.paused, r.running, w.queued, s.starts,
        s.cost / nullif(t.cost, 0),
        case when s.has_work or s.cost > 0 then s.weight / t.weight end,
        l.lag / f.charge,
        case when v_settings.charge = 'time' then l.lag * f.weight / 2520000 end,
        s.vtime,
        case
            when f.paused then 'paused'
            when r.running >= f.max_running then format('at its cap of %s', f.max_running)
            when w.queued = 0 then 'no work'
            when f.limited then format('rate-limited until %s', f.token_due_at)
        end,
        case when not f.paused and coalesce(r.running < f.max_running, true) and w.queued > 0 then f.token_due_at end,
        fairq._oldest_wait_of(p_queue, s.tenant, v_now), (v_backlog ->> s.tenant)::double precision
    from shown as s
    cross join total as t
    cross join lateral fairq._foreseen(p_queue, s.tenant, v_tick, v_settings, v_now) as f
    cross join lateral (
        select case
            when v_running is null then f.running
            else coalesce((v_running ->> s.tenant)::bigint, 0)
        end as running
    ) as r
    cross join lateral (select fairq._count_queued(p_queue, s.tenant, r.running, 1000) as queued) as w
    -- who has no work is owed nothing, but keeps its debt
    cross join lateral (
        select least((v_virtual - s.vtime)::double precision, case when w.queued = 0 then 0 end) as lag
    ) as l
    order by s.place;
end
$fn$;
comment on function fairq.tenant_stats(text, text, integer, text) is 'One row for each tenant the scheduler of a queue knows, up to p_limit; first those that are picked next (p_by turn), that have most of the backlog (backlog) or that had most of the last minute (share); or for p_tenant alone: its wishes, running and queued jobs (counts stop at 1,000), started jobs, share and entitled share in the last minute, how far it is behind (positive) or ahead, what keeps it from being picked, how long its oldest job waits, and about which part of the queue''s backlog is its own.';
revoke all on function fairq.tenant_stats(text, text, integer, text) from public;
grant execute on function fairq.tenant_stats(text, text, integer, text) to fairq_operator;

create or replace function fairq.dead_jobs(p_queue text default null, p_limit integer default 20)
    returns setof fairq.all_jobs
    language plpgsql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
as $fn$
-- Index:  finished_jobs_failed_idx, from its end: the last 10,000 of each queue that failed or were cancelled; primary
--         keys.
-- Raises: 22023 for a bad queue or limit.
begin
    if p_queue is not null then
        perform fairq._check_name('p_queue', p_queue, 200);
    end if;
    perform fairq._check_limit(p_limit, 1000);

    return query
    select a.*
    from (
        select d.job_id, d.finished_at
        from fairq._queue_names() as s(queue)
        cross join lateral (
            select n.job_id, n.finished_at
            from (
                select f.job_id, f.finished_at, f.state from fairq.finished_jobs as f
                where f.queue = s.queue and f.state <> 'succeeded'
                order by f.finished_at desc
                limit 10000
            ) as n
            where n.state = 'dead'
            limit p_limit
        ) as d
        where p_queue is null or s.queue = p_queue
        order by d.finished_at desc
        limit p_limit
    ) as d
    cross join lateral (
        select aa.* from fairq.all_jobs as aa where aa.job_id = d.job_id
        offset 0
    ) as a
    order by d.finished_at desc;
end
$fn$;
comment on function fairq.dead_jobs(text, integer) is 'The jobs that died last, with their last errors, as all_jobs has them: up to p_limit of one queue or of all; looked for among the last 10,000 of each queue that failed or were cancelled.';
revoke all on function fairq.dead_jobs(text, integer) from public;
grant execute on function fairq.dead_jobs(text, integer) to fairq_operator;

create or replace function fairq._ahead(p_job fairq.jobs)
    returns bigint
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- How many jobs of its own tenant go before a job that waits; 10,000 at most.
--
-- Index:  leases_expire_idx, jobs_pkey; jobs_claim_idx. At most 10,000 entries of each.
declare
    v_running bigint;
begin
    select count(*) into v_running
    from (
        select ll.job_id, ll.tenant from fairq.leases as ll where ll.queue = p_job.queue limit 10000
    ) as l
    cross join lateral (
        select jj.priority, jj.run_at, jj.job_id from fairq.jobs as jj where jj.job_id = l.job_id
        offset 0
    ) as j
    where l.tenant = p_job.tenant
      and (j.priority, j.run_at, j.job_id) < (p_job.priority, p_job.run_at, p_job.job_id);

    return greatest(0, count(*) - v_running)
    from (
        select from fairq.jobs as j
        where j.queue = p_job.queue and j.tenant = p_job.tenant and j.state = 'queued'
          and (j.priority, j.run_at, j.job_id) < (p_job.priority, p_job.run_at, p_job.job_id)
        order by j.priority, j.run_at, j.job_id
        limit 10000 + v_running
    ) as n;
end
$fn$;
comment on function fairq._ahead(fairq.jobs) is 'Counts the jobs of a tenant that go before one of its jobs. Internal.';
revoke all on function fairq._ahead(fairq.jobs) from public;

create or replace function fairq._picks_before(p_flow fairq.flows, p_start bigint, p_ahead bigint)
    returns bigint
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- About how many jobs of all tenants are started before the one that has p_ahead of its own tenant's before it, if
-- nothing happens but picks: the start tags below its own, p_start + p_ahead * charge, in the order of _pick().
--
-- Of other tenants it reads the first 1,000, and of their jobs 10,000 in all: a tenant that has more than was read of
-- it has as many as its tags allow.
-- Index:  flows_pick_idx; jobs_claim_idx.
declare
    v_tag bigint := least(9000000000000000000, p_start + p_ahead::numeric * p_flow.charge);
begin
    return p_ahead + coalesce(sum(case when w.queued < f.most then least(p.picks, w.queued) else p.picks end), 0)
    from (
        select u.*, 10000 / count(*) over () as most
        from (
            select ff.* from fairq.flows as ff
            where ff.queue = p_flow.queue and ff.eligible and ff.vtime <= v_tag and ff.tenant <> p_flow.tenant
            order by ff.vtime, ff.charge, ff.served, ff.tenant
            limit 1000
        ) as u
    ) as f
    cross join lateral (
        select (v_tag - f.vtime) / f.charge as whole, (v_tag - f.vtime) % f.charge as rest
    ) as n
    cross join lateral (
        select n.whole + case
            when n.rest > 0 then 1
            when (f.charge, n.whole, f.served, f.tenant) < (p_flow.charge, p_ahead, p_flow.served, p_flow.tenant) then 1
            else 0
        end as picks
    ) as p
    cross join lateral (
        select fairq._count_queued(f.queue, f.tenant, f.running, least(p.picks, f.most)) as queued
    ) as w
    where p.picks > 0;
end
$fn$;
comment on function fairq._picks_before(fairq.flows, bigint, bigint) is 'Estimates how many jobs are started before one. Internal.';
revoke all on function fairq._picks_before(fairq.flows, bigint, bigint) from public;

create or replace function fairq._held_up(
    p_flow fairq.flows, p_tick fairq.ticks, p_settings fairq.queues, p_now timestamptz
)
    returns fairq.wait_reason
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- What keeps a claim from starting any job of a tenant: the queue's pause, cap and rate, then its own. Null when
-- nothing does.
declare
    v_running jsonb := fairq._running_by_tenant(p_flow.queue);
    v_all     bigint := coalesce((select sum(r.value::bigint) from jsonb_each_text(v_running) as r), 0);
    v_own     bigint := coalesce((v_running ->> p_flow.tenant)::bigint, 0);
    v_tokens  double precision := fairq._queue_tokens(p_tick, p_settings, p_now);
    v_reason  text;
    v_words   text;
    v_until   timestamptz;
begin
    if v_running is null then
        v_all := p_tick.running;
        v_own := p_flow.running;
    end if;
    if p_settings.paused then
        v_reason := 'queue_paused';
        v_words := 'its queue is paused';
    elsif v_all >= p_settings.max_running then
        v_reason := 'queue_at_cap';
        v_words := format('its queue is at its cap of %s', p_settings.max_running);
    elsif v_tokens < 1 then
        v_until := p_now + make_interval(secs => (1 - v_tokens) / p_settings.rate);
        v_reason := 'queue_rate_limited';
        v_words := format('its queue is rate-limited until %s', v_until);
    elsif p_flow.paused then
        v_reason := 'tenant_paused';
        v_words := 'its tenant is paused';
    elsif v_own >= p_flow.max_running then
        v_reason := 'tenant_at_cap';
        v_words := format('its tenant is at its cap of %s', p_flow.max_running);
    elsif p_flow.limited then
        v_until := p_flow.token_due_at;
        v_reason := 'tenant_rate_limited';
        v_words := format('its tenant is rate-limited until %s', v_until);
    end if;
    return row('queued', v_reason, v_words, v_until, null, null)::fairq.wait_reason;
end
$fn$;
comment on function fairq._held_up(fairq.flows, fairq.ticks, fairq.queues, timestamptz) is 'What keeps a tenant from being picked. Internal.';
revoke all on function fairq._held_up(fairq.flows, fairq.ticks, fairq.queues, timestamptz) from public;

create or replace function fairq._explain_waiting(p_job fairq.jobs, p_now timestamptz)
    returns fairq.wait_reason
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- Why a job that is queued or due is not running yet.
declare
    v_tick     fairq.ticks := fairq._newest_tick(p_job.queue);
    v_settings fairq.queues := fairq._queue_settings(p_job.queue);
    v_flow     fairq.flows := fairq._foreseen(p_job.queue, p_job.tenant, v_tick, v_settings, p_now);
    v_why      fairq.wait_reason := fairq._held_up(v_flow, v_tick, v_settings, p_now);
    v_is_known boolean := p_job.state = 'queued' and v_flow.has_work and v_tick.own_xid <> p_job.changed_xid
        and pg_visible_in_snapshot(p_job.changed_xid, v_tick.seen);
    v_start    bigint := v_flow.vtime;
begin
    v_why.state := p_job.state;
    v_why.ahead := fairq._ahead(p_job);
    if v_why.reason is not null then
        return v_why;
    end if;

    if not v_flow.has_work then
        -- R2
        v_start := greatest(v_start, fairq._virtual_time(v_tick));
    end if;
    v_why.picks := fairq._picks_before(v_flow, v_start, v_why.ahead);
    v_why.reason := case when v_is_known then 'in_line' else 'not_looked_at' end;
    v_why.sentence := concat(
        case
            when v_is_known then ''
            when v_tick.queue is null then 'nobody has claimed from its queue yet; '
            else 'no claim has looked at its queue since it came; '
        end,
        case
            when v_why.ahead = 0 then 'it is the first of its own tenant''s jobs'
            else format(
                'it is behind %s%s of its own tenant''s jobs', case when v_why.ahead >= 10000 then 'at least ' end,
                v_why.ahead
            )
        end,
        case
            when v_is_known and v_why.picks = 0 then ' and the next of all'
            when v_is_known then format(' and next after about %s picks', v_why.picks)
        end
    );
    return v_why;
end
$fn$;
comment on function fairq._explain_waiting(fairq.jobs, timestamptz) is 'Why a waiting job has not started. Internal.';
revoke all on function fairq._explain_waiting(fairq.jobs, timestamptz) from public;

create or replace function fairq.explain_wait(p_job_id bigint)
    returns fairq.wait_reason
    language plpgsql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
as $fn$
-- Index:  primary keys; see _ahead() and _picks_before().
-- Raises: 22023 for a null id.
declare
    v_now   timestamptz := clock_timestamp();
    v_where text;
    v_job   fairq.jobs;
    v_lease fairq.leases;
begin
    perform fairq._check_id(p_job_id);
    v_where := fairq._find_job(p_job_id);
    if v_where = 'not_found' then
        return row(null, 'not_found', 'not found', null, null, null)::fairq.wait_reason;
    elsif v_where = 'finished' then
        return (
            select row(
                f.state, 'finished',
                case f.state
                    when 'succeeded' then 'it has succeeded'
                    when 'dead' then 'it is dead'
                    else 'it was cancelled'
                end,
                null, null, null
            )::fairq.wait_reason
            from fairq.finished_jobs as f where f.job_id = p_job_id
        );
    end if;

    select j.* into v_job from fairq.jobs as j where j.job_id = p_job_id;
    select l.* into v_lease from fairq.leases as l where l.job_id = p_job_id;
    if v_lease.lease_expires_at <= v_now then
        return row(
            'running', 'lease_expired', 'its lease is over: the next claim of its queue ends the attempt', null, null,
            null
        )::fairq.wait_reason;
    elsif v_lease.job_id is not null then
        return row('running', 'running', 'it runs', null, null, null)::fairq.wait_reason;
    elsif exists (
        select from fairq.ready_picks as r cross join lateral unnest(r.jobs) as p
        where r.queue = v_job.queue and p.job_id = p_job_id
    ) then
        return row('queued', 'ready', 'it is picked: the next claim takes it', null, 0, 0)::fairq.wait_reason;
    elsif v_job.state = 'scheduled' and v_job.run_at > v_now then
        return row(
            'scheduled', 'not_due', format('it is not due before %s', v_job.run_at), v_job.run_at, null, null
        )::fairq.wait_reason;
    end if;
    return fairq._explain_waiting(v_job, v_now);
end
$fn$;
comment on function fairq.explain_wait(bigint) is 'Why a job has not started: its state, a reason, a sentence, until when the reason lasts if that is known, how many of its own tenant''s jobs go before it, and about how many picks.';
revoke all on function fairq.explain_wait(bigint) from public;
grant execute on function fairq.explain_wait(bigint) to fairq_operator, fairq_producer, fairq_tenant;

--
-- schema/finish.sql
--

--
-- The end of an installation: nobody keeps what only the installation needed
--

set local role fairq_owner;
revoke create on schema fairq from fairq_api;
-- one role that plays both parts has just lost it
grant create on schema fairq to fairq_owner;
grant usage on schema fairq to fairq_worker, fairq_producer, fairq_tenant, fairq_operator;

reset role;

do $fn$
declare
    v_role text;
begin
    foreach v_role in array regexp_split_to_array(btrim(current_setting('fairq_install.taken')), ' ') loop
        if v_role <> '' then
            execute format('revoke %I from current_user', v_role);
        end if;
    end loop;
    -- the tool that runs this may write its own tables in the same transaction
    perform set_config(
        'search_path',
        coalesce(nullif(current_setting('fairq_install.path', true), ''), current_setting('search_path')), true
    );
end
$fn$;
