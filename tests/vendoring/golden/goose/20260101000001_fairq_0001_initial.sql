-- fairq VERSION: fairq_0001_initial.sql, for schema fairq
-- Written by fairq export --target goose; do not edit: a change is a new version of fairq.
-- sha256 of the original: aad0f59e0e842a5b2af48ec1b54c9afb87176aa5efe03c1c485d83dee2391af0
-- +goose Up
-- +goose StatementBegin
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
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
-- fairq VERSION: fairq_0001_initial.rollback.sql, for schema fairq
-- Written by fairq export --target goose; do not edit: a change is a new version of fairq.
-- sha256 of the original: b0c7e0a843ba7d3cdb587e223d9a2a52416a87a77f799c819f442923e55e3f28
do $fn$
begin
    if current_setting('fairq_rollback.lose_jobs', true) <> 'yes' and fairq.count_jobs() > 0 then
        raise exception 'rolling back would lose % jobs', fairq.count_jobs() using errcode = 'QF003', hint = 'ask';
    end if;
end
$fn$;
drop function fairq.count_jobs();
drop table fairq.jobs;
-- +goose StatementEnd
