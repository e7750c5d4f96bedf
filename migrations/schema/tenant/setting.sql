--
-- who is the tenant: what the session's setting app.tenant_id says
--
-- One of the providers of current_tenant_id(), the one place that policies and functions ask. Trusts whoever can run
-- SQL in the session: for connections that your own code opens.

create or replace function fairq.current_tenant_id()
    returns text
    language sql
    stable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $fn$
    -- After a SET LOCAL has ended the setting is empty, not null.
    select nullif(pg_catalog.current_setting('app.tenant_id', true), '')
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
    select 'setting'
$fn$;
comment on function fairq.tenant_provider() is 'How current_tenant_id() knows: setting (app.tenant_id), jwt (request.jwt.claims), role (tenant_roles) or token (app.tenant_token).';
revoke all on function fairq.tenant_provider() from public;
grant execute on function fairq.tenant_provider(
) to fairq_owner, fairq_api, fairq_worker, fairq_producer, fairq_tenant, fairq_operator;
