-- How fairq knows the tenant: jwt
--
-- Replaces current_tenant_id(), in one transaction; no migration does, so run it once, after the first migration.
-- Compiled by ci/new_migration from migrations/schema/.

do $fn$
begin
    perform pg_catalog.set_config('fairq_install.path', pg_catalog.current_setting('search_path'), true);
end
$fn$;
set local search_path = pg_catalog, pg_temp;
set local lock_timeout = '500ms';

do $fn$
begin
    if to_regnamespace('fairq') is null then
        raise exception 'fairq is not installed in this database'
            using errcode = '55000', hint = 'Apply the migrations first.';
    end if;
end
$fn$;

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
-- schema/install.sql
--

set local role fairq_owner;

--
-- schema/tenant/jwt.sql
--

--
-- who is the tenant: what the claims of a verified JWT say, as a gateway (PostgREST, Supabase) leaves them
--
-- One of the providers of current_tenant_id(). The gateway has checked the signature and sets request.jwt.claims for
-- each transaction; whoever can run SQL of his own past it can set them, too. Of the claims, app_metadata is the part
-- that users cannot write themselves.

create or replace function fairq.current_tenant_id()
    returns text
    language sql
    stable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $fn$
    -- an array or an object is no name; claims that are no JSON raise 22P02, which lets nobody in
    select case when jsonb_typeof(c.tenant) = 'string' then nullif(c.tenant #>> '{}', '') end
    from (
        select
            nullif(pg_catalog.current_setting('request.jwt.claims', true), '')::pg_catalog.jsonb
            #> '{app_metadata,tenant_id}' as tenant
    ) as c
$fn$;
comment on function fairq.current_tenant_id() is 'The tenant this session acts for, null when there is none; tenant_provider() says who tells. No migration replaces it.';
revoke all on function fairq.current_tenant_id() from public;
grant execute on function fairq.current_tenant_id(
) to fairq_owner, fairq_api, fairq_worker, fairq_producer, fairq_tenant, fairq_operator;

create or replace function fairq.tenant_provider()
    returns text
    language sql
    immutable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $fn$
    select 'jwt'
$fn$;
comment on function fairq.tenant_provider() is 'How current_tenant_id() knows: setting (app.tenant_id), jwt (request.jwt.claims), role (tenant_roles) or token (app.tenant_token).';
revoke all on function fairq.tenant_provider() from public;
grant execute on function fairq.tenant_provider(
) to fairq_owner, fairq_api, fairq_worker, fairq_producer, fairq_tenant, fairq_operator;

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
