"""
The fairness checks can fail: each is held against a scheduler broken on purpose.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.support import Edit

from . import test_scenarios as at
from .test_differential import check_seeded_traces
from .test_state_machine import check_any_order

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Database

# that the checks can fail need not be shown on each version
pytestmark = pytest.mark.once

# The seeds of traces that tell of a mutant, to save time. Were the traces made in another way, one of the thousand that
# come after them would tell.
TELLING = 5, 4, 65, 72, 53, 10, 13, 14, 23


def traces(db: Database) -> None:
    """
    The same traces every time, until one tells.
    """
    for seed in TELLING:
        check_seeded_traces(db, 1, seed)
    check_seeded_traces(db, 1000)


def scenario(name: str) -> Callable[[Database], None]:
    """
    The check of a scenario by its name.
    """
    return partial(at.check_scenario, name=name)


MUTANTS = [
    # R2: no lift at activation; debt forgotten; a tenant's first job starts at zero
    (
        scenario("09_idling_earns_nothing"),
        Edit("_apply", "p_tick.virtual_time + case", "null + case"),
    ),
    (
        scenario("10_debt_is_kept"),
        Edit(
            "_lifted",
            "if p_start > p_flow.vtime then",
            "if p_start > p_flow.vtime or p_start is not null then",
        ),
    ),
    (
        at.check_13_a_late_commit_earns_nothing,
        Edit(
            "_apply",
            "p_tick.virtual_time + case",
            "case when v_was.stamp > 0 then p_tick.virtual_time end + case",
        ),
    ),
    # R2: E falls with a flow that R11 let in below V
    (scenario("r2_nobody_enters_below"), Edit("_virtual_time", "p_tick.virtual_time,\n", "0,\n")),
    # R4: ties by name alone
    (
        scenario("08_batches_change_nothing"),
        Edit("_pick", "order by h.tag, h.charge, case", "order by h.tag, case"),
    ),
    (
        traces,
        Edit(
            "_pick",
            "end nulls first, h.nth, h.served, h.tenant",
            "end nulls first, h.served, h.tenant",
        ),
    ),
    # R4, R7: ties in a batch by how often, whatever the steps
    (
        scenario("08_batches_change_no_tie"),
        Edit("_pick", "case when c.nth > 1 then -c.step end nulls first, c.nth", "c.nth"),
    ),
    # R7: a flow read to its depth does not bound the pass
    (
        scenario("08_a_heavy_tenant_fills_a_batch"),
        Edit("_pick", "min(x.tag + x.step)", "min(x.tag + 1000 * x.step)"),
    ),
    # R7: a flow that was not read does not bound it either
    (scenario("12_cancelled_tenants_hide_nobody"), Edit("_pick", "(select count(*) from flow) < p_wide", "true")),
    # R8: a weight acts on flows opened after it
    (scenario("11_a_weight_acts_at_once"), Edit("_wished", "p_flow.weight := p_wish.weight;", "")),
    # R9: the cap judged before the claim and not within it
    (
        at.check_18_a_cap_is_exact,
        Edit("_front", "p_want, f.max_running - f.running,", "p_want,"),
    ),
    # R11: no lift when unblocked
    (
        scenario("r11_one_job_of_precedence"),
        Edit("_apply", "if v_can and not v_was.eligible then", "if false then"),
    ),
    # R11: without bounds upwards, as if it had never waited
    (
        traces,
        Edit("_apply", "p_tick.virtual_time - v_flow.charge);", "p_tick.virtual_time);"),
    ),
    # R1: without the queue's lock
    (at.check_17_one_tenant_many_claimers, Edit("_dispatch", "perform fairq._lock_queue(p_queue);", "")),
    # the lighter tenants pay too little
    (
        at.check_16_sixteen_sessions_share_by_weight,
        Edit("_charge", "p.nth * p.charge", "p.nth * least(p.charge, 2520000 / 2)"),
    ),
    # charging: only at the end; never a job's own length
    (
        scenario("21_idle_workers_are_shared"),
        Edit("_charge", "least(f.vtime + s.charge, 4611686018427387904)", "f.vtime"),
    ),
    (scenario("20_slots_are_shared_not_jobs"), Edit("_apply", "if v_new.endings is not null then", "if false then")),
    # charging: a refund counts after a lift too
    (scenario("22_a_late_refund_is_void"), Edit("_settled", "filter (where e.epoch = p_flow.epoch)", "")),
    (traces, Edit("_lifted", "p_flow.epoch := p_flow.epoch + 1;", "null;")),
    # charging: an extra charge does not count after a lift
    (
        traces,
        Edit(
            "_settled",
            "sum(e.extra) as extra",
            "coalesce(sum(e.extra) filter (where e.epoch = p_flow.epoch), 0) as extra",
        ),
    ),
    # charging: a lost lease is paid back; a failure is free; a job given back is not
    (scenario("a_lost_lease_is_paid_for"), Edit("_ending", "or p_pays = 'prepaid'", "")),
    (
        scenario("24_failures_are_paid_for"),
        Edit("_fail", "fairq._ending(v_lease, 'held', v_now)", "fairq._ending(v_lease, 'nothing', v_now)"),
    ),
    (traces, Edit("_release", "else 'nothing' end", "else 'held' end")),
    # charging: a renewal is free
    (
        scenario("22_an_over_estimate_is_corrected"),
        Edit("_renew", "if v_lease.prepaid < v_prepaid then", "if false then"),
    ),
    # charging: a claim prepays more than its lease
    (
        scenario("a_claim_prepays_no_more_than_its_lease"),
        Edit("_front", "when f.price > p_longest then", "when false then"),
    ),
    # charging: the first estimate of a tenant is not the queue's mean; averages forget nothing
    (traces, Edit("_open_flows", "coalesce(p_tick.mean, 1000)", "1000")),
    (traces, Edit("_average", "power(0.875::double precision, p_count::double precision)", "0.5")),
    # charging: a change of it is not noticed by the flows there are
    (
        scenario("a_new_way_of_charging_acts_at_once"),
        Edit("_catch_up", "if p_tick.charge <> p_settings.charge", "if false"),
    ),
    # charging: declared costs are not looked at
    (
        scenario("cost_mode_charges_what_is_declared"),
        Edit(
            "_pick",
            "case when p_by_cost then greatest(1, round(u.cost * 1000 * 2520 / u.weight))",
            "case when false then 0",
        ),
    ),
    # settled by the new weight; after the lift
    (
        traces,
        Edit(
            "_apply",
            "v_flow := fairq._settled(v_flow, v_new.endings);",
            "v_flow.weight := (fairq._wish(p_tick.queue, v_new.tenant)).weight; "
            "v_flow := fairq._settled(v_flow, v_new.endings);",
        ),
    ),
    (
        traces,
        Edit(
            "_apply",
            "p_tick.virtual_time + case",
            "p_tick.virtual_time + greatest(0, v_flow.vtime - v_was.vtime) + case",
        ),
    ),
    # jobs held by others: their tenant keeps its old place
    (at.check_held_jobs_earn_nothing, Edit("_pass_by", "f.vtime, p_tick.virtual_time)", "f.vtime)")),
    (at.check_held_jobs_earn_nothing, Edit("_pass_by", "fairq._virtual_time(p_tick, p_stuck)", "p_tick.virtual_time")),
    # virtual time only rises
    (at.check_virtual_time_is_moved_down, Edit("_catch_up", "p_tick := fairq._rebased(p_tick);", "")),
    # E never taken anew
    (traces, Edit("_catch_up", "p_tick.virtual_time := fairq._virtual_time(p_tick);", "")),
    # R10: tokens are not counted; a limited tenant never comes back; or keeps its place in line
    (
        scenario("23_a_limited_tenant_hides_nobody"),
        Edit("_charge", "f.rate, f.burst, p_now) - s.took < 1, false)", "f.rate, f.burst, p_now) < 1, false)"),
    ),
    (scenario("23_a_limited_tenant_comes_back"), Edit("_tokens_due", "f.token_due_at <= p_now", "false")),
    (
        scenario("23_a_limited_tenant_comes_back"),
        Edit("_front", "floor(fairq._tokens(f.tokens, f.tokens_at, f.rate, f.burst, p_now))::integer", "p_want"),
    ),
    (
        scenario("23_a_token_is_whole_when_it_is_due"),
        Edit("_wished", "v_tokens := greatest(v_tokens, 1);", "null;"),
    ),
    (
        traces,
        Edit("_wished", "p_flow.tokens_at, p_flow.rate, p_flow.burst", "p_flow.tokens_at, p_wish.rate, p_wish.burst"),
    ),
    # cap and rate of the queue are ignored
    (scenario("r9_the_queue_has_a_cap"), Edit("_room", "p_settings.max_running - p_tick.running, ", "")),
    (scenario("r10_the_queue_has_a_rate"), Edit("_room", ", floor(p_tick.tokens)", "")),
    # the defaults of * are ignored; or not noticed by the flows there are
    (
        scenario("tenants_without_a_row_have_the_defaults"),
        Edit("_wish", "t.tenant in (p_tenant, '*')", "t.tenant = p_tenant"),
    ),
    (
        scenario("tenants_without_a_row_have_the_defaults"),
        Edit("_catch_up", "where n.tenant = '*' and n.state = 'wish'", "where false"),
    ),
    # R3: nobody is spread; the heavy one too; by chance of another number
    (scenario("25_a_crowd_hides_nobody"), Edit("_spread", "if p_tick.backlogged <= 32 then", "if true then")),
    (traces, Edit("_spread", "if p_weight >= greatest(", "if p_weight > greatest(")),
    (traces, Edit("_spread", "2654435769", "2654435761")),
    # R12: a tick forgets what runs, or who has work
    (check_any_order, Edit("_count_endings", "p_tick.running := p_tick.running - v_sum.ended;", "null;")),
    (check_any_order, Edit("_charge", "p_tick.backlogged := p_tick.backlogged - v_sum.gone;", "null;")),
    # R9: a batch starts what it asks for, whatever the tenant's cap leaves
    (check_any_order, Edit("_front", "p_want, f.max_running - f.running,", "p_want,")),
    # a job that failed is put back and stays leased
    (check_any_order, Edit("_put_back", "delete from fairq.leases as l where l.job_id = (p_lease).job_id;", "")),
    # a purge forgets where the jobs went
    (
        check_any_order,
        Edit(
            "purge_tenant",
            "perform fairq._cancel_waiting(v_job, v_actor);",
            "delete from fairq.jobs where job_id = v_id;",
        ),
    ),
]


@pytest.mark.parametrize(("check", "mutation"), MUTANTS, ids=[str(mutation) for _, mutation in MUTANTS])
def test_a_broken_scheduler_is_found_out(
    assert_killed: Callable[..., None],
    check: Callable[[Database], None],
    mutation: Edit,
) -> None:
    """
    The check named for each mutant fails on a database whose scheduler is broken in that one place.

    Where sessions have to meet for it, which is a matter of chance, in one of five databases.
    """
    assert_killed(check, mutation, tries=5 if check is at.check_17_one_tenant_many_claimers else 1)
