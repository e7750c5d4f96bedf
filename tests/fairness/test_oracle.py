"""
The exact model against fairness.md, and plausible wrong schedulers against the same checks.
"""

from __future__ import annotations

from copy import deepcopy
from fractions import Fraction
from itertools import combinations
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from . import history, scenarios
from .history import Watched
from .mutants import MUTANTS, Mutant
from .oracle import JOB, Flow, Oracle, Wish
from .trace import UNRESTRICTED, Trace, random_trace, resolve, traces

if TYPE_CHECKING:
    from collections.abc import Callable

WEIGHTS = st.dictionaries(st.sampled_from("ABCDEFGH"), st.sampled_from([1, 2, 3, 4, 5, 7, 9, 10]), min_size=2)


@pytest.mark.parametrize("check", scenarios.CHECKS.values(), ids=scenarios.CHECKS)
def test_the_model_gives_the_known_answer(check: Callable[[type[Oracle]], None]) -> None:
    """
    The model answers every scenario of fairness.md that one session can play.
    """
    check(Oracle)


@given(traces(UNRESTRICTED))
@settings(max_examples=300)
def test_the_theorems_hold_on_any_history(trace: Trace) -> None:
    """
    T1, T2, T5, R9 and R12 hold whatever arrives, fails, is cancelled, capped or paused.
    """
    check_theorems(Watched, trace)


def check_theorems(queue_class: type[Watched], trace: Trace) -> None:
    """
    Play a trace and hold its history against every theorem.
    """
    queue = queue_class()
    resolve(trace, queue)
    queue.claim(100)
    for check in history.CHECKS:
        check(queue)


@given(WEIGHTS, st.integers(1, 200))
def test_a_common_start_is_fair_to_one_job(weights: dict[str, int], n: int) -> None:
    """
    T3, T4: from a common start two tenants differ by one job of the lighter.

    And each is within one job above its absolute share and B-1 shares of a job below it.
    """
    queue = scenarios.flooded(Oracle, weights)
    word = scenarios.order(queue, n)
    total = sum(weights.values())
    for i, j in combinations(weights, 2):
        lag = Fraction(word.count(i), weights[i]) - Fraction(word.count(j), weights[j])
        assert abs(lag) <= max(Fraction(1, weights[i]), Fraction(1, weights[j]))
    for tenant, weight in weights.items():
        ahead = word.count(tenant) - Fraction(n * weight, total)
        assert -Fraction((len(weights) - 1) * weight, total) <= ahead <= 1


@given(traces(), st.integers(2, 100))
def test_a_batch_is_single_picks(trace: Trace, n: int) -> None:
    """
    R7: at any moment a batch of n is what n claims of one job would have been.
    """
    queue = Oracle()
    resolve(trace, queue)
    queue.set_queue(paused=False)
    singles = deepcopy(queue)
    assert queue.claim(n) == [job for _ in range(n) for job in singles.claim(1)]


@given(st.floats(0.001, 1_000_000))
def test_a_charge_is_the_nearest_whole_number(weight: float) -> None:
    """
    The charge of a job is 1000 * 2520 / weight to the nearest whole number, and never nothing.
    """
    exact = Fraction(JOB) / Fraction(weight)
    charge = Flow("a", Wish(weight)).charge
    assert charge >= 1
    assert abs(charge - exact) <= Fraction(1, 2) + exact / 2**52


def test_half_a_charge_rounds_to_even() -> None:
    """
    Where the charge ends in a half it is the even neighbour's, as round(double precision) says.
    """
    assert [Flow("a", Wish(JOB / half)).charge for half in (1.5, 2.5, 3.5)] == [2, 2, 4]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_scheduler_is_found_out(mutant: type[Mutant]) -> None:
    """
    The checks can fail: each mutant breaks the scenarios named for it, or else a theorem.
    """
    for name in mutant.breaks:
        with pytest.raises(AssertionError):
            scenarios.CHECKS[name](mutant)
    if not mutant.breaks:
        watched = type(f"Watched{mutant.__name__}", (Watched, mutant), {})
        with pytest.raises(AssertionError):
            check_seeds(watched)


def check_seeds(queue_class: type[Watched]) -> None:
    """
    Hold 500 seeded histories against every theorem.
    """
    for seed in range(500):
        check_theorems(queue_class, random_trace(Random(seed), 80, UNRESTRICTED))
