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
