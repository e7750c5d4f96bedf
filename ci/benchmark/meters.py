"""What the server spends: read before and after, from outside."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import psycopg

ATTACHING = 0.3  # perf says nothing when it has attached
PERF = ("perf", "stat", "-x", ",", "-e", "instructions:u")
SAMPLING = 0.05
# Statements are told apart by the words in their comments; see queues.
STATEMENTS = """
    select w.word, coalesce(sum(s.calls), 0), coalesce(sum(s.shared_blks_hit + s.shared_blks_read), 0)
    from unnest('{claim,complete,enqueue}'::text[]) as w(word)
    left join pg_stat_statements as s
      on s.query like '%/* ' || w.word || ' */%'
      and s.dbid = (select d.oid from pg_database as d where d.datname = current_database())
    group by w.word
"""
WAL = "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn, wal_fpi from pg_stat_wal"
WAITS = """
    select coalesce(a.wait_event_type || ': ' || a.wait_event, 'on CPU'), count(*)
    from pg_stat_activity as a
    where a.pid = any(%s) and a.state = 'active'
    group by 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What was spent up to a moment, or between two."""

    seconds: float
    cpu: float  # of the whole server: backends, background processes and those that are gone
    machine: float  # of everybody
    wal: int
    fpi: int
    claims: int
    claim_buffers: int
    complete_buffers: int
    enqueue_buffers: int

    def __sub__(self, other: Counters) -> Counters:
        """Give what was spent since the other."""
        return Counters(**{each.name: getattr(self, each.name) - getattr(other, each.name) for each in fields(self)})


class Meter:
    """Reads the counters of the server and of one database."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        server = psutil.Process(connection.info.backend_pid).parent()
        if server is None:
            message = "the server's processes cannot be seen: it must run on this machine"
            raise RuntimeError(message)
        self._server = server
        connection.execute("select pg_stat_statements_reset()")

    def read(self) -> Counters:
        """Read everything."""
        found = {word: (calls, buffers) for word, calls, buffers in self._connection.execute(STATEMENTS)}
        [wal, fpi] = self._connection.execute(WAL).fetchone() or (0, 0)
        return Counters(
            seconds=time.monotonic(),
            cpu=self._server_cpu(),
            machine=_busy(),
            wal=int(wal),
            fpi=int(fpi),
            claims=int(found["claim"][0]),
            claim_buffers=int(found["claim"][1]),
            complete_buffers=int(found["complete"][1]),
            enqueue_buffers=int(found["enqueue"][1]),
        )

    def sample_waits(self, backends: Sequence[int], is_over: Callable[[], bool]) -> Counter[str]:
        """Look what the sessions wait for, again and again."""
        seen: Counter[str] = Counter()
        while not is_over():
            for wait, count in self._connection.execute(WAITS, (list(backends),)).fetchall():
                seen[wait] += count
            time.sleep(SAMPLING)
        return seen

    def _server_cpu(self) -> float:
        gone = self._server.cpu_times()
        total = gone.children_user + gone.children_system
        for process in (self._server, *self._server.children()):
            with contextlib.suppress(psutil.Error, OSError):
                total += _cpu_of(process)
        return float(total)


def _cpu_of(process: psutil.Process) -> float:
    """Tell it in nanoseconds where the kernel does; cpu_times() counts in hundredths of a second."""
    schedstat = Path(f"/proc/{process.pid}/schedstat")
    if schedstat.exists():
        return int(schedstat.read_text().split()[0]) / 1e9
    times = process.cpu_times()
    return float(times.user + times.system)


def _busy() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice + getattr(times, "irq", 0) + getattr(times, "softirq", 0))


class Instructions:
    """How many instructions the sessions had executed for them in user space; None where perf does not run."""

    def __init__(self) -> None:
        self.count: int | None = None

    @contextlib.contextmanager
    def of(self, backends: Sequence[int], *, wanted: bool) -> Iterator[None]:
        """Count them meanwhile."""
        if not wanted:
            yield
            return
        with tempfile.NamedTemporaryFile("r", prefix="fairq-bench-") as output:
            pids = ",".join(map(str, backends))
            command = [*PERF, "-o", output.name, "-p", pids]
            perf = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                time.sleep(ATTACHING)
                yield
            finally:
                perf.send_signal(signal.SIGINT)
                perf.wait()
            self.count = _counted(output.read())


def counts_instructions() -> bool:
    """Tell whether perf runs, and the processor counts for it; many a virtual one does not."""
    if not shutil.which(PERF[0]):
        return False
    tried = subprocess.run([*PERF, "true"], capture_output=True, text=True, check=False)
    return _counted(tried.stderr) is not None


def _counted(text: str) -> int | None:
    for line in text.splitlines():
        first, _, rest = line.partition(",")
        if "instructions" in rest and first.isdigit():
            return int(first)
    return None
