"""The worker processes as the demo sees them: start, listen, stop."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING

from fairq_schema.demo.errors import DemoError
from fairq_schema.demo.lag import Start
from fairq_schema.demo.options import WEIGHTS
from fairq_schema.demo.tally import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairq_schema.demo.options import Options
    from fairq_schema.demo.tally import Tally

COMMAND = [sys.executable, "-m", "fairq_schema.demo.worker"]
PATIENCE = 15


class Crew:
    """Running workers and the threads that read their reports."""

    def __init__(self) -> None:
        """Start with nobody."""
        self._workers: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        self._complaints: list[str] = []
        self._ready = threading.Semaphore(0)

    def hire(self, options: Options, dsn: str, tally: Tally) -> None:
        """Start one more worker."""
        number = len(self._workers) + 1
        # A session of its own, so that a Ctrl-C at the terminal does not cut it off between claim and complete.
        worker = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._workers.append(worker)
        settings = {
            "dsn": dsn,
            "queue": options.queue,
            "owner": f"fairq demo worker {number}",
            "batch": options.batch,
            "work": {tenant: options.length(tenant) for tenant in WEIGHTS},
            "fifo": options.fifo,
            "seed": options.seed * 1000 + number,
        }
        if worker.stdin and worker.stdout and worker.stderr:  # they are pipes, as asked for above
            self._read(self._listen, worker.stdout, tally)
            self._read(self._note_complaint, worker.stderr)
            with contextlib.suppress(BrokenPipeError):  # it died at once; its complaint says why
                worker.stdin.write(json.dumps(settings) + "\n")
                worker.stdin.flush()

    def _read(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        thread.start()
        self._readers.append(thread)

    def _note_complaint(self, stderr: IO[str]) -> None:
        self._complaints += [line.strip() for line in stderr if line.strip()]

    def _listen(self, stdout: IO[str], tally: Tally) -> None:
        for line in stdout:
            report = json.loads(line)
            if "ready" in report:
                self._ready.release()
            for job, tenant, created_at, dispatch, started_at in report.get("claimed", ()):
                tally.started(Start(dispatch, tenant, job, started_at), created_at)
            tally.finished(Span(*span) for span in report.get("done", ()))

    def await_ready(self) -> None:
        """Wait until all are connected, so that no job waits for the interpreter to load."""
        for _ in self._workers:
            while not self._ready.acquire(timeout=0.1):
                self.check()

    def check(self) -> None:
        """Raise if a worker has ended by itself."""
        if any(worker.poll() is not None for worker in self._workers):
            message = f"a worker ended by itself: {self._complaints[-1] if self._complaints else 'no reason given'}"
            raise DemoError(message)

    def stop(self) -> None:
        """End every worker after the jobs in its hands, and read their reports to the end."""
        for worker in self._workers:
            with contextlib.suppress(BrokenPipeError):
                if worker.stdin:
                    worker.stdin.close()
        for worker in self._workers:
            try:
                worker.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        for reader in self._readers:
            reader.join()


@contextlib.contextmanager
def crew(options: Options, dsn: str, tally: Tally) -> Iterator[Crew]:
    """Run the workers for the length of a block."""
    workers = Crew()
    try:
        for _ in range(options.workers):
            workers.hire(options, dsn, tally)
        workers.await_ready()
        yield workers
    finally:
        workers.stop()
