-- fairq VERSION: fairq_0002_tenant_index.sql, for schema fairq
-- Written by fairq export --target atlas; do not edit: a change is a new version of fairq.
-- sha256 of the original: e5012b14d87dc7dc70e76a26822642576b1ba3f9a58add9b76042e782726716e
-- depends: fairq_0001_initial
create index jobs_tenant_idx on fairq.jobs (tenant);
