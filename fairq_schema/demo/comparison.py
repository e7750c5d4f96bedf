"""
What is behind `--plot`: the same tenants, jobs, producers and workers, served by fairq and then first in, first out.

fairq charges by time here, the mode a queue has by default, and the tenants' jobs differ in length.
A worker holds one job at a time, so that the time it holds it is the time the job takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from typing import TYPE_CHECKING

from fairq_schema.demo.options import FLOODING, WEIGHTS
from fairq_schema.demo.tally import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairq_schema.demo.tally import Span

# Until then the scheduler learns how long the tenants' jobs take.
WARM_UP = 0.1
STEPS = 200


@dataclass(frozen=True, slots=True)
class Lines:
    """
    Worker-seconds per unit of weight, by tenant, at each of `times`; in seconds since the start.

    A tenant that comes later begins at the level of the others: nobody is owed a share of the past.
    """

    times: Sequence[float]
    levels: dict[str, Sequence[float]]
    flood_from: int

    def spread(self) -> float:
        """How far any two tenants drift apart: the greatest difference of their differences."""
        return max(
            (
                max(gaps[first:]) - min(gaps[first:])
                for one, other in combinations(self.levels, 2)
                for first in [self.flood_from if FLOODING in (one, other) else 0]
                for gaps in [[a - b for a, b in zip(self.levels[one], self.levels[other], strict=True)]]
            ),
            default=0.0,
        )


def lines(spans: Iterable[Span], began: int, seconds: float, flood_at: float | None) -> Lines:
    """
    Add up the time for which each tenant's jobs were held, from the end of the warm-up on.

    Args:
        spans: completed jobs.
        began: start of the run, in microseconds of the server's clock.
        seconds: its length.
        flood_at: when the flood set in, in seconds since the start; None if it did not.
    """
    first = seconds * WARM_UP
    times = [first + (seconds - first) * step / STEPS for step in range(STEPS + 1)]
    held = {tenant: [0.0] * len(times) for tenant in WEIGHTS}
    for span in spans:
        for at, (start, end) in enumerate(pairwise(times), 1):
            overlap = min(end, (span.ended - began) / MICROSECONDS) - max(start, (span.began - began) / MICROSECONDS)
            if overlap > 0:
                held[span.tenant][at] += overlap / WEIGHTS[span.tenant]
    levels: dict[str, Sequence[float]] = {tenant: list(accumulate(steps)) for tenant, steps in held.items()}
    late = STEPS if flood_at is None else next((at for at, time in enumerate(times) if time >= flood_at), STEPS)
    others = [levels[tenant][late] for tenant in WEIGHTS if tenant != FLOODING]
    start = sum(others) / len(others)
    levels[FLOODING] = [level + start for level in levels[FLOODING]]
    return Lines(times, levels, late)


def bound(spans: Iterable[Span], workers: int) -> float:
    """
    Give T7 of docs/fairness.md for the two tenants it is widest for: how far they may drift apart.

    For each: (e + D c + 3 D e) / w, with D workers, c the longest time a job was held, and e taken as c; no renewals.
    """
    longest: dict[str, float] = {}
    for span in spans:
        longest[span.tenant] = max(longest.get(span.tenant, 0.0), (span.ended - span.began) / MICROSECONDS)
    parts = sorted((1 + 4 * workers) * held / WEIGHTS[tenant] for tenant, held in longest.items())
    return sum(parts[-2:])
