--
-- Indexes, each under the name of the room that rides it
--
-- Every hot read starts at a cursor, never at a dead beginning, and each statement is shaped so that one index serves
-- it.

-- claim: the head jobs of one tenant, from its head onwards
create index jobs_claim_idx
    on fairq.jobs (queue, tenant, priority, run_at, job_id)
    where state = 'queued';
comment on index fairq.jobs_claim_idx is 'Ridden by _pick, _pick_one, purge_tenant, queue_stats, tenant_stats and explain_wait: a tenant''s queued jobs in their order.';

-- the scheduler's look: what changed since the last one
create index jobs_look_idx on fairq.jobs (queue, changed_xid);
comment on index fairq.jobs_look_idx is 'Ridden by _look: jobs by the transaction that changed them.';

-- promote: what is due, from the promote floor
create index jobs_promote_idx
    on fairq.jobs (queue, run_at, job_id)
    where state = 'scheduled';
comment on index fairq.jobs_promote_idx is 'Ridden by promote: scheduled jobs by the time they are due.';

-- purge: what a tenant has that is not due yet. Only a query that says tenant > '' can ride it: promote must have no
-- second index to be tempted by.
create index jobs_purge_idx
    on fairq.jobs (queue, tenant, run_at, job_id)
    where state = 'scheduled' and tenant > '';
comment on index fairq.jobs_purge_idx is 'Ridden by purge_tenant: a tenant''s scheduled jobs by the time they are due.';

-- prune: what ended first, queue by queue, since each keeps its jobs for a time of its own, and those that failed for
-- another one: each row is in one of the two. Measured: 3 of the 19 pages that a completion touches, as many as for a
-- BRIN, which would soon be no help, as new rows go where old ones were.
-- Those of the partitions come first, so that they have names: the index of the whole takes in what it finds.
create index finished_jobs_0_prune_idx on fairq.finished_jobs_0 (queue, finished_at) where state = 'succeeded';
create index finished_jobs_0_failed_idx on fairq.finished_jobs_0 (queue, finished_at) where state <> 'succeeded';
create index finished_jobs_1_prune_idx on fairq.finished_jobs_1 (queue, finished_at) where state = 'succeeded';
create index finished_jobs_1_failed_idx on fairq.finished_jobs_1 (queue, finished_at) where state <> 'succeeded';
create index finished_jobs_2_prune_idx on fairq.finished_jobs_2 (queue, finished_at) where state = 'succeeded';
create index finished_jobs_2_failed_idx on fairq.finished_jobs_2 (queue, finished_at) where state <> 'succeeded';
create index finished_jobs_3_prune_idx on fairq.finished_jobs_3 (queue, finished_at) where state = 'succeeded';
create index finished_jobs_3_failed_idx on fairq.finished_jobs_3 (queue, finished_at) where state <> 'succeeded';
create index finished_jobs_prune_idx on fairq.finished_jobs (queue, finished_at) where state = 'succeeded';
comment on index fairq.finished_jobs_prune_idx is 'Ridden by _prune_queue and _ended_queues: jobs of a queue that have succeeded, oldest first.';
create index finished_jobs_failed_idx on fairq.finished_jobs (queue, finished_at) where state <> 'succeeded';
comment on index fairq.finished_jobs_failed_idx is 'Ridden by _prune_queue and _ended_queues: dead and cancelled jobs of a queue, oldest first.';

-- prune: keys that have expired
create index job_keys_prune_idx on fairq.job_keys (expires_at);
comment on index fairq.job_keys_prune_idx is 'Ridden by prune: keys by the time they expire.';

-- expire: leases that are over, from the expire floor
create index leases_expire_idx on fairq.leases (queue, lease_expires_at);
comment on index fairq.leases_expire_idx is 'Ridden by expire: leases by the time they end.';

-- the timeline of one job
create index job_log_0_timeline_idx on fairq.job_log_0 (job_id, log_id);
create index job_log_1_timeline_idx on fairq.job_log_1 (job_id, log_id);
create index job_log_2_timeline_idx on fairq.job_log_2 (job_id, log_id);
create index job_log_3_timeline_idx on fairq.job_log_3 (job_id, log_id);
create index job_log_timeline_idx on fairq.job_log (job_id, log_id);
comment on index fairq.job_log_timeline_idx is 'Ridden by job_events: the transitions of one job.';

-- the scheduler's look at operators' wishes
create index tenants_look_idx on fairq.tenants (queue, changed_xid);
comment on index fairq.tenants_look_idx is 'Ridden by _look: tenants'' rows by the transaction that changed them.';

-- a flow by its key, newest version first: under a held snapshot the dead versions are never walked.
-- Tenant first: what reads a queue's flows in pick order must have no second index to be tempted by.
-- Unique, so that it can be the table's identity where somebody publishes all tables: updates are refused without one,
-- and a full one may not have generated columns in it.
create unique index flows_key_idx on fairq.flows (tenant, queue, stamp desc);
alter table fairq.flows replica identity using index flows_key_idx;
comment on index fairq.flows_key_idx is 'Ridden by _open_flows, _by_tenant, _pick (for tenants that are named), _foreseen and tenant_stats: a tenant''s flow, newest version first.';

-- the pick order. The whole tie-break is in the index, so that a limit cuts between equals by the rule and not by luck;
-- and eligible is a column of it rather than its condition, so that it also ends in the greatest vtime of the queue.
create index flows_pick_idx on fairq.flows (queue, eligible, vtime, charge, served, tenant);
comment on index fairq.flows_pick_idx is 'Ridden by _pick, _pick_one, _pick_floor, _virtual_time and prune, and by queue_stats, tenant_stats and explain_wait: flows in pick order.';

-- flows that are out of tokens, by the time the next one comes
create index flows_token_idx on fairq.flows (queue, token_due_at) where limited;
comment on index fairq.flows_token_idx is 'Ridden by _tokens_due: limited flows by the time of their next token.';

-- the greatest weight an operator has given in a queue
create index tenants_weight_idx on fairq.tenants (queue, weight);
comment on index fairq.tenants_weight_idx is 'Ridden by _spread: the greatest weight of a queue.';

-- what is paused
create index tenants_pause_idx on fairq.tenants (queue, tenant) where paused;
comment on index fairq.tenants_pause_idx is 'Ridden by _take and pauses: paused tenants, which are few.';

-- the scheduler's look at ended attempts
create index settlements_look_idx on fairq.settlements (queue, ended_xid);
comment on index fairq.settlements_look_idx is 'Ridden by _look: ended attempts by the transaction they ended in.';

-- who may do what, for a tenant: few probes, however many roles have grants of their own
create index access_grants_verb_idx on fairq.access_grants (verb, tenant, queue, role_name);
comment on index fairq.access_grants_verb_idx is 'Ridden by _granted_tenants, _take, enqueue_job and _enqueue_plain_jobs: grants by verb and tenant.';
