"""The lag ratio is what the promise says it is: checked by hand and against every interval."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations

import pytest

from fairq_schema.demo.lag import Start, backlogged, lag_ratio, pair_lag


def ratio(order: str, weights: dict[str, int], waiting: dict[str, str] | None = None) -> Fraction:
    """Give the lag ratio of an order written in letters; waiting says `x` where a tenant had work, default always."""
    marks = {name: [mark == "x" for mark in (waiting or {}).get(name, "x" * len(order))] for name in weights}
    return lag_ratio(order, weights, marks).ratio


@pytest.mark.parametrize(
    ("order", "weights", "expected"),
    [
        ("", {"a": 1, "b": 1}, Fraction(0)),
        ("a", {"a": 1, "b": 1}, Fraction(1, 2)),
        ("ababab", {"a": 1, "b": 1}, Fraction(1, 2)),
        ("abba", {"a": 1, "b": 1}, Fraction(1)),
        ("aaaa", {"a": 1, "b": 1}, Fraction(2)),
        # fairness.md, scenario 2: two B in a row across the edge of two rounds of B A B B
        ("babbbabb", {"a": 1, "b": 3}, Fraction(3, 4)),
        # the light one twice in a row: 2 against the bound of 1 + 1/3
        ("bbaabb", {"a": 1, "b": 3}, Fraction(3, 2)),
    ],
)
def test_the_ratio_of_short_orders_is_the_one_counted_by_hand(
    order: str, weights: dict[str, int], expected: Fraction
) -> None:
    """The greatest |dN_a/w_a - dN_b/w_b| over all intervals, divided by 1/w_a + 1/w_b."""
    assert ratio(order, weights) == expected


def test_a_start_at_which_one_of_the_two_had_no_work_ends_the_stretch() -> None:
    """Four starts in a row are no fault while the other has nothing waiting, and add up to nothing across the gap."""
    assert ratio("abaaaab", {"a": 1, "b": 1}, {"b": "xx....x"}) == Fraction(1, 2)


def test_other_tenants_starts_neither_count_nor_end_a_stretch() -> None:
    """The stretch of a pair goes on through the starts of a third."""
    assert ratio("acca", {"a": 1, "b": 1, "c": 1}, {"c": "...."}) == Fraction(1)


@pytest.mark.parametrize("seed", range(30))
def test_one_pass_finds_what_trying_every_interval_finds(seed: int) -> None:
    """The prefix sums' range is the worst interval, for any order, any weights and any gaps."""
    draw = random.Random(seed)
    weights = {name: draw.randint(1, 7) for name in "abc"}
    order = "".join(draw.choices("abc", k=40))
    waiting = {name: [draw.random() < 0.95 for _ in order] for name in weights}

    found = lag_ratio(order, weights, waiting)

    assert found.ratio == max(by_every_interval(order, weights, waiting, pair) for pair in combinations(weights, 2))


def by_every_interval(
    order: str, weights: dict[str, int], waiting: dict[str, list[bool]], pair: tuple[str, str]
) -> Fraction:
    """Do what the definition says, interval by interval."""
    one, other = pair
    worst = Fraction(0)
    for first in range(len(order)):
        for end in range(first + 1, len(order) + 1):
            if not all(waiting[one][first:end]) or not all(waiting[other][first:end]):
                break
            part = order[first:end]
            gap = Fraction(part.count(one), weights[one]) - Fraction(part.count(other), weights[other])
            worst = max(worst, abs(gap))
    return worst / (Fraction(1, weights[one]) + Fraction(1, weights[other]))


def test_a_tenant_is_backlogged_from_the_first_claim_after_the_commit_to_the_start_of_the_job() -> None:
    """Nothing is taken for granted before a claim that is later than the commit."""
    starts = [Start(at, "a", job, clock) for at, (job, clock) in enumerate([(1, 10), (2, 20), (3, 30), (4, 40)])]

    assert backlogged(starts, {3: 15}, [3]) == [False, True, True, False]


def test_a_claim_at_the_very_moment_of_the_commit_is_not_counted() -> None:
    """Equal clocks prove nothing."""
    starts = [Start(1, "a", 1, 10), Start(2, "a", 2, 20)]

    assert backlogged(starts, {2: 20}, [2]) == [False, False]


def test_a_job_that_never_started_waits_to_the_end() -> None:
    """The flood's last jobs are still queued when the demo stops."""
    starts = [Start(1, "a", 1, 10), Start(2, "a", 2, 20)]

    assert backlogged(starts, {9: 15}, [9]) == [False, True]


def test_a_clock_that_steps_back_does_not_hide_a_job_that_was_seen() -> None:
    """What one claim saw, every later one saw too: the order is that of the lock, not of the clock."""
    starts = [Start(1, "b", 1, 10), Start(2, "b", 2, 30), Start(3, "b", 3, 12), Start(4, "a", 4, 40)]

    assert backlogged(starts, {4: 20}, [4]) == [False, True, True, True]


def test_the_pair_ratio_needs_a_mark_for_every_start() -> None:
    """A list of marks that is too short is a mistake, not a shorter stretch."""
    with pytest.raises(ValueError, match="shorter"):
        pair_lag("aa", [True], ("a", 1), ("b", 1))
