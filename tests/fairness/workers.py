"""
Simulated workers: each claims a job, holds it for as long as it takes, ends it, and claims again.
"""

from __future__ import annotations

import heapq
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from .oracle import LEASE

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Attempt(NamedTuple):
    """
    A tenant's job held by a worker, from and to, in microseconds.
    """

    tenant: str
    start: int
    end: int


class Shift(NamedTuple):
    """
    What a crew of workers did.
    """

    span: int
    attempts: list[Attempt]
    idle: int  # the microseconds of workers that found nothing

    def used(self, tenant: str) -> int:
        """
        The worker-time a tenant got within the span.
        """
        return sum(min(a.end, self.span) - a.start for a in self.attempts if a.tenant == tenant)

    def started(self, tenant: str) -> int:
        """
        The attempts of a tenant.
        """
        return sum(a.tenant == tenant for a in self.attempts)

    def lag(self, i: str, j: str, weights: dict[str, float]) -> float:
        """
        Over any interval, the most that worker-time per weight of two tenants differs by.

        It is linear between the starts and ends of attempts, so those moments are enough.
        """
        sign = {i: 1 / weights[i], j: -1 / weights[j]}
        slopes = sorted(
            (at, way * sign[a.tenant])
            for a in self.attempts
            if a.tenant in sign
            for at, way in ((a.start, 1), (min(a.end, self.span), -1))
        )
        moments = [at for at, _ in slopes]
        slope = accumulate(change for _, change in slopes)
        sums = accumulate((s * (to - at) for at, to, s in zip(moments, moments[1:], slope, strict=False)), initial=0.0)
        lags = [*sums]
        return max(lags) - min(lags)


def work(
    queue: Any,
    crew: int,
    span: int,
    takes: Callable[[int], int],
    *,
    end: Callable[[int], None] | None = None,
    lease: int = LEASE,
    renew: int = 0,
) -> Shift:
    """
    Let a crew work for a span; it renews every lease half-way through, for `renew`, when that is given.
    """
    now = busy = idle = 0
    attempts: list[Attempt] = []
    events: list[tuple[int, int, int]] = []  # when, job, when that ends; each busy worker has one
    while True:
        for job in queue.claim(crew - busy, lease=lease) if busy < crew else ():
            until = now + takes(job)
            attempts.append(Attempt(queue.tenant_of(job), now, until))
            heapq.heappush(events, (min(now + lease // 2, until) if renew else until, job, until))
            busy += 1
        at = min(events[0][0], span) if events else span
        idle += (crew - busy) * (at - now)
        queue.wait(at - now)
        now = at
        if now == span:
            return Shift(span, attempts, idle)
        while events and events[0][0] <= now:
            _, job, until = heapq.heappop(events)
            if now == until:
                (end or queue.complete)(job)
                busy -= 1
            else:
                queue.renew(job, renew)
                heapq.heappush(events, (min(now + renew // 2, until), job, until))
