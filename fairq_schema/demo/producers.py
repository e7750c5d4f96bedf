"""The producers: three tenants that keep a modest backlog, and one that floods."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any

import psycopg

from fairq_schema.demo.errors import DemoError
from fairq_schema.demo.options import FLOODING, WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairq_schema.demo.options import Options
    from fairq_schema.demo.tally import Tally

ENQUEUE = "select o.job_id from fairq.enqueue_jobs(p_jobs => %s::jsonb) as o order by o.ordinal"
FIFO_ENQUEUE = """
insert into fairq_demo.fifo (tenant)
select j.job ->> 'tenant' from jsonb_array_elements(%s::jsonb) with ordinality as j(job, nth) order by j.nth
returning job_id
"""
# Asked after the enqueue has returned: by this moment its jobs are committed.
CLOCK = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint"
PAUSE = 0.05
BACKLOG_PER_WEIGHT = 50
FLOOD_BATCH = 1000


class Producers:
    """Threads with a connection each; `begin_flood` opens the gate."""

    def __init__(self, options: Options, dsn: str, tally: Tally) -> None:
        """Prepare the threads; nothing runs yet."""
        self._options, self._dsn, self._tally = options, dsn, tally
        self._stop = threading.Event()
        self._gate = threading.Event()
        self._error: Exception | None = None
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in (self._trickle, self._flood)]

    def start(self) -> None:
        """Begin to trickle."""
        for thread in self._threads:
            thread.start()

    def begin_flood(self) -> None:
        """Let the flood in; a second call changes nothing."""
        self._gate.set()

    def check(self) -> None:
        """Raise what stopped a producer, if anything did."""
        if self._error:
            message = f"a producer ended by itself: {self._error}"
            raise DemoError(message) from self._error

    def stop(self) -> None:
        """End both threads after the batch in their hands."""
        self._stop.set()
        self._gate.set()
        for thread in self._threads:
            if thread.ident:
                thread.join()

    def _run(self, work: Callable[[psycopg.Connection[Any]], None]) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True, application_name="fairq demo producer") as connection:
                work(connection)
        except Exception as error:  # noqa: BLE001 (handed to the main thread by check)
            self._error = error

    def _trickle(self, connection: psycopg.Connection[Any]) -> None:
        while not self._stop.wait(PAUSE):
            # One call for all three, so that none of them has the queue to itself for a moment.
            missing = [
                tenant
                for tenant, weight in WEIGHTS.items()
                if tenant != FLOODING
                for _ in range(BACKLOG_PER_WEIGHT * weight - self._tally.queued(tenant))
            ]
            if missing:
                self._enqueue(connection, missing)

    def _flood(self, connection: psycopg.Connection[Any]) -> None:
        self._gate.wait()
        left = self._options.flood
        while left and not self._stop.is_set():
            count = min(left, FLOOD_BATCH)
            self._enqueue(connection, [FLOODING] * count)
            left -= count

    def _enqueue(self, connection: psycopg.Connection[Any], tenants: list[str]) -> None:
        jobs = [{"queue": self._options.queue, "tenant": tenant, "task": "demo"} for tenant in tenants]
        enqueue = FIFO_ENQUEUE if self._options.fifo else ENQUEUE
        ids = [job_id for (job_id,) in connection.execute(enqueue, (json.dumps(jobs),))]
        [committed] = connection.execute(CLOCK).fetchone() or (0,)
        self._tally.enqueued(dict(zip(ids, tenants, strict=True)), committed)


@contextlib.contextmanager
def producers(options: Options, dsn: str, tally: Tally) -> Iterator[Producers]:
    """Run the producers for the length of a block."""
    running = Producers(options, dsn, tally)
    try:
        running.start()
        yield running
    finally:
        running.stop()
