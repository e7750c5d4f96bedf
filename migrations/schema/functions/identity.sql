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
