"""One queue at work for a moment, in a fresh database: what it did, what that cost, and that it did it right."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from statistics import median_low
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import make_conninfo

from benchmark.crew import WITHOUT_END, Crew
from benchmark.errors import BenchError
from benchmark.meters import Instructions, Meter
from benchmark.queues import LOGIN
from benchmark.workers import Task, drain

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from benchmark.meters import Counters
    from benchmark.queues import Queue
    from benchmark.sizes import Sizes
    from benchmark.workers import Tally

# What a row of a table is made of.
Row = dict[str, Any]
# As on a server that has work to do; durable, and synchronous_commit on, which is the default.
SETTINGS = {
    "listen_addresses": "",
    "shared_buffers": "1GB",
    "max_wal_size": "4GB",
    "shared_preload_libraries": "pg_stat_statements",
    "log_min_messages": "warning",
}
ONE = "'t0'"
SESSIONS = 4
# Calls of each worker before anything is measured: a prepared statement has its last plan after six.
WARMUP = 8
TOLD = ("jobs_s", "cpu_us", "buffers", "wal_bytes", "p50_ms")
COMPARED = ("jobs_s", "cpu_us", "wal_bytes", "all_wal", "all_but_history", "buffers", "instructions", "p50_ms")


def spread(tenants: int) -> str:
    """Say in SQL that job i is of one of so many tenants, in turn."""
    return ONE if tenants == 1 else f"'t' || mod(i, {tenants})"


@dataclass(slots=True)
class Bench:
    """A server, the queues of this run, and how much of everything."""

    dsn: str
    queues: Mapping[str, Queue]
    sizes: Sizes
    perf: bool
    say: Callable[[str], None]
    binaries: Path | None = None
    _templates: set[str] = field(default_factory=set)
    _installed: dict[Callable[[str], None], str] = field(default_factory=dict)

    def present(self, *names: str) -> list[Queue]:
        """Give those of the named queues that take part in this run."""
        return [self.queues[name] for name in names if name in self.queues]

    @contextlib.contextmanager
    def database(self, queue: Queue) -> Iterator[Database]:
        """Make a database with this queue in it, for a moment."""
        self._make_template(queue)
        with self._maintenance() as connection:
            connection.execute("drop database if exists bench_now with (force)")
            connection.execute(f'create database bench_now template "{queue.name}"'.encode())
        try:
            dsn = make_conninfo(self.dsn, dbname="bench_now")
            with psycopg.connect(dsn, autocommit=True) as connection:
                # Before anything is loaded: a page that was written since is not logged whole when it changes. So the
                # WAL is that of a server between two checkpoints, not that of its first moments after one.
                connection.execute("checkpoint")
                yield Database(self, queue, dsn, connection)
        finally:
            with self._maintenance() as connection:
                connection.execute("drop database bench_now with (force)")

    def _maintenance(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, autocommit=True)

    def _make_template(self, queue: Queue) -> None:
        if queue.name in self._templates:
            return
        installed = self._install(queue)
        with self._maintenance() as connection:
            connection.execute(f'create database "{queue.name}" template "{installed}"'.encode())
        with psycopg.connect(make_conninfo(self.dsn, dbname=queue.name), autocommit=True) as connection:
            connection.execute(queue.setup.encode())
        self._templates.add(queue.name)

    def _install(self, queue: Queue) -> str:
        """Install a queue once, however many variants of it take part."""
        if queue.install in self._installed:
            return self._installed[queue.install]
        name = f"{queue.name} as installed"
        with self._maintenance() as connection:
            if not self._installed:
                connection.execute(f"create role {LOGIN} login".encode())
            connection.execute(f'create database "{name}"'.encode())
        dsn = make_conninfo(self.dsn, dbname=name)
        queue.install(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("create extension pg_stat_statements")
            connection.execute("create extension pg_walinspect")
        self._installed[queue.install] = name
        return name


@dataclass(slots=True)
class Database:
    """A fresh database with one queue."""

    bench: Bench
    queue: Queue
    dsn: str
    admin: psycopg.Connection[Any]
    waiting: int = 0
    wal: tuple[int, int] = (0, 0)  # from and to where the last run wrote

    def load(self, jobs: int, tenant: str = ONE) -> None:
        """Enqueue so many jobs, through the queue's own function where it has one."""
        self._insert(self.queue.load, jobs, tenant)
        self.waiting += jobs

    def load_finished(self, jobs: int, tenant: str = ONE) -> None:
        """Insert so many jobs that have ended."""
        self._insert(self.queue.finished or "", jobs, tenant)

    def crew(self, *tasks: Task, budget: int = WITHOUT_END) -> Crew:
        """Gather processes."""
        return Crew(self.queue, make_conninfo(self.dsn, user=LOGIN), self.dsn, tasks, budget)

    def run(self, *tasks: Task, budget: int = WITHOUT_END, waits: bool = False) -> Outcome:
        """Let processes work, and measure."""
        instructions, seen, meter = Instructions(), None, Meter(self.admin)
        with (
            self.crew(*tasks, budget=budget) as crew,
            instructions.of(crew.backends, wanted=self.bench.perf),
        ):
            before = meter.read()
            crew.go()
            if waits:
                seen = meter.sample_waits(crew.backends, lambda: crew.is_done)
            tallies = crew.tallies()
            after = meter.read()
        spent, self.wal = after - before, (before.wal, after.wal)
        return Outcome(tallies, spent, before.claim_buffers, instructions.count, seen)

    def check(self, tallies: Sequence[Tally], *, once: bool = True) -> None:
        """Refuse to have measured a queue that lost jobs, or handed one out twice."""
        ids = [job for tally in tallies for job in tally.ids]
        completed = sum(tally.completed for tally in tallies)
        enqueued = self.waiting + sum(tally.produced for tally in tallies)
        [waiting] = self.admin.execute(self.queue.waiting.encode()).fetchone() or (0,)
        right = enqueued - completed == waiting
        if once:
            right = right and len(ids) == len(set(ids)) == completed
        if not right:
            message = (
                f"{self.queue.name}: of {enqueued:,} jobs {len(ids):,} were claimed ({len(set(ids)):,} different), "
                f"{completed:,} completed, and {waiting:,} are left"
            )
            raise BenchError(message)
        self.waiting = waiting

    def _insert(self, statement: str, jobs: int, tenant: str) -> None:
        query = statement.replace("{tenant}", tenant).encode()
        at_once = self.queue.load_at_once
        for done in range(0, jobs, at_once):
            self.admin.execute(query, {"first": done + 1, "last": min(done + at_once, jobs)})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What processes did, and what it cost."""

    tallies: list[Tally]
    spent: Counters
    warmup_buffers: int  # of the claims before
    instructions: int | None
    waits: Counter[str] | None

    @property
    def empty(self) -> int:
        """How many claims gave nothing."""
        return sum(tally.empty for tally in self.tallies)

    @property
    def foreign(self) -> float:
        """How many cores others used meanwhile: with much of it nothing is measured."""
        own = self.spent.cpu + sum(tally.cpu for tally in self.tallies)
        return round(max(0.0, self.spent.machine - own) / self.spent.seconds, 2)

    def per_job(self, jobs: int) -> Row:
        """Give the row of this outcome, for so many jobs."""
        last = max(tally.last for tally in self.tallies)
        if not jobs or not last:
            message = f"nothing was done in {self.spent.seconds:.1f} s: {self.empty} claims were empty"
            raise BenchError(message)
        spent = self.spent
        return {
            "jobs": jobs,
            "jobs_s": round(jobs / last),
            "cpu_us": round(spent.cpu / jobs * 1e6, 1),
            "client_us": round(sum(tally.cpu for tally in self.tallies) / jobs * 1e6, 1),
            "instructions": self.instructions and round(self.instructions / jobs),
            "wal_bytes": round(spent.wal / jobs),
            "fpi": round(spent.fpi / jobs, 4),
            "claim_buffers": round(spent.claim_buffers / jobs, 2),
            "complete_buffers": round(spent.complete_buffers / jobs, 2),
            "buffers": round((spent.claim_buffers + spent.complete_buffers + spent.enqueue_buffers) / jobs, 2),
            "foreign": self.foreign,
        }


def taker(batch: int) -> Task:
    """Give the task of a warm worker that claims and completes."""
    return Task(role=drain, batch=batch, warmup=WARMUP)


def drained(
    database: Database, task: Task, *, jobs: int, sessions: int = SESSIONS, waits: bool = False
) -> tuple[Row, Outcome]:
    """Claim and complete so many of the jobs that were loaded."""
    outcome = database.run(*[task] * sessions, budget=jobs, waits=waits)
    database.check(outcome.tallies)
    done = sum(tally.completed - tally.warm for tally in outcome.tallies)
    return {**outcome.per_job(done), "empty": outcome.empty}, outcome


def room(batch: int, sessions: int, jobs: int) -> int:
    """Say how many jobs must wait so that whoever claims finds a whole batch to the end, with a tenth to spare."""
    return round(1.1 * (jobs + sessions * batch * (WARMUP + 1)))


def in_turn(
    bench: Bench, contestants: Mapping[str, Callable[[], Row]], against: Callable[[str], str] = lambda _: "pgmq"
) -> list[Row]:
    """
    Measure the contestants in turn, round after round, and give each one's median.

    What is compared is always of the same round: a ratio is the median of the rounds' ratios.
    """
    rounds: list[dict[str, Row]] = []
    for number in range(bench.sizes.rounds):
        rounds.append({})
        for name, measure in contestants.items():
            row = measure()
            rounds[-1][name] = row
            told = ", ".join(f"{key} {row[key]:,}" for key in TOLD if row.get(key))
            bench.say(f"    {number + 1}. {name}: {told}")
    return [_middle(rounds, name, against(name)) for name in contestants]


def _middle(rounds: Sequence[Mapping[str, Row]], name: str, against: str) -> Row:
    rows = [each[name] for each in rounds]
    middle: Row = {}
    for key, value in rows[0].items():
        numbers = [row[key] for row in rows if isinstance(row[key], (int, float))]
        middle[key] = median_low(numbers) if len(numbers) == len(rows) else value
    if against in rounds[0] and name != against:
        for key in COMPARED:
            pairs = [(each[name].get(key), each[against].get(key)) for each in rounds]
            ratios = [mine / theirs for mine, theirs in pairs if mine and theirs]
            middle[f"{key}_ratio"] = round(median_low(ratios), 2) if ratios else None
    return middle
