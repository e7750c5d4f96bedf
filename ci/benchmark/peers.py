"""The other queues: their SQL is read where they are installed, and never kept here."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import TYPE_CHECKING

import psycopg

from benchmark.errors import BenchError
from benchmark.queues import (
    FAIRQ,
    FAIRQ_AHEAD,
    FAIRQ_MIXED,
    FAIRQ_NOTIFY,
    FAIRQ_SYNC,
    OPEN,
    PAYLOAD,
    TOY,
    TOY_KEPT,
    Queue,
    payloads,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# --- pgmq -------------------------------------------------------------------------------------------------------------


def _git(checkout: Path, *words: str) -> str:
    command = ["git", "-c", "safe.directory=*", "-C", str(checkout), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"no pgmq in {checkout}: {done.stderr.strip()}"
        raise BenchError(message)
    return done.stdout.strip()


def _pgmq(checkout: Path) -> Queue:
    """Read pgmq's SQL, which no registry carries, from its repository: a checkout or a bare one."""
    source = _git(checkout, "show", "HEAD:pgmq-extension/sql/pgmq.sql")

    def install(dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(source)
            connection.execute("select pgmq.create('bench')")

    return Queue(
        name="pgmq",
        about="visibility timeout; what is done is deleted, or archived (pgmq-archive)",
        version=_git(checkout, "log", "-1", "--format=git %h of %cs"),
        install=install,
        setup=OPEN.format(schema="pgmq"),
        load=f"""
            select count(*) from pgmq.send_batch('bench', (
                select array_agg({PAYLOAD} order by i) from generate_series(%(first)s::int, %(last)s::int) as i
            ))
        """,
        enqueue_one="select /* enqueue */ pgmq.send('bench', %(payload)s::jsonb)",
        enqueue_many="select /* enqueue */ pgmq.send_batch('bench', %(jobs)s::jsonb[])",
        pack=payloads,
        claim="select /* claim */ msg_id, null, message from pgmq.read('bench', 300, %(limit)s::int)",
        complete_one="select /* complete */ 1 where pgmq.delete('bench', %(id)s::bigint)",
        complete_many="select /* complete */ pgmq.delete('bench', %(ids)s::bigint[])",
        waiting="select count(*) from pgmq.q_bench",
        history=("a_bench",),
    )


def _archiving(pgmq: Queue) -> Queue:
    return replace(
        pgmq,
        name="pgmq-archive",
        complete_one=pgmq.complete_one.replace("pgmq.delete", "pgmq.archive"),
        complete_many=pgmq.complete_many.replace("pgmq.delete", "pgmq.archive"),
    )


# --- procrastinate ----------------------------------------------------------------------------------------------------


def _procrastinate() -> Queue:
    """Read procrastinate's SQL from its package, which is installed now if it is not there."""
    try:
        version("procrastinate")
    except PackageNotFoundError:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "procrastinate"], check=True)
        importlib.invalidate_caches()
    queries: dict[str, str] = importlib.import_module("procrastinate.sql").queries
    fetch = queries["fetch_job"].strip().rstrip(";")
    fetch = fetch.replace("%(queues)s", "array['bench']").replace("%(worker_id)s", "%(worker)s")
    finish = queries["finish_job"].strip().rstrip(";").replace("%(job_id)s", "%(id)s::bigint")
    finish = finish.replace("%(status)s", "'succeeded'").replace("%(delete_job)s", "false")
    job = "row('bench', 'bench', 0, null, null, {payload}, null)::procrastinate_job_to_defer_v1"
    defer = "select unnest(procrastinate_defer_jobs_v1({jobs}))"

    def install(dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute((files("procrastinate") / "sql" / "schema.sql").read_text())

    return Queue(
        name="procrastinate",
        about="LISTEN; what is done is kept, with three events a job; one job a call",
        version=version("procrastinate"),
        install=install,
        setup=OPEN.format(schema="public"),
        load=defer.format(
            jobs=f"(select array_agg({job.format(payload=PAYLOAD)} order by i) "
            "from generate_series(%(first)s::int, %(last)s::int) as i)"
        ),
        load_at_once=1_000,
        enqueue_one=defer.format(jobs=f"array[{job.format(payload='%(payload)s::jsonb')}]"),
        enqueue_many=defer.format(
            jobs=f"(select array_agg({job.format(payload='u.payload::jsonb')}) "
            "from unnest(%(jobs)s::text[]) as u(payload))"
        ),
        pack=payloads,
        claim=f"select j.id, null, j.args from ({fetch}) as j where j.id is not null",
        complete_one=finish,
        complete_many=finish,
        hello=queries["register_worker"],
        channel="procrastinate_any_queue_v1",
        waiting="select count(*) from procrastinate_jobs as j where j.status in ('todo', 'doing')",
    )


PEERS = ("pgmq", "procrastinate")


def known_queues(peers: Sequence[str], pgmq_git: Path | None) -> dict[str, Queue]:
    """Give the queues of a run: ours, the floor, and the peers asked for."""
    queues = [FAIRQ, FAIRQ_AHEAD, FAIRQ_SYNC, FAIRQ_NOTIFY, FAIRQ_MIXED, TOY, TOY_KEPT]
    for peer in peers:
        if peer == "procrastinate":
            queues.append(_procrastinate())
        elif peer == "pgmq":
            if pgmq_git is None:
                message = "pgmq comes from a git repository: give --pgmq-git DIR, or FAIRQ_PGMQ_GIT, or other --peers"
                raise BenchError(message)
            pgmq = _pgmq(pgmq_git)
            queues += [pgmq, _archiving(pgmq)]
        else:
            message = f"what is the peer {peer!r}? ({', '.join(PEERS)})"
            raise BenchError(message)
    return {queue.name: queue for queue in queues}
