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

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Database

traces = check_seeded_traces


def scenario(name: str) -> Callable[[Database], None]:
    """
    The check of a scenario by its name.
    """
    return partial(at.check_scenario, name=name)


MUTANTS = [
    # R2: no lift at activation; debt forgotten; a tenant's first job starts at zero
    (
        scenario("09_idling_earns_nothing"),
        Edit("_apply", "v_start := p_tick.virtual_time;", "v_start := null;"),
    ),
    (
        scenario("10_debt_is_kept"),
        Edit(
            "_apply",
            "if v_start > v_flow.vtime then",
            "if v_start > v_flow.vtime or v_new.arrived and not v_was.has_work then",
        ),
    ),
    (
        at.check_13_a_late_commit_earns_nothing,
        Edit(
            "_apply",
            "v_start := p_tick.virtual_time;",
            "v_start := case when v_was.stamp > 0 then p_tick.virtual_time end;",
        ),
    ),
    # R2: E falls with a flow that R11 let in below V
    (scenario("r2_nobody_enters_below"), Edit("_virtual_time", "p_tick.virtual_time,\n", "0,\n")),
    # R4: ties by name alone
    (
        scenario("08_batches_change_nothing"),
        Edit("_pick", "order by h.tag, h.charge, h.nth,", "order by h.tag, h.nth,"),
    ),
    (
        traces,
        Edit(
            "_pick",
            "order by h.tag, h.charge, h.nth, h.served, h.tenant",
            "order by h.tag, h.charge, h.served, h.tenant",
        ),
    ),
    # R7: a flow read to its depth does not bound the pass
    (traces, Edit("_pick", "min(x.tag + x.step)", "min(x.tag + 1000 * x.step)")),
    # R7: a flow that was not read does not bound it either
    (scenario("12_cancelled_tenants_hide_nobody"), Edit("_pick", "(select count(*) from flow) < p_want", "true")),
    # R8: a weight acts on flows opened after it
    (scenario("11_a_weight_acts_at_once"), Edit("_wished", "p_flow.weight := p_wish.weight;", "")),
    # R9: the cap judged before the claim and not within it
    (
        at.check_18_a_cap_is_exact,
        Edit("_pick", "p_want, f.max_running - f.running,", "p_want,"),
    ),
    # R11: no lift when unblocked
    (
        scenario("r11_one_job_of_precedence"),
        Edit("_apply", "and v_can then p_tick.virtual_time - v_flow.charge end", "and v_can then null::bigint end"),
    ),
    # R11: without bounds upwards, as if it had never waited
    (
        traces,
        Edit("_apply", "then p_tick.virtual_time - v_flow.charge end", "then p_tick.virtual_time end"),
    ),
    # R1: without the queue's lock
    (at.check_17_one_tenant_many_claimers, Edit("_dispatch", "perform fairq._lock_queue(p_queue);", "")),
    # the lighter tenants pay too little
    (
        at.check_16_sixteen_sessions_share_by_weight,
        Edit("_charge", "p.nth * p.charge", "p.nth * least(p.charge, 2520000 / 2)"),
    ),
]


@pytest.mark.parametrize(("check", "mutation"), MUTANTS, ids=[str(mutation) for _, mutation in MUTANTS])
def test_a_broken_scheduler_is_found_out(
    assert_killed: Callable[[Callable[[Database], None], Edit], None],
    check: Callable[[Database], None],
    mutation: Edit,
) -> None:
    """
    The check named for each mutant fails on a database whose scheduler is broken in that one place.
    """
    assert_killed(check, mutation)
