-- fairq VERSION: fairq_0002_tenant_index.rollback.sql, for schema fairq
-- Written by fairq export --target flyway; do not edit: a change is a new version of fairq.
-- sha256 of the original: b92f1141020f37cbd5a682010462fef56f342383931652f32393bd5881554649
drop index fairq.jobs_tenant_idx;
