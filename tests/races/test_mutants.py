"""
The race checks can fail: each names schedulers that look right and are not.

A storm meets its mutant by chance. So what a check in a named order can tell is left to that one, and the storms are
held against those mutants only that show that they can fail, several times if need be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.support import Edit, Statement

from . import test_leases as leases
from . import test_locks as locks
from . import test_look as look
from . import test_storms as storms

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from tests.support import Database


# that the checks can fail need not be shown on each version
pytestmark = pytest.mark.once


@dataclass(frozen=True)
class Both:
    """Mutations that make sense together only."""

    parts: tuple[Callable[[Database], None], ...]

    def __call__(self, db: Database) -> None:
        """Break the schema in each of the ways."""
        for part in self.parts:
            part(db)


def both(*parts: Callable[[Database], None]) -> Both:
    """Several edits, one mutant."""
    return Both(parts)


UNLOCKED = both(
    Edit("_lock_queue", " for update skip locked"),
    Edit("_wait_for_queue", " for update"),
)

MUTANTS: dict[str, tuple[Callable[[Database], None], tuple[Callable[..., None], ...]]] = {
    # the queue's lock
    "claims do not lock the queue": (
        UNLOCKED,
        (locks.check_claims_take_turns,),
    ),
    "nobody may lock the queue": (
        Statement("drop policy api_locks on fairq.schedulers"),
        (locks.check_claims_take_turns,),
    ),
    "the queue's lock is waited for in one go": (
        Edit("_wait_for_queue", "least(50, ", "least(20000, "),
        (locks.check_a_claim_rolled_back_to_a_savepoint_frees_the_queue,),
    ),
    "waiters for the queue's lock stand in line for its row": (
        Edit(
            "_wait_for_queue",
            "perform pg_advisory_xact_lock('fairq.schedulers'::regclass::oid::integer, hashtext(p_queue));",
        ),
        (locks.check_nobody_waits_twice_in_one_statement,),
    ),
    "the holder is known by its transaction only": (
        Edit("_lock_holders", "l.mode = 'RowShareLock'", "false"),
        (locks.check_the_holder_is_named,),
    ),
    # the look
    "the tick remembers a later snapshot than the look's": (
        Edit(
            "_dispatch",
            "v_tick := fairq._catch_up(v_was, v_snap, v_own, v_settings, v_now, p_limit);",
            "v_tick := fairq._catch_up(v_was, v_snap, v_own, v_settings, v_now, p_limit);"
            " v_tick.seen := pg_current_snapshot();",
        ),
        (look.check_commits_inside_a_claim,),
    ),
    "the look is not filtered by its snapshot": (
        both(
            Edit("_look", "and pg_visible_in_snapshot(j.changed_xid, p_snap) and j.changed_xid <> p_own"),
            Edit("_pick", "and jj.changed_xid <> p_own and pg_visible_in_snapshot(jj.changed_xid, p_snap)"),
        ),
        (look.check_children_are_found_once_committed,),
    ),
    "the pick takes jobs of its own transaction": (
        both(
            Edit("_look", " and j.changed_xid <> p_own"),
            Edit("_pick", "jj.changed_xid <> p_own and "),
        ),
        (look.check_children_are_found_once_committed,),
    ),
    "the next look forgets the tick's own transaction": (
        Edit("_look", "select p_tick.own_xid where p_tick.own_xid < v_since", "select null::xid8 where false"),
        (
            look.check_children_are_found_once_committed,
            look.check_savepoints_leave_nothing_behind,
            storms.check_slow_producers_lose_nothing,
        ),
    ),
    "the next look forgets what was under way": (
        Edit("_look", "select pg_snapshot_xip(p_tick.seen) as x", "select null::xid8 as x where false"),
        (look.check_a_late_commit_is_found,),
    ),
    "a job put back is no news": (
        Edit("_put_back", "case when p_is_fed then j.changed_xid else pg_current_xact_id() end", "j.changed_xid"),
        (look.check_a_job_put_back_is_found,),
    ),
    "a rescheduled job is no news": (
        Edit("reschedule_job", "changed_xid = pg_current_xact_id()", "changed_xid = j.changed_xid"),
        (look.check_commits_inside_a_claim,),
    ),
    "a promoted job is no news": (
        Edit("promote_due_jobs", ", changed_xid = pg_current_xact_id()"),
        (look.check_a_promoted_job_is_found,),
    ),
    # the pick and the lease
    "the claim does not lock the job": (
        Edit("_lease", "for key share skip locked"),
        (locks.check_a_cancellation_in_flight_is_passed_by, locks.check_a_claim_in_flight_is_respected),
    ),
    "a lease is given without a second look at the job": (
        Edit("_lease", "jj.ctid = p.job_row and jj.state = 'queued'", "jj.job_id = p.job_id"),
        (look.check_a_job_put_off_is_not_leased,),
    ),
    "the claim waits for the job": (
        both(Edit("_lease", "key share skip locked", "key share"), Edit("_held_by_others", " skip locked")),
        (locks.check_a_cancellation_in_flight_is_passed_by,),
    ),
    "a head moves past a job that was skipped": (
        Edit("_dispatch", "if v_skip <> '{}' then", "if false then"),
        (look.check_a_skipped_job_is_found_later,),
    ),
    "the floor of the pick stays above who comes back": (
        Edit("_apply", "if v_can and (v_was.has_work or v_new.arrived) then", "if false then"),
        (look.check_a_job_put_back_is_found,),
    ),
    "a running job may be picked": (
        Edit("_pick", "and not exists (select from fairq.leases as l where l.job_id = jj.job_id offset 0)"),
        (look.check_a_skipped_job_is_found_later, storms.check_everything_at_once),
    ),
    "flows left out do not bound the pick": (
        both(
            Edit("_pick", "or (select count(*) from flow) < p_wide", "or true"),
            Edit("_front", "when u.flows = p_wide then", "when false then"),
        ),
        (leases.check_an_empty_flow_does_not_bend_the_order,),
    ),
    # the counts
    "a failed attempt is not settled": (
        Edit("_fail", "perform fairq._settle(v_lease.queue, fairq._ending(v_lease, 'held', v_now));"),
        (leases.check_what_runs_is_counted,),
    ),
    "a lease that cron ends is not settled": (
        Edit(
            "release_expired_jobs",
            "perform fairq._settle(v_queue, fairq._ending(v_lease, 'prepaid', clock_timestamp()));",
        ),
        (look.check_a_job_put_back_is_found,),
    ),
    "a lease that a claim ends is not settled": (
        Edit("_expire_due", "v_moved.endings := v_moved.endings || fairq._ending(v_lease, 'prepaid', p_now);"),
        (leases.check_the_old_token_is_dead_after_a_reclaim, storms.check_killed_workers_lose_nothing),
    ),
    "a completed attempt is not settled": (
        Edit("_complete", "group by h.queue", "where false group by h.queue"),
        (leases.check_what_runs_is_counted, storms.check_one_queue_drained_by_many),
    ),
    "who ends an attempt locks the queue": (
        Edit("_settle", "begin", "begin perform from fairq.schedulers as s where s.queue = p_queue for update;"),
        (locks.check_an_open_claim_stops_nobody_else,),
    ),
    "a settlement is read twice": (
        Edit(
            "_look",
            "delete from fairq.settlements as s using settlement as e where s.ctid = e.row_id\n        returning "
            "s.tenant, s.epoch, s.ended, s.measured, s.elapsed, s.extra, s.refund",
            "select s.tenant, s.epoch, s.ended, s.measured, s.elapsed, s.extra, s.refund"
            " from fairq.settlements as s join settlement as e on s.ctid = e.row_id",
        ),
        (leases.check_what_runs_is_counted,),
    ),
    "the cap is counted from nothing": (
        Edit("_charge", "= f.running + s.took", "= f.running"),
        (leases.check_what_runs_is_counted, storms.check_caps_hold),
    ),
    "only what ended is counted": (
        Edit("_settled", "p_flow.running := p_flow.running - v_sum.ended;"),
        (leases.check_what_runs_is_counted,),
    ),
    "the queue counts only what ended": (
        Edit("_charge", "p_tick.running + v_sum.took", "p_tick.running"),
        (leases.check_what_runs_is_counted, storms.check_the_cap_of_the_queue_holds),
    ),
    "the queue does not count what ended": (
        Edit("_count_endings", "p_tick.running - v_sum.ended", "p_tick.running"),
        (leases.check_what_runs_is_counted,),
    ),
    "the queue's cap does not limit a claim": (
        Edit("_room", "p_settings.max_running - p_tick.running", "p_settings.max_running"),
        (storms.check_the_cap_of_the_queue_holds,),
    ),
    "a tenant found empty stays backlogged": (
        Edit("_charge", "p_tick.backlogged - v_sum.gone", "p_tick.backlogged"),
        (leases.check_who_is_backlogged_is_counted,),
    ),
    "a tenant found empty goes on to weigh": (
        Edit("_charge", "p_tick.milliweight - v_sum.milliweight", "p_tick.milliweight"),
        (leases.check_who_is_backlogged_is_counted,),
    ),
    "a new weight of a backlogged tenant is not counted": (
        Edit("_apply", "+ (round(v_flow.weight * 1000) - round(v_was.weight * 1000))::bigint"),
        (leases.check_who_is_backlogged_is_counted,),
    ),
    "the weight an entrant had when it was counted is taken for the one it has": (
        Edit("_apply", "p_tick.milliweight := p_tick.milliweight - v_over;"),
        (look.check_a_wish_inside_a_claim_is_weighed_once,),
    ),
    "a flow keeps the weight it was opened with": (
        Edit("_wished", "p_flow.weight := p_wish.weight;"),
        (look.check_a_wish_for_all_reaches_who_was_idle,),
    ),
    "what a claim may start is not limited by the cap": (
        Edit(
            "_front",
            "p_want, f.max_running - f.running,",
            "p_want,",
        ),
        (storms.check_caps_hold,),
    ),
    # leases
    "a lease is judged before its row is locked": (
        Edit(
            "_hold_lease",
            "v_lease.lease_expires_at > coalesce(p_now, clock_timestamp())",
            "v_lease.lease_expires_at > statement_timestamp()",
        ),
        (leases.check_a_lease_is_judged_once_its_row_is_locked,),
    ),
    "complete judges before its row is locked": (
        Edit("_complete", "coalesce(p_now, clock_timestamp()) as now_held", "statement_timestamp() as now_held"),
        (leases.check_a_lease_is_judged_once_its_row_is_locked,),
    ),
    "a dead lease is good until it is taken back": (
        Edit("_complete", "h.lease_expires_at > h.now_held and "),
        (leases.check_a_lease_is_judged_once_its_row_is_locked,),
    ),
    "a lease that is being renewed counts as lost": (
        Edit("_hold_lease", "for update", "for update skip locked"),
        (leases.check_a_worker_can_end_what_it_just_renewed,),
    ),
    "complete passes by a lease that is being renewed": (
        Edit("_complete", "for update", "for update skip locked"),
        (leases.check_a_worker_can_end_what_it_just_renewed,),
    ),
    "complete asks for no token": (
        Edit("_complete", " and ll.lease_token = u.token"),
        (leases.check_only_the_token_ends_an_attempt, leases.check_the_old_token_is_dead_after_a_reclaim),
    ),
    "the others ask for no token": (
        Edit("_hold_lease", "v_lease.lease_token = p_token and "),
        (leases.check_only_the_token_ends_an_attempt,),
    ),
    "complete asks not who calls": (
        Edit("_complete", " and h.caller = v_caller"),
        (leases.check_only_the_claimer_ends_an_attempt,),
    ),
    "the others ask not who calls": (
        Edit("_hold_lease", "and v_lease.caller = p_caller"),
        (leases.check_only_the_claimer_ends_an_attempt,),
    ),
    "a batch answers for the job and not for the token": (
        Edit("complete_jobs", "u.ordinality = any (v_done)", "cardinality(v_done) > 0"),
        (leases.check_only_the_token_ends_an_attempt,),
    ),
    "a renewal may shorten": (
        Edit("_renew", "greatest(l.lease_expires_at, v_now + p_lease)", "v_now + p_lease"),
        (leases.check_a_renewal_never_shortens,),
    ),
    "cancel does not look for the lease again": (
        Edit(
            "_hold_waiting", "if exists (select from fairq.leases as l where l.job_id = p_job_id) then", "if false then"
        ),
        (leases.check_a_cancel_that_waited_finds_the_lease, locks.check_a_claim_in_flight_is_respected),
    ),
    "who finds the lease keeps the job's row": (
        Edit("_hold_waiting", "raise exception 'job % runs', p_job_id using errcode = 'QF900';", "return null;"),
        (leases.check_a_cancel_that_waited_finds_the_lease,),
    ),
    "complete locks a batch as it comes": (
        Edit("_complete", "order by t.job_id, t.at"),
        (locks.check_batches_in_opposite_order,),
    ),
    "enqueue takes the keys of a batch as they come": (
        Edit("_draw_ids", "order by u.tenant, u.key, u.ordinality", "order by u.ordinality"),
        (locks.check_batches_in_opposite_order,),
    ),
    **{
        f"{verb} locks as it comes": (
            Edit(verb, "order by u.job_id, u.ordinality", "order by u.ordinality"),
            (locks.check_batches_in_opposite_order,),
        )
        for verb in ("fail_jobs", "release_jobs", "renew_job_leases")
    },
    "half a completion may stay": (
        Edit("_complete", "cardinality(v_done) is distinct from nullif(v_ended, 0)", "false"),
        (look.check_attempts_that_end_during_a_rebuild_are_counted,),
    ),
    # promote and expire
    "promote waits for locked jobs": (
        Edit("promote_due_jobs", "for update skip locked", "for update"),
        (leases.check_floors_stay_at_what_is_locked,),
    ),
    "a claim waits for a locked job that is due": (
        Edit("_promote_due", "for update skip locked", "for update"),
        (leases.check_floors_stay_at_what_is_locked,),
    ),
    "a claim waits for a locked lease that is over": (
        Edit("_expire_due", "for update skip locked", "for update"),
        (leases.check_floors_stay_at_what_is_locked,),
    ),
    "the floor of promote moves past locked jobs": (
        Edit("_promote_due", "coalesce(v_left, v_moved.floor)", "v_moved.floor"),
        (leases.check_floors_stay_at_what_is_locked,),
    ),
    "the floor of expire moves past locked leases": (
        Edit("_expire_due", "coalesce(v_left, v_moved.floor)", "v_moved.floor"),
        (leases.check_floors_stay_at_what_is_locked,),
    ),
    "the floor of expire only rises": (
        Edit(
            "_expire_due",
            "row('{}'::fairq.news[], '{}'::fairq.ending[], p_now)",
            "row('{}'::fairq.news[], '{}'::fairq.ending[], greatest(p_tick.expire_floor, p_now))",
        ),
        (look.check_a_clock_set_back_hides_nothing,),
    ),
    # keys
    "a key under way counts as taken": (
        Edit(
            "_draw_id",
            "for v_try in 1..10 loop",
            "if not pg_try_advisory_xact_lock(hashtext(p_job.tenant || p_job.key)) then"
            " return row(null, p_job_id, 'exists')::fairq.enqueue_outcome; end if;\n    for v_try in 1..10 loop",
        ),
        (locks.check_a_producer_waits_only_for_its_key,),
    ),
    "a lost race for a key is a new job": (
        Edit(
            "_draw_id",
            "if found then\n            return row(null, p_job_id, 'created')",
            "if true then\n            return row(null, p_job_id, 'created')",
        ),
        (locks.check_batches_in_opposite_order,),
    ),
    # the fair order
    "an idle tenant keeps its place": (
        Edit("_apply", "p_tick.virtual_time + case", "0 + case"),
        (leases.check_a_returning_tenant_has_no_credit,),
    ),
    "virtual time may fall": (
        Edit("_virtual_time", "p_tick.virtual_time,\n        coalesce", "0,\n        coalesce"),
        (leases.check_virtual_time_never_falls,),
    ),
    # after a move
    "the memory of another cluster is trusted": (
        Edit("_last_tick", "v_tick.system_identifier is distinct from v_system", "v_tick.system_identifier is null"),
        (look.check_the_memory_of_another_cluster_is_not_trusted,),
    ),
    "jobs never claimed keep the transactions of another cluster": (
        Edit("_rebuild", "j.changed_xid >= pg_snapshot_xmax(pg_current_snapshot())", "false"),
        (look.check_the_memory_of_another_cluster_is_not_trusted,),
    ),
    "a rebuild does not count": (
        Edit(
            "_rebuild",
            "(select count(*) from fairq.leases as l where l.queue = f.queue and l.tenant = f.tenant)",
            "f.running",
        ),
        (look.check_the_memory_of_another_cluster_is_not_trusted,),
    ),
    "a rebuild does not count what the queue runs": (
        Edit("_rebuild", "(select count(*) from fairq.leases as l where l.queue = p_queue)", "p_tick.running"),
        (look.check_the_memory_of_another_cluster_is_not_trusted,),
    ),
    "a rebuild keeps the settlements": (
        Edit("_rebuild", "delete from fairq.settlements as s where s.queue = p_queue;"),
        (look.check_the_memory_of_another_cluster_is_not_trusted,),
    ),
}


CASES = [
    pytest.param(mutation, check, id=f"{name} ({check.__name__})")
    for name, (mutation, checks) in MUTANTS.items()
    for check in checks
]
TRIES = 5


@pytest.mark.parametrize(("mutation", "check"), CASES)
def test_a_mutant_is_killed(
    assert_killed: Callable[..., None], mutation: Callable[[Database], None], check: Callable[..., None]
) -> None:
    """
    Under the mutant the check fails: in a named order at once, in a storm in one of five, each in a fresh database.
    """
    assert_killed(check, mutation, tries=TRIES if check.__module__ == storms.__name__ else 1)


@pytest.mark.parametrize("module", [leases, locks, look, storms], ids=lambda module: module.__name__.split(".")[-1])
def test_every_check_has_a_mutant(module: ModuleType) -> None:
    """
    No check of a race is without a mutant that makes it fail.
    """
    killers = {check.__name__ for _, checks in MUTANTS.values() for check in checks}
    checks = {name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    assert {name for name in checks if name.startswith("check_")} <= killers
