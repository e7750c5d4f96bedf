-- How fairq knows the tenant: token
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
-- schema/tenant/token.sql
--

--
-- who is the tenant: whom a signed token names, which the session brings in app.tenant_token
--
-- One of the providers of current_tenant_id(). Safe against SQL of the tenant's own: a token cannot be forged without a
-- key. It is a bearer's token until it expires, so give it as a bind parameter, or it stands in pg_stat_activity.
--
-- v1.KID.TENANT.EXPIRES.HMAC: TENANT in hex of its UTF-8, EXPIRES in seconds since 1970, HMAC the HMAC-SHA256 in hex of
-- everything before its dot.

do $fn$
begin
    if to_regclass('fairq.tenant_keys') is null then
        create table fairq.tenant_keys (
            kid       text        collate "C" not null,
            inner_key bytea       not null,
            outer_key bytea       not null,
            not_after timestamptz not null,
            constraint tenant_keys_pkey primary key (kid),
            constraint tenant_keys_kid_is_a_word check (kid ~ '^[A-Za-z0-9_-]{1,40}$'),
            constraint tenant_keys_padded check (length(inner_key) = 64 and length(outer_key) = 64)
        );
    end if;
end
$fn$;
alter table fairq.tenant_keys enable row level security;
alter table fairq.tenant_keys force row level security;
comment on table fairq.tenant_keys is 'The keys that tenants'' tokens are signed with. Read by nobody but current_tenant_id() and issue_tenant_token().';
comment on column fairq.tenant_keys.kid is 'The key''s name, which stands in the token.';
comment on column fairq.tenant_keys.inner_key is 'The key, padded and mixed with HMAC''s inner pad.';
comment on column fairq.tenant_keys.outer_key is 'The key, padded and mixed with HMAC''s outer pad.';
comment on column fairq.tenant_keys.not_after is 'From this moment no token of this key counts.';

revoke all on table fairq.tenant_keys from public;
revoke all on type fairq.tenant_keys from public;
drop policy if exists owner_does_all on fairq.tenant_keys;
create policy owner_does_all on fairq.tenant_keys to fairq_owner using (true) with check (true);

create or replace function fairq._tenant_token_hmac(p_inner bytea, p_outer bytea, p_message text)
    returns bytea
    language sql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
    select sha256(p_outer || sha256(p_inner || convert_to(p_message, 'UTF8')))
$fn$;
comment on function fairq._tenant_token_hmac(bytea, bytea, text) is 'HMAC-SHA256 by padded keys. Internal.';
revoke all on function fairq._tenant_token_hmac(bytea, bytea, text) from public;

create or replace function fairq._padded_key(p_secret bytea, p_pad integer)
    returns bytea
    language plpgsql
    immutable
    set search_path = pg_catalog, pg_temp
as $fn$
declare
    v_key bytea := decode(repeat('00', 64), 'hex');
begin
    for v_at in 0..63 loop
        v_key := set_byte(
            v_key, v_at, case when v_at < length(p_secret) then get_byte(p_secret, v_at) else 0 end # p_pad
        );
    end loop;
    return v_key;
end
$fn$;
comment on function fairq._padded_key(bytea, integer) is 'A key of at most 64 bytes as HMAC takes it. Internal.';
revoke all on function fairq._padded_key(bytea, integer) from public;

create or replace function fairq.current_tenant_id()
    returns text
    language plpgsql
    stable
    parallel restricted
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- Null for every token that is not whole, not signed by a living key, or over: one answer. No regular expression: on
-- hostile texts they cost a thousand times what this costs.
declare
    v_token text := current_setting('app.tenant_token', true);
    v_part  text[];
    v_good  bytea;
    v_salt  bytea;
begin
    if v_token is null or octet_length(v_token) > 1000 then
        return null;
    end if;
    v_part := string_to_array(v_token, '.');
    if cardinality(v_part) <> 5 or v_part[1] <> 'v1' then
        return null;
    end if;
    select fairq._tenant_token_hmac(k.inner_key, k.outer_key, array_to_string(v_part[1:4], '.')) into v_good
    from fairq.tenant_keys as k
    where k.kid = v_part[2] and k.not_after > clock_timestamp();
    -- compared by hashes with a new salt: how long it takes says nothing of where they differ
    v_salt := uuid_send(gen_random_uuid());
    if v_good is null
       or sha256(v_salt || convert_to(encode(v_good, 'hex'), 'UTF8')) <> sha256(v_salt || convert_to(v_part[5], 'UTF8'))
    then
        return null;
    end if;
    -- from here on the token is one that was issued
    if v_part[4]::bigint <= extract(epoch from clock_timestamp()) then
        return null;
    end if;
    return nullif(convert_from(decode(v_part[3], 'hex'), 'UTF8'), '');
end
$fn$;
comment on function fairq.current_tenant_id() is 'The tenant this session acts for, null when there is none; tenant_provider() says who tells. No migration replaces it.';
revoke all on function fairq.current_tenant_id() from public;
grant execute on function fairq.current_tenant_id(
) to fairq_owner, fairq_api, fairq_worker, fairq_producer, fairq_tenant, fairq_operator;

create or replace function fairq.set_tenant_key(
    p_kid text, p_secret bytea default null, p_not_after timestamptz default 'infinity'
)
    returns void
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- A key that is there gets a new end, and a new secret if one is given. Without a secret a new key gets one that nobody
-- knows, and its tokens come from issue_tenant_token() alone.
--
-- Raises: 22023 for a bad name, a secret of fewer than 32 or more than 64 bytes, or no end.
declare
    v_secret bytea := p_secret;
begin
    if p_kid is null or p_kid !~ '^[A-Za-z0-9_-]{1,40}$' then
        raise exception 'p_kid must be a word of 1 to 40 letters, digits, _ and -, not %',
            coalesce(left(p_kid, 100), 'null')
            using errcode = '22023', hint = 'Nothing was changed.';
    elsif length(p_secret) not between 32 and 64 then
        raise exception 'p_secret must be of 32 to 64 bytes, not %', length(p_secret)
            using errcode = '22023', hint = 'Nothing was changed.';
    elsif p_not_after is null then
        raise exception 'p_not_after must be a moment, not null'
            using errcode = '22023', hint = 'The default, infinity, is a key without an end.';
    end if;
    update fairq.tenant_keys as k set not_after = p_not_after where k.kid = p_kid and p_secret is null;
    if found then
        return;
    end if;
    if v_secret is null then
        -- 244 bits of chance in 32 bytes
        v_secret := uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid());
    end if;
    insert into fairq.tenant_keys as k (kid, inner_key, outer_key, not_after)
    values (p_kid, fairq._padded_key(v_secret, 54), fairq._padded_key(v_secret, 92), p_not_after)
    on conflict (kid) do update
    set inner_key = excluded.inner_key, outer_key = excluded.outer_key, not_after = excluded.not_after;
end
$fn$;
comment on function fairq.set_tenant_key(text, bytea, timestamptz) is 'Adds a key that tenants'' tokens may be signed with, or changes its end: p_not_after in the past revokes it and every token of it. Without p_secret the key is made here and known to nobody.';
revoke all on function fairq.set_tenant_key(text, bytea, timestamptz) from public;
grant execute on function fairq.set_tenant_key(text, bytea, timestamptz) to fairq_operator;

create or replace function fairq.issue_tenant_token(
    p_tenant text, p_lifetime interval default '15 minutes', p_kid text default null
)
    returns text
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- Signed with the key p_kid, else with the living key that ends last.
--
-- Raises: 22023 for a bad tenant or lifetime, or when there is no such living key.
declare
    v_key     fairq.tenant_keys;
    v_message text;
begin
    if p_tenant is null or octet_length(p_tenant) > 200 or p_tenant in ('*', '@own') or p_tenant !~ '[^[:space:]]' then
        raise exception 'p_tenant must be a name of 1 to 200 bytes, not blank, not * or @own, not %',
            coalesce(left(p_tenant, 100), 'null')
            using errcode = '22023', hint = 'Nothing was changed.';
    elsif p_lifetime is null or p_lifetime < interval '1 second' or p_lifetime > interval '30 days' then
        raise exception 'p_lifetime must be an interval from 1 second to 30 days, not %',
            coalesce(p_lifetime::text, 'null')
            using errcode = '22023', hint = 'Nothing was changed.';
    end if;
    select k.* into v_key from fairq.tenant_keys as k
    where k.kid = coalesce(p_kid, k.kid) and k.not_after > clock_timestamp()
    order by k.not_after desc, k.kid desc
    limit 1;
    if not found then
        raise exception 'p_kid must be a key that is not over, not %', coalesce(left(p_kid, 100), 'null')
            using errcode = '22023', hint = 'Add one by set_tenant_key().';
    end if;
    v_message := concat_ws(
        '.', 'v1', v_key.kid, encode(convert_to(p_tenant, 'UTF8'), 'hex'),
        ceil(extract(epoch from clock_timestamp() + p_lifetime))::bigint::text
    );
    return v_message || '.' || encode(fairq._tenant_token_hmac(v_key.inner_key, v_key.outer_key, v_message), 'hex');
end
$fn$;
comment on function fairq.issue_tenant_token(text, interval, text) is 'A token that makes whoever brings it in app.tenant_token act for p_tenant, for p_lifetime. Signed by p_kid, else by the living key that ends last.';
revoke all on function fairq.issue_tenant_token(text, interval, text) from public;
grant execute on function fairq.issue_tenant_token(text, interval, text) to fairq_operator;

create or replace function fairq.tenant_provider()
    returns text
    language sql
    immutable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $fn$
    select 'token'
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
