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
    # R2: no lift at activation; debt forgotten
    (scenario("09_idling_earns_nothing"), Edit("_apply", "then greatest(k.vtime, p_virtual_time)\n", "then k.vtime\n")),
    (scenario("10_debt_is_kept"), Edit("_apply", "then greatest(k.vtime, p_virtual_time)\n", "then p_virtual_time\n")),
    (
        at.check_13_a_late_commit_earns_nothing,
        Edit("_apply", "k.max_running, k.paused, p_virtual_time,", "k.max_running, k.paused, 0,"),
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
    (traces, Edit("_pick", "min(x.tag + x.charge)", "min(x.tag + 1000 * x.charge)")),
    # R7: a flow that was not read does not bound it either
    (scenario("12_cancelled_tenants_hide_nobody"), Edit("_pick", "(select count(*) from flow) < p_want", "true")),
    # R8: a weight acts on flows opened after it
    (scenario("11_a_weight_acts_at_once"), Edit("_apply", "weight      = k.weight,", "")),
    # R9: the cap judged before the claim and not within it
    (
        at.check_18_a_cap_is_exact,
        Edit("_pick", "least(coalesce(f.max_running - f.running, p_want), p_want) as room", "p_want as room"),
    ),
    # R11: no lift when unblocked
    (
        scenario("r11_one_job_of_precedence"),
        Edit("_apply", "then greatest(k.vtime, p_virtual_time - k.charge)", "then k.vtime"),
    ),
    # R11: without bounds upwards, as if it had never waited
    (
        traces,
        Edit("_apply", "then greatest(k.vtime, p_virtual_time - k.charge)", "then greatest(k.vtime, p_virtual_time)"),
    ),
    # R1: without the queue's lock
    (at.check_17_one_tenant_many_claimers, Edit("_dispatch", "perform fairq._lock_queue(p_queue);", "")),
    # the lighter tenants pay too little
    (
        at.check_16_sixteen_sessions_share_by_weight,
        Edit("_charge", "s.took * f.charge", "s.took * least(f.charge, 2520000 / 2)"),
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
