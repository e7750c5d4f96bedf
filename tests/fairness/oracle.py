"""
The exact one-by-one model of the scheduler: every rule of fairness.md.

Every method is one committed transaction, at the time `now`. Nothing but `claim` moves the
scheduler: what the others did is news, and the next claim looks at all of it at once, tenant by
tenant. Numbers are the integers and double precisions of the SQL, so that the order is the same,
not only the bounds.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from math import floor
from typing import Any

SECOND = 1_000_000  # the clock counts microseconds
LEASE = 600 * SECOND
UNIT = 2520  # a millisecond at weight 1
JOB = 1000 * UNIT  # what one job of weight 1 is charged where jobs are counted

Place = tuple[int, int, int]  # priority, run_at, job: the order inside a tenant (R5)


def milliseconds(span: int) -> int:
    """
    A span of the clock in whole milliseconds; a half is rounded up, as in PostgreSQL's numeric.
    """
    return (span + 500) // 1000


def average(was: float | None, values: list[int]) -> float | None:
    """
    A moving average of weight 1/8, moved on as if each value were their mean.
    """
    if not values:
        return was
    mean = sum(values) / len(values)
    return mean if was is None else mean + (was - mean) * 0.875 ** len(values)


@dataclass(frozen=True, slots=True)
class Wish:
    """
    What the operator wants of a tenant.
    """

    weight: float = 1
    cap: int | None = None
    paused: bool = False
    rate: float | None = None
    burst: int = 1


@dataclass(frozen=True, slots=True)
class Settings:
    """
    What the operator wants of the queue.
    """

    paused: bool = False
    charge: str = "jobs"
    cap: int | None = None
    rate: float | None = None
    burst: int = 1


@dataclass(frozen=True, slots=True)
class Bucket:
    """
    R10: tokens at a moment.
    """

    rate: float
    burst: int
    tokens: float
    since: int

    def at(self, now: int) -> float:
        """
        The tokens there are now.
        """
        return min(self.burst, self.tokens + self.rate * ((now - self.since) / SECOND))

    @property
    def due(self) -> int:
        """
        When the next token is there.
        """
        return self.since + round((1 - self.tokens) / self.rate * SECOND)


@dataclass(slots=True)
class Lease:
    """
    A running attempt, settled by the weight its tenant had when it began.

    What it prepaid is in milliseconds; None where time is not charged.
    """

    started: int
    ends: int
    prepaid: int | None
    epoch: int
    weight: float
    cancelled: bool = False

    def units(self, ms: int) -> int:
        """
        What so much time is in virtual time; less than none is none.
        """
        return round(max(0, ms) * UNIT / self.weight)


@dataclass(slots=True)
class News:
    """
    What happened to a tenant since the last look.
    """

    jobs: list[int] = field(default_factory=list)
    wish: bool = False
    ended: int = 0
    elapsed: list[int] = field(default_factory=list)
    extra: int = 0
    refunds: list[tuple[int, int]] = field(default_factory=list)  # epoch, virtual time


@dataclass(eq=False, slots=True)
class Flow:
    """
    What the scheduler knows of a tenant; it is opened with the tenant's first job.
    """

    tenant: str
    wish: Wish = Wish()
    opened: bool = False
    vtime: int = 0
    epoch: int = 0  # rises with every lift
    running: int = 0
    served: int = 0
    backlogged: bool = False
    estimate: float = 1000
    price: int = 1000
    bucket: Bucket | None = None
    jobs: list[Place] = field(default_factory=list)  # a heap; jobs taken elsewhere stay in it
    news: News = field(default_factory=News)

    @property
    def charge(self) -> int:
        """
        The charge of a job: double precision, halves to even, as in PostgreSQL.
        """
        return max(1, round(self.price * UNIT / self.wish.weight))

    @property
    def limited(self) -> bool:
        """
        Whether it waits for a token (R10).
        """
        return self.bucket is not None and self.bucket.tokens < 1

    @property
    def eligible(self) -> bool:
        """
        Whether a pick may take this flow (R9).
        """
        free = self.wish.cap is None or self.running < self.wish.cap
        return self.backlogged and free and not self.wish.paused and not self.limited

    @property
    def milliweight(self) -> int:
        """
        The weight in thousandths.
        """
        return round(self.wish.weight * 1000)

    @property
    def turn(self) -> tuple[int, int, int, str]:
        """The pick order (R4). Python compares strings by code point, as collation "C" does."""
        return self.vtime, self.charge, self.served, self.tenant


class Oracle:
    """
    One queue.
    """

    def __init__(self) -> None:
        self.now = 0
        self.settings = Settings()
        self.wishes: dict[str, Wish] = {}
        self.flows: dict[str, Flow] = {}
        self.places: list[tuple[str, Place]] = []  # by job
        self.costs: list[float] = []
        self.queued: set[int] = set()
        self.scheduled: dict[int, int] = {}  # job -> when it is due
        self.running: dict[int, Lease] = {}

        self.charge = ""  # the way of charging at the last look
        self.entry = 0  # E, and V for R11
        self.mean: float | None = None
        self.bucket: Bucket | None = None
        self.crowd = 0  # backlogged flows, and their weights in thousandths
        self.milliweight = 0
        self.activations = 0
        self.dispatches = 0

    def wait(self, span: int) -> None:
        """
        Let time go by.
        """
        self.now += span

    # What producers, workers and operators do

    def enqueue(self, tenant: str, count: int = 1, priority: int = 2, run_at: int = 0, cost: float = 1) -> list[int]:
        """
        Enqueue equal jobs, due long ago, numbered from 0 in order of arrival.
        """
        jobs = list(range(len(self.places), len(self.places) + count))
        for job in jobs:
            self.places.append((tenant, (priority, run_at - LEASE, job)))
            self.costs.append(cost)
            self._queue(job)
        return jobs

    def renew(self, job: int, span: int = LEASE) -> None:
        """
        Hold a lease for longer: what is asked for is charged at once.
        """
        lease = self.running[job]
        if lease.cancelled:
            return
        lease.ends = max(lease.ends, self.now + span)
        if lease.prepaid is not None:
            extra = milliseconds(self.now + span - lease.started) - lease.prepaid
            lease.prepaid += max(0, extra)
            self._news_of(job).extra += lease.units(extra)

    def complete(self, job: int) -> None:
        """
        End an attempt for good.
        """
        self._end(job, self._held(job))

    def fail(self, job: int, *, retry: bool = True, delay: int = 0) -> None:
        """
        End an attempt and put the job back in its old place, or later, or not.
        """
        lease = self.running[job]
        self._end(job, self._held(job))
        if retry and not lease.cancelled:
            self._put_back(job, delay)

    def release(self, job: int, delay: int = 0) -> None:
        """
        Give a job back unstarted, for nothing; with a delay (a snooze) the time it was held is paid for.
        """
        lease = self.running[job]
        if delay or lease.cancelled:
            self.fail(job, delay=delay)
            return
        if lease.prepaid is not None:
            self._news_of(job).refunds.append((lease.epoch, lease.units(lease.prepaid)))
        self._end(job, None)
        self._put_back(job)

    def expire(self, job: int) -> None:
        """
        Let a lease be over: what was prepaid stays.
        """
        lease = self.running[job]
        self._end(job, None)
        if not lease.cancelled:
            self._put_back(job)

    def cancel(self, job: int) -> None:
        """
        Cancel a waiting job; ask a running one to stop.
        """
        if job in self.running:
            self.running[job].cancelled = True
        self.queued.discard(job)
        self.scheduled.pop(job, None)

    def cancel_all(self, tenant: str) -> None:
        """
        Cancel every job of a tenant that waits.
        """
        for job in [job for job in (*self.queued, *self.scheduled) if self.tenant_of(job) == tenant]:
            self.cancel(job)

    def set_tenant(self, tenant: str, weight: float = 1, cap: int | None = None, **wish: Any) -> None:
        """
        Replace the operator's whole wish for a tenant, or for all that have none (*).
        """
        self.wishes[tenant] = Wish(weight, cap, **wish)
        for flow in self.flows.values() if tenant == "*" else [self._flow(tenant)]:
            flow.news.wish = True

    def set_queue(self, **changes: Any) -> None:
        """
        Change settings of the queue.
        """
        self.settings = replace(self.settings, **changes)

    # The scheduler step

    def claim(self, n: int, tenant: str | None = None, lease: int = LEASE) -> list[int]:
        """
        Look, then pick n jobs one by one (R7), and return them in pick order.
        """
        self._look()
        n = self._room(n)
        picked: list[int] = []
        wide = 0
        while len(picked) < n:
            # where jobs declare their cost a pass is one pick; after one that found nothing it looks further
            wide = max(wide, 1 if self.charge == "cost" else n - len(picked))
            examined = self._examine(wide, tenant)
            if not examined:
                break
            before = len(picked)
            while len(picked) < n and (flow := self._least(tenant)) in examined:
                picked.append(self._pick(flow, lease))
            wide = 0 if len(picked) > before else min(1000, wide * 4)
        if self.bucket:
            self.bucket = replace(self.bucket, tokens=self.bucket.tokens - len(picked))
        return picked

    def _room(self, n: int) -> int:
        """
        What the cap and the rate of the queue leave of a claim.
        """
        wish = self.settings
        if self.bucket and wish.rate is not None:
            self.bucket = replace(self.bucket, rate=wish.rate, burst=wish.burst)
        self.bucket = self._bucket(self.bucket, wish)
        if wish.paused:
            return 0
        if wish.cap is not None:
            n = min(n, wish.cap - sum(flow.running for flow in self.flows.values()))
        return max(0, min(n, floor(self.bucket.tokens))) if self.bucket else max(0, n)

    def _bucket(self, was: Bucket | None, wish: Wish | Settings, *, has_token: bool = False) -> Bucket | None:
        """
        The bucket now, as the operator wants it. A rate that is new finds it full.
        """
        if wish.rate is None:
            return None
        tokens = min(wish.burst, was.at(self.now) if was else wish.burst)
        # a token whose time has come is there, whatever rounding says
        return Bucket(wish.rate, wish.burst, max(tokens, 1) if has_token else tokens, self.now)

    def _look(self) -> None:
        """
        Learn what was committed since the last look, and what the clock has brought.
        """
        for job in [job for job, lease in self.running.items() if lease.ends <= self.now]:
            self.expire(job)
        for job in [job for job, due in self.scheduled.items() if due <= self.now]:
            del self.scheduled[job]
            self._queue(job)

        # E before anything else; a look without news could be left out: until then the least S only rises
        self.entry = max(self.entry, self._level())
        entrants = {f for f in self.flows.values() if not f.backlogged and self._has_job(f)}
        for flow in entrants:
            self.crowd += 1
            self.milliweight += round(self._wish_of(flow.tenant).weight * 1000)
            if not flow.opened:
                flow.opened, flow.estimate = True, 1000 if self.mean is None else self.mean
        elapsed = [ms for flow in self.flows.values() for ms in flow.news.elapsed]
        everyone, self.charge = self.charge != self.settings.charge, self.settings.charge
        for flow in sorted(filter(lambda f: f.opened, self.flows.values()), key=lambda f: f.tenant):
            has_token = flow.limited and flow.bucket is not None and flow.bucket.due <= self.now
            if everyone or has_token or self._has_news(flow):
                self._apply(flow, has_token=has_token, enters=flow in entrants)
        self.mean = average(self.mean, elapsed)

    def _level(self) -> int:
        """
        The least S of the eligible flows; when there is none the greatest of all (R6).
        """
        eligible = [f.vtime for f in self.flows.values() if f.eligible]
        return min(eligible) if eligible else max((f.vtime for f in self.flows.values()), default=0)

    def _has_news(self, flow: Flow) -> bool:
        """
        Whether a look finds anything; of a job that came and was cancelled it does not.
        """
        flow.news.jobs = [job for job in flow.news.jobs if job in self.queued]
        return flow.news != News()

    def _apply(self, flow: Flow, *, has_token: bool, enters: bool) -> None:
        """
        The news of one tenant: what ended, what its operator wants, where it starts.
        """
        blocked = flow.backlogged and not flow.eligible
        weighed = flow.milliweight
        self._settle(flow)
        flow.wish = self._wish_of(flow.tenant)  # R8: the very next pick charges by it
        flow.bucket = self._bucket(flow.bucket, flow.wish, has_token=has_token)
        flow.price = max(1, round(flow.estimate)) if self.charge == "time" else 1000
        flow.news = News()
        if enters:
            self.activations += 1
            self._activate(flow)
        elif flow.backlogged:
            self.milliweight += flow.milliweight - weighed
            if blocked and flow.eligible:
                self._unblock(flow)

    def _settle(self, flow: Flow) -> None:
        """
        Correct the charges of ended attempts; a refund from before a lift is void.
        """
        news = flow.news
        flow.running -= news.ended
        flow.vtime += news.extra - sum(units for epoch, units in news.refunds if epoch == flow.epoch)
        flow.estimate = average(flow.estimate, news.elapsed) or flow.estimate

    def _unblock(self, flow: Flow) -> None:
        self._lift(flow, self.entry - flow.charge)  # R11: one job of precedence

    def _activate(self, flow: Flow) -> None:
        # R2: debt is kept, credit is not
        self._lift(flow, self.entry + (self._spread(flow) if flow.vtime <= self.entry else 0))
        flow.backlogged = True

    def _lift(self, flow: Flow, to: int) -> None:
        if flow.vtime < to:
            flow.vtime = to
            flow.epoch += 1

    def _spread(self, flow: Flow) -> int:
        """
        R3: of a crowd, those lighter than the heaviest start at different places of a round.
        """
        heaviest = max([self._wish_of("").weight, *(wish.weight for wish in self.wishes.values())])
        if self.crowd <= 32 or flow.wish.weight >= heaviest:
            return 0
        share = flow.charge * flow.wish.weight * self.crowd * 1000 / self.milliweight
        return floor(self.activations * 2654435769 % 2**32 / 2**32 * min(flow.charge, share))

    def _examine(self, want: int, tenant: str | None) -> list[Flow]:
        """
        Begin a pass: take the first `want` eligible flows, empty those found without a job.

        A job cancelled while it waits is no news, so only here its flow is found empty. How
        far a pass looks is seen by nobody but E, which counts a flow until it is emptied.
        """
        examined = heapq.nsmallest(want, self._eligible(tenant), key=lambda f: f.turn)
        for flow in examined:
            if not self._has_job(flow):
                flow.bucket = self._bucket(flow.bucket, flow.wish)
                self._empty(flow)
        return examined

    def _empty(self, flow: Flow) -> None:
        flow.backlogged = False
        self.crowd -= 1
        self.milliweight -= flow.milliweight

    def _least(self, tenant: str | None) -> Flow | None:
        return min(self._eligible(tenant), key=lambda f: f.turn, default=None)

    def _pick(self, flow: Flow, lease: int) -> int:
        job = heapq.heappop(flow.jobs)[-1]
        self.queued.remove(job)
        paid = min(flow.price, milliseconds(lease)) if self.charge == "time" else None
        self.running[job] = Lease(self.now, self.now + lease, paid, flow.epoch, flow.wish.weight)
        self.dispatches += 1
        flow.served = self.dispatches
        flow.running += 1
        flow.vtime += self._step(flow, job, paid)
        if bucket := self._bucket(flow.bucket, flow.wish):
            flow.bucket = replace(bucket, tokens=bucket.tokens - 1)
        if not self._has_job(flow):
            self._empty(flow)
        return job

    def _step(self, flow: Flow, job: int, paid: int | None) -> int:
        """
        What a job adds to its tenant's S when it is picked.
        """
        if self.charge == "cost":
            return max(1, round(self.costs[job] * 1000 * UNIT / flow.wish.weight))
        return flow.charge if paid is None else max(1, round(paid * UNIT / flow.wish.weight))

    # Small words

    def tenant_of(self, job: int) -> str:
        """
        Whose job it is.
        """
        return self.places[job][0]

    def books(self) -> dict[str, tuple[float, ...]]:
        """
        What the scheduler knows of each tenant: S, lifts, what runs, what it expects.
        """
        flows = [f for f in self.flows.values() if f.opened]
        return {f.tenant: (f.vtime, f.epoch, f.running, f.estimate) for f in flows}

    def vtime(self, tenant: str) -> int:
        """
        A tenant's S after a look.
        """
        self._look()
        return self.flows[tenant].vtime

    def _flow(self, tenant: str) -> Flow:
        return self.flows.setdefault(tenant, Flow(tenant))

    def _news_of(self, job: int) -> News:
        return self.flows[self.tenant_of(job)].news

    def _wish_of(self, tenant: str) -> Wish:
        return self.wishes.get(tenant) or self.wishes.get("*") or Wish()

    def _queue(self, job: int) -> None:
        tenant, place = self.places[job]
        heapq.heappush(self._flow(tenant).jobs, place)
        self.queued.add(job)
        self._news_of(job).jobs.append(job)

    def _put_back(self, job: int, delay: int = 0) -> None:
        if not delay:
            self._queue(job)
            return
        tenant, (priority, _, _) = self.places[job]
        self.places[job] = tenant, (priority, self.now + delay, job)
        self.scheduled[job] = self.now + delay

    def _held(self, job: int) -> int:
        return max(1, milliseconds(self.now - self.running[job].started))

    def _end(self, job: int, held: int | None) -> None:
        """
        End an attempt; the time it was held, if that is to be paid for, corrects what it prepaid.
        """
        lease, news = self.running.pop(job), self._news_of(job)
        news.ended += 1
        if held is not None and lease.prepaid is not None:
            news.elapsed.append(held)
            news.extra += lease.units(held - lease.prepaid)
            news.refunds.append((lease.epoch, lease.units(lease.prepaid - held)))

    def _has_job(self, flow: Flow) -> bool:
        while flow.jobs and flow.jobs[0][-1] not in self.queued:
            heapq.heappop(flow.jobs)
        return bool(flow.jobs)

    def _eligible(self, tenant: str | None) -> list[Flow]:
        return [f for f in self.flows.values() if f.eligible and tenant in (None, f.tenant)]
