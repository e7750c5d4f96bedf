"""`fairq top`: who floods, who waits and why, what died, and who holds what; for an operator alone."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import fairq_schema
from fairq_schema import cli
from fairq_schema._top import Wanted, look
from tests.support import in_background, storm, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support import Database
    from tests.support.races import Worker
    from tests.support.servers import LocalServer

LONG = timedelta(hours=1)
FAIRQ = (sys.executable, "-m", "fairq_schema")
WITHOUT_RICH = "import sys; sys.modules['rich'] = None; from fairq_schema.cli import main; sys.exit(main(sys.argv[1:]))"


def operator(db: Database, *groups: str) -> str:
    """The conninfo of a login that is an operator, and no superuser."""
    return make_conninfo(db.dsn, user=db.login("fairq_operator", *groups))


def test_a_storm_is_looked_at(db: Database) -> None:
    """Through a storm each look is whole, and disturbs nobody; what it says at the end is so."""
    db.set_queue(charge="jobs")
    dsn = operator(db)

    def produce(worker: Worker) -> list[int]:
        return worker.given_jobs(worker.random.choice(["elephant", "elephant", "elephant", "mouse"]), 10)

    def work(worker: Worker) -> list[int]:
        jobs = worker.claim(5, lease=LONG)
        for job in jobs[:3]:
            worker.fail(job, error="no such mailbox", retry=False)
        for job in jobs[3:]:
            worker.complete(job)
        return [job.job_id for job in jobs]

    def watch(_: Worker) -> list[int]:
        seen = look(dsn, Wanted())
        assert not [note for note in seen.notes if "pg_monitor" not in note]
        return []

    def step(worker: Worker) -> list[int]:
        return (produce, work, work, watch)[worker.number](worker)

    storm(db, workers=4, step=step, rounds=20)
    db.given_jobs("mouse", 7)
    db.claim(3, lease=LONG)

    (queue,) = look(dsn, Wanted()).queues
    states = dict(db.rows("select state, count(*) from fairq.all_jobs group by state"))
    assert (queue.queued, queue.running, queue.dead) == (states["queued"], 3, states["dead"])
    assert queue.per_second > 0


def test_who_floods_comes_first(db: Database) -> None:
    """With its part of the backlog, what it had of the last minute, and what its weight is due."""
    db.set_queue(charge="jobs")
    for n in range(20):
        db.given_jobs(f"small{n:02}", 1)
    db.given_jobs("elephant", 80)
    db.set_tenant("small00", weight=5)
    db.claim(10, lease=LONG)
    shown = look(operator(db), Wanted(tenants=3)).tenants
    assert (shown[0].tenant, round(shown[0].backlog_share or 0, 2), len(shown)) == ("elephant", 0.8, 3)
    assert shown[0].entitled == pytest.approx(1 / 25)
    (first, *_) = look(operator(db), Wanted(tenants=1, by="share")).tenants
    assert first.share == pytest.approx(0.1)


def test_who_is_held_up_and_by_what(db: Database) -> None:
    """Pauses and caps, of tenants and of queues, a queue that nobody claims from, and what died of what."""
    db.set_queue(charge="jobs")
    for tenant in ("paused", "capped", "free"):
        db.given_jobs(tenant, 3, max_attempts=1)
    db.set_tenant("capped", max_running=1)
    db.claim(3, lease=LONG)
    db.set_tenant("paused", paused=True)
    db.given_jobs("a", 2, queue="unknown")
    db.given_jobs("a", 2, queue="halted")
    db.set_queue("halted", paused=True)
    (doomed,) = db.claim(1, tenant="free", lease=LONG)
    db.fail(doomed, error="disk is full")

    seen = look(operator(db), Wanted())
    assert {each.tenant: each.blocked_by for each in seen.tenants} == {
        "paused": "paused",
        "capped": "at its cap of 1",
        "free": None,
    }
    (dead,) = seen.dead
    assert (dead.job_id, dead.tenant, dead.error) == (doomed.job_id, "free", "disk is full")
    assert {each.queue: (each.paused, each.queued, each.last_claim is None) for each in seen.queues} == {
        "default": (False, 5, False),
        "unknown": (False, 2, True),
        "halted": (True, 2, True),
    }
    frame = _run("top", "--once", "--dsn", operator(db))
    for words in ("nobody has claimed from it yet", "paused", "at its cap of 1", "disk is full", "pg_monitor"):
        assert words in frame
    assert "\x1b" not in frame
    assert "unknown" not in _run("top", "--once", "--queue", "halted", "--dsn", operator(db))


def test_names_and_errors_are_shown_as_they_are(db: Database) -> None:
    """What others wrote is no markup, and nothing that a terminal obeys."""
    names = ["[/red]", "[bold]x", "\x1b[2Jy", "new\nline"]
    for name in names:
        db.enqueue(name, queue=name, max_attempts=1)
    (job,) = db.claim(1, queue="[/red]")
    db.fail(job, error="no such file: [/etc/mailname]", retry=False)
    command = [*FAIRQ, "top", "--once", "--dsn", operator(db)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name in ("[/red]", "[bold]x", r"\x1b[2Jy", r"new\nline", "[/etc/mailname]"):
        assert name in shown
    assert "\x1b" not in shown


def test_who_holds_the_lock_and_a_snapshot(db: Database) -> None:
    """Any operator sees the process and who waits; since when, one that is in pg_monitor sees."""
    db.given_jobs("a", 3)
    db.claim(1)
    holder = db.session(autocommit=False, application_name="forgetful")
    holder.claim(1)
    reader = db.session(autocommit=False, application_name="report")
    reader.execute("set transaction isolation level repeatable read")
    reader.value("select count(*) from fairq.jobs")
    pids = {"holder": holder.conn.info.backend_pid, "reader": reader.conn.info.backend_pid}
    rival = db.session()
    waiting = in_background(lambda: rival.claim(1))
    dsn = operator(db)
    wait_until(lambda: [lock.waiting for lock in look(dsn, Wanted()).locks] == [1], "somebody waits for the lock")

    plain = look(dsn, Wanted())
    (lock,) = plain.locks
    assert (lock.queue, lock.pid, lock.age) == ("default", pids["holder"], None)
    assert {each.name for each in plain.snapshots} >= {str(pid) for pid in pids.values()}
    assert any("grant pg_monitor" in note for note in plain.notes)

    monitor = look(operator(db, "pg_monitor"), Wanted())
    (lock,) = monitor.locks
    assert (lock.application, lock.state) == ("forgetful", "idle in transaction")
    assert lock.age is not None
    assert not monitor.notes
    held = {each.name: each for each in monitor.snapshots}[str(pids["reader"])]
    assert (held.kind, held.application) == ("session", "report")
    assert held.age is not None
    assert '"waiting": ' in _run("top", "--json", "--dsn", dsn)

    holder.conn.rollback()
    assert len(waiting.result()) == 1


def test_a_prepared_transaction_and_a_slot_hold_snapshots_too(start_server: Callable[..., LocalServer]) -> None:
    """They outlive their sessions, and their age is no secret."""
    server = start_server(max_prepared_transactions="5", wal_level="logical")
    with server.databases.clone() as db:
        db.execute("select pg_create_logical_replication_slot('stale', 'pgoutput')")
        db.execute("begin; select pg_current_xact_id(); prepare transaction 'forgotten'")
        seen = {each.kind: each for each in look(operator(db), Wanted()).snapshots}
        assert (seen["prepared"].name, seen["prepared"].age is not None) == ("forgotten", True)
        assert (seen["slot"].name, seen["slot"].state) == ("stale", "inactive")
        db.execute("select pg_drop_replication_slot('stale')")
        db.execute("rollback prepared 'forgotten'")


def test_a_table_that_is_locked_holds_up_no_look(db: Database) -> None:
    """What cannot be read is said, and the rest is shown."""
    db.given_jobs("a", 3)
    db.claim(1)
    migration = db.session(autocommit=False)
    migration.execute("lock table fairq.jobs in access exclusive mode")
    seen = look(operator(db), Wanted())
    assert any(note.startswith("queues: not seen within 2s") for note in seen.notes)
    assert seen.server.database == db.dbname
    migration.conn.rollback()
    assert look(operator(db), Wanted()).queues


def test_a_look_can_change_nothing(db: Database) -> None:
    """Even if a function of the schema were to try."""
    db.execute(
        "create or replace function fairq.schema_version() returns integer language sql security definer "
        "begin atomic insert into fairq.queues (queue) values ('x') returning 1; end"
    )
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        look(db.dsn, Wanted())


def test_another_schema_is_looked_at_by_its_name(empty_db: str) -> None:
    """Whatever it is called."""
    fairq_schema.apply(empty_db, schema="My-Queue")
    with psycopg.connect(empty_db, autocommit=True) as conn:
        conn.execute("""select "My-Queue".enqueue_job('a', 't')""")
    assert [each.queued for each in look(empty_db, Wanted(schema="My-Queue")).queues] == [1]


def test_who_may_not_look_is_told_what_it_takes(
    db: Database, empty_db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A login that is no operator; a database without fairq."""
    worker = db.login("fairq_worker")
    assert cli.main(["top", "--once", "--dsn", make_conninfo(db.dsn, user=worker)]) == 1
    assert f'grant fairq_operator to "{worker}";' in capsys.readouterr().err
    stranger = db.login()
    assert cli.main(["top", "--once", "--dsn", make_conninfo(db.dsn, user=stranger)]) == 1
    assert "takes an operator" in capsys.readouterr().err
    assert cli.main(["top", "--once", "--dsn", empty_db]) == 1
    assert "there is no fairq in schema fairq" in capsys.readouterr().err


def test_without_rich_there_is_json(db: Database) -> None:
    """And a word on what is missing."""
    db.given_jobs("a", 2)
    dsn = operator(db)
    command = (sys.executable, "-c", WITHOUT_RICH, "top", "--dsn", dsn)
    refused = subprocess.run([*command, "--once"], capture_output=True, text=True, check=False)
    assert (refused.returncode, "pip install 'fairq-schema[top]'" in refused.stderr) == (1, True)
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["queues"][0]["queued"] == 2


def test_the_live_view_draws_and_comes_back(db: Database) -> None:
    """It shows what comes, survives the loss of its connection, and ends by Ctrl-C."""
    db.given_jobs("amber", 3)
    db.claim(1, lease=LONG)
    with _terminal("top", "--interval", "0.2", "--dsn", operator(db)) as screen:
        screen.wait_for("amber")
        db.given_jobs("birch", 3)
        db.claim(1, lease=LONG)
        screen.wait_for("birch")
        db.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'fairq top'"
            " and datname = current_database()"
        )
        screen.wait_for("trying again")
        screen.wait_for("birch")
        screen.process.send_signal(signal.SIGINT)
        assert screen.process.wait(60) == 0


class _Screen:
    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self._terminal = terminal
        self._seen = b""

    def wait_for(self, words: str) -> None:
        """Read on until the words appear; what was read before does not count."""
        until = monotonic() + 120
        while words.encode() not in self._seen:
            assert monotonic() < until, f"no {words!r} in {self._seen[-3000:]!r}"
            if select.select([self._terminal], [], [], 1)[0]:
                self._seen += os.read(self._terminal, 65536)
        self._seen = b""


@contextmanager
def _terminal(*arguments: str) -> Iterator[_Screen]:
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "160", "LINES": "50"}
    process = subprocess.Popen(
        [*FAIRQ, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        # tests that run in the background of a shell are deaf to Ctrl-C, and so would be their children
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509  no threads yet
    )
    os.close(theirs)
    try:
        yield _Screen(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _run(*arguments: str) -> str:
    return subprocess.run([*FAIRQ, *arguments], capture_output=True, text=True, check=True).stdout
