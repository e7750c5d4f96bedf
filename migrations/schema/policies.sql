--
-- Row-level security: one policy for each role and right
--
-- Forced on every table, the owner's included, so each power has a policy of its own: without one, its reads would
-- silently find nothing. What a policy lets through is cut down further by the column rights in grants.sql.

-- the owner: migrations and retention

create policy owner_does_all on fairq.jobs to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.leases to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.finished_jobs to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.job_log to fairq_owner using (true) with check (true);
-- partitions: what asks for the whole is under the whole's policies; this is for a dump by the owner, which asks each
create policy owner_does_all on fairq.finished_jobs_0 to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.finished_jobs_1 to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.finished_jobs_2 to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.finished_jobs_3 to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.job_log_0 to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.job_log_1 to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.job_log_2 to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.job_log_3 to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.job_keys to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.queues to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.tenants to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.pause_notes to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.flows to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.schedulers to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.ticks to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.settlements to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.ready_picks to fairq_owner using (true) with check (true);
create policy owner_does_all on fairq.access_grants to fairq_owner using (true) with check (true);

-- the functions callers run

create policy api_reads on fairq.jobs for select to fairq_api using (true);
create policy api_adds on fairq.jobs for insert to fairq_api with check (true);
create policy api_changes on fairq.jobs for update to fairq_api using (true) with check (true);
create policy api_removes on fairq.jobs for delete to fairq_api using (true);

create policy api_reads on fairq.leases for select to fairq_api using (true);
create policy api_adds on fairq.leases for insert to fairq_api with check (true);
create policy api_changes on fairq.leases for update to fairq_api using (true) with check (true);
create policy api_removes on fairq.leases for delete to fairq_api using (true);

create policy api_reads on fairq.finished_jobs for select to fairq_api using (true);
create policy api_adds on fairq.finished_jobs for insert to fairq_api with check (true);
-- lock only: retry_job() must hold the row it is about to move
create policy api_locks on fairq.finished_jobs for update to fairq_api using (true) with check (false);
create policy api_removes on fairq.finished_jobs for delete to fairq_api using (true);

create policy api_reads on fairq.job_log for select to fairq_api using (true);
create policy api_adds on fairq.job_log for insert to fairq_api with check (true);

create policy api_reads on fairq.job_keys for select to fairq_api using (true);
create policy api_adds on fairq.job_keys for insert to fairq_api with check (true);
create policy api_changes on fairq.job_keys for update to fairq_api using (true) with check (true);

create policy api_reads on fairq.queues for select to fairq_api using (true);
create policy api_adds on fairq.queues for insert to fairq_api with check (true);
create policy api_changes on fairq.queues for update to fairq_api using (true) with check (true);

create policy api_reads on fairq.tenants for select to fairq_api using (true);
create policy api_adds on fairq.tenants for insert to fairq_api with check (true);
create policy api_changes on fairq.tenants for update to fairq_api using (true) with check (true);

create policy api_reads on fairq.pause_notes for select to fairq_api using (true);
create policy api_adds on fairq.pause_notes for insert to fairq_api with check (true);
create policy api_changes on fairq.pause_notes for update to fairq_api using (true) with check (true);
create policy api_removes on fairq.pause_notes for delete to fairq_api using (true);

create policy api_reads on fairq.flows for select to fairq_api using (true);
create policy api_adds on fairq.flows for insert to fairq_api with check (true);
create policy api_changes on fairq.flows for update to fairq_api using (true) with check (true);

create policy api_reads on fairq.schedulers for select to fairq_api using (true);
create policy api_adds on fairq.schedulers for insert to fairq_api with check (true);
-- lock only. Without a policy for update, select ... for update would find no row, and say nothing.
create policy api_locks on fairq.schedulers for update to fairq_api using (true) with check (false);

create policy api_reads on fairq.ticks for select to fairq_api using (true);
create policy api_adds on fairq.ticks for insert to fairq_api with check (true);
create policy api_removes on fairq.ticks for delete to fairq_api using (true);

create policy api_reads on fairq.settlements for select to fairq_api using (true);
create policy api_adds on fairq.settlements for insert to fairq_api with check (true);
create policy api_removes on fairq.settlements for delete to fairq_api using (true);
create policy api_reads on fairq.ready_picks for select to fairq_api using (true);
create policy api_adds on fairq.ready_picks for insert to fairq_api with check (true);
create policy api_locks on fairq.ready_picks for update to fairq_api using (true) with check (false);
create policy api_removes on fairq.ready_picks for delete to fairq_api using (true);

create policy api_reads on fairq.access_grants for select to fairq_api using (true);

-- tenants: their own rows, whatever other roles the login may have

create policy tenant_reads_own on fairq.jobs for select to fairq_tenant
using (tenant = (select fairq.current_tenant_id()));
create policy tenant_fence on fairq.jobs as restrictive to fairq_tenant
using (tenant = (select fairq.current_tenant_id()));

create policy tenant_reads_own on fairq.leases for select to fairq_tenant
using (tenant = (select fairq.current_tenant_id()));
create policy tenant_fence on fairq.leases as restrictive to fairq_tenant
using (tenant = (select fairq.current_tenant_id()));

create policy tenant_reads_own on fairq.finished_jobs for select to fairq_tenant
using (tenant = (select fairq.current_tenant_id()));
create policy tenant_fence on fairq.finished_jobs as restrictive to fairq_tenant
using (tenant = (select fairq.current_tenant_id()));

create policy tenant_reads_own on fairq.job_log for select to fairq_tenant
using (tenant = (select fairq.current_tenant_id()));
create policy tenant_fence on fairq.job_log as restrictive to fairq_tenant
using (tenant = (select fairq.current_tenant_id()));

-- operators: see everything, and say who may do what

create policy operator_reads on fairq.jobs for select to fairq_operator using (true);
create policy operator_reads on fairq.leases for select to fairq_operator using (true);
create policy operator_reads on fairq.finished_jobs for select to fairq_operator using (true);
create policy operator_reads on fairq.job_log for select to fairq_operator using (true);
create policy operator_reads on fairq.job_keys for select to fairq_operator using (true);
create policy operator_reads on fairq.queues for select to fairq_operator using (true);
create policy operator_reads on fairq.tenants for select to fairq_operator using (true);
create policy operator_reads on fairq.pause_notes for select to fairq_operator using (true);
create policy operator_reads on fairq.flows for select to fairq_operator using (true);
create policy operator_reads on fairq.schedulers for select to fairq_operator using (true);
create policy operator_reads on fairq.ticks for select to fairq_operator using (true);
create policy operator_reads on fairq.settlements for select to fairq_operator using (true);
create policy operator_reads on fairq.ready_picks for select to fairq_operator using (true);
create policy operator_grants on fairq.access_grants to fairq_operator using (true) with check (true);
