-- fairq VERSION: fairq_0003_index_alone.sql, for schema fairq
-- Written by fairq export --target goose; do not edit: a change is a new version of fairq.
-- sha256 of the original: 41a288954fe19c85e97faff37091a9fca14c4256ddeaceb6eed9889d62a450fe
-- +goose NO TRANSACTION
-- +goose Up
-- +goose StatementBegin
-- depends: fairq_0002_tenant_index
-- transactional: false
create index concurrently i on fairq.jobs (tenant);
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
-- fairq VERSION: fairq_0003_index_alone.rollback.sql, for schema fairq
-- Written by fairq export --target goose; do not edit: a change is a new version of fairq.
-- sha256 of the original: 2e3139effe0cc4e6537f70a4dce09aeaafe24d61d1755f63029d70b9063a8579
drop index concurrently fairq.i;
-- +goose StatementEnd
