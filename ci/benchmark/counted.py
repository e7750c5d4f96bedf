"""
What a call costs in instructions, counted by valgrind: the same on every machine, and nearly so in every run.

A server in single-user mode executes each queue's own SQL under callgrind. What the processor does in the kernel is in
no number here, nor is waiting: these are the instructions of the session itself, parser, executor and index.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import make_conninfo

from benchmark.errors import BenchError
from benchmark.queues import LOGIN, Job
from benchmark.segments import spread
from benchmark.workers import PAD
from fairq_schema.demo.server import temporary_cluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmark.queues import Queue
    from benchmark.segments import Bench, Row
    from fairq_schema.demo.server import Cluster

CACHE = Path(__file__).resolve().parents[2] / ".cache"
# Without a disk to wait for. What a server in single-user mode does not log, an error for one, nobody is told.
SETTINGS = {"listen_addresses": "", "fsync": "off", "autovacuum": "off"}
# Of plans that have been made.
SESSION = ("set plan_cache_mode = force_generic_plan", "set synchronous_commit = off")
TENANTS = 100
WARM = 8
# Under valgrind all is some fifty times slower: the clock is, too, or what is ready would always be stale.
CLOCK = "+0 x0.01"
MARK = "select pg_sleep(0)"
VERBS = ("enqueue", "claim", "complete")
# Claims that are not completed yet, as with so many workers: what a queue passes by is counted, and no more of it.
IN_FLIGHT = 4


def instructions(bench: Bench) -> list[Row]:
    """Instructions of the session per job enqueued, claimed and completed, by batch."""
    if not can_count():
        message = "what counts instructions is not here: run `ci/fetch counter`"
        raise BenchError(message)
    counted = bench.sizes.counted
    queues = bench.present("fairq", "fairq-ahead", "pgmq", "pgmq-archive")
    rows: list[Row] = []
    with temporary_cluster(binaries=bench.binaries) as cluster:
        with cluster.serving(SETTINGS) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"create role {LOGIN} login".encode())
            for queue in queues:
                _fill(dsn, connection, queue, 2 * max(counted.values()) + WARM * max(counted))
            said = {
                (queue.name, batch): _session(connection, queue, batch, jobs // batch)
                for queue in queues
                for batch, jobs in counted.items()
            }
        for batch, jobs in counted.items():
            found = {
                queue.name: _count(cluster, queue.name, said[queue.name, batch], jobs // batch) for queue in queues
            }
            for row in found.values():
                row |= {"batch": batch, **{verb: round(row[verb] / jobs) for verb in VERBS}}
                row["all"] = row["claim"] + row["complete"]
            if pgmq := found.get("pgmq"):
                for row in found.values():
                    row["all_ratio"] = None if row is pgmq else row["all"] / pgmq["all"]
            rows += found.values()
    return rows


def _clock() -> Path | None:
    return next((CACHE / "faketime").glob("usr/lib/*/faketime/libfaketime.so.1"), None)


def can_count() -> bool:
    """Tell whether there is what it takes."""
    return shutil.which("valgrind") is not None and _clock() is not None


def _fill(dsn: str, connection: psycopg.Connection[Any], queue: Queue, jobs: int) -> None:
    connection.execute(f'create database "{queue.name}"'.encode())
    dsn = make_conninfo(dsn, dbname=queue.name)
    queue.install(dsn)
    with psycopg.connect(dsn, autocommit=True) as inside:
        inside.execute(queue.setup.encode())
        for first in range(1, jobs + 1, queue.load_at_once):
            numbers = {"first": first, "last": min(jobs, first + queue.load_at_once - 1)}
            inside.execute(queue.load.format(tenant=spread(TENANTS)).encode(), numbers)
        inside.execute("vacuum analyze")


def _count(cluster: Cluster, name: str, said: Sequence[str], calls: int) -> Row:
    """Run a session on a copy of the data; its counts are written, and begun anew, at each mark."""
    work, counts = cluster.home / "work", cluster.home / "counts"
    cluster.run(["rm", "-rf", work, *cluster.home.glob("counts*")])
    cluster.run(["cp", "-a", cluster.data, work])
    valgrind: list[str | Path] = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={counts}"]
    valgrind += ["--dump-before=pg_sleep", "--toggle-collect=exec_simple_query"]
    settings = [word for setting in SETTINGS.items() for word in ("-c", "=".join(setting))]
    answer = cluster.run(
        [*valgrind, cluster.binaries / "postgres", "--single", "-D", work, *settings, name],
        "".join(f"{line}\n" for line in said),
        {"LD_PRELOAD": str(_clock()), "FAKETIME": CLOCK},
    )
    if "ERROR:" in answer:
        message = f"{name} under valgrind: {answer[answer.index('ERROR:') :].splitlines()[0]}"
        raise BenchError(message)
    spent = dict.fromkeys(("nothing", *VERBS), 0)
    # the first part is what came before the first mark
    for part, (verb, _) in enumerate(_rounds(calls), 2):
        spent[verb] += _total(Path(f"{counts}.{part}"))
    return {"queue": name, **{verb: spent[verb] - spent["nothing"] for verb in VERBS}}


def _rounds(calls: int) -> list[tuple[str, range]]:
    """Say which calls are made between two marks."""
    groups = [range(at, min(calls, at + IN_FLIGHT)) for at in range(0, calls, IN_FLIGHT)]
    return [
        (verb, group) for verbs in (("nothing", "enqueue"), ("claim", "complete")) for group in groups for verb in verbs
    ]


def _total(counts: Path) -> int:
    lines = [line for line in counts.read_text("utf-8").splitlines() if line.startswith(("summary:", "totals:"))]
    return int(lines[-1].split()[1])


def _session(connection: psycopg.Connection[Any], queue: Queue, batch: int, calls: int) -> list[str]:
    """Write what the session says, line by line: nothing, enqueue, claim and complete, a mark before each of these."""
    warm = [f"execute {verb} ({calls + number})" for number in range(WARM) for verb in VERBS]
    counted = [
        line for verb, group in _rounds(calls) for line in (MARK, *(f"execute {verb} ({number})" for number in group))
    ]
    lines = [
        *SESSION,
        f"set session authorization {LOGIN}",
        *_prepared(connection, queue, batch),
        *warm,
        *counted,
        MARK,
    ]
    return [" ".join(line.split()) for line in lines]


def _prepared(connection: psycopg.Connection[Any], queue: Queue, batch: int) -> list[str]:
    """Write the queue's SQL; what a call claims is kept in settings of the session, under its number."""
    one = batch == 1
    jobs = [
        Job(f"t{at % TENANTS}", {"g": f"t{at % TENANTS}", "i": at, "t": 12345.678, "p": PAD}) for at in range(batch)
    ]
    given = {
        "tenant": jobs[0].tenant,
        "payload": json.dumps(jobs[0].payload),
        "jobs": queue.pack(jobs),
        "limit": batch,
        "owner": "worker",
    }
    kept = {name: f"current_setting('kept.{name}_' || $1)" for name in ("ids", "tokens")}
    kept |= {"id": kept["ids"], "token": kept["tokens"]}
    gather = "max" if one else "array_agg"
    keep = ", ".join(
        f"set_config('kept.{name}_' || $1, coalesce({gather}({column})::text, ''), false)"
        for name, column in (("ids", "c.id"), ("tokens", "c.token::text"))
    )

    def filled(statement: str) -> str:
        for name, value in kept.items():
            statement = statement.replace(f"%({name})s", value)
        return psycopg.ClientCursor(connection).mogrify(statement.encode(), given)

    enqueue = filled(queue.enqueue_one if one else queue.enqueue_many)
    complete = filled(queue.complete_one if one else queue.complete_many)
    return [
        "prepare nothing (int) as select $1",
        f"prepare enqueue (int) as select count(e) from ({enqueue}) as e",
        f"prepare claim (int) as select {keep} from ({filled(queue.claim)}) as c(id, token, payload)",
        f"prepare complete (int) as select count(e) from ({complete}) as e",
    ]
