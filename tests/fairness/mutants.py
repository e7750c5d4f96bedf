"""
Schedulers that look right and are not: each names the scenarios that tell, or a theorem does.
"""

from __future__ import annotations

from typing import ClassVar

from .oracle import LEASE, Flow, Oracle


class Mutant(Oracle):
    """
    A wrong scheduler.
    """

    breaks: ClassVar[tuple[str, ...]] = ()


class FirstInFirstOut(Mutant):
    """
    The oldest job goes first, whosoever it is.
    """

    breaks = "01_equal_weights_alternate", "06_a_thousand_tenants", "07_a_short_backlog_ends"

    def _least(self, tenant: str | None) -> Flow | None:
        flows = self._eligible(tenant)
        return min(flows, key=lambda f: f.jobs[0][-1] if self._has_job(f) else -1, default=None)

    def _examine(self, want: int, tenant: str | None) -> list[Flow]:
        super()._examine(want, tenant)
        return self._eligible(tenant)


class TagAtEnqueue(Mutant):
    """
    Every job is given its virtual time when it is enqueued.
    """

    breaks = "11_a_weight_acts_at_once", "12_cancelled_work_counts_for_nothing"

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[int] = []
        self.last: dict[str, int] = {}

    def enqueue(self, tenant: str, count: int = 1, priority: int = 2, run_at: int = 0, cost: float = 1) -> list[int]:
        """
        As the model, and wrong.
        """
        jobs = super().enqueue(tenant, count, priority, run_at, cost)
        for _ in jobs:
            self.tags.append(max(self.entry, self.last.get(tenant, 0)))
            self.last[tenant] = self.tags[-1] + Flow(tenant, self._wish_of(tenant)).charge
        return jobs

    def _eligible(self, tenant: str | None) -> list[Flow]:
        flows = super()._eligible(tenant)
        for flow in flows:
            flow.vtime = self.tags[flow.jobs[0][-1]] if self._has_job(flow) else flow.vtime
        return flows


class NoLift(Mutant):
    """
    A tenant that comes back starts where it left off.
    """

    breaks = ("09_idling_earns_nothing",)

    def _activate(self, flow: Flow) -> None:
        flow.backlogged = True


class IdleCredit(Mutant):
    """
    A tenant that comes back may catch up three jobs.
    """

    breaks = ("09_idling_earns_nothing",)

    def _activate(self, flow: Flow) -> None:
        flow.vtime = max(flow.vtime, self.entry - 3 * flow.charge)
        flow.backlogged = True


class DebtForgiven(Mutant):
    """
    A tenant that comes back starts level with the others, whatever it owes.
    """

    breaks = ("10_debt_is_kept",)

    def _activate(self, flow: Flow) -> None:
        flow.vtime = self.entry
        flow.backlogged = True


class TenantBatches(Mutant):
    """
    A batch is filled from the first tenant in line.
    """

    breaks = ("08_batches_change_nothing",)

    def _examine(self, want: int, tenant: str | None) -> list[Flow]:
        super()._examine(want, tenant)
        self.turn_of = super()._least(tenant)
        return super()._examine(want, tenant)

    def _least(self, tenant: str | None) -> Flow | None:
        flow = self.turn_of
        return flow if flow in self._eligible(tenant) else super()._least(tenant)


class ChargedAtTheEnd(Mutant):
    """
    A job costs nothing until it is done.
    """

    breaks = ("08_batches_change_nothing",)

    def _pick(self, flow: Flow, lease: int) -> int:
        vtime = flow.vtime
        job = super()._pick(flow, lease)
        flow.vtime = vtime
        return job

    def complete(self, job: int) -> None:
        """
        As the model, and wrong.
        """
        super().complete(job)
        flow = self.flows[self.tenant_of(job)]
        flow.vtime += flow.charge


class WeightWhenActivated(Mutant):
    """
    A flow keeps the weight it became backlogged with.
    """

    breaks = ("11_a_weight_acts_at_once",)

    def _apply(self, flow: Flow, *, has_token: bool, enters: bool) -> None:
        wish = flow.wish if flow.backlogged else None
        super()._apply(flow, has_token=has_token, enters=enters)
        flow.wish = wish or flow.wish


class WeightlessTies(Mutant):
    """
    Of two tenants in the same place the name decides, not the weight.
    """

    breaks = "02_one_to_three", "03_one_two_four"

    def _examine(self, want: int, tenant: str | None) -> list[Flow]:
        super()._examine(want, tenant)
        return self._eligible(tenant)

    def _least(self, tenant: str | None) -> Flow | None:
        return min(self._eligible(tenant), key=lambda f: (f.vtime, f.served, f.tenant), default=None)


class UrgentFirst(Mutant):
    """
    An urgent job goes before the other tenants' jobs too.
    """

    breaks = ("15_urgency_stays_at_home",)

    def _least(self, tenant: str | None) -> Flow | None:
        for flow in self._eligible(tenant):
            if self._has_job(flow) and flow.jobs[0][0] == 0:
                flow.vtime = 0
        return super()._least(tenant)


class OneJobATurn(Mutant):
    """
    A claim takes one job of a tenant at most, and is short when there are few tenants.
    """

    def claim(self, n: int, tenant: str | None = None, lease: int = LEASE) -> list[int]:
        """
        As the model, and wrong.
        """
        self.taken: set[Flow] = set()
        return super().claim(n, tenant, lease)

    def _examine(self, want: int, tenant: str | None) -> list[Flow]:
        return [f for f in super()._examine(want, tenant) if f not in self.taken]

    def _least(self, tenant: str | None) -> Flow | None:
        left = [f for f in self._eligible(tenant) if f not in self.taken]
        flow = min(left, key=lambda f: f.turn, default=None)
        self.taken |= {flow} if flow else set()
        return flow


class EmptiedInVain(Mutant):
    """
    A pass that only emptied flows ends the claim.
    """

    def _examine(self, want: int, tenant: str | None) -> list[Flow]:
        examined = super()._examine(want, tenant)
        return [f for f in examined if f.backlogged]


class CapCountedBefore(Mutant):
    """
    Whether a cap allows a job is judged once a claim, before its picks.
    """

    def _examine(self, want: int, tenant: str | None) -> list[Flow]:
        self.allowed = set(super()._eligible(tenant))
        return super()._examine(want, tenant)

    def _eligible(self, tenant: str | None) -> list[Flow]:
        ready = (f for f in self.allowed if f.backlogged and self._has_job(f))
        return [f for f in ready if tenant in (None, f.tenant)]


class RunningOnlyIfCapped(Mutant):
    """
    What an uncapped tenant runs is not counted, so a cap set later is exceeded.
    """

    def _settle(self, flow: Flow) -> None:
        flow.running = max(0, flow.running if flow.wish.cap is not None else 0)
        flow.news.ended = min(flow.news.ended, flow.running)
        super()._settle(flow)


class BlockedCredit(Mutant):
    """
    A tenant that was capped or paused catches up all it missed.
    """

    breaks = ("r11_one_job_of_precedence",)

    def _unblock(self, flow: Flow) -> None:
        pass


class LoweredEntry(Mutant):
    """
    E is the least S of now, also when that is a flow R11 put below V.
    """

    breaks = ("r2_nobody_enters_below",)

    def _look(self) -> None:
        self.entry = 0
        super()._look()


class FreshStart(Mutant):
    """
    When nothing is eligible the next busy period begins at zero.
    """

    def _level(self) -> int:
        return min((f.vtime for f in self.flows.values() if f.eligible), default=0)

    def _look(self) -> None:
        self.entry = 0
        super()._look()


MUTANTS = [*Mutant.__subclasses__()]
