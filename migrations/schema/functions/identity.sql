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

create or replace function fairq._granted_tenants(p_verb text, p_queue text, p_caller text)
    returns text[]
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- One read of access_grants, never one check per job.
declare
    v_tenants text[];
begin
    -- each once: the scheduler takes them for different ones
    select array_agg(distinct g.tenant) into v_tenants
    from (
        select case when a.tenant = '@own' then fairq.current_tenant_id() else a.tenant end as tenant
        from fairq.access_grants as a
        where a.verb = p_verb
          and a.queue in (p_queue, '*')
          and pg_has_role(p_caller::name, to_regrole(quote_ident(a.role_name))::oid, 'usage')
    ) as g
    where g.tenant is not null;
    return case when '*' = any (v_tenants) then '{*}' else coalesce(v_tenants, '{}') end;
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
    v_tenant  text := coalesce(p_tenant, fairq.current_tenant_id());
    -- assigned, not performed: an expression costs less than a statement
    v_is_good boolean := fairq._check_name('p_tenant', v_tenant, 200);
    v_granted text[] := fairq._granted_tenants(p_verb, p_queue, fairq._caller());
begin
    if v_tenant <> all(v_granted) and v_granted <> '{*}' then
        raise exception '% is not granted to this role for this queue and tenant', p_verb
            using
                errcode = '42501',
                hint = case
                    when v_granted = '{}' and fairq.current_tenant_id() is null
                        then 'A tenant acts for itself once its session says who it is: set local app.tenant_id = ...; '
                            || 'others need a row in access_grants.'
                    else 'An operator grants it with a row in access_grants.'
                end;
    end if;
    return v_tenant;
end
$fn$;
comment on function fairq._acting_tenant(text, text, text) is 'Checks that the caller may act for a tenant, and returns it. Internal.';
revoke all on function fairq._acting_tenant(text, text, text) from public;
