--
-- who is the tenant: the one place that says so; policies and functions ask it
--

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
comment on function fairq.current_tenant_id() is 'The tenant this session acts for: the setting app.tenant_id, null when there is none. It trusts the connection to say so: use it where your own code opens the connection.';
revoke all on function fairq.current_tenant_id() from public;
grant execute on function fairq.current_tenant_id(
) to fairq_owner, fairq_api, fairq_worker, fairq_producer, fairq_tenant, fairq_operator;
