"""
Every statement that reads a table on the way of a job, and the indexes that it is to ride.

A statement is named by words of it (white space collapsed) that no other one has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support import plans

if TYPE_CHECKING:
    from tests.support.plans import Plan

HOT = {
    # who calls, and under which settings
    "select q.* from fairq.queues as q where q.queue": {"queues_pkey"},
    "where a.verb = p_verb": {"access_grants_verb_idx"},
    # enqueue
    "select coalesce(p_max_attempts, q.max_attempts)": {"queues_pkey", "access_grants_verb_idx"},
    "(select t.found_empty from fairq.ticks": {"ticks_pkey"},
    "from jsonb_array_elements( case": {"queues_pkey", "access_grants_verb_idx"},
    "select k.* from fairq.job_keys": {"job_keys_pkey"},
    # claim: lock, remember, look
    "SELECT from fairq.schedulers as s where s.queue = p_queue for update": {"schedulers_pkey"},
    "select t.* from fairq.ticks": {"ticks_pkey"},
    "(select count(*) from fairq.leases as l where l.queue = p_queue)": {"leases_expire_idx"},
    "update fairq.jobs as j set changed_xid = '3' where j.queue = p_queue and": {"jobs_look_idx"},
    "where exists ( select from fairq.jobs as j where j.queue = p_tick.queue": {"jobs_look_idx", "tenants_look_idx"},
    "with ended as ( delete from fairq.settlements": {"settlements_look_idx"},
    "with job as (": {"jobs_look_idx", "tenants_look_idx"},
    # the claim expires
    "select l.* from fairq.leases as l where l.queue = p_tick.queue": {"leases_expire_idx"},
    "select l.lease_expires_at from fairq.leases as l where l.queue = p_tick.queue": {"leases_expire_idx"},
    "select p_lease.attempt >= j.max_attempts": {"jobs_pkey"},
    "v_moved.news := v_moved.news || (": {"jobs_pkey"},
    # the claim promotes
    "with due as materialized ( select j.ctid as row_id from fairq.jobs as j where j.queue = p_tick": {
        "jobs_promote_idx"
    },
    "select j.run_at from fairq.jobs as j where j.queue = p_tick.queue": {"jobs_promote_idx"},
    # claim: tokens, virtual time, apply
    "select f.tenant, f.token_due_at from fairq.flows": {"flows_token_idx"},
    "p_tick.virtual_time, ( select f.vtime from fairq.flows": {"flows_pick_idx"},
    "insert into fairq.flows": {"flows_key_idx"},
    "array( select row( e.tenant, false, false, null": {"flows_key_idx"},
    "array( select row( t.tenant, t.arrived": {"flows_key_idx"},
    "select t.* from fairq.tenants as t where t.tenant in (p_tenant, '*')": {"tenants_pkey"},
    "select t.weight from fairq.tenants": {"tenants_weight_idx"},
    # claim: pick, go round, write down
    "select f.ctid as row_id, f as flow from fairq.flows": {"flows_pick_idx"},
    "select q.job_row, q.job_id, q.cost, lead(": {"jobs_claim_idx", "leases_pkey"},
    "with open as materialized (": {"flows_pick_idx", "flows_key_idx", "jobs_claim_idx", "leases_pkey"},
    "from unnest(p_job_ids) as s(job_id)": {"jobs_pkey"},
    "select f.vtime, f.charge, f.served, f.tenant from fairq.flows as f": {"flows_pick_idx"},
    "delete from fairq.ticks": {"ticks_pkey"},
    "select j.payload from fairq.jobs as j where j.job_id = v_job.job_id": {"jobs_pkey"},
    # claim: what is ready
    "where a.verb = 'claim' and a.tenant = '*'": {"queues_pkey", "access_grants_verb_idx", "ticks_pkey"},
    "select rr.ctid from fairq.ready_picks as rr": {"ready_picks_pkey", "tenants_pause_idx", "tenants_pkey"},
    "with free as ( select r.ctid": {"ready_picks_pkey"},
    "select p.job_id from fairq.ready_picks as r": {"ready_picks_pkey"},
    "update fairq.flows as f set tokens = f.tokens + n.returned": {"flows_key_idx"},
    "select j.ctid, j.state from fairq.jobs as j where j.job_id = v_pick.job_id": {"jobs_pkey"},
    # renew, fail, release: the lease
    "select l.* from fairq.leases as l where l.job_id = p_job_id for update": {"leases_pkey"},
    "update fairq.leases as l set -- a shorter renewal": {"leases_pkey"},
    "delete from fairq.leases as l where l.job_id = (p_lease).job_id": {"leases_pkey"},
    # fail, release: the job
    "when not p_retry or v_lease.attempt >= j.max_attempts then 'dead'": {"jobs_pkey"},
    "update fairq.jobs as j set state = case when p_run_at is null": {"jobs_pkey"},
    "delete from fairq.jobs as j where j.job_id = p_lease.job_id": {"jobs_pkey"},
    # complete
    "delete from fairq.leases as l where l.job_id = p_job_id and l.lease_token": {"leases_pkey"},
    "delete from fairq.jobs as j where j.job_id = v_lease.job_id": {"jobs_pkey"},
    "with given as materialized ( select array_agg(u.job_id)": {"leases_pkey", "jobs_pkey"},
    "select f.state, f.token_hash from fairq.finished_jobs as f where f.job_id": {"finished_jobs_pkey"},
    "case when p_result is null": {"leases_pkey"},
    # promote and expire from outside
    "select s.queue from fairq.schedulers as s where p_queue is null": {"schedulers_pkey"},
    "with recursive queue(name) as ( select coalesce(p_queue, ( select j.queue": {"jobs_promote_idx"},
    "with due as materialized ( select j.ctid as row_id from fairq.jobs as j where j.queue = v_queue": {
        "jobs_promote_idx"
    },
    "select l.* from fairq.leases as l where l.queue = v_queue": {"leases_expire_idx"},
    # prune: flows nobody needs
    "select s.queue from fairq.schedulers as s order by s.queue": {"schedulers_pkey"},
    "SELECT from fairq.schedulers as s where s.queue = v_queue for update": {"schedulers_pkey"},
    "where f.queue = p_queue and not f.eligible and f.vtime <=": {
        "flows_pick_idx",
        "ticks_pkey",
    },
    "delete from fairq.flows as f using unnest(v_idle)": {"flows_key_idx"},
    # cancel, retry, reschedule
    "select j.queue, j.tenant, 'waiting'": {"jobs_pkey", "finished_jobs_pkey"},
    "select j.* from fairq.jobs as j where j.job_id = p_job_id for update": {"jobs_pkey"},
    "exists (select from fairq.leases as l where l.job_id = p_job_id)": {"leases_pkey"},
    "delete from fairq.jobs as j where j.job_id = p_job.job_id": {"jobs_pkey"},
    "update fairq.leases as l set cancel_requested_at": {"leases_pkey"},
    "select f.* from fairq.finished_jobs as f where f.job_id = p_job_id for update": {"finished_jobs_pkey"},
    "delete from fairq.finished_jobs as f where f.job_id = p_job_id": {"finished_jobs_pkey"},
    "update fairq.jobs as j set run_at = v_job.run_at": {"jobs_pkey"},
    # purge
    "union all ( select j.job_id from fairq.jobs as j": {"jobs_claim_idx", "leases_pkey", "jobs_purge_idx"},
    "select j.* from fairq.jobs as j where j.job_id = v_id": {"jobs_pkey"},
    "exists (select from fairq.leases as l where l.job_id = v_id)": {"leases_pkey"},
    # prune
    "with recursive good(name) as ( (select f.queue": {"finished_jobs_prune_idx", "finished_jobs_failed_idx"},
    "select s.* from fairq.queues as s where s.queue": {"queues_pkey"},
    "delete from fairq.finished_jobs as f where f.job_id = any": {"finished_jobs_pkey"},
    "with good as materialized ( select f.job_id": {"finished_jobs_prune_idx", "finished_jobs_failed_idx"},
    "delete from fairq.job_log": {"job_log_timeline_idx", "job_log_pkey"},
    "where j.job_id = old.job_id) and not exists (": {"jobs_pkey", "finished_jobs_pkey"},
    "with old as materialized ( select k.ctid": {"job_keys_prune_idx"},
}

# What a claim of ten or a batch of as many may read in one step of its plan.
MOST_ROWS = 250
# But where a job is held by somebody the next thousand are tried; and upkeep goes through the idle tenants, here 1,000.
MORE_ROWS = {
    "with open as materialized (": 1_100,
    "where f.queue = p_queue and not f.eligible and f.vtime <=": 1_100,
}

_READ_NO_TABLE = {"ModifyTable", "Tid Scan"}
_NEVER = {"Seq Scan", "Bitmap Heap Scan", "Bitmap Index Scan", "Hash Join", "Merge Join", "Gather"}


def faults(statement: str, plan: Plan) -> list[str]:
    """What is wrong with the plan of one statement; a statement that reads no table cannot go wrong."""
    touched = [n for n in plans.nodes(plan) if {"Relation Name", "Index Name"} & set(n)]
    if all(node["Node Type"] in _READ_NO_TABLE for node in touched):
        return []
    names = names_of(statement)
    if len(names) != 1:
        return [f"{len(names)} names in hot.py: {statement[:150]}"]
    wrong = [
        f"{node['Node Type']} of {_tables(node)}"
        for node in plans.nodes(plan)
        # what has been read already may be joined in any way
        if node["Node Type"] in _NEVER and _tables(node)
    ]
    most = MORE_ROWS.get(names[0], MOST_ROWS)
    wrong += [f"{_rows(node)} rows in {node['Node Type']}" for node in plans.nodes(plan) if _rows(node) > most]
    if plans.indexes(plan) != HOT[names[0]]:
        wrong.append(f"rides {sorted(plans.indexes(plan))}")
    return [f"{names[0]}: {fault}" for fault in wrong]


def names_of(statement: str) -> list[str]:
    """The names in HOT that a statement answers to."""
    return [name for name in HOT if name in statement]


def most_rows(plan: Plan) -> int:
    """The rows of the step that has the most to do."""
    return max(_rows(node) for node in plans.nodes(plan))


def _rows(node: Plan) -> int:
    removed = sum(rows for what, rows in node.items() if what.startswith("Rows Removed by "))
    return round((node["Actual Rows"] + removed) * node["Actual Loops"])


def _tables(node: Plan) -> str:
    return ", ".join(sorted({n["Relation Name"] for n in plans.nodes(node) if "Relation Name" in n}))
