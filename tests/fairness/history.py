"""
What a scheduler did, and the theorems of fairness.md as checks of it.

Charges are whole numbers and 1/w is the charge of one job, so every bound here is exact also
where a weight does not divide evenly. A bound counts the greatest charge a tenant ever had,
since a tag set under an old weight is kept under a new one.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import accumulate, combinations, pairwise
from typing import TYPE_CHECKING, NamedTuple

from .oracle import LEASE, Flow, Oracle

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


CROWD = 32  # more backlogged tenants than these are spread (R3)


class View(NamedTuple):
    """
    One flow at one moment.
    """

    eligible: bool  # truly: with a job, which a flow cancelled empty has not
    known: bool  # eligible, as far as the scheduler knows
    blocked: bool  # work is known, but a cap, a rate or a pause holds it back
    unblocked: bool  # known, and since R11 lifted it
    charge: int  # the greatest so far
    vtime: int
    fresh: bool


class Moment(NamedTuple):
    """
    The queue after a look (nothing picked) or after a pick.
    """

    picked: str | None
    charged: int
    virtual_time: int
    flows: dict[str, View]


class Watched(Oracle):
    """
    A queue that keeps its history; mutants are watched by mixing this in before them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: list[Moment] = []
        self.faults: list[str] = []

    def claim(self, n: int, tenant: str | None = None, lease: int = LEASE) -> list[int]:
        """
        Claim, and note a claim that was short for no reason (R12).
        """
        jobs = super().claim(n, tenant, lease)
        left = [f.tenant for f in self._eligible(tenant) if self._has_job(f)]
        if len(jobs) < n and left and self._room(1):
            self.faults.append(f"{len(jobs)} jobs of {n} while {left} could be served")
        if self.settings.cap is not None and jobs and len(self.running) > self.settings.cap:
            self.faults.append(f"{len(self.running)} jobs run, {self.settings}")
        return jobs

    def _look(self) -> None:
        super()._look()
        self._note(None)

    def _pick(self, flow: Flow, lease: int) -> int:
        before = flow.vtime
        job = super()._pick(flow, lease)
        cap = flow.wish.cap
        running = sum(self.tenant_of(other) == flow.tenant for other in self.running)
        if flow.wish.paused or (cap is not None and running > cap):
            self.faults.append(f"{flow.tenant} runs {running}, {flow.wish}")
        self._note(flow, flow.vtime - before)
        return job

    def _note(self, picked: Flow | None, charged: int = 0) -> None:
        before = self.history[-1].flows if self.history else {}
        self.history.append(
            Moment(
                picked.tenant if picked else None,
                charged,
                max(self.entry, self._level()),
                {f.tenant: self._view(f, before.get(f.tenant)) for f in self.flows.values()},
            )
        )

    def _view(self, flow: Flow, before: View | None) -> View:
        eligible = flow.eligible and self._has_job(flow)
        blocked = flow.backlogged and not flow.eligible
        unblocked, charge = False, flow.charge
        if before:
            unblocked = flow.eligible and (before.unblocked if before.known else before.blocked)
            charge = max(charge, before.charge)
        return View(eligible, flow.eligible, blocked, unblocked, charge, flow.vtime, not flow.served)


def spread(charges: Iterable[int]) -> int:
    """
    The greatest absolute sum over any interval of a sequence.
    """
    sums = [*accumulate(charges, initial=0)]
    return max(sums) - min(sums)


def lag_ratio(tenants: Sequence[str], charges: Mapping[str, int]) -> Fraction:
    """
    Rho of dispatches during which every tenant of `charges` could be served.
    """
    return max(
        Fraction(
            spread((t == i) * charges[i] - (t == j) * charges[j] for t in tenants),
            charges[i] + charges[j],
        )
        for i, j in combinations(charges, 2)
    )


def check_promises_kept(queue: Watched) -> None:
    """
    R9, R12: no cap is exceeded, no claim is short while work could be served.
    """
    assert queue.faults == []


def check_band(queue: Watched) -> None:
    """
    T1: V <= S <= V + 1/w for every eligible flow, and one job less below after R11.
    """
    for moment in queue.history:
        for tenant, flow in moment.flows.items():
            if flow.eligible:
                lag = flow.vtime - moment.virtual_time
                assert -flow.charge * flow.unblocked <= lag <= flow.charge, (tenant, flow, lag)


def check_interval(queue: Watched) -> None:
    """
    T2: over any interval both are eligible in, two flows differ by one job of each.
    """
    for i, j in combinations(queue.history[-1].flows, 2):
        for span in _common_spans(queue.history, i, j):
            views = [moment.flows[tenant] for tenant in (i, j) for moment in span[:-1]]
            bound = sum(max(m.flows[t].charge for m in span) for t in (i, j))
            bound += max(view.charge * view.unblocked for view in views)
            lag = spread(_signed(moment, i, j) for moment in span[1:])
            assert Fraction(lag, bound) <= 1, (i, j, lag, bound)


def _common_spans(history: list[Moment], i: str, j: str) -> Iterable[list[Moment]]:
    """
    The intervals both flows are eligible in, each with the moment that ends it.
    """
    span: list[Moment] = []
    for moment in history:
        if span:
            span.append(moment)
        both = all(t in moment.flows and moment.flows[t].eligible for t in (i, j))
        if both and not span:
            span = [moment]
        elif span and not both:
            yield span
            span = []
    if len(span) > 1:
        yield span


def _signed(moment: Moment, i: str, j: str) -> int:
    return moment.charged * ((moment.picked == i) - (moment.picked == j))


def check_newcomer(queue: Watched) -> None:
    """
    T5: a flow's first job is overtaken by one job of each other, two of one just unblocked or where R3 spreads.
    """
    waits: dict[str, tuple[Counter[str], set[str], bool]] = {}
    for before, moment in pairwise(queue.history):
        fresh = [t for t, flow in before.flows.items() if flow.eligible and flow.fresh]
        is_crowd = sum(flow.known or flow.blocked for flow in before.flows.values()) > CROWD
        waits = {t: waits.get(t, (Counter(), set(), is_crowd)) for t in fresh}
        for newcomer, (overtakes, unblocked, was_spread) in waits.items():
            unblocked |= {t for t, flow in before.flows.items() if flow.unblocked}
            if moment.picked and moment.picked != newcomer:
                overtakes[moment.picked] += 1
                allowed = 1 + (moment.picked in unblocked) + was_spread
                assert overtakes[moment.picked] <= allowed, (newcomer, overtakes)


CHECKS = (check_promises_kept, check_band, check_interval, check_newcomer)
