"""What the demo knows while it runs: one account per tenant, and every start in full."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from fairq_schema.demo.lag import Lag, Start, backlogged, lag_ratio

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MICROSECONDS = 1_000_000
# A live percentile is over this many starts, so that it shows what is, not what was.
RECENT = 1000
CALM, FLOOD, AFTER = "three tenants", "flood", "after the flood"


@dataclass(slots=True)
class Account:
    """One tenant: what was enqueued, started and done, and how long its jobs waited."""

    name: str
    weight: int
    enqueued: int = 0
    started: int = 0
    done: int = 0
    started_before_phase: int = 0
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))
    waits: dict[str, list[int]] = field(default_factory=dict)
    jobs: list[int] = field(default_factory=list)

    @property
    def queued(self) -> int:
        """Jobs that wait; a start may be reported before its enqueue has returned, so never below zero."""
        return max(0, self.enqueued - self.started)


class Span(NamedTuple):
    """How long a worker held a job that it completed: microseconds of the server's clock, as they are charged."""

    tenant: str
    began: int
    ended: int


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: shares are of the phase so far, waits of the latest starts, in seconds."""

    name: str
    weight: int
    queued: int
    running: int
    done: int
    share: float
    entitled: float
    p50: float | None
    p99: float | None


class Tally:
    """
    All accounts, fed by the producers' and the readers' threads and read by the screen.

    One lock, held for a few dictionary operations at a time.
    """

    def __init__(self, weights: Mapping[str, int], flood: str, flood_jobs: int) -> None:
        """Open an account for each tenant."""
        self._lock = threading.Lock()
        self._accounts = {name: Account(name, weight) for name, weight in weights.items()}
        self._flood, self._flood_jobs = flood, flood_jobs
        self._starts: list[Start] = []
        self._spans: list[Span] = []
        self._committed: dict[int, int] = {}
        self.phase = CALM

    def enqueued(self, jobs: Mapping[int, str], committed: int) -> None:
        """Note jobs, by their tenants, that were committed by this moment of the server's clock."""
        with self._lock:
            for job, tenant in jobs.items():
                account = self._accounts[tenant]
                account.enqueued += 1
                account.jobs.append(job)
            self._committed.update(dict.fromkeys(jobs, committed))
            self._move_phase()

    def started(self, start: Start, created_at: int) -> None:
        """Note a start and how long the job had waited for it."""
        with self._lock:
            account = self._accounts[start.tenant]
            account.started += 1
            self._starts.append(start)
            wait = start.started_at - created_at
            account.recent.append(wait)
            account.waits.setdefault(self.phase, []).append(wait)
            self._move_phase()

    def finished(self, spans: Iterable[Span]) -> None:
        """Note completed jobs."""
        with self._lock:
            for span in spans:
                self._accounts[span.tenant].done += 1
                self._spans.append(span)

    def queued(self, tenant: str) -> int:
        """Tell how many jobs of a tenant wait."""
        with self._lock:
            return self._accounts[tenant].queued

    def rows(self) -> list[Row]:
        """Give the table as it stands."""
        with self._lock:
            accounts = self._accounts.values()
            inside = {a.name: a.started - a.started_before_phase for a in accounts}
            total = sum(inside.values()) or 1
            weights = sum(a.weight for a in accounts if a.queued or inside[a.name]) or 1
            return [
                Row(
                    name=a.name,
                    weight=a.weight,
                    queued=a.queued,
                    running=a.started - a.done,
                    done=a.done,
                    share=inside[a.name] / total,
                    entitled=a.weight / weights if a.queued or inside[a.name] else 0.0,
                    p50=percentile(a.recent, 50),
                    p99=percentile(a.recent, 99),
                )
                for a in accounts
            ]

    def _move_phase(self) -> None:
        flood = self._accounts[self._flood]
        phase = CALM if not flood.enqueued else FLOOD if flood.started < self._flood_jobs else AFTER
        if phase == self.phase:
            return
        self.phase = phase
        for account in self._accounts.values():
            account.started_before_phase = account.started
            account.recent.clear()

    def waits(self, phase: str) -> dict[str, Sequence[int]]:
        """Give the waiting times of a phase by tenant, in microseconds."""
        with self._lock:
            return {a.name: a.waits[phase] for a in self._accounts.values() if phase in a.waits}

    def starts(self) -> list[Start]:
        """Give every start in dispatch order."""
        with self._lock:
            return sorted(self._starts)

    def spans(self) -> list[Span]:
        """Give the times for which completed jobs were held."""
        with self._lock:
            return list(self._spans)

    def lag(self) -> Lag:
        """Measure the lag ratio of all that happened; see `fairq_schema.demo.lag`."""
        starts = self.starts()
        with self._lock:
            waiting = {a.name: backlogged(starts, self._committed, a.jobs) for a in self._accounts.values()}
            weights = {a.name: a.weight for a in self._accounts.values()}
        return lag_ratio([start.tenant for start in starts], weights, waiting)


def percentile(waits: Sequence[int] | deque[int], percent: int) -> float | None:
    """Give a percentile in seconds: the least value that so many per cent do not exceed."""
    if not waits:
        return None
    ordered = sorted(waits)
    return ordered[-(-len(ordered) * percent // 100) - 1] / MICROSECONDS
