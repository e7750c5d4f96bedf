"""Processes at work together, and what they share."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from typing import TYPE_CHECKING

from benchmark.errors import BenchError
from benchmark.workers import Session, Tally

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.context import ForkProcess

    from typing_extensions import Self

    from benchmark.queues import Queue
    from benchmark.workers import Task

# Forked, so that what a worker is given need not be pickled; nothing here has threads of its own.
FORK = multiprocessing.get_context("fork")
READY_WITHIN, STOP_WITHIN = 900, 300
WITHOUT_END = 1 << 60


class Shared:
    """What the processes of one crew share."""

    def __init__(self, parties: int, budget: int) -> None:
        self.barrier = FORK.Barrier(parties + 1)
        self.pids = FORK.Array("i", parties)
        self.start = FORK.Value("d", 0.0)
        self.budget = FORK.Value("q", budget)
        self.consumed = FORK.Value("q", 0)
        self.done = FORK.Value("i", 0)

    def wait(self) -> float:
        """Be ready, and wait for the others; tells when it begins."""
        self.barrier.wait(READY_WITHIN)
        self.barrier.wait(READY_WITHIN)
        time.sleep(max(0.0, self.start.value - time.monotonic()))
        return float(self.start.value)

    def take(self, jobs: int) -> bool:
        """Ask whether so many more may be claimed."""
        with self.budget.get_lock():
            if self.budget.value <= 0:
                return False
            self.budget.value -= jobs
        return True

    def settle(self, wanted: int, got: int) -> None:
        """Give back what was not there to be claimed."""
        if wanted > got:
            with self.budget.get_lock():
                self.budget.value += wanted - got
        with self.consumed.get_lock():
            self.consumed.value += got


class Crew:
    """Processes at work together: `with Crew(...) as crew: ...; crew.go(); ...; crew.tallies()`."""

    def __init__(self, queue: Queue, dsn: str, admin_dsn: str, tasks: Sequence[Task], budget: int) -> None:
        self.tasks = tasks
        self._shared = Shared(len(tasks), budget)
        self._told: multiprocessing.Queue[Tally | str] = FORK.Queue()
        self._processes: list[ForkProcess] = [
            FORK.Process(target=self._work, args=(queue, dsn, admin_dsn, number), daemon=True)
            for number in range(len(tasks))
        ]

    def __enter__(self) -> Self:
        """Start them, and wait until all are connected and warm."""
        for process in self._processes:
            process.start()
        self._meet()
        return self

    def __exit__(self, *_: object) -> None:
        """End those that are still there."""
        for process in self._processes:
            process.terminate()
            process.join()

    @property
    def backends(self) -> list[int]:
        """The server's processes that serve them."""
        return list(self._shared.pids.get_obj())

    @property
    def consumed(self) -> int:
        """How many jobs were claimed up to now."""
        return int(self._shared.consumed.value)

    @property
    def is_done(self) -> bool:
        """Whether all are."""
        return int(self._shared.done.value) == len(self.tasks)

    def go(self) -> float:
        """Let them begin."""
        start = time.monotonic() + 0.05
        self._shared.start.value = start
        self._meet()
        return start

    def tallies(self) -> list[Tally]:
        """Wait for what they have done. Their connections stay until the end, so that the server's CPU is not lost."""
        patience = max(task.seconds for task in self.tasks) + STOP_WITHIN
        return [self._tally(patience) for _ in self.tasks]

    def _tally(self, patience: float) -> Tally:
        told = self._told.get(timeout=patience)
        if isinstance(told, str):
            raise BenchError(told)
        return told

    def _meet(self) -> None:
        try:
            self._shared.barrier.wait(READY_WITHIN)
        except threading.BrokenBarrierError:
            told = self._told.get(timeout=STOP_WITHIN)
            raise BenchError(told if isinstance(told, str) else "a worker is missing") from None

    def _work(self, queue: Queue, dsn: str, admin_dsn: str, number: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            session = Session(queue, dsn, admin_dsn, number)
            self._shared.pids[number] = session.connection.info.backend_pid
            task = self.tasks[number]
            self._told.put(task.role(session, task, self._shared))
        except threading.BrokenBarrierError:
            return  # another one failed, and has told why
        except BaseException:  # noqa: BLE001 (whatever it was, the parent must hear of it and not wait)
            self._told.put(f"worker {number} of {queue.name}, process {os.getpid()}: {traceback.format_exc()}")
            self._shared.barrier.abort()
            return
        finally:
            with self._shared.done.get_lock():
                self._shared.done.value += 1
        threading.Event().wait()  # until terminated
