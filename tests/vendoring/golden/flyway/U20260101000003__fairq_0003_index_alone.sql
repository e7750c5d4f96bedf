-- fairq VERSION: fairq_0003_index_alone.rollback.sql, for schema fairq
-- Written by fairq export --target flyway; do not edit: a change is a new version of fairq.
-- sha256 of the original: 2e3139effe0cc4e6537f70a4dce09aeaafe24d61d1755f63029d70b9063a8579
drop index concurrently fairq.i;
