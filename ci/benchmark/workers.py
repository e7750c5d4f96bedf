"""What a process does that produces or consumes, over one connection."""

from __future__ import annotations

import json
import random
import resource
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from benchmark.queues import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmark.crew import Shared
    from benchmark.queues import Queue

PAD = "x" * 64
GIVE_UP = 5.0
NAP = 0.002  # of whoever found nothing, or is ahead of the others
# Of the claims of a mixed run: so many are abandoned; of the jobs of the others, so many fail.
ABANDONED, FAILED = 0.02, 0.05
DELAYED = 0.1  # and of its jobs, so many are not due for up to this long
LONGEST_DELAY = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one process does; seconds."""

    role: Callable[[Session, Task, Shared], Tally]
    batch: int = 1
    seconds: float = 120  # at most
    warmup: int = 0  # calls before anything is measured: plans are made, the scheduler has looked
    rate: float | None = None
    ahead: int | None = None  # a producer waits while so many of its jobs are not consumed
    tenants: int = 1
    mixed: bool = False
    wakes: bool = False  # a consumer listens
    in_order: bool = False  # a consumer notes when its jobs were dispatched


@dataclass(slots=True)
class Tally:
    """What one process did."""

    ids: list[int] = field(default_factory=list)
    completed: int = 0
    warm: int = 0  # of them, before the start
    produced: int = 0
    empty: int = 0
    last: float = 0  # when the last call was over, after the start
    cpu: float = 0
    first_claim: float = 0
    latencies: list[float] = field(default_factory=list)
    order: list[tuple[int, int, str]] = field(default_factory=list)  # dispatch, place in the claim, tenant


class Session:
    """A connection that speaks one queue's SQL."""

    def __init__(self, queue: Queue, dsn: str, admin_dsn: str, number: int) -> None:
        self.queue = queue
        self.number = number
        # every statement is prepared at once, as by a worker that has been at it for hours
        self.connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=0)
        self.admin_dsn = admin_dsn
        self.watcher: psycopg.Connection[Any] | None = None
        [worker] = self.connection.execute(queue.hello).fetchone() or (None,)
        self.known = {"owner": f"worker {number}", "worker": worker}

    def enqueue(self, jobs: Sequence[Job]) -> None:
        """Enqueue one job or many."""
        if len(jobs) == 1 and not jobs[0].extra:
            given: dict[str, object] = {"tenant": jobs[0].tenant, "payload": json.dumps(jobs[0].payload)}
            self.connection.execute(self.queue.enqueue_one, given).fetchall()
        else:
            self.connection.execute(self.queue.enqueue_many, {"jobs": self.queue.pack(jobs)}).fetchall()

    def claim(self, limit: int) -> list[Any]:
        """Claim: rows of id, token, payload."""
        try:
            return self.connection.execute(self.queue.claim, {**self.known, "limit": limit}).fetchall()
        except psycopg.errors.LockNotAvailable:
            return []  # fairq's lock was not free in time: a claim that gave nothing, and is counted as such

    def complete(self, rows: Sequence[Any]) -> int:
        """Complete what was claimed; tells how many it still held."""
        if len(rows) == 1:
            given = {"id": rows[0][0], "token": rows[0][1]}
            return len(self.connection.execute(self.queue.complete_one, given).fetchall())
        given = {"ids": [row[0] for row in rows], "tokens": [row[1] for row in rows]}
        return len(self.connection.execute(self.queue.complete_many, given).fetchall())

    def fail(self, row: Any) -> None:  # noqa: ANN401 (a row)
        """Fail a job; it comes again."""
        self.connection.execute(self.queue.fail or "", {"id": row[0], "token": row[1]})

    def dispatched(self, rows: Sequence[Any]) -> dict[int, int]:
        """Tell when these were dispatched, which no worker may know."""
        if self.watcher is None:
            self.watcher = psycopg.connect(self.admin_dsn, autocommit=True, prepare_threshold=0)
        found = self.watcher.execute(self.queue.order or "", {"ids": [row[0] for row in rows]}).fetchall()
        return {int(job): int(dispatch) for job, dispatch in found}

    def listen(self) -> None:
        """Listen, on the connection that claims."""
        self.connection.execute(sql.SQL("listen {}").format(sql.Identifier(self.queue.channel or "")), prepare=False)

    def wait(self, seconds: float) -> None:
        """Wait for a notification."""
        for _ in self.connection.notifies(timeout=seconds, stop_after=1):
            pass


def drain(session: Session, task: Task, shared: Shared) -> Tally:
    """Claim and complete, until the budget or the time is used up."""
    tally, chance = Tally(), random.Random(session.number)  # noqa: S311 (no secret)
    began = time.monotonic()
    for turn in range(task.warmup):
        _claim_and_complete(session, task, tally, chance)
        tally.first_claim = tally.first_claim if turn else time.monotonic() - began
    if task.wakes:
        session.listen()
    start = shared.wait()
    tally.warm, cpu = tally.completed, _cpu()
    tally.latencies.clear()
    while time.monotonic() < start + task.seconds and shared.take(task.batch):
        got = _claim_and_complete(session, task, tally, chance)
        shared.settle(task.batch, got)
        if got:
            tally.last = time.monotonic() - start
            continue
        tally.empty += 1
        if task.wakes:
            session.wait(max(0.01, min(1.0, start + task.seconds - time.monotonic())))
        elif time.monotonic() - start - tally.last > GIVE_UP:
            break  # jobs are lost, which the bench will find
        else:
            time.sleep(NAP)
    tally.cpu = _cpu() - cpu
    return tally


def _claim_and_complete(session: Session, task: Task, tally: Tally, chance: random.Random) -> int:
    rows = session.claim(task.batch)
    if not rows:
        return 0
    if task.wakes:
        now = time.monotonic()
        tally.latencies += [now - row[2]["t"] for row in rows]
    if task.in_order:
        dispatches = session.dispatched(rows)
        tally.order += [(dispatches[row[0]], at, row[2]["g"]) for at, row in enumerate(rows)]
    tally.ids += [row[0] for row in rows]
    if not task.mixed:
        tally.completed += session.complete(rows)
    elif chance.random() >= ABANDONED:
        for row in rows:
            if chance.random() < FAILED:
                session.fail(row)
            else:
                tally.completed += session.complete([row])
    return len(rows)


def produce(session: Session, task: Task, shared: Shared) -> Tally:
    """Enqueue for so long; at a rate, and not too far ahead of the consumers, if so told."""
    tally, chance = Tally(), random.Random(session.number)  # noqa: S311 (no secret)
    for _ in range(task.warmup):
        session.enqueue(_jobs(session, task, tally, chance))
    start = shared.wait()
    tally.warm, cpu = tally.produced, _cpu()
    while (now := time.monotonic()) < start + task.seconds:
        done = tally.produced - tally.warm
        if (task.rate and done > (now - start) * task.rate) or (
            task.ahead and done + task.batch - shared.consumed.value > task.ahead
        ):
            time.sleep(NAP)
        else:
            session.enqueue(_jobs(session, task, tally, chance))
            tally.last = time.monotonic() - start
    tally.cpu = _cpu() - cpu
    return tally


def _jobs(session: Session, task: Task, tally: Tally, chance: random.Random) -> list[Job]:
    jobs = []
    for at in range(tally.produced, tally.produced + task.batch):
        tenant = f"t{at % task.tenants}"
        payload: dict[str, object] = {
            "g": tenant,
            "i": session.number * 1_000_000_000 + at,
            "t": time.monotonic(),
            "p": PAD,
        }
        extra: dict[str, object] = {}
        if task.mixed:
            extra["priority"] = chance.randrange(4)
            if chance.random() < DELAYED:
                extra["delay"] = f"{chance.uniform(0.1, LONGEST_DELAY):.3f} seconds"
        jobs.append(Job(tenant, payload, extra))
    tally.produced += task.batch
    return jobs


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
