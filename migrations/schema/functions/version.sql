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
