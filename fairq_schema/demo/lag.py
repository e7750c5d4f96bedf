"""
The lag ratio: how far the order of starts strayed from the tenants' weights.

The promise is about tenants that have work waiting, over any stretch of time.
So two things are needed: the order of the starts, and for each start the knowledge of who had work waiting.

The order is `leases.dispatch`, a number given under the queue's lock.
Clocks of workers and the order in which their reports arrive play no part in it.

Who had work waiting is proved, not sampled.
A job is known to be committed at the moment `t` its producer read from the server's clock after the enqueue had returned.
A claim stamps its leases with `started_at` before it looks for new work, so a claim with `started_at > t` saw the job.
Claims of one queue follow one another, so every later claim saw it too, until the one that started it.
A tenant is backlogged at a start if at least one of its jobs is between these two points.
Starts at which this cannot be shown (a producer was late, a job was claimed before its enqueue had returned) are not counted: they end the stretch, and the next one begins from nothing.
"""  # noqa: E501

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, combinations
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Start(NamedTuple):
    """One start of a job; times are microseconds of the server's clock."""

    dispatch: int
    tenant: str
    job_id: int
    started_at: int


@dataclass(frozen=True, slots=True)
class Lag:
    """The worst stretch found: its ratio, the two tenants, and how many starts were judged."""

    ratio: Fraction
    pair: tuple[str, str] | None
    judged: int


def backlogged(starts: Sequence[Start], committed: Mapping[int, int], jobs: Sequence[int]) -> list[bool]:
    """
    Tell for each start whether one of these jobs was provably waiting when it was picked.

    Args:
        starts: all starts of the queue, in dispatch order.
        committed: for each job a moment at which its enqueue had been committed.
        jobs: the jobs of one tenant.
    """
    clock = list(accumulate((start.started_at for start in starts), max))
    place = {start.job_id: at for at, start in enumerate(starts)}
    steps = [0] * (len(starts) + 1)
    for job in jobs:
        first = bisect_right(clock, committed[job])
        last = place.get(job, len(starts) - 1)
        if first <= last:
            steps[first] += 1
            steps[last + 1] -= 1
    return [depth > 0 for depth in accumulate(steps[:-1])]


def pair_lag(order: Sequence[str], judged: Sequence[bool], one: tuple[str, int], other: tuple[str, int]) -> Fraction:
    """
    Give the lag ratio of two tenants over all intervals whose starts are all judged.

    The difference of two prefix sums is an interval's sum, so the worst interval of a stretch lies between
    the least and the greatest prefix: one pass. All is multiplied by both weights, so all is in integers.
    """
    (name, weight), (other_name, other_weight) = one, other
    level = low = high = worst = 0
    for tenant, counts in zip(order, judged, strict=True):
        if not counts:
            level = low = high = 0
            continue
        level += other_weight * (tenant == name) - weight * (tenant == other_name)
        low, high = min(low, level), max(high, level)
        worst = max(worst, high - low)
    return Fraction(worst, weight + other_weight)


def lag_ratio(order: Sequence[str], weights: Mapping[str, int], waiting: Mapping[str, Sequence[bool]]) -> Lag:
    """
    Give the greatest lag ratio over all pairs of tenants and all intervals in which both had work waiting.

    The promise is that it is at most 1.
    """
    worst, pair = Fraction(0), None
    judged = [False] * len(order)
    for one, other in combinations(weights, 2):
        both = [a and b for a, b in zip(waiting[one], waiting[other], strict=True)]
        judged = [a or b for a, b in zip(judged, both, strict=True)]
        ratio = pair_lag(order, both, (one, weights[one]), (other, weights[other]))
        if ratio > worst:
            worst, pair = ratio, (one, other)
    return Lag(worst, pair, sum(judged))
