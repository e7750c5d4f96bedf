-- depends: fairq_0001_initial
-- 0002 pause reasons
--
-- Compiled by ci/new_migration from migrations/schema/, where the schema is meant to be read.
--
-- Why:     a pause says since when, by whom and why, so that one that was forgotten is found
--          enqueue, claim and complete ask less of the server: most of their checks in one statement
-- Tables:  pause_notes is new; tenants and access_grants get an index each, and queues and tenants triggers; what every
--          job passes through loses some checks; ready_picks gets a column; none is rewritten
-- Locks:   queues, tenants, access_grants, jobs, leases, finished_jobs, flows, ticks, settlements and ready_picks, from
--          the first statement to the end: everybody waits for a moment
-- Clients: nothing changes for them; operators get pause_queue, resume_queue, pause_tenant_because and pauses
-- Undo:    reasons and times are forgotten, pauses stay; everybody waits while the checks read jobs, flows and history

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
do $fn$
begin
    lock table
        fairq.queues, fairq.tenants, fairq.access_grants, fairq.jobs, fairq.leases, fairq.finished_jobs,
        fairq.flows, fairq.ticks, fairq.settlements, fairq.ready_picks in access exclusive mode;
end
$fn$;

-- checks that cost every statement more than they are worth: nothing is scanned
-- squawk-ignore-file ban-drop-constraint
alter table fairq.jobs
    drop constraint jobs_priority_known,
    drop constraint jobs_cost_in_range,
    drop constraint jobs_run_at_finite,
    drop constraint jobs_names_not_empty;
alter table fairq.leases
    drop constraint leases_attempt_positive,
    drop constraint leases_ends_after_start,
    drop constraint leases_prepaid_positive,
    drop constraint leases_weighed_iff_prepaid;
alter table fairq.finished_jobs
    drop constraint finished_jobs_started_iff_owned,
    drop constraint finished_jobs_ran_unless_cancelled,
    drop constraint finished_jobs_result_only_if_succeeded,
    drop constraint finished_jobs_slot_known,
    drop constraint finished_jobs_state_known;
alter table fairq.flows
    drop constraint flows_two_minutes,
    drop constraint flows_four_heads;
alter table fairq.settlements
    drop constraint settlements_not_empty,
    -- deleted as soon as it is read: not worth compressing
    alter column endings set storage external;
alter table fairq.ready_picks
    drop constraint ready_picks_not_empty,
    alter column jobs set storage external,
    add column made_at timestamptz,
    alter column made_at set default clock_timestamp();
comment on column fairq.ready_picks.made_at is 'When they were left here. Null: by version 1.';

-- where a queue reads ahead version 1 could lose sight of a job: the next look of such a queue reads all
update fairq.ticks as t
set seen = '1:1:', own_xid = '1'
where (
    select q.read_ahead from fairq.queues as q where q.queue in (t.queue, '*') order by q.queue = '*' limit 1
) > 0;

-- for pages that are yet to be filled
alter index fairq.ticks_pkey set (fillfactor = 25);
alter index fairq.ready_picks_pkey set (fillfactor = 25);

create type fairq.pause_stat as (
    queue     text,
    tenant    text,
    paused_at timestamptz,
    paused_by text,
    reason    text
);
comment on type fairq.pause_stat is 'A row of pauses(). tenant: null where it is the whole queue that is paused. paused_at and paused_by: null of a pause that is older than version 2.';
revoke all on type fairq.pause_stat from public;
grant usage on type fairq.pause_stat to fairq_api;

create table fairq.pause_notes (
    queue     text        collate "C" not null,
    tenant    text        collate "C" not null,
    paused_at timestamptz not null,
    paused_by text        not null,
    reason    text,
    constraint pause_notes_pkey primary key (queue, tenant)
);
alter table fairq.pause_notes enable row level security;
alter table fairq.pause_notes force row level security;

comment on table fairq.pause_notes is 'Since when, by whom and why something is paused: a row for each pause, written and removed by triggers. That it is paused is in queues and tenants.';
comment on column fairq.pause_notes.queue is 'The queue.';
comment on column fairq.pause_notes.tenant is 'The tenant; empty where it is the queue that is paused.';
comment on column fairq.pause_notes.paused_at is 'Since when.';
comment on column fairq.pause_notes.paused_by is 'The role that paused it, or that gave the reason last.';
comment on column fairq.pause_notes.reason is 'What that role said about it, if anything.';
revoke all on fairq.pause_notes from public;
revoke all on type fairq.pause_notes from public;
grant select, insert, delete on fairq.pause_notes to fairq_api;
grant update (paused_by, reason) on fairq.pause_notes to fairq_api;
grant select on fairq.pause_notes to fairq_operator;
create policy owner_does_all on fairq.pause_notes to fairq_owner using (true) with check (true);
create policy api_reads on fairq.pause_notes for select to fairq_api using (true);
create policy api_adds on fairq.pause_notes for insert to fairq_api with check (true);
create policy api_changes on fairq.pause_notes for update to fairq_api using (true) with check (true);
create policy api_removes on fairq.pause_notes for delete to fairq_api using (true);
create policy operator_reads on fairq.pause_notes for select to fairq_operator using (true);

-- the table is locked already, and has no more rows than operators have written
-- squawk-ignore require-concurrent-index-creation
create index tenants_pause_idx on fairq.tenants (queue, tenant) where paused;
comment on index fairq.tenants_pause_idx is 'Ridden by _take and pauses: paused tenants, which are few.';

-- and so is this one
-- squawk-ignore require-concurrent-index-creation
create index access_grants_verb_idx on fairq.access_grants (verb, tenant, queue, role_name);
comment on index fairq.access_grants_verb_idx is 'Ridden by _granted_tenants, _take, enqueue_job and _enqueue_plain_jobs: grants by verb and tenant.';

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
    select 2
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

create or replace function fairq._note_pause()
    returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Since when and by whom something is paused, whichever function or statement it was; forgotten with the pause.
declare
    v_row    jsonb := to_jsonb(case when tg_op = 'DELETE' then old else new end);
    v_tenant text := coalesce(v_row ->> 'tenant', '');
begin
    if tg_op = 'DELETE' or not (v_row ->> 'paused')::boolean then
        delete from fairq.pause_notes as n where n.queue = v_row ->> 'queue' and n.tenant = v_tenant;
    elsif tg_op = 'INSERT' or not old.paused then
        insert into fairq.pause_notes (queue, tenant, paused_at, paused_by)
        values (
            v_row ->> 'queue', v_tenant, clock_timestamp(),
            case when current_setting('role') = 'none' then session_user::text else current_setting('role') end
        )
        on conflict do nothing;
    end if;
    return null;
end
$fn$;
comment on function fairq._note_pause() is 'Trigger: notes since when a queue or tenant is paused and by whom, and forgets it when the pause ends.';
revoke all on function fairq._note_pause() from public;

create or replace trigger queues_note_pause
after insert or delete or update of paused on fairq.queues
for each row execute function fairq._note_pause();

create or replace trigger tenants_note_pause
after insert or update of paused on fairq.tenants
for each row execute function fairq._note_pause();

-- by its name before tenants_keep_row, which may leave a row that is paused
create or replace trigger tenants_forget_pause
after delete on fairq.tenants
for each row execute function fairq._note_pause();

--
-- schema/functions/prune.sql
--

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

--
-- schema/functions/maintain.sql
--

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

--
-- schema/install.sql
--

-- owned by fairq_api: everything callers run, in the order of a job's life
set local role fairq_api;

--
-- schema/functions/_shared.sql
--

--
-- shared: what several rooms use
--
-- A check returns true or raises: so it can be assigned, which costs less than to perform it.

create or replace function fairq._refuse(p_name text, p_value text, p_rule text)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Refuses an argument. What has to add something of its own to 22023, or may not call this (prune), raises it itself.
begin
    raise exception '% must be %, not %', p_name, p_rule, coalesce(left(p_value, 100), 'null')
        using errcode = '22023', hint = 'Nothing was changed.';
end
$fn$;
comment on function fairq._refuse(text, text, text) is 'Raises 22023: the argument, the rule and the value. Internal.';
revoke all on function fairq._refuse(text, text, text) from public;

create or replace function fairq._check_name(p_name text, p_value text, p_longest integer)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Names are kept as they are, never cut. enqueue_job, _enqueue_plain_jobs and claim_jobs ask the same by themselves
-- first.
--
-- Raises: 22023 for a name that is null, nothing but white space, reserved or too long.
begin
    if p_value is null or octet_length(p_value) > p_longest or p_value in ('*', '@own')
       or p_value !~ '[^[:space:]]' then
        perform fairq._refuse(
            p_name, p_value, format('a name of 1 to %s bytes, not blank, not * or @own', p_longest)
        );
    end if;
    return true;
end
$fn$;
comment on function fairq._check_name(text, text, integer) is 'Raises 22023 for a queue, tenant, task or owner that cannot be one. Internal.';
revoke all on function fairq._check_name(text, text, integer) from public;

create or replace function fairq._check_span(p_name text, p_value interval, p_least interval, p_most interval)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 for a span of time that is null or out of range; infinite ones are out of every range. And for one that
--         goes back in one unit and forward in another: compared, a month is 30 days, added, it may be 31.
begin
    if p_value is null or p_value < p_least or p_value > p_most
       or least(
           extract(year from p_value), extract(month from p_value), extract(day from p_value),
           extract(hour from p_value), extract(minute from p_value), extract(second from p_value)
       ) < 0 then
        perform fairq._refuse(
            p_name, p_value::text, format('an interval from %s to %s, no part of it negative', p_least, p_most)
        );
    end if;
    return true;
end
$fn$;
comment on function fairq._check_span(text, interval, interval, interval) is 'Raises 22023 for an interval out of range. Internal.';
revoke all on function fairq._check_span(text, interval, interval, interval) from public;

create or replace function fairq._check_delay(p_delay interval)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 for a delay that is given and negative, infinite or longer than ten years.
begin
    if p_delay is not null then
        perform fairq._check_span('p_delay', p_delay, interval '0', interval '3650 days');
    end if;
end
$fn$;
comment on function fairq._check_delay(interval) is 'Raises 22023 for a delay out of range. Internal.';
revoke all on function fairq._check_delay(interval) from public;

create or replace function fairq._check_run_at(p_run_at timestamptz, p_delay interval)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 for a time that is infinite, a delay out of range, or both a time and a delay.
begin
    if num_nonnulls(p_run_at, p_delay) = 2 then
        perform fairq._refuse('p_run_at and p_delay', format('%s and %s', p_run_at, p_delay), 'one or the other');
    elsif not isfinite(p_run_at) then
        perform fairq._refuse('p_run_at', p_run_at::text, 'a finite time');
    end if;
    perform fairq._check_delay(p_delay);
end
$fn$;
comment on function fairq._check_run_at(timestamptz, interval) is 'Raises 22023 for when a job is not to run. Internal.';
revoke all on function fairq._check_run_at(timestamptz, interval) from public;

create or replace function fairq._check_limit(p_value integer, p_most integer)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 for a p_limit that is null or out of range: nothing is unbounded.
begin
    if p_value is null or p_value not between 1 and p_most then
        perform fairq._refuse('p_limit', p_value::text, format('a number from 1 to %s', p_most));
    end if;
    return true;
end
$fn$;
comment on function fairq._check_limit(integer, integer) is 'Raises 22023 for a p_limit out of range. Internal.';
revoke all on function fairq._check_limit(integer, integer) from public;

create or replace function fairq._check_id(p_job_id bigint)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 for a null. An id that no job has is an outcome, not a mistake.
begin
    if p_job_id is null then
        perform fairq._refuse('p_job_id', null, 'a job''s id');
    end if;
end
$fn$;
comment on function fairq._check_id(bigint) is 'Raises 22023 for the id of no job. Internal.';
revoke all on function fairq._check_id(bigint) from public;

create or replace function fairq._check_held(p_job_id bigint, p_token uuid)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 for a null: a worker that lost its job's id or token must hear it, not that the lease is lost.
begin
    if p_job_id is null then
        perform fairq._refuse('p_job_id', null, 'the id of a claimed job');
    end if;
    if p_token is null then
        perform fairq._refuse('p_token', null, 'the lease_token of a claimed job');
    end if;
    return true;
end
$fn$;
comment on function fairq._check_held(bigint, uuid) is 'Raises 22023 for the id and token of a single verb. Internal.';
revoke all on function fairq._check_held(bigint, uuid) from public;

create or replace function fairq._check_batch(p_job_ids bigint[], p_tokens uuid[])
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 unless the two arrays are of one length, from 1 to 1,000, with no null in them.
begin
    if p_job_ids is null or p_tokens is null or cardinality(p_job_ids) <> cardinality(p_tokens)
       or cardinality(p_job_ids) not between 1 and 1000 then
        perform fairq._refuse(
            'p_job_ids and p_tokens', format('%s and %s elements', cardinality(p_job_ids), cardinality(p_tokens)),
            'two arrays of one length, from 1 to 1000'
        );
    end if;
    if array_ndims(p_job_ids) <> 1 or array_lower(p_job_ids, 1) <> 1
       or array_ndims(p_tokens) <> 1 or array_lower(p_tokens, 1) <> 1 then
        perform fairq._refuse(
            'p_job_ids and p_tokens', format('%s and %s', array_dims(p_job_ids), array_dims(p_tokens)),
            'arrays of one dimension, counted from 1'
        );
    end if;
    if array_position(p_job_ids, null) is not null or array_position(p_tokens, null) is not null then
        perform fairq._refuse('p_job_ids and p_tokens', 'null', 'free of nulls');
    end if;
    return true;
end
$fn$;
comment on function fairq._check_batch(bigint[], uuid[]) is 'Raises 22023 for the arrays of a batch verb. Internal.';
revoke all on function fairq._check_batch(bigint[], uuid[]) from public;

create or replace function fairq._check_beside(p_name text, p_value anyarray, p_length integer)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 for an array that is given beside p_job_ids and does not have an element for each of them.
begin
    if cardinality(p_value) <> p_length or array_ndims(p_value) <> 1 or array_lower(p_value, 1) <> 1 then
        perform fairq._refuse(
            p_name, format('%s elements as %s', cardinality(p_value), coalesce(array_dims(p_value), '{}')),
            'null, or of one dimension, counted from 1, and as long as p_job_ids'
        );
    end if;
end
$fn$;
comment on function fairq._check_beside(text, anyarray, integer) is 'Raises 22023 for an array that does not go with the ids of a batch verb. Internal.';
revoke all on function fairq._check_beside(text, anyarray, integer) from public;

create or replace function fairq._queue_settings(p_queue text)
    returns fairq.queues
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- The queue's own row, else that of *. A queue need not be declared.
declare
    v_settings fairq.queues;
begin
    select q.* into v_settings from fairq.queues as q
    where q.queue in (p_queue, '*') order by q.queue = '*' limit 1;
    return v_settings;
end
$fn$;
comment on function fairq._queue_settings(text) is 'The settings in force for a queue. Internal.';
revoke all on function fairq._queue_settings(text) from public;

create or replace function fairq._newest_tick(p_queue text)
    returns fairq.ticks
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- What the scheduler wrote down last, for those who only look; a claim reads it by _last_tick().
--
-- Index:  ticks_pkey, newest first.
declare
    v_tick fairq.ticks;
begin
    select t.* into v_tick from fairq.ticks as t where t.queue = p_queue order by t.tick_id desc limit 1;
    return v_tick;
end
$fn$;
comment on function fairq._newest_tick(text) is 'What the scheduler wrote down last. Internal.';
revoke all on function fairq._newest_tick(text) from public;

create or replace function fairq._log(
    p_lease fairq.leases, p_event text, p_now timestamptz, p_details jsonb default '{}'
)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- An attempt ended otherwise than well.
begin
    insert into fairq.job_log (job_id, queue, tenant, event_type, attempt, actor, started_at, details, created_at)
    values (
        (p_lease).job_id, (p_lease).queue, (p_lease).tenant, p_event, (p_lease).attempt, (p_lease).lease_owner,
        (p_lease).started_at, p_details, p_now
    );
end
$fn$;
comment on function fairq._log(fairq.leases, text, timestamptz, jsonb) is 'Writes the end of an attempt to job_log. Internal.';
revoke all on function fairq._log(fairq.leases, text, timestamptz, jsonb) from public;

create or replace function fairq._hold_lease(
    p_job_id bigint, p_token uuid, p_caller text, p_now timestamptz default null
)
    returns fairq.leases
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- The guard of renew, fail and release: the lease, locked, if it is this caller's under this token and still alive.
--
-- p_now:  the clock; null for the real one.
-- Locks:  the lease's row. Then the clock is read: a lease judged by a clock read before the wait would live too long.
declare
    v_lease fairq.leases;
begin
    select l.* into v_lease from fairq.leases as l where l.job_id = p_job_id for update;
    if found and v_lease.lease_token = p_token and v_lease.caller = p_caller
       and v_lease.lease_expires_at > coalesce(p_now, clock_timestamp()) then
        return v_lease;
    end if;
    -- wrong job, token, caller or too late: one answer
    return null;
end
$fn$;
comment on function fairq._hold_lease(bigint, uuid, text, timestamptz) is 'Locks a live lease and returns it, or null. Internal.';
revoke all on function fairq._hold_lease(bigint, uuid, text, timestamptz) from public;

create or replace function fairq._ending(p_lease fairq.leases, p_pays text, p_now timestamptz)
    returns fairq.ending
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
-- What the scheduler must know of an attempt that ends. p_pays says what its tenant pays for:
--
-- held:     the time the worker held it: success, failure, cancellation while running, snooze.
-- prepaid:  what was charged stays: a lost lease. Paid back, a job that kills workers would run free.
-- nothing:  it never started: given back by a worker that shuts down.
declare
    v_held bigint := greatest(1, round(extract(epoch from p_now - p_lease.started_at) * 1000));
begin
    if p_lease.prepaid is null or p_pays = 'prepaid' then
        return row(p_lease.tenant, p_lease.epoch, 1, 0, 0, 0, 0)::fairq.ending;
    elsif p_pays = 'nothing' then
        return row(
            p_lease.tenant, p_lease.epoch, 1, 0, 0, 0, round(p_lease.prepaid * 2520 / p_lease.weight)
        )::fairq.ending;
    end if;
    return row(
        p_lease.tenant, p_lease.epoch, 1, 1, v_held,
        round(greatest(0, v_held - p_lease.prepaid) * 2520 / p_lease.weight),
        round(greatest(0, p_lease.prepaid - v_held) * 2520 / p_lease.weight)
    )::fairq.ending;
end
$fn$;
comment on function fairq._ending(fairq.leases, text, timestamptz) is 'What an attempt that ends is charged in the end. Internal.';
revoke all on function fairq._ending(fairq.leases, text, timestamptz) from public;

create or replace function fairq._settle(p_queue text, p_ending fairq.ending)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Tells the scheduler, by a row of its own: no shared row is written.
begin
    insert into fairq.settlements (queue, endings) values (p_queue, array[p_ending]);
    return true;
end
$fn$;
comment on function fairq._settle(text, fairq.ending) is 'Tells the scheduler what became of an attempt. Internal.';
revoke all on function fairq._settle(text, fairq.ending) from public;

create or replace function fairq._put_back(
    p_lease fairq.leases, p_attempts integer, p_run_at timestamptz, p_error jsonb, p_is_fed boolean default false
)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- running -> queued, or scheduled when p_run_at is given
--
-- p_is_fed: the scheduler does this itself and feeds it to its own look: neither feed is to tell it again.
-- Locks:    the lease's row is held; the job's row.
begin
    update fairq.jobs as j
    set
        state       = case when p_run_at is null then 'queued' else 'scheduled' end,
        run_at      = coalesce(p_run_at, j.run_at),
        attempts    = p_attempts,
        last_error  = coalesce(p_error, j.last_error),
        changed_xid = case when p_is_fed then j.changed_xid else pg_current_xact_id() end
    where j.job_id = (p_lease).job_id;

    delete from fairq.leases as l where l.job_id = (p_lease).job_id;
end
$fn$;
comment on function fairq._put_back(fairq.leases, integer, timestamptz, jsonb, boolean) is 'Returns a running job to the waiting ones. Internal.';
revoke all on function fairq._put_back(fairq.leases, integer, timestamptz, jsonb, boolean) from public;

create or replace function fairq._finish(
    p_lease fairq.leases, p_state text, p_now timestamptz, p_error jsonb, p_result jsonb default null
)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Moves a running job's row to where the ended ones are; false when it is not there.
--
-- Locks:  the lease's row is held; the job's row.
declare
    v_job fairq.jobs;
begin
    delete from fairq.jobs as j where j.job_id = p_lease.job_id returning j.* into v_job;
    if not found then
        return false;
    end if;
    insert into fairq.finished_jobs (
        job_id, queue, tenant, task, payload, priority, state, attempts, max_attempts, run_at, cost, operation_key,
        traceparent, last_error, created_at, started_at, finished_at, lease_owner, token_hash, result
    )
    values (
        v_job.job_id, v_job.queue, v_job.tenant, v_job.task, v_job.payload, v_job.priority, p_state, p_lease.attempt,
        v_job.max_attempts, v_job.run_at, v_job.cost, v_job.operation_key, v_job.traceparent,
        coalesce(p_error, v_job.last_error), v_job.created_at, p_lease.started_at, p_now, p_lease.lease_owner,
        sha256(uuid_send(p_lease.lease_token)), p_result
    );
    return true;
end
$fn$;
comment on function fairq._finish(fairq.leases, text, timestamptz, jsonb, jsonb) is 'Moves the row of a running job to the ended ones. Internal.';
revoke all on function fairq._finish(fairq.leases, text, timestamptz, jsonb, jsonb) from public;

create or replace function fairq._end_job(
    p_lease fairq.leases, p_state text, p_now timestamptz, p_error jsonb
)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- running -> dead, cancelled
--
-- Locks:  the lease's row is held; the job's row.
begin
    perform fairq._finish(p_lease, p_state, p_now, p_error);
    delete from fairq.leases as l where l.job_id = (p_lease).job_id;
    perform fairq._log(
        p_lease, p_state, p_now,
        case when p_error is null then '{}' else jsonb_build_object('error', p_error) end
    );
end
$fn$;
comment on function fairq._end_job(fairq.leases, text, timestamptz, jsonb) is 'Ends a running job otherwise than well. Internal.';
revoke all on function fairq._end_job(fairq.leases, text, timestamptz, jsonb) from public;

--
-- schema/functions/identity.sql
--

--
-- identity: who calls, and for which queues and tenants
--

create or replace function fairq._caller()
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- Inside a definer function current_user is fairq_api; the caller is the role it had set, or its login.
--
-- plpgsql, here and in other helpers of one expression: its plans are kept, those of SQL functions that cannot be
-- inlined are made anew in each transaction before PostgreSQL 18.
begin
    return case when current_setting('role') = 'none' then session_user::text else current_setting('role') end;
end
$fn$;
comment on function fairq._caller() is 'The role that called the public function. Internal.';
revoke all on function fairq._caller() from public;

create or replace function fairq._refuse_nobody()
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
begin
    raise exception 'this session acts for no tenant'
        using
            errcode = '42501',
            hint = case fairq.tenant_provider()
                when 'setting' then 'Say for which, inside the transaction: set local app.tenant_id = ...;'
                when 'jwt' then 'request.jwt.claims must have a tenant_id in app_metadata, as text.'
                when 'role' then 'An operator says by a row in tenant_roles which tenant this role is.'
                else 'Bring a token that is not over: select set_config(''app.tenant_token'', $1, true);'
            end;
end
$fn$;
comment on function fairq._refuse_nobody() is 'Raises 42501: no tenant. Internal.';
revoke all on function fairq._refuse_nobody() from public;

create or replace function fairq._granted_tenants(p_verb text, p_queue text, p_caller text)
    returns text[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- One read of access_grants or two, never one check per job. enqueue_job, _enqueue_plain_jobs and _take ask the short
-- question by themselves.
--
-- Raises: 42501 for who may act for its own tenant alone, and has none: an empty answer would look like no work.
declare
    v_tenants   text[];
    v_is_nobody boolean;
begin
    -- most workers may claim for all: the short question first
    perform from fairq.access_grants as a
    where a.verb = p_verb and a.tenant = '*' and a.queue in (p_queue, '*')
      and pg_has_role(p_caller::name, to_regrole(quote_ident(a.role_name))::oid, 'usage');
    if found then
        return '{*}';
    end if;
    -- each once: the scheduler takes them for different ones
    select array_agg(distinct g.tenant) filter (where g.is_here and g.tenant is not null), bool_or(g.tenant is null)
    into v_tenants, v_is_nobody
    from (
        select
            -- who calls itself * is not everybody
            case when a.tenant = '@own' then nullif(fairq.current_tenant_id(), '*') else a.tenant end as tenant,
            a.queue in (p_queue, '*') as is_here
        from fairq.access_grants as a
        where a.verb = p_verb
          and pg_has_role(p_caller::name, to_regrole(quote_ident(a.role_name))::oid, 'usage')
    ) as g;
    -- whatever the queue: else the answer would tell in which queues the jobs of others are
    if v_tenants is null and v_is_nobody then
        perform fairq._refuse_nobody();
    end if;
    return coalesce(v_tenants, '{}');
end
$fn$;
comment on function fairq._granted_tenants(text, text, text) is 'The tenants of a queue a role may act for: {*} for all. Internal.';
revoke all on function fairq._granted_tenants(text, text, text) from public;

create or replace function fairq._acting_tenant(p_verb text, p_queue text, p_tenant text)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- The tenant a caller may act for: the one named, if it is granted; a caller that names none acts for its own.
--
-- Raises: 22023 for no tenant or a bad one; 42501 for one the caller may not act for.
declare
    v_granted text[] := fairq._granted_tenants(p_verb, p_queue, fairq._caller());
    v_tenant  text := coalesce(p_tenant, fairq.current_tenant_id());
    -- assigned, not performed: an expression costs less than a statement
    v_is_good boolean := fairq._check_name('p_tenant', v_tenant, 200);
begin
    if v_tenant <> all(v_granted) and v_granted <> '{*}' then
        raise exception '% is not granted to role % for queue % and tenant %',
            p_verb, fairq._caller(), left(p_queue, 100), left(v_tenant, 100)
            using
                errcode = '42501',
                hint = format(
                    'An operator grants it with a row in access_grants: (role_name, verb, queue, tenant) = '
                    '(%L, %L, %L, %L).', fairq._caller(), p_verb, left(p_queue, 100), left(v_tenant, 100)
                );
    end if;
    return v_tenant;
end
$fn$;
comment on function fairq._acting_tenant(text, text, text) is 'Checks that the caller may act for a tenant, and returns it. Internal.';
revoke all on function fairq._acting_tenant(text, text, text) from public;

--
-- schema/functions/settings.sql
--

--
-- settings: what operators want of queues and tenants; in force at the next pick
--

create or replace function fairq._check_tenant_or_all(p_tenant text)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
begin
    if p_tenant is distinct from '*' then
        perform fairq._check_name('p_tenant', p_tenant, 200);
    end if;
end
$fn$;
comment on function fairq._check_tenant_or_all(text) is 'Raises 22023 for what is neither a tenant nor *. Internal.';
revoke all on function fairq._check_tenant_or_all(text) from public;

create or replace function fairq._check_pace(
    p_max_running integer, p_no_cap text, p_rate double precision, p_no_rate text, p_burst integer
)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Cap, rate and burst of a tenant or a queue; p_no_cap and p_no_rate say how a caller takes the first two away.
--
-- Raises: 22023 for the first that is out of its range.
begin
    if p_max_running < 0 then
        perform fairq._refuse(
            'p_max_running', p_max_running::text, format('a number from 0, or %s for no cap', p_no_cap)
        );
    end if;
    if not (p_rate >= 0.000001 and p_rate <= 1000000) then
        perform fairq._refuse(
            'p_rate', p_rate::text, format('jobs per second, from 0.000001 to 1000000, or %s for no limit', p_no_rate)
        );
    end if;
    if p_burst is null or p_burst not between 1 and 1000000 then
        perform fairq._refuse('p_burst', p_burst::text, 'a number from 1 to 1000000');
    end if;
end
$fn$;
comment on function fairq._check_pace(integer, text, double precision, text, integer) is 'Raises 22023 for a cap, rate or burst out of range. Internal.';
revoke all on function fairq._check_pace(integer, text, double precision, text, integer) from public;

create or replace function fairq.set_tenant(
    p_queue       text,
    p_tenant      text,
    p_weight      double precision default 1,
    p_max_running integer default null,
    p_paused      boolean default false,
    p_rate        double precision default null,
    p_burst       integer default 1
)
    returns void
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- The whole wish is replaced: what is not given goes back to its default.
--
-- Locks:  the tenant's row in tenants, which no claim ever waits for.
-- Raises: 22023 for a weight, cap, rate or burst out of range.
begin
    perform fairq._check_name('p_queue', p_queue, 200);
    perform fairq._check_tenant_or_all(p_tenant);
    if p_weight is null or not (p_weight >= 0.001 and p_weight <= 1000000) then
        perform fairq._refuse('p_weight', p_weight::text, 'a number from 0.001 to 1000000');
    end if;
    if p_paused is null then
        perform fairq._refuse('p_paused', null, 'true or false');
    end if;
    perform fairq._check_pace(p_max_running, 'null', p_rate, 'null', p_burst);

    insert into fairq.tenants as t (queue, tenant, weight, max_running, paused, rate, burst)
    values (p_queue, p_tenant, p_weight, p_max_running, p_paused, p_rate, p_burst)
    on conflict (tenant, queue) do update
    set
        weight = excluded.weight, max_running = excluded.max_running, paused = excluded.paused, rate = excluded.rate,
        burst = excluded.burst;
end
$fn$;
comment on function fairq.set_tenant(text, text, double precision, integer, boolean, double precision, integer) is 'Sets weight, cap, pause and rate of a tenant in a queue, or, as tenant *, of all tenants that have none of their own; from the next pick on. All of them: what is not given goes back to its default. p_rate is in jobs started per second, p_burst the size of its token bucket. Lowering a cap stops nothing that runs.';
revoke all on function fairq.set_tenant(
    text, text, double precision, integer, boolean, double precision, integer
) from public;
grant execute on function fairq.set_tenant(
    text, text, double precision, integer, boolean, double precision, integer
) to fairq_operator;

create or replace function fairq._pause_tenant(p_queue text, p_tenant text, p_paused boolean)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- A tenant that had no row of its own keeps what * gives it.
declare
    v_wish fairq.tenants;
begin
    perform fairq._check_name('p_queue', p_queue, 200);
    perform fairq._check_tenant_or_all(p_tenant);
    v_wish := fairq._wish(p_queue, p_tenant);
    insert into fairq.tenants as t (queue, tenant, weight, max_running, paused, rate, burst)
    values (p_queue, p_tenant, v_wish.weight, v_wish.max_running, p_paused, v_wish.rate, v_wish.burst)
    on conflict (tenant, queue) do update set paused = excluded.paused;
end
$fn$;
comment on function fairq._pause_tenant(text, text, boolean) is 'Pauses or resumes a tenant. Internal.';
revoke all on function fairq._pause_tenant(text, text, boolean) from public;

create or replace function fairq.pause_tenant(p_queue text, p_tenant text)
    returns void
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- Locks:  the tenant's row in tenants, which no claim ever waits for.
-- Raises: 22023 for a bad name.
begin
    perform fairq._pause_tenant(p_queue, p_tenant, true);
end
$fn$;
comment on function fairq.pause_tenant(text, text) is 'Nothing of the tenant is started from the next pick on; what runs goes on. Its weight, cap and rate stay.';
revoke all on function fairq.pause_tenant(text, text) from public;
grant execute on function fairq.pause_tenant(text, text) to fairq_operator;

create or replace function fairq.resume_tenant(p_queue text, p_tenant text)
    returns void
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- Locks:  the tenant's row in tenants, which no claim ever waits for.
-- Raises: 22023 for a bad name.
begin
    perform fairq._pause_tenant(p_queue, p_tenant, false);
end
$fn$;
comment on function fairq.resume_tenant(text, text) is 'Ends a pause. The time it lasted earns the tenant at most one job of precedence.';
revoke all on function fairq.resume_tenant(text, text) from public;
grant execute on function fairq.resume_tenant(text, text) to fairq_operator;

create or replace function fairq.purge_tenant(p_queue text, p_tenant text, p_limit integer default 1000)
    returns integer
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    -- each index has the order that is asked for
    set enable_sort = off
as $fn$
-- queued, scheduled -> cancelled: the tenant's waiting jobs, each with its event; what runs goes on
--
-- What was claimed since the list was begun is passed by before its row is locked: who holds a job's row must never
-- make the worker that ends it wait.
-- Locks:  the jobs' rows, skipping those held by others: no claim waits, and none is taken from it.
-- Index:  jobs_claim_idx, then jobs_purge_idx.
-- Raises: 22023 for a bad argument; 40001 when a job was claimed at the very moment it was locked.
declare
    v_actor text := fairq._caller();
    v_id    bigint;
    v_job   fairq.jobs;
    v_total integer := 0;
begin
    perform fairq._check_name('p_queue', p_queue, 200);
    perform fairq._check_name('p_tenant', p_tenant, 200);
    perform fairq._check_limit(p_limit, 100000);

    for v_id in
        (
            select j.job_id from fairq.jobs as j
            where j.queue = p_queue and j.tenant = p_tenant and j.state = 'queued'
              and not exists (select from fairq.leases as l where l.job_id = j.job_id offset 0)
            order by j.priority, j.run_at, j.job_id
            limit p_limit
        )
        union all
        (
            select j.job_id from fairq.jobs as j
            -- a tenant written as a range is part of the order, which only jobs_purge_idx has
            where j.queue = p_queue and j.state = 'scheduled'
              and j.tenant > '' and j.tenant >= p_tenant and j.tenant <= p_tenant
            order by j.tenant, j.run_at, j.job_id
            limit p_limit
        )
        limit p_limit
    loop
        continue when exists (select from fairq.leases as l where l.job_id = v_id);

        select j.* into v_job from fairq.jobs as j where j.job_id = v_id for update skip locked;
        continue when not found;

        if exists (select from fairq.leases as l where l.job_id = v_id) then
            raise exception 'job % was claimed while it was purged', v_id using errcode = '40001', hint = 'Try again.';
        end if;
        perform fairq._cancel_waiting(v_job, v_actor);
        v_total := v_total + 1;
    end loop;
    return v_total;
end
$fn$;
comment on function fairq.purge_tenant(text, text, integer) is 'Cancels up to p_limit of a tenant''s queued and scheduled jobs; returns how many. Call it until it returns 0.';
revoke all on function fairq.purge_tenant(text, text, integer) from public;
grant execute on function fairq.purge_tenant(text, text, integer) to fairq_operator;

create or replace function fairq._check_settings(p_new fairq.queues)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- The rules of the table's constraints, told by the names of the arguments.
--
-- Raises: 22023 for the first setting that is out of its range, given the others.
begin
    if p_new.charge not in ('time', 'jobs', 'cost') then
        perform fairq._refuse('p_charge', p_new.charge, 'time, jobs or cost');
    end if;
    perform fairq._check_pace(p_new.max_running, '-1', p_new.rate, '0', p_new.burst);
    perform fairq._check_span('p_longest_lease', p_new.longest_lease, interval '1 millisecond', interval '7 days');
    perform fairq._check_span('p_default_lease', p_new.default_lease, interval '1 millisecond', p_new.longest_lease);
    if p_new.max_attempts not between 1 and 1000 then
        perform fairq._refuse('p_max_attempts', p_new.max_attempts::text, 'a number from 1 to 1000');
    end if;
    perform fairq._check_span('p_backoff_cap', p_new.backoff_cap, interval '0', interval '365 days');
    perform fairq._check_span('p_backoff_base', p_new.backoff_base, interval '0', p_new.backoff_cap);
    if p_new.backoff_jitter not between 0 and 1 then
        perform fairq._refuse('p_backoff_jitter', p_new.backoff_jitter::text, 'a share from 0 to 1');
    end if;
    if p_new.payload_limit not between 2 and 67108864 then
        perform fairq._refuse('p_payload_limit', p_new.payload_limit::text, 'a number of bytes from 2 to 67108864');
    end if;
    if p_new.read_ahead not between 0 and 1000 then
        perform fairq._refuse('p_read_ahead', p_new.read_ahead::text, 'a number of jobs from 0 to 1000');
    end if;
    perform fairq._check_span('p_key_ttl', p_new.key_ttl, interval '1 microsecond', interval '3650 days');
    perform fairq._check_span('p_retention', p_new.retention, interval '0', interval '3650 days');
    if p_new.retention_failed is not null then
        perform fairq._check_span('p_retention_failed', p_new.retention_failed, interval '0', interval '3650 days');
    end if;
end
$fn$;
comment on function fairq._check_settings(fairq.queues) is 'Raises 22023 for a setting out of range. Internal.';
revoke all on function fairq._check_settings(fairq.queues) from public;

create or replace function fairq.set_queue(
    p_queue            text,
    p_paused           boolean default null,
    p_charge           text default null,
    p_max_running      integer default null,
    p_rate             double precision default null,
    p_burst            integer default null,
    p_default_lease    interval default null,
    p_longest_lease    interval default null,
    p_max_attempts     integer default null,
    p_backoff_base     interval default null,
    p_backoff_cap      interval default null,
    p_backoff_jitter   double precision default null,
    p_payload_limit    integer default null,
    p_key_ttl          interval default null,
    p_retention        interval default null,
    p_notify           boolean default null,
    p_retention_failed interval default null,
    p_read_ahead       integer default null
)
    returns void
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- What is not given stays as it is; a queue that had no row starts from that of *. A p_max_running of -1 or a p_rate of
-- 0 takes the queue's own cap or rate away, a p_retention_failed of -1 second that for what failed.
--
-- Locks:  the queue's row in queues, which no claim ever waits for.
-- Raises: 22023 for a setting out of range.
declare
    v_new fairq.queues;
begin
    if p_queue is distinct from '*' then
        perform fairq._check_name('p_queue', p_queue, 200);
    end if;
    -- two operators who change different settings at once both have their way
    perform from fairq.queues as q where q.queue = p_queue for update;
    v_new := fairq._queue_settings(p_queue);
    v_new.queue            := p_queue;
    v_new.paused           := coalesce(p_paused, v_new.paused);
    v_new.charge           := coalesce(p_charge, v_new.charge);
    v_new.max_running      := nullif(coalesce(p_max_running, v_new.max_running), -1);
    v_new.rate             := nullif(coalesce(p_rate, v_new.rate), 0);
    v_new.burst            := coalesce(p_burst, v_new.burst);
    v_new.default_lease    := coalesce(p_default_lease, v_new.default_lease);
    v_new.longest_lease    := coalesce(p_longest_lease, v_new.longest_lease);
    v_new.max_attempts     := coalesce(p_max_attempts, v_new.max_attempts);
    v_new.backoff_base     := coalesce(p_backoff_base, v_new.backoff_base);
    v_new.backoff_cap      := coalesce(p_backoff_cap, v_new.backoff_cap);
    v_new.backoff_jitter   := coalesce(p_backoff_jitter, v_new.backoff_jitter);
    v_new.payload_limit    := coalesce(p_payload_limit, v_new.payload_limit);
    v_new.key_ttl          := coalesce(p_key_ttl, v_new.key_ttl);
    v_new.retention        := coalesce(p_retention, v_new.retention);
    v_new.retention_failed := case
        when p_retention_failed = interval '-1 second' then null
        else coalesce(p_retention_failed, v_new.retention_failed)
    end;
    v_new.notify           := coalesce(p_notify, v_new.notify);
    v_new.read_ahead       := coalesce(p_read_ahead, v_new.read_ahead);
    perform fairq._check_settings(v_new);

    insert into fairq.queues as q select v_new.*
    on conflict (queue) do update
    set
        paused = excluded.paused, charge = excluded.charge, max_running = excluded.max_running, rate = excluded.rate,
        burst = excluded.burst, default_lease = excluded.default_lease, longest_lease = excluded.longest_lease,
        max_attempts = excluded.max_attempts, backoff_base = excluded.backoff_base, backoff_cap = excluded.backoff_cap,
        backoff_jitter = excluded.backoff_jitter, payload_limit = excluded.payload_limit, key_ttl = excluded.key_ttl,
        retention = excluded.retention, retention_failed = excluded.retention_failed, notify = excluded.notify,
        read_ahead = excluded.read_ahead;
end
$fn$;
comment on function fairq.set_queue(text, boolean, text, integer, double precision, integer, interval, interval, integer, interval, interval, double precision, integer, interval, interval, boolean, interval, integer) is 'Changes the settings given of a queue, or of all queues without settings of their own (*).';
revoke all on function fairq.set_queue(
    text, boolean, text, integer, double precision, integer, interval, interval, integer, interval, interval,
    double precision, integer, interval, interval, boolean, interval, integer
) from public;
grant execute on function fairq.set_queue(
    text, boolean, text, integer, double precision, integer, interval, interval, integer, interval, interval,
    double precision, integer, interval, interval, boolean, interval, integer
) to fairq_operator;

--
-- schema/functions/pause.sql
--

--
-- pause: of queues and tenants, with a reason, and what is paused; pause_tenant() without one is among the settings
--

create or replace function fairq._check_reason(p_reason text)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 for a reason that says nothing, or too much.
begin
    if octet_length(p_reason) > 1000 or p_reason !~ '[^[:space:]]' then
        perform fairq._refuse('p_reason', p_reason, 'a text of 1 to 1000 bytes, not blank');
    end if;
    return true;
end
$fn$;
comment on function fairq._check_reason(text) is 'Raises 22023 for what is no reason. Internal.';
revoke all on function fairq._check_reason(text) from public;

create or replace function fairq._say_why(p_queue text, p_tenant text, p_reason text)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- A pause that is older than the notes begins with the first reason that somebody gives.
begin
    insert into fairq.pause_notes as n (queue, tenant, paused_at, paused_by, reason)
    values (p_queue, p_tenant, clock_timestamp(), fairq._caller(), p_reason)
    on conflict (queue, tenant) do update set paused_by = excluded.paused_by, reason = excluded.reason;
end
$fn$;
comment on function fairq._say_why(text, text, text) is 'Notes the reason of a pause. Internal.';
revoke all on function fairq._say_why(text, text, text) from public;

create or replace function fairq.pause_queue(p_queue text, p_reason text default null)
    returns void
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- Whoever pauses what is paused already gives another reason, and answers for it; the time stays.
--
-- Locks:  the queue's row in queues, which no claim ever waits for.
-- Raises: 22023 for a bad name or reason.
declare
    v_is_good boolean := fairq._check_reason(p_reason);
begin
    perform fairq.set_queue(p_queue, p_paused => true);
    if p_reason is not null then
        perform fairq._say_why(p_queue, '', p_reason);
    end if;
end
$fn$;
comment on function fairq.pause_queue(text, text) is 'Nothing of the queue is started from the next claim on; what runs goes on. As queue *, of all queues that have no settings of their own. p_reason, up to 1,000 bytes, is what pauses() and explain_wait() tell operators; null: none, or the one there is.';
revoke all on function fairq.pause_queue(text, text) from public;
grant execute on function fairq.pause_queue(text, text) to fairq_operator;

create or replace function fairq.resume_queue(p_queue text)
    returns void
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- Locks:  the queue's row in queues, which no claim ever waits for.
-- Raises: 22023 for a bad name.
begin
    perform fairq.set_queue(p_queue, p_paused => false);
end
$fn$;
comment on function fairq.resume_queue(text) is 'Ends a pause of a queue, and forgets its reason. Pauses of its tenants stay.';
revoke all on function fairq.resume_queue(text) from public;
grant execute on function fairq.resume_queue(text) to fairq_operator;

create or replace function fairq.pause_tenant_because(p_queue text, p_tenant text, p_reason text)
    returns void
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- pause_tenant() with a third argument: a name of its own, since the arguments of a function that is out never change.
--
-- Locks:  the tenant's row in tenants, which no claim ever waits for.
-- Raises: 22023 for a bad name or reason.
declare
    v_is_good boolean := fairq._check_reason(p_reason);
begin
    if p_reason is null then
        perform fairq._refuse('p_reason', null, 'a text of 1 to 1000 bytes, not blank');
    end if;
    perform fairq._pause_tenant(p_queue, p_tenant, true);
    perform fairq._say_why(p_queue, p_tenant, p_reason);
end
$fn$;
comment on function fairq.pause_tenant_because(text, text, text) is 'As pause_tenant(), with a reason of up to 1,000 bytes, which pauses() and explain_wait() tell operators. Where the tenant is paused already the reason is replaced. resume_tenant() ends the pause.';
revoke all on function fairq.pause_tenant_because(text, text, text) from public;
grant execute on function fairq.pause_tenant_because(text, text, text) to fairq_operator;

create or replace function fairq.pauses(p_queue text default null, p_limit integer default 100)
    returns setof fairq.pause_stat
    language plpgsql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
as $fn$
-- The longest first: a pause that was forgotten is an old one.
--
-- Index:  tenants_pause_idx: what is paused is read as a whole, since its order is that of the notes.
-- Raises: 22023 for a limit out of range.
declare
    v_is_good boolean := fairq._check_limit(p_limit, 1000);
begin
    return query
    select p.queue, nullif(p.tenant, ''), n.paused_at, n.paused_by, n.reason
    from (
        select q.queue, '' as tenant from fairq.queues as q where q.paused
        union all
        select t.queue, t.tenant from fairq.tenants as t where t.paused
    ) as p
    left join fairq.pause_notes as n on n.queue = p.queue and n.tenant = p.tenant
    where p_queue is null or p.queue = p_queue
    order by n.paused_at nulls first, p.queue, p.tenant
    limit p_limit;
end
$fn$;
comment on function fairq.pauses(text, integer) is 'What is paused, those paused longest first: queues, and tenants of queues, with since when, by whom and why; of one queue, or of all, up to p_limit (1 to 1,000).';
revoke all on function fairq.pauses(text, integer) from public;
grant execute on function fairq.pauses(text, integer) to fairq_operator;

create or replace function fairq._pause_words(p_queue text, p_tenant text)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- " since ... by ...: reason", as far as it is known. Who and why are for those who may ask pauses(): a tenant is told
-- of its pause, not of what operators say of it.
declare
    v_note fairq.pause_notes;
begin
    select n.* into v_note from fairq.pause_notes as n where n.queue = p_queue and n.tenant = p_tenant;
    return concat(
        ' since ' || v_note.paused_at::text,
        case when has_function_privilege(
            fairq._caller(), 'fairq.pauses(text,integer)'::regprocedure, 'execute'
        ) then
            concat(' by ' || v_note.paused_by, ': ' || v_note.reason)
        end
    );
end
$fn$;
comment on function fairq._pause_words(text, text) is 'What a sentence says of a pause. Internal.';
revoke all on function fairq._pause_words(text, text) from public;

--
-- schema/functions/enqueue.sql
--

--
-- enqueue: none -> queued, or scheduled when it is to run later
--
-- A producer writes rows of its own and no shared one: only two producers of one key wait for each other.

create or replace function fairq._is_traceparent(p_value text)
    returns boolean
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
-- The header traceparent of W3C Trace Context: version, trace id, parent id and flags in lower-case hexadecimals, the
-- ids not all zeros, no version ff. Only a version that is yet to come may have more behind it.
begin
    return octet_length(p_value) <= 200
        and p_value ~ '^(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?$';
end
$fn$;
comment on function fairq._is_traceparent(text) is 'Whether a text is a traceparent of W3C Trace Context. Internal.';
revoke all on function fairq._is_traceparent(text) from public;

create or replace function fairq._check_job(p_job fairq.new_job, p_settings fairq.queues)
    returns fairq.new_job
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- The job, with what its queue's settings say where it says nothing.
--
-- Raises: 22023 for the first argument that is out of its range; 54000 for a payload over the queue's limit.
begin
    perform fairq._check_name('p_task', p_job.task, 200);
    if p_job.payload is null or jsonb_typeof(p_job.payload) <> 'object' then
        perform fairq._refuse('p_payload', jsonb_typeof(p_job.payload), 'a JSON object');
    end if;
    if octet_length(p_job.payload::text) > p_settings.payload_limit then
        raise exception 'p_payload has % bytes, its queue allows %',
            octet_length(p_job.payload::text), p_settings.payload_limit
            using errcode = '54000', hint = 'Store it elsewhere and enqueue a reference to it.';
    end if;
    perform fairq._check_run_at(p_job.run_at, p_job.delay);
    if p_job.priority is null or p_job.priority not between 0 and 3 then
        perform fairq._refuse('p_priority', p_job.priority::text, 'a number from 0 (first) to 3');
    end if;
    if p_job.max_attempts not between 1 and 1000 then
        perform fairq._refuse('p_max_attempts', p_job.max_attempts::text, 'a number from 1 to 1000');
    end if;
    if p_job.cost is null or not (p_job.cost > 0 and p_job.cost <= 1000000) then
        perform fairq._refuse('p_cost', p_job.cost::text, 'above 0, at most 1000000');
    end if;
    if p_job.key is not null then
        perform fairq._check_name('p_key', p_job.key, 200);
    end if;
    if p_job.key_ttl is not null then
        perform fairq._check_span('p_key_ttl', p_job.key_ttl, interval '1 microsecond', interval '3650 days');
    end if;
    if p_job.traceparent is not null and not fairq._is_traceparent(p_job.traceparent) then
        raise exception 'p_traceparent must be like %, not %',
            '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', left(p_job.traceparent, 100)
            using
                errcode = '22023',
                hint = 'Give the header traceparent of W3C Trace Context as it is, or none. Nothing was changed.';
    end if;

    p_job.max_attempts := coalesce(p_job.max_attempts, p_settings.max_attempts);
    p_job.key_ttl := coalesce(p_job.key_ttl, p_settings.key_ttl);
    return p_job;
end
$fn$;
comment on function fairq._check_job(fairq.new_job, fairq.queues) is 'Checks a job to be enqueued and completes it from its queue''s settings. Internal.';
revoke all on function fairq._check_job(fairq.new_job, fairq.queues) from public;

create or replace function fairq._draw_id(p_job fairq.new_job, p_job_id bigint)
    returns fairq.enqueue_outcome
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- The id the job gets: p_job_id, or, when its key is taken, that of the job which has it: created, exists or conflict.
--
-- Locks:  the key: a second producer of it waits until the first has committed or rolled back, and then knows.
-- Raises: 40001 when the key kept changing hands.
declare
    v_now    timestamptz := clock_timestamp();
    v_hash   bytea;
    v_held   fairq.job_keys;
begin
    if p_job.key is null then
        return row(null, p_job_id, 'created')::fairq.enqueue_outcome;
    end if;

    v_hash := sha256(convert_to(p_job.task || ' ' || p_job.payload::text, 'UTF8'));
    for v_try in 1..10 loop
        -- looked up before inserting: a duplicate writes nothing
        select k.* into v_held from fairq.job_keys as k
        where k.tenant = p_job.tenant and k.operation_key = p_job.key;
        if found and v_held.expires_at > v_now then
            return row(
                null, v_held.job_id, case when v_held.payload_hash = v_hash then 'exists' else 'conflict' end
            )::fairq.enqueue_outcome;
        end if;

        insert into fairq.job_keys as k (tenant, operation_key, job_id, payload_hash, expires_at)
        values (p_job.tenant, p_job.key, p_job_id, v_hash, v_now + p_job.key_ttl)
        on conflict (tenant, operation_key) do update
        set job_id = excluded.job_id, payload_hash = excluded.payload_hash, expires_at = excluded.expires_at
        where k.expires_at <= v_now;
        if found then
            return row(null, p_job_id, 'created')::fairq.enqueue_outcome;
        end if;
    end loop;

    raise exception 'an idempotency key changed hands too often' using errcode = '40001', hint = 'Try again.';
end
$fn$;
comment on function fairq._draw_id(fairq.new_job, bigint) is 'Gives a new job its id, or finds the job its key stands for. Internal.';
revoke all on function fairq._draw_id(fairq.new_job, bigint) from public;

create or replace function fairq._insert_jobs(p_jobs fairq.new_job[], p_outcomes fairq.enqueue_outcome[])
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- none -> queued, scheduled: those of the jobs that are new, in their order.
declare
    v_now timestamptz := clock_timestamp();
begin
    insert into fairq.jobs (
        job_id, queue, tenant, task, payload, priority, state, max_attempts, run_at, cost, operation_key, traceparent,
        created_at
    )
    select
        u.job_id, u.queue, u.tenant, u.task, u.payload, u.priority,
        case when coalesce(u.run_at, v_now + u.delay) > v_now then 'scheduled' else 'queued' end,
        u.max_attempts, coalesce(u.run_at, v_now + u.delay, v_now), u.cost, u.key, u.traceparent, v_now
    from unnest(p_jobs, p_outcomes) as u(
        tenant, task, payload, queue, run_at, delay, priority, max_attempts, key, key_ttl, cost, traceparent,
        ordinal, job_id, outcome
    )
    where u.outcome = 'created';
    return true;
end
$fn$;
comment on function fairq._insert_jobs(fairq.new_job[], fairq.enqueue_outcome[]) is 'Writes the rows of new jobs. Internal.';
revoke all on function fairq._insert_jobs(fairq.new_job[], fairq.enqueue_outcome[]) from public;

create or replace function fairq.channel(p_queue text)
    returns text
    language sql
    immutable
    strict
    parallel safe
    set search_path = pg_catalog, pg_temp
as $fn$
    -- a channel's name has at most 63 bytes
    select 'fairq:' || case
        when octet_length(p_queue) <= 57 then p_queue
        else encode(substr(sha256(convert_to(p_queue, 'UTF8')), 1, 16), 'hex')
    end
$fn$;
comment on function fairq.channel(text) is 'The channel to LISTEN on for a queue; quote it as an identifier.';
revoke all on function fairq.channel(text) from public;
grant execute on function fairq.channel(text) to fairq_worker, fairq_producer, fairq_tenant, fairq_operator;

create or replace function fairq._is_due(p_run_at timestamptz, p_delay interval)
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- Whether a new job may run at once: there is nothing to wake anybody for before that.
begin
    return coalesce(p_run_at, clock_timestamp() + p_delay, '-infinity') <= clock_timestamp();
end
$fn$;
comment on function fairq._is_due(timestamptz, interval) is 'Whether a new job may run at once. Internal.';
revoke all on function fairq._is_due(timestamptz, interval) from public;

create or replace function fairq._wake(p_queue text)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- One NOTIFY when a worker found the queue empty, none while there is a backlog. The payload says nothing.
--
-- Index:  ticks_pkey, newest first.
begin
    if (select t.found_empty from fairq.ticks as t where t.queue = p_queue order by t.tick_id desc limit 1) then
        perform pg_notify(fairq.channel(p_queue), '');
    end if;
end
$fn$;
comment on function fairq._wake(text) is 'Wakes the listeners of a queue that was found empty. Internal.';
revoke all on function fairq._wake(text) from public;

create or replace function fairq.enqueue_job(
    p_tenant       text default null,
    p_task         text default null,
    p_payload      jsonb default '{}',
    p_queue        text default 'default',
    p_run_at       timestamptz default null,
    p_delay        interval default null,
    p_priority     integer default 2,
    p_max_attempts integer default null,
    p_key          text default null,
    p_key_ttl      interval default null,
    p_cost         double precision default 1,
    p_traceparent  text default null
)
    returns fairq.enqueued_job
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- a plan made while job_keys was empty would read all of it for each key (see claim_jobs())
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
as $fn$
-- none -> queued, scheduled
--
-- Long:   the short way and the other, side by side: a call that waits in the first for a rollback to the version
--         before must find all that the other calls.
-- Locks:  none, but for the key: a second producer of the same one waits for the first.
-- Raises: 22023 for a bad argument; 54000 for a payload over the queue's limit; 42501 for a tenant or queue not
--         granted; QF002 for a key in use for another payload.
declare
    v_attempts integer;
    v_notify   boolean;
    v_now      timestamptz;
    v_is_plain boolean;
    v_job_id   bigint;
    v_is_done  boolean;
    v_settings fairq.queues;
    v_job      fairq.new_job;
    v_outcome  fairq.enqueue_outcome;
begin
    -- most jobs are plain, and whoever may enqueue them is granted that by the name of the tenant: three questions say
    -- so. Each operator in them is prepared anew in every transaction: there are few, and what is rare is asked apart.
    -- As in _check_job:
    v_is_plain := p_run_at is null and p_delay is null and p_key is null and p_key_ttl is null
        and jsonb_typeof(p_payload) = 'object' and p_priority in (0, 1, 2, 3) and p_cost > 0 and p_cost <= 1000000;
    -- as in _check_name, of all names at once: the first character, if it is one of ASCII, says that none is blank;
    -- with a null among them the last line is not true, which greatest and least do not see
    if (
        p_max_attempts is null and p_traceparent is null
        and greatest(octet_length(p_queue), octet_length(p_tenant), octet_length(p_task)) <= 200
        and least(p_queue collate "C", p_tenant, p_task) > '*'
        and greatest(p_queue collate "C", p_tenant, p_task) <= '~'
        and '@own' not in (p_queue, p_tenant, p_task)
    ) is not true then
        v_is_plain := v_is_plain
            and octet_length(p_queue) <= 200 and p_queue not in ('*', '@own') and p_queue ~ '[^[:space:]]'
            and octet_length(p_tenant) <= 200 and p_tenant not in ('*', '@own') and p_tenant ~ '[^[:space:]]'
            and octet_length(p_task) <= 200 and p_task not in ('*', '@own') and p_task ~ '[^[:space:]]'
            and coalesce(p_max_attempts, 1) between 1 and 1000
            and (p_traceparent is null or fairq._is_traceparent(p_traceparent));
    end if;
    -- the settings and the right
    select
        coalesce(p_max_attempts, q.max_attempts), q.notify, clock_timestamp(),
        v_is_plain and octet_length(p_payload::text) <= q.payload_limit
        -- as in _granted_tenants and _caller
        and exists (
            select from fairq.access_grants as a
            where a.verb = 'enqueue' and a.tenant in (p_tenant, '*') and a.queue in (p_queue, '*')
              and pg_has_role(
                  case when current_setting('role') = 'none' then session_user else current_setting('role')::name end,
                  to_regrole(quote_ident(a.role_name))::oid, 'usage'
              )
        )
    into v_attempts, v_notify, v_now, v_is_plain
    from fairq.queues as q
    -- as in _queue_settings, without a sort
    where q.queue
        = case when exists (select from fairq.queues as qq where qq.queue = p_queue) then p_queue else '*' end;
    if v_is_plain then
        insert into fairq.jobs (
            queue, tenant, task, payload, priority, max_attempts, run_at, cost, traceparent, created_at
        )
        values (
            p_queue, p_tenant, p_task, p_payload, p_priority, v_attempts, v_now, p_cost, p_traceparent, v_now
        )
        returning job_id into v_job_id;
        if v_notify then
            -- as in _wake
            if (select t.found_empty from fairq.ticks as t where t.queue = p_queue order by t.tick_id desc limit 1) then
                perform pg_notify(fairq.channel(p_queue), '');
            end if;
        end if;
        return row(v_job_id, true)::fairq.enqueued_job;
    end if;

    -- assigned, not performed: an expression costs less than a statement
    v_is_done := fairq._check_name('p_queue', p_queue, 200);
    v_settings := fairq._queue_settings(p_queue);
    v_job := fairq._check_job(
        row(
            fairq._acting_tenant('enqueue', p_queue, p_tenant), p_task, p_payload, p_queue, p_run_at, p_delay,
            p_priority, p_max_attempts, p_key, p_key_ttl, p_cost, p_traceparent
        )::fairq.new_job,
        v_settings
    );
    v_outcome := fairq._draw_id(v_job, nextval('fairq.jobs_job_id_seq'));
    if v_outcome.outcome = 'conflict' then
        raise exception 'key % stands for another task or payload, that of job %', left(p_key, 100), v_outcome.job_id
            using errcode = 'QF002', hint = 'One key stands for one operation: choose another key.';
    end if;
    v_is_done := fairq._insert_jobs(array[v_job], array[v_outcome]);
    if v_settings.notify and v_outcome.outcome = 'created' and fairq._is_due(p_run_at, p_delay) then
        perform fairq._wake(p_queue);
    end if;
    return row(v_outcome.job_id, v_outcome.outcome = 'created')::fairq.enqueued_job;
end
$fn$;
comment on function fairq.enqueue_job(text, text, jsonb, text, timestamptz, interval, integer, integer, text, interval, double precision, text) is 'Enqueues a job for a tenant (without p_tenant: the session''s own), to run at once, at p_run_at or after p_delay. p_priority 0 goes first within the tenant. p_key makes it idempotent for p_key_ttl: used again, it returns the first job. p_traceparent (W3C Trace Context) goes to the workers as it is.';
revoke all on function fairq.enqueue_job(
    text, text, jsonb, text, timestamptz, interval, integer, integer, text, interval, double precision, text
) from public;
grant execute on function fairq.enqueue_job(
    text, text, jsonb, text, timestamptz, interval, integer, integer, text, interval, double precision, text
) to fairq_producer, fairq_tenant;

create or replace function fairq._read_jobs(p_jobs jsonb)
    returns fairq.new_job[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- The elements of enqueue_jobs()'s argument, in their order, with the defaults of enqueue_job().
--
-- Raises: 22023 for what is not an array of 1 to 10,000 objects with known fields.
declare
    v_fields  text[] := '{tenant,task,payload,queue,run_at,delay,priority,max_attempts,key,key_ttl,cost,traceparent}';
    v_strange text;
begin
    if p_jobs is null or jsonb_typeof(p_jobs) <> 'array' then
        perform fairq._refuse('p_jobs', jsonb_typeof(p_jobs), 'a JSON array');
    end if;
    if jsonb_array_length(p_jobs) not between 1 and 10000 then
        perform fairq._refuse('p_jobs', jsonb_array_length(p_jobs) || ' elements', 'an array of 1 to 10000 elements');
    end if;

    select format('%s as element %s', left(e.job::text, 60), e.ordinality) into v_strange
    from jsonb_array_elements(p_jobs) with ordinality as e(job)
    where case when jsonb_typeof(e.job) = 'object' then e.job - v_fields <> '{}' else true end
    limit 1;
    if found then
        perform fairq._refuse('p_jobs', v_strange, 'objects with fields among ' || array_to_string(v_fields, ', '));
    end if;

    return (
        select array_agg(
            row(
                r.tenant, r.task, coalesce(r.payload, '{}'), coalesce(r.queue, 'default'), r.run_at, r.delay,
                coalesce(r.priority, 2), r.max_attempts, r.key, r.key_ttl, coalesce(r.cost, 1),
                r.traceparent
            )::fairq.new_job
            order by e.ordinality
        )
        from jsonb_array_elements(p_jobs) with ordinality as e(job)
        cross join lateral jsonb_populate_record(null::fairq.new_job, e.job) as r
    );
exception when invalid_text_representation or invalid_datetime_format or datetime_field_overflow
               or interval_field_overflow or numeric_value_out_of_range then
    perform fairq._refuse('p_jobs', sqlerrm, 'objects with values of the types that enqueue_job() takes');
end
$fn$;
comment on function fairq._read_jobs(jsonb) is 'Reads the argument of enqueue_jobs(). Internal.';
revoke all on function fairq._read_jobs(jsonb) from public;

create or replace function fairq._check_jobs(p_jobs fairq.new_job[])
    returns fairq.new_job[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Each job checked and completed. Nothing has been written yet when this raises.
declare
    v_job      fairq.new_job;
    v_at       integer := 0;
    v_queue    text;
    v_settings fairq.queues;
    v_granted  text[];
begin
    foreach v_job in array p_jobs loop
        v_at := v_at + 1;
        if v_queue is distinct from v_job.queue then
            perform fairq._check_name('p_queue', v_job.queue, 200);
            v_queue := v_job.queue;
            v_settings := fairq._queue_settings(v_queue);
            v_granted := '{}';
        end if;
        -- a tenant is checked once, not once for each of its jobs
        if v_job.tenant is null or v_job.tenant <> all(v_granted) then
            v_job.tenant := fairq._acting_tenant('enqueue', v_queue, v_job.tenant);
            v_granted := v_job.tenant || v_granted[1:99];
        end if;
        p_jobs[v_at] := fairq._check_job(v_job, v_settings);
    end loop;
    return p_jobs;
exception when invalid_parameter_value or program_limit_exceeded then
    raise exception 'element % of p_jobs: %', v_at, sqlerrm using errcode = sqlstate, hint = 'Nothing was enqueued.';
end
$fn$;
comment on function fairq._check_jobs(fairq.new_job[]) is 'Checks the elements of enqueue_jobs(). Internal.';
revoke all on function fairq._check_jobs(fairq.new_job[]) from public;

create or replace function fairq._draw_ids(p_jobs fairq.new_job[])
    returns fairq.enqueue_outcome[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Ids in input order; then keys, in theirs, so that two batches never wait for each other crosswise.
declare
    v_outcomes fairq.enqueue_outcome[] := array(
        select row(null, nextval('fairq.jobs_job_id_seq'), 'created')::fairq.enqueue_outcome from unnest(p_jobs)
    );
    v_at       integer;
begin
    for v_at in
        select u.ordinality from unnest(p_jobs) with ordinality as u
        where u.key is not null
        order by u.tenant, u.key, u.ordinality
    loop
        v_outcomes[v_at] := fairq._draw_id(p_jobs[v_at], v_outcomes[v_at].job_id);
    end loop;
    return v_outcomes;
end
$fn$;
comment on function fairq._draw_ids(fairq.new_job[]) is 'Draws the ids of a batch of new jobs. Internal.';
revoke all on function fairq._draw_ids(fairq.new_job[]) from public;

create or replace function fairq._enqueue_plain_jobs(p_jobs jsonb)
    returns setof fairq.enqueue_outcome
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- enqueue_jobs(), when each of them is plain and granted; else nothing, and no row.
--
-- Long:   one statement, from the elements to the rows: what is handed from function to function costs as much again.
begin
    return query
    with job as materialized (
        select
            e.ordinality::integer as ordinal, coalesce(e.job ->> 'queue', 'default') as queue,
            e.job ->> 'tenant' as tenant, e.job ->> 'task' as task, coalesce(e.job -> 'payload', '{}') as payload,
            e.job ->> 'priority' as priority, e.job ->> 'max_attempts' as max_attempts, e.job ->> 'cost' as cost,
            e.job ->> 'traceparent' as traceparent,
            -- a date or a key, or what is no field
            case when jsonb_typeof(e.job) = 'object'
                then e.job - '{tenant,task,payload,queue,priority,max_attempts,cost,traceparent}'::text[] = '{}'
            end as is_all
        from jsonb_array_elements(
            case when jsonb_typeof(p_jobs) = 'array' and jsonb_array_length(p_jobs) <= 10000 then p_jobs else '[]' end
        ) with ordinality as e(job)
    ), here as materialized (
        select d.queue, q.*, clock_timestamp() as now
        from (select distinct j.queue from job as j) as d
        cross join lateral (
            select qq.payload_limit, qq.max_attempts from fairq.queues as qq
            where qq.queue in (d.queue, '*') order by qq.queue = '*' limit 1
        ) as q
    ), new as (
        -- in their order, in which the ids are drawn, too
        insert into fairq.jobs (
            queue, tenant, task, payload, priority, max_attempts, run_at, cost, traceparent, created_at
        )
        select
            j.queue, j.tenant, j.task, j.payload, coalesce(j.priority::smallint, 2),
            coalesce(j.max_attempts::integer, h.max_attempts), h.now, coalesce(j.cost::double precision, 1),
            j.traceparent, h.now
        from job as j
        join here as h on h.queue = j.queue
        where not exists (
            select from job as jj left join here as hh on hh.queue = jj.queue
            -- as in enqueue_job; numbers as most people write them
            where (
                jj.is_all
                and octet_length(jj.queue) <= 200 and jj.queue not in ('*', '@own')
                and (jj.queue >= '!' collate "C" and jj.queue <= '~' collate "C" or jj.queue ~ '[^[:space:]]')
                and octet_length(jj.tenant) <= 200 and jj.tenant not in ('*', '@own')
                and (jj.tenant >= '!' collate "C" and jj.tenant <= '~' collate "C" or jj.tenant ~ '[^[:space:]]')
                and octet_length(jj.task) <= 200 and jj.task not in ('*', '@own')
                and (jj.task >= '!' collate "C" and jj.task <= '~' collate "C" or jj.task ~ '[^[:space:]]')
                and jsonb_typeof(jj.payload) = 'object' and octet_length(jj.payload::text) <= hh.payload_limit
                and (jj.priority is null or jj.priority ~ '^[0-3]$')
                and (jj.max_attempts is null or jj.max_attempts ~ '^[1-9][0-9]{0,2}$')
                and (jj.cost is null or jj.cost ~ '^[1-9][0-9]{0,5}([.][0-9]{1,9})?$')
                and (jj.traceparent is null or fairq._is_traceparent(jj.traceparent))
            ) is not true
        ) and not exists (
            select from (select distinct jj.queue, jj.tenant from job as jj) as d
            -- as in _granted_tenants
            where not exists (
                select from fairq.access_grants as a
                where a.verb = 'enqueue' and a.tenant in (d.tenant, '*') and a.queue in (d.queue, '*')
                  and pg_has_role(fairq._caller()::name, to_regrole(quote_ident(a.role_name))::oid, 'usage')
            )
        )
        order by j.ordinal
        returning job_id
    )
    select row_number() over (order by n.job_id)::integer, n.job_id, 'created'::text from new as n order by n.job_id;
end
$fn$;
comment on function fairq._enqueue_plain_jobs(jsonb) is 'Enqueues a batch that needs no closer look. Internal.';
revoke all on function fairq._enqueue_plain_jobs(jsonb) from public;

create or replace function fairq.enqueue_jobs(p_jobs jsonb)
    returns setof fairq.enqueue_outcome
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- see enqueue_job()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
as $fn$
-- none -> queued, scheduled; many at once
--
-- Locks:  none, but for keys.
-- Raises: as enqueue_job(), naming the element, with nothing enqueued; but a key in use is an outcome, not an error.
declare
    v_jobs     fairq.new_job[];
    v_outcomes fairq.enqueue_outcome[];
    v_is_done  boolean;
    v_queue    text;
begin
    return query select e.* from fairq._enqueue_plain_jobs(p_jobs) as e;
    if found then
        for v_queue in
            select distinct coalesce(e.job ->> 'queue', 'default') from jsonb_array_elements(p_jobs) as e(job)
        loop
            if (fairq._queue_settings(v_queue)).notify then
                perform fairq._wake(v_queue);
            end if;
        end loop;
        return;
    end if;

    v_jobs := fairq._check_jobs(fairq._read_jobs(p_jobs));
    v_outcomes := fairq._draw_ids(v_jobs);
    -- assigned, not performed: an expression costs less than a statement
    v_is_done := fairq._insert_jobs(v_jobs, v_outcomes);
    for v_queue in select distinct u.queue from unnest(v_jobs) as u loop
        if (fairq._queue_settings(v_queue)).notify and exists (
            select from unnest(v_jobs) as u where u.queue = v_queue and fairq._is_due(u.run_at, u.delay)
        ) then
            perform fairq._wake(v_queue);
        end if;
    end loop;

    return query
    select u.ordinality::integer, u.job_id, u.outcome
    from unnest(v_outcomes) with ordinality as u
    order by u.ordinality;
end
$fn$;
comment on function fairq.enqueue_jobs(jsonb) is 'Enqueues an array of 1 to 10,000 objects whose fields are the arguments of enqueue_job(), without p_. One row per element, in input order.';
revoke all on function fairq.enqueue_jobs(jsonb) from public;
grant execute on function fairq.enqueue_jobs(jsonb) to fairq_producer, fairq_tenant;

--
-- schema/functions/scheduler.sql
--

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

--
-- schema/functions/read_ahead.sql
--

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

--
-- schema/functions/claim.sql
--

--
-- claim: queued -> running
--

create or replace function fairq._limit_idle_transaction()
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- A session that forgets its transaction after a claim would stop the queue: at most 10 s of idleness, for this
-- transaction.
begin
    return case
        when current_setting('idle_in_transaction_session_timeout')::interval
            between interval '1 microsecond' and interval '10 seconds' then true
        else set_config('idle_in_transaction_session_timeout', '10s', true) is not null
    end;
end
$fn$;
comment on function fairq._limit_idle_transaction() is 'Bounds how long an idle transaction may hold a queue''s lock. Internal.';
revoke all on function fairq._limit_idle_transaction() from public;

create or replace function fairq._check_claim(p_queue text, p_owner text, p_limit integer, p_lease interval)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 for the first argument that is out of its range; 0A000 above READ COMMITTED.
declare
    -- assigned, not performed: an expression costs less than a statement
    v_is_good boolean := fairq._check_name('p_queue', p_queue, 200) and fairq._check_name('p_owner', p_owner, 200)
        and fairq._check_limit(p_limit, 1000);
begin
    if p_lease is not null then
        -- the longest that a queue may allow: what this one does, _take asks
        v_is_good := fairq._check_span('p_lease', p_lease, interval '1 millisecond', interval '7 days');
    end if;
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception 'claim_jobs() cannot run at isolation level %', current_setting('transaction_isolation')
            using
                errcode = '0A000',
                hint = 'Claim in a READ COMMITTED transaction: caps and order are judged on what is committed.';
    end if;
    return v_is_good;
end
$fn$;
comment on function fairq._check_claim(text, text, integer, interval) is 'Raises for an argument of a claim. Internal.';
revoke all on function fairq._check_claim(text, text, integer, interval) from public;

create or replace function fairq.claim_jobs(
    p_queue        text default 'default',
    p_owner        text default null,
    p_limit        integer default 10,
    p_lease        interval default null,
    p_tenant       text default null,
    p_async_commit boolean default false
)
    returns setof fairq.claimed_job
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- Tables here are empty one moment and huge the next, and are never analyzed in between: each statement has one
    -- index that serves it, and the planner is not to think of anything else (measured: a join turned round costs
    -- 42,000 buffers). The settings hold for every step called from here.
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set enable_material = off
    set jit = off
as $fn$
-- queued -> running
--
-- Fair:   between tenants by weight, within a tenant by priority, run_at, job_id; see functions/scheduler.sql.
-- Locks:  the queue's lock, to the end of the transaction: claim in a transaction of its own. Jobs that are ready are
--         had without it, and whoever has some does not wait for it; whoever leaves few takes it if it is free.
-- Long:   from the arguments to the answer, so that a claim is read in one place.
-- Raises: 22023 for a bad argument; 42501 for who may claim for its own tenant alone, and has none; 0A000 above READ
--         COMMITTED; 55P03 when the queue's lock was not free in time.
declare
    v_is_good boolean;
    v_caller  text := fairq._caller();
    v_tenants text[] := '{*}';
    v_claimed fairq.claimed_job[];
    v_job     fairq.claimed_job;
begin
    -- as in _check_claim, which says what is wrong: most claims need no more than this one expression
    if p_lease is not null or (
        octet_length(p_queue) <= 200 and p_queue not in ('*', '@own')
        and (p_queue >= '!' collate "C" and p_queue <= '~' collate "C" or p_queue ~ '[^[:space:]]')
        and octet_length(p_owner) <= 200 and p_owner not in ('*', '@own')
        and (p_owner >= '!' collate "C" and p_owner <= '~' collate "C" or p_owner ~ '[^[:space:]]')
        and p_limit between 1 and 1000
        and current_setting('transaction_isolation') in ('read committed', 'read uncommitted')
    ) is not true then
        -- assigned, not performed: an expression costs less than a statement
        v_is_good := fairq._check_claim(p_queue, p_owner, p_limit, p_lease);
    end if;
    if p_async_commit then
        v_is_good := set_config('synchronous_commit', 'off', true) is not null;
    end if;
    v_is_good := fairq._limit_idle_transaction();

    v_claimed := fairq._take(p_queue, p_owner, v_caller, p_limit, p_lease, p_tenant is null);
    -- mostly it is what was asked for, where a queue reads ahead
    if cardinality(v_claimed) is distinct from p_limit then
        if v_claimed is null then
            v_tenants := fairq._granted_tenants('claim', p_queue, v_caller);
            v_claimed := '{}';
        end if;
        p_limit := p_limit - cardinality(v_claimed);
        if p_limit > 0 and v_claimed <> '{}' then
            -- who waited now might hand out what is over by then
            perform from fairq.schedulers as s where s.queue = p_queue for update skip locked;
            if not found then
                p_limit := 0;
            end if;
        end if;
        if p_tenant is not null then
            v_is_good := fairq._check_name('p_tenant', p_tenant, 200);
            v_tenants := case when v_tenants = '{*}' or p_tenant = any (v_tenants) then array[p_tenant] else '{}' end;
        end if;
        -- nothing that is granted here looks like a queue with no work
        if p_limit > 0 and v_tenants <> '{}' then
            -- a statement of its own: the snapshot of one that calls it is older than the lock
            v_claimed := v_claimed || fairq._dispatch(p_queue, p_owner, v_caller, p_limit, p_lease, v_tenants);
        end if;
    end if;
    foreach v_job in array v_claimed loop
        -- a great one was left behind by _lease
        if v_job.payload is null then
            select j.payload into v_job.payload from fairq.jobs as j where j.job_id = v_job.job_id;
        end if;
        return next v_job;
    end loop;
end
$fn$;
comment on function fairq.claim_jobs(text, text, integer, interval, text, boolean) is 'queued -> running: leases up to p_limit jobs of a queue to p_owner for p_lease, in fair order; p_tenant restricts it to one tenant. p_async_commit is the caller''s word that its transaction does nothing else: its commit does not wait for the disk, and a server crash may return the job to the queue as if it had not been claimed.';
revoke all on function fairq.claim_jobs(text, text, integer, interval, text, boolean) from public;
grant execute on function fairq.claim_jobs(text, text, integer, interval, text, boolean) to fairq_worker;

--
-- schema/functions/complete.sql
--

--
-- complete: running -> succeeded
--

create or replace function fairq._complete(
    p_job_ids bigint[], p_tokens uuid[], p_results jsonb[], p_now timestamptz default null
)
    returns integer[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- running -> succeeded: returns the places in the arrays of those that succeeded by it.
--
-- The leases are taken away in the order of the jobs' ids. A lease judged by a clock read before a wait for its row
-- would live too long, or die too soon when it is just being renewed: so the clock is read once the row is had, and a
-- lease that was over by then is put back as it was. No shared row is written: the scheduler learns of it from the
-- settlements.
-- given:  the arrays, by job: the tokens given for one stand side by side, and a binary search finds them.
-- p_now:  the clock; null for the real one.
-- Long:   all that ends is moved in one statement, which ends as many as it moves or raises.
-- Locks:  the leases' rows, then the jobs'.
-- Index:  leases_pkey and jobs_pkey, a probe for each job.
-- Raises: 40001 when a lease has no job, which no function leaves behind.
declare
    v_caller text := fairq._caller();
    v_done   integer[];
    v_ended  integer;
    v_late   fairq.leases[];
begin
    with given as materialized (
        select array_agg(u.job_id) as job_ids, array_agg(u.token) as tokens, array_agg(u.at::integer) as places
        from (
            select t.job_id, t.token, t.at from unnest(p_job_ids, p_tokens) with ordinality as t(job_id, token, at)
            order by t.job_id, t.at
        ) as u
    ), taken as (
        -- by the primary key, in its order: a join with the arrays might be turned round, and walk every dead lease
        delete from fairq.leases as l
        where l.job_id = any (p_job_ids) and l.caller = v_caller
          and l.lease_token = any ((select g.tokens from given as g)[
              width_bucket(l.job_id - 1, (select g.job_ids from given as g)) + 1
              : width_bucket(l.job_id, (select g.job_ids from given as g))
          ])
        returning
            l.job_id, l.queue, l.tenant, l.lease_owner, l.lease_token, l.attempt, l.started_at, l.prepaid, l.weight,
            l.epoch, (select g.places from given as g)[
                width_bucket(l.job_id - 1, (select g.job_ids from given as g)) + array_position(
                    (select g.tokens from given as g)[
                        width_bucket(l.job_id - 1, (select g.job_ids from given as g)) + 1
                        : width_bucket(l.job_id, (select g.job_ids from given as g))
                    ],
                    l.lease_token
                )
            ] as at,
            coalesce(p_now, clock_timestamp()) as now_held,
            case when l.lease_expires_at <= coalesce(p_now, clock_timestamp()) then l end as late
    ), settled as (
        -- as in _ending, for attempts that are paid by the time they were held
        insert into fairq.settlements (queue, endings)
        select
            s.queue,
            array_agg(row(s.tenant, s.epoch, s.ended, s.measured, s.elapsed, s.extra, s.refund)::fairq.ending)
        from (
            select
                h.queue, h.tenant, h.epoch, count(*) as ended, count(h.prepaid) as measured,
                coalesce(sum(h.held) filter (where h.prepaid > 0), 0) as elapsed,
                coalesce(sum(round(greatest(0, h.held - h.prepaid) * 2520 / h.weight)::bigint), 0) as extra,
                coalesce(sum(round(greatest(0, h.prepaid - h.held) * 2520 / h.weight)::bigint), 0) as refund
            from (
                select
                    t.queue, t.tenant, t.epoch, t.prepaid, t.weight,
                    greatest(1, round(extract(epoch from t.now_held - t.started_at) * 1000))::bigint as held
                from taken as t
                where t.late is null
                -- held is had once, and not for each sum anew
                offset 0
            ) as h
            group by h.queue, h.tenant, h.epoch
        ) as s
        group by s.queue
    ), gone as (
        delete from fairq.jobs as j
        where j.job_id = any (array(select t.job_id from taken as t where t.late is null))
        returning j.*
    ), kept as (
        insert into fairq.finished_jobs (
            job_id, queue, tenant, task, payload, priority, state, attempts, max_attempts, run_at, cost, operation_key,
            traceparent, last_error, created_at, started_at, finished_at, lease_owner, token_hash, result, slot
        )
        select
            g.job_id, g.queue, g.tenant, g.task, g.payload, g.priority, 'succeeded', t.attempt, g.max_attempts,
            g.run_at, g.cost, g.operation_key, g.traceparent, g.last_error, g.created_at, t.started_at, t.now_held,
            t.lease_owner, sha256(uuid_send(t.lease_token)), p_results[t.at],
            -- as the column's default, which would be asked for with each row
            (select coalesce(pg_sequence_last_value('fairq.slot_seq'::regclass) % 4, 0)::smallint)
        from gone as g
        join taken as t on t.job_id = g.job_id
    )
    select
        array_agg(t.at) filter (where t.late is null), (select count(*) from gone),
        -- a row with a null in it is neither null nor not null
        array_agg(t.late) filter (where not t.late is null)
    into v_done, v_ended, v_late
    from taken as t;
    if v_late is not null then
        insert into fairq.leases select l.* from unnest(v_late) as l;
    end if;
    if coalesce(cardinality(v_done), 0) <> v_ended then
        -- a lease without its job would be a job that nobody ever finds: nothing of this may stay
        raise exception 'a job has a lease and no row'
            using errcode = '40001', hint = 'Try again, once: said twice, somebody has deleted rows of the table jobs.';
    end if;
    return coalesce(v_done, '{}');
end
$fn$;
comment on function fairq._complete(bigint[], uuid[], jsonb[], timestamptz) is 'Completes jobs whose leases are alive. Internal.';
revoke all on function fairq._complete(bigint[], uuid[], jsonb[], timestamptz) from public;

create or replace function fairq._complete_one(
    p_job_id bigint, p_token uuid, p_result jsonb, p_now timestamptz default null
)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- _complete() for one job, which most completions are: plain statements start sooner than a great one.
--
-- p_now:  the clock; null for the real one.
-- Locks:  the lease's row, then the job's.
-- Index:  leases_pkey and jobs_pkey.
-- Raises: 40001 when a lease has no job, which no function leaves behind.
declare
    v_now   timestamptz;
    v_lease fairq.leases;
    v_job   fairq.jobs;
begin
    delete from fairq.leases as l
    where l.job_id = p_job_id and l.lease_token = p_token and l.caller = fairq._caller()
    returning l.* into v_lease;
    if not found then
        return false;
    end if;
    -- read now and not before: there may have been a wait
    v_now := coalesce(p_now, clock_timestamp());
    if v_lease.lease_expires_at <= v_now then
        insert into fairq.leases select v_lease.*;
        return false;
    end if;

    -- as in _settle and _finish, without their calls
    insert into fairq.settlements (queue, endings) values (v_lease.queue, array[fairq._ending(v_lease, 'held', v_now)]);
    delete from fairq.jobs as j where j.job_id = v_lease.job_id returning j.* into v_job;
    if not found then
        raise exception 'a job has a lease and no row'
            using errcode = '40001', hint = 'Try again, once: said twice, somebody has deleted rows of the table jobs.';
    end if;
    insert into fairq.finished_jobs (
        job_id, queue, tenant, task, payload, priority, state, attempts, max_attempts, run_at, cost, operation_key,
        traceparent, last_error, created_at, started_at, finished_at, lease_owner, token_hash, result
    )
    values (
        v_job.job_id, v_job.queue, v_job.tenant, v_job.task, v_job.payload, v_job.priority, 'succeeded',
        v_lease.attempt, v_job.max_attempts, v_job.run_at, v_job.cost, v_job.operation_key, v_job.traceparent,
        v_job.last_error, v_job.created_at, v_lease.started_at, v_now, v_lease.lease_owner,
        sha256(uuid_send(p_token)), p_result
    );
    return true;
end
$fn$;
comment on function fairq._complete_one(bigint, uuid, jsonb, timestamptz) is 'Completes a job whose lease is alive. Internal.';
revoke all on function fairq._complete_one(bigint, uuid, jsonb, timestamptz) from public;

create or replace function fairq._completed_before(p_job_id bigint, p_token uuid)
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- A reply that was lost, and a worker that asks again.
--
-- Index:  finished_jobs_pkey; the state is looked at afterwards, or finished_jobs_prune_idx would be a temptation.
begin
    return exists (
        select from (
            select f.state, f.token_hash from fairq.finished_jobs as f where f.job_id = p_job_id offset 0
        ) as f
        where f.state = 'succeeded' and f.token_hash = sha256(uuid_send(p_token))
    );
end
$fn$;
comment on function fairq._completed_before(bigint, uuid) is 'Whether this token completed this job. Internal.';
revoke all on function fairq._completed_before(bigint, uuid) from public;

create or replace function fairq.complete_job(p_job_id bigint, p_token uuid, p_result jsonb default null)
    returns boolean
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs(); nothing is joined here
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
as $fn$
-- running -> succeeded
--
-- Locks:  the lease's row, then the job's.
-- Raises: 22023 for a null id or token; 54000 for a result over the queue's payload_limit.
declare
    -- assigned, not performed: an expression costs less than a statement
    v_is_good boolean;
begin
    if p_job_id is null or p_token is null then
        v_is_good := fairq._check_held(p_job_id, p_token);
    end if;
    if p_result is not null and fairq._is_oversized(p_job_id, p_result) then
        raise exception 'p_result of job % has % bytes, more than its queue allows',
            p_job_id, octet_length(p_result::text)
            using errcode = '54000', hint = 'Store it elsewhere and complete the job with a reference to it.';
    end if;
    if fairq._complete_one(p_job_id, p_token, p_result) then
        return true;
    end if;
    -- not in one expression: what the first call committed while this one waited is to be seen
    return fairq._completed_before(p_job_id, p_token);
end
$fn$;
comment on function fairq.complete_job(bigint, uuid, jsonb) is 'running -> succeeded, with a result. True also when the same token completed it before; false when the lease is lost: undo what was done.';
revoke all on function fairq.complete_job(bigint, uuid, jsonb) from public;
grant execute on function fairq.complete_job(bigint, uuid, jsonb) to fairq_worker;

create or replace function fairq._is_oversized(p_job_id bigint, p_result jsonb)
    returns boolean
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- A job that does not run has no limit: its completion is lost.
begin
    return case
        when p_result is null then false
        else octet_length(p_result::text) > coalesce(
            (select (fairq._queue_settings(l.queue)).payload_limit from fairq.leases as l where l.job_id = p_job_id),
            67108864
        )
    end;
end
$fn$;
comment on function fairq._is_oversized(bigint, jsonb) is 'Whether a result is longer than the job''s queue allows. Internal.';
revoke all on function fairq._is_oversized(bigint, jsonb) from public;

create or replace function fairq.complete_jobs(p_job_ids bigint[], p_tokens uuid[], p_results jsonb[] default null)
    returns setof fairq.job_outcome
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs(); the one join, of the jobs that are gone with their leases, goes by hash
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_nestloop = off
    set enable_hashjoin = on
    set enable_mergejoin = off
    set jit = off
as $fn$
-- running -> succeeded; many at once
--
-- Locks:  the leases' rows, by job id, then the jobs'.
-- Raises: 22023 for arrays out of range; an oversized result is the outcome too_large of its job alone.
declare
    -- assigned, not performed: an expression costs less than a statement
    v_is_good boolean := fairq._check_batch(p_job_ids, p_tokens);
    v_large   bigint[] := '{}';
    v_done    integer[];
begin
    if p_results is not null then
        perform fairq._check_beside('p_results', p_results, cardinality(p_job_ids));
        v_large := array(
            select u.job_id from unnest(p_job_ids, p_results) as u(job_id, result)
            where fairq._is_oversized(u.job_id, u.result)
        );
    end if;
    if cardinality(v_large) > 0 then
        -- no lease has no token
        p_tokens := array(
            select case when u.job_id <> all (v_large) then u.token end
            from unnest(p_job_ids, p_tokens) with ordinality as u(job_id, token)
            order by u.ordinality
        );
    end if;
    if cardinality(p_job_ids) = 1 then
        v_done := case when fairq._complete_one(p_job_ids[1], p_tokens[1], p_results[1]) then array[1] end;
    else
        v_done := fairq._complete(p_job_ids, p_tokens, p_results);
    end if;
    if cardinality(v_done) = cardinality(p_job_ids) then
        -- mostly; then there is nothing to look for
        return query select j.job_id, 'succeeded' from unnest(p_job_ids) as j(job_id);
        return;
    end if;

    return query
    select u.job_id, case
        when u.ordinality = any (v_done) then 'succeeded'
        when u.job_id = any (v_large) then 'too_large'
        when fairq._completed_before(u.job_id, u.token) then 'already_succeeded'
        else 'lost'
    end
    from unnest(p_job_ids, p_tokens) with ordinality as u(job_id, token)
    order by u.ordinality;
end
$fn$;
comment on function fairq.complete_jobs(bigint[], uuid[], jsonb[]) is 'complete_job() for many: succeeded, already_succeeded, lost or too_large for each, in input order.';
revoke all on function fairq.complete_jobs(bigint[], uuid[], jsonb[]) from public;
grant execute on function fairq.complete_jobs(bigint[], uuid[], jsonb[]) to fairq_worker;

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
        v_words := 'its queue is paused' || fairq._pause_words(p_settings.queue, '');
    elsif v_all >= p_settings.max_running then
        v_reason := 'queue_at_cap';
        v_words := format('its queue is at its cap of %s', p_settings.max_running);
    elsif v_tokens < 1 then
        v_until := p_now + make_interval(secs => (1 - v_tokens) / p_settings.rate);
        v_reason := 'queue_rate_limited';
        v_words := format('its queue is rate-limited until %s', v_until);
    elsif p_flow.paused then
        v_reason := 'tenant_paused';
        v_words := 'its tenant is paused'
            || fairq._pause_words(p_flow.queue, (fairq._wish(p_flow.queue, p_flow.tenant)).tenant);
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
-- schema/functions/reconcile.sql
--

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

--
-- schema/functions/version_1.sql
--

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
