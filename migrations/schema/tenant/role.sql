--
-- who is the tenant: the login itself, by the table tenant_roles
--
-- One of the providers of current_tenant_id(). Safe against SQL of the tenant's own if each tenant has a login of its
-- own: no setting says who one is. A login that may SET ROLE to several tenants' roles is all of them.

do $fn$
begin
    if to_regclass('fairq.tenant_roles') is null then
        create table fairq.tenant_roles (
            role_name text not null,
            tenant    text collate "C" not null,
            constraint tenant_roles_pkey primary key (role_name),
            constraint tenant_roles_tenant_is_a_name check (
                tenant ~ '[^[:space:]]' and octet_length(tenant) <= 200 and tenant not in ('*', '@own')
            )
        );
    end if;
end
$fn$;
alter table fairq.tenant_roles enable row level security;
alter table fairq.tenant_roles force row level security;
comment on table fairq.tenant_roles is 'Which tenant a role is: the role a session has set, else its login. Written by operators.';
comment on column fairq.tenant_roles.role_name is 'The role; a member of another role is not that role.';
comment on column fairq.tenant_roles.tenant is 'The tenant it acts for.';

revoke all on table fairq.tenant_roles from public;
revoke all on type fairq.tenant_roles from public;
grant select, insert, update, delete on fairq.tenant_roles to fairq_operator;
drop policy if exists owner_does_all on fairq.tenant_roles;
drop policy if exists operator_grants on fairq.tenant_roles;
create policy owner_does_all on fairq.tenant_roles to fairq_owner using (true) with check (true);
create policy operator_grants on fairq.tenant_roles to fairq_operator using (true) with check (true);

create or replace function fairq.current_tenant_id()
    returns text
    language plpgsql
    stable
    parallel restricted
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- Owned by fairq_owner: tenants may not read the table. A role can be set by its members only, a setting by anybody.
declare
    v_role   text := current_setting('role');
    v_tenant text;
begin
    select r.tenant into v_tenant from fairq.tenant_roles as r
    where r.role_name = case when v_role = 'none' then session_user::text else v_role end;
    return v_tenant;
end
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
    select 'role'
$fn$;
comment on function fairq.tenant_provider() is 'How current_tenant_id() knows: setting (app.tenant_id), jwt (request.jwt.claims), role (tenant_roles) or token (app.tenant_token).';
revoke all on function fairq.tenant_provider() from public;
grant execute on function fairq.tenant_provider(
) to fairq_owner, fairq_api, fairq_worker, fairq_producer, fairq_tenant, fairq_operator;
