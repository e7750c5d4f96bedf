-- fairq VERSION: fairq_0001_initial.sql, for schema fairq
-- Written by fairq export --target flyway; do not edit: a change is a new version of fairq.
-- sha256 of the original: aad0f59e0e842a5b2af48ec1b54c9afb87176aa5efe03c1c485d83dee2391af0
-- depends:
do $fn$
begin
    if to_regnamespace('fairq') is null then
        create schema fairq;
    end if;
end
$fn$;
create table fairq.jobs (job_id bigint primary key, tenant text not null);
comment on table fairq.jobs is 'It''s a table: of jobs; and of fairq.jobs.';
create function fairq.count_jobs() returns bigint language sql set search_path = pg_catalog, pg_temp as $fn$
    select count(*) from fairq.jobs as j -- don't count others
$fn$;
