-- fairq VERSION: fairq_0003_index_alone.sql, for schema fairq
-- Written by fairq export --target flyway; do not edit: a change is a new version of fairq.
-- sha256 of the original: 41a288954fe19c85e97faff37091a9fca14c4256ddeaceb6eed9889d62a450fe
-- depends: fairq_0002_tenant_index
-- transactional: false
create index concurrently i on fairq.jobs (tenant);
