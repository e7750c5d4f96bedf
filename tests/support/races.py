"""Many real connections at once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import psycopg

from tests.support.database import Database, Session
from tests.support.waiting import wait_until

Step = Callable[["Worker"], Any]
STORM: dict[str, Any] = {"statement_timeout": "120s", "lock_timeout": "100s"}


class Worker(Session):
    """One of a storm's sessions: it has a number, from 0, and chance of its own."""

    def __init__(self, conn: psycopg.Connection[Any], number: int, seed: int) -> None:
        super().__init__(conn)
        self.name = f"worker-{number}"
        self.number = number
        self.random = random.Random(f"{seed}/{number}")

    def reconnect(self, db: Database) -> None:
        """A new connection after the old one was killed; it may be killed as it comes up, too."""
        self.conn.close()
        name = f"storm-{self.number}"
        for _ in range(10):
            with suppress(psycopg.OperationalError):
                self.conn = db.connect(application_name=name, **STORM)
                return
        self.conn = db.connect(application_name=name, **STORM)


def storm(
    db: Database,
    *,
    workers: int,
    step: Step | Iterable[Step],
    rounds: int | None = None,
    seed: int | None = None,
    deadline: float = 240.0,
    **how: Any,
) -> list[Any]:
    """
    Start `workers` sessions at one moment, let each repeat `step`, and return all that the steps returned.

    Each goes on for `rounds`, or until its step returns nothing (an empty list, None, False). Lists are joined.
    With a sequence of steps, worker i takes step i modulo its length. `how` goes to `Database.connect`; a storm's
    sessions wait longer for a lock, and for each other's claims, than those of a user would.
    The first error of a worker is raised here, with the seed in its notes.
    """
    seed = random.randrange(2**32) if seed is None else seed
    steps = [step] if callable(step) else list(step)
    how = STORM | how
    crew = [Worker(db.connect(application_name=f"storm-{n}", **how), n, seed) for n in range(workers)]
    run = _Storm(crew, steps, rounds)
    try:
        run.join(deadline)
    except BaseException as error:
        if hasattr(error, "add_note"):
            error.add_note(f"storm seed: {seed}")
        raise
    finally:
        for worker in crew:
            worker.conn.close()
    return run.results


class _Storm:
    def __init__(self, crew: list[Worker], steps: list[Step], rounds: int | None) -> None:
        self.results: list[Any] = []
        self._crew = crew
        self._rounds = rounds
        self._errors: list[BaseException] = []
        self._stop = threading.Event()
        self._start = threading.Barrier(len(crew))
        jobs = [(worker, steps[worker.number % len(steps)]) for worker in crew]
        self._threads = [threading.Thread(target=self._work, args=job, daemon=True) for job in jobs]

    def join(self, deadline: float) -> None:
        for thread in self._threads:
            thread.start()
        try:
            wait_until(lambda: not any(t.is_alive() for t in self._threads), "the storm to end", deadline)
        finally:
            self._stop.set()
            self._cancel_stragglers()
        if self._errors:
            raise self._errors[0]

    def _work(self, worker: Worker, step: Step) -> None:
        done = 0
        try:
            self._start.wait()
            while not self._stop.is_set() and (self._rounds is None or done < self._rounds):
                answer = step(worker)
                done += 1
                if answer:
                    self.results.extend(answer if isinstance(answer, list) else [answer])
                elif self._rounds is None:
                    return
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            self._errors.append(error)
            self._stop.set()

    def _cancel_stragglers(self) -> None:
        for worker, thread in zip(self._crew, self._threads, strict=True):
            if thread.is_alive():
                worker.conn.cancel_safe()
                thread.join(timeout=10)


def in_background(call: Callable[[], Any]) -> Background:
    """Run `call` in a thread of its own; `.result()` waits for its answer and raises its error."""
    return Background(call)


class Background:
    """A call on its way, most often one that is meant to block."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._answer: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self, timeout: float = 60.0) -> Any:
        """The answer, or the error raised."""
        wait_until(lambda: not self._thread.is_alive(), "a background call", timeout)
        if self._error is not None:
            raise self._error
        return self._answer

    def running(self) -> bool:
        """Whether it has not answered yet."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._answer = self._call()
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            self._error = error


def wait_until_blocked(observer: Session | psycopg.Connection[Any], blocked: Any, timeout: float = 60.0) -> None:
    """
    Come back when the session `blocked` (a Session, a connection or its pid) waits for a lock.
    """
    wait_until(lambda: is_blocked(observer, blocked), f"session {_pid(blocked)} to wait for a lock", timeout)


def is_blocked(observer: Session | psycopg.Connection[Any], blocked: Any) -> bool:
    """
    Whether the session `blocked` (a Session, a connection or its pid) waits for a lock at this moment.

    `observer` must be in autocommit: within a transaction pg_stat_activity stands still.
    """
    conn = observer.conn if isinstance(observer, Session) else observer
    assert conn.autocommit, "an observer in a transaction sees an old pg_stat_activity"
    query = "select 1 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
    return conn.execute(query, [_pid(blocked)]).fetchone() is not None


def _pid(session: Any) -> int:
    conn = getattr(session, "conn", session)
    return conn if isinstance(conn, int) else int(conn.info.backend_pid)
