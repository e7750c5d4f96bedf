"""
The exact one-by-one model of the scheduler, in jobs mode: rules R1, R2, R4-R9 and R11-R14.

Every method is one committed transaction. Nothing but `claim` moves the scheduler: what the
others did is news, and the next claim looks at all of it at once. Numbers are the integers
of the SQL, so that the order is the same, not only the bounds.

Rates (R10), entry spreading (R3) and corrected charges (time mode) come later: a rate is one
more reason in `Flow.eligible`, spreading belongs to `_activate`, a correction to `_settle`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

JOB = 1000 * 2520  # what one job of weight 1 is charged

Place = tuple[int, int, int]  # priority, run_at, job: the order inside a tenant (R5)


@dataclass(frozen=True, slots=True)
class Wish:
    """
    What the operator wants of a tenant.
    """

    weight: float = 1
    cap: int | None = None
    paused: bool = False


@dataclass(eq=False, slots=True)
class Flow:
    """
    What the scheduler knows of a tenant, and, in the last three, what it has yet to see.
    """

    tenant: str
    wish: Wish = Wish()
    vtime: int = 0
    running: int = 0
    served: int = 0
    backlogged: bool = False
    jobs: list[Place] = field(default_factory=list)  # a heap; jobs taken elsewhere stay in it
    ended: int = 0
    new_wish: Wish = Wish()

    @property
    def inc(self) -> int:
        """
        The charge of a job: double precision, halves to even, as in PostgreSQL.
        """
        return max(1, round(JOB / self.wish.weight))

    @property
    def eligible(self) -> bool:
        """
        Whether a pick may take this flow (R9).
        """
        free = self.wish.cap is None or self.running < self.wish.cap
        return self.backlogged and free and not self.wish.paused

    @property
    def turn(self) -> tuple[int, int, int, str]:
        """The pick order (R4). Python compares strings by code point, as collation "C" does."""
        return self.vtime, self.inc, self.served, self.tenant


class Oracle:
    """
    One queue.
    """

    def __init__(self) -> None:
        self.flows: dict[str, Flow] = {}
        self.places: list[tuple[str, Place]] = []  # by job
        self.queued: set[int] = set()
        self.running: dict[int, bool] = {}  # job -> its cancellation was asked for
        self.paused = False
        self.entry = 0  # E, and V for R11
        self.top = 0  # the greatest S ever charged
        self.dispatches = 0

    # What producers, workers and operators do

    def enqueue(self, tenant: str, count: int = 1, priority: int = 2, run_at: int = 0) -> list[int]:
        """
        Enqueue equal jobs, numbered from 0 in order of arrival.
        """
        jobs = list(range(len(self.places), len(self.places) + count))
        for job in jobs:
            self.places.append((tenant, (priority, run_at, job)))
            self._queue(job)
        return jobs

    def complete(self, job: int) -> None:
        """
        End an attempt for good.
        """
        self.flows[self.tenant_of(job)].ended += 1
        del self.running[job]

    def fail(self, job: int, *, retry: bool = True) -> None:
        """
        End an attempt and put the job back in its old place, or not.
        """
        retry = retry and not self.running[job]
        self.complete(job)
        if retry:
            self._queue(job)

    # In jobs mode nothing is refunded: these two differ from a failure in the attempts only.
    release = expire = fail

    def cancel(self, job: int) -> None:
        """
        Cancel a queued job; ask a running one to stop.
        """
        if job in self.running:
            self.running[job] = True
        self.queued.discard(job)

    def cancel_all(self, tenant: str) -> None:
        """
        Cancel every job of a tenant that waits.
        """
        self.queued -= {job for job in self.queued if self.tenant_of(job) == tenant}

    def set_tenant(self, tenant: str, weight: float = 1, cap: int | None = None, *, paused: bool = False) -> None:
        """
        Replace the operator's whole wish for a tenant.
        """
        self._flow(tenant).new_wish = Wish(weight, cap, paused)

    def set_queue(self, *, paused: bool) -> None:
        """
        Pause or resume the queue.
        """
        self.paused = paused

    # The scheduler step

    def claim(self, n: int, tenant: str | None = None) -> list[int]:
        """
        Look, then pick n jobs one by one (R7), and return them in pick order.
        """
        self._look()
        picked: list[int] = []
        while not self.paused and len(picked) < n:
            examined = self._examine(n - len(picked), tenant)
            if not examined:
                break
            while len(picked) < n and (flow := self._least(tenant)) in examined:
                picked.append(self._pick(flow))
        return picked

    def _look(self) -> None:
        """
        Learn what was committed since the last look, in the order of R2.
        """
        blocked = [f for f in self.flows.values() if f.backlogged and not f.eligible]
        # A look without news could be left out: until there is news the least S only rises.
        self.entry = max(self.entry, self._level())
        for flow in self.flows.values():
            self._settle(flow)
        for flow in blocked:
            if flow.eligible:
                self._unblock(flow)
        for flow in self.flows.values():
            if not flow.backlogged and self._has_job(flow):
                self._activate(flow)

    def _level(self) -> int:
        """
        The least S of the eligible flows; after a busy period the greatest S (R6).
        """
        return min((f.vtime for f in self.flows.values() if f.eligible), default=self.top)

    def _settle(self, flow: Flow) -> None:
        flow.running -= flow.ended
        flow.ended = 0
        flow.wish = flow.new_wish  # R8: the very next pick charges by it

    def _unblock(self, flow: Flow) -> None:
        flow.vtime = max(flow.vtime, self.entry - flow.inc)  # R11: one job of precedence

    def _activate(self, flow: Flow) -> None:
        flow.vtime = max(flow.vtime, self.entry)  # R2: debt is kept, credit is not
        flow.backlogged = True

    def _examine(self, want: int, tenant: str | None) -> list[Flow]:
        """
        Begin a pass: take the first `want` eligible flows, empty those found without a job.

        A job cancelled while it waits is no news, so only here its flow is found empty. How
        far a pass looks is seen by nobody but E, which counts a flow until it is emptied.
        """
        examined = heapq.nsmallest(want, self._eligible(tenant), key=lambda f: f.turn)
        for flow in examined:
            flow.backlogged = self._has_job(flow)
        return examined

    def _least(self, tenant: str | None) -> Flow | None:
        return min(self._eligible(tenant), key=lambda f: f.turn, default=None)

    def _pick(self, flow: Flow) -> int:
        job = heapq.heappop(flow.jobs)[-1]
        self.queued.remove(job)
        self.running[job] = False
        self.dispatches += 1
        flow.served = self.dispatches
        flow.running += 1
        flow.vtime += flow.inc
        self.top = max(self.top, flow.vtime)
        flow.backlogged = self._has_job(flow)
        return job

    # Small words

    def tenant_of(self, job: int) -> str:
        """
        Whose job it is.
        """
        return self.places[job][0]

    def _flow(self, tenant: str) -> Flow:
        return self.flows.setdefault(tenant, Flow(tenant))

    def _queue(self, job: int) -> None:
        tenant, place = self.places[job]
        heapq.heappush(self._flow(tenant).jobs, place)
        self.queued.add(job)

    def _has_job(self, flow: Flow) -> bool:
        while flow.jobs and flow.jobs[0][-1] not in self.queued:
            heapq.heappop(flow.jobs)
        return bool(flow.jobs)

    def _eligible(self, tenant: str | None) -> list[Flow]:
        return [f for f in self.flows.values() if f.eligible and tenant in (None, f.tenant)]
