-- The map of fairq's schema, in the order in which it is installed.
-- Compiled by ci/new_migration into migrations/fairq_NNNN_*.sql; psql can run it as it stands, inside one transaction.

\ir roles.sql

-- owned by fairq_owner: what the data is, and who may see it
set local role fairq_owner;
\ir types.sql
\ir tables.sql
\ir indexes.sql
\ir views.sql
\ir tenant/setting.sql
\ir policies.sql
\ir grants.sql
\ir defaults.sql

-- owned by fairq_owner: the few functions that need its power
\ir functions/version.sql
\ir functions/append_only.sql
\ir functions/operator_rows.sql
\ir functions/prune.sql
\ir functions/maintain.sql
\ir functions/erase.sql

-- owned by fairq_api: everything callers run, in the order of a job's life
set local role fairq_api;
\ir functions/_shared.sql
\ir functions/identity.sql
\ir functions/waiting.sql
\ir functions/settings.sql
\ir functions/pause.sql
\ir functions/enqueue.sql
\ir functions/promote.sql
\ir functions/expire.sql
\ir functions/scheduler.sql
\ir functions/read_ahead.sql
\ir functions/claim.sql
\ir functions/renew.sql
\ir functions/complete.sql
\ir functions/fail.sql
\ir functions/release.sql
\ir functions/cancel.sql
\ir functions/reschedule.sql
\ir functions/retry.sql
\ir functions/see.sql
\ir functions/get_job.sql
\ir functions/reconcile.sql
\ir functions/version_1.sql

\ir finish.sql
