"""
Crashes and moves: the server is killed, or the database is restored on another cluster.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support import Database, Session, in_background, wait_until

from .helpers import NOBODY, check_books, drain, ids, let_leases_end, look

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.servers import LocalServer


class Client:
    """A producer and worker that remembers what the server has acknowledged, until the server is gone."""

    def __init__(self, db: Database, number: int, *, async_commit: bool) -> None:
        self.session = db.session(application_name=f"client-{number}")
        self.tenant = "abc"[number % 3]
        self.async_commit = async_commit
        self.enqueued: list[int] = []
        self.completed: list[int] = []
        self.started: list[int] = []

    def run(self) -> None:
        """Enqueue, claim and complete for ever."""
        try:
            while True:
                self.enqueued += self.session.given_jobs(self.tenant, 3, max_attempts=1000)
                jobs = self.session.claim(4, lease=timedelta(seconds=1), async_commit=self.async_commit)
                self.started += ids(jobs)
                # some stay running when the crash comes
                done = self.session.complete_all(jobs[:3]) if jobs else {}
                self.completed += [job for job, outcome in done.items() if outcome == "succeeded"]
        except psycopg.OperationalError:
            return


@pytest.mark.parametrize("async_commit", [False, True], ids=["sync", "async"])
def test_a_crash_loses_nothing(private_server: LocalServer, *, async_commit: bool) -> None:
    """The server dies by SIGKILL in the middle of a storm: what it had acknowledged is there, and the queue goes on."""
    with private_server.databases.clone() as db:
        dsn = db.dsn
        crew = [Client(db, n, async_commit=async_commit) for n in range(6)]
        runs = [in_background(client.run) for client in crew]
        wait_until(lambda: sum(len(client.completed) for client in crew) > 150, "the storm to rise")
        private_server.kill9()
        for run in runs:
            run.result()
        private_server.restart()

        with Database(dsn) as after:
            there = {row.job_id: row.state for row in after.rows("select job_id, state from fairq.all_jobs")}
            enqueued = [job for client in crew for job in client.enqueued]
            completed = [job for client in crew for job in client.completed]
            assert set(enqueued) <= set(there)
            assert max(Counter(completed).values()) == 1
            assert {there[job] for job in completed} == {"succeeded"}

            let_leases_end(after)
            waiting = {row.job_id for row in after.rows("select job_id from fairq.jobs")}
            assert Counter(drain(after)) == Counter(waiting)
            check_books(after, list(there))
            assert after.value("select sum(running) from fairq.flows") == 0


def dump(server: LocalServer, db: Database, file: Path) -> None:
    """Roles and one database, as SQL."""
    roles = run(server, "pg_dumpall", "--roles-only")
    file.write_bytes(roles + run(server, "pg_dump", "--no-comments", "-d", db.dbname))


def run(server: LocalServer, program: str, *args: str, text: bytes = b"") -> bytes:
    """One of the server's programs, as its superuser."""
    command = [str(server.bin / program), "-h", str(server.folder), "-p", "5432", "-U", "postgres", *args]
    return subprocess.run(command, input=text, capture_output=True, check=True).stdout


def burn_xids(session: Session, count: int) -> None:
    """Use up transaction ids."""
    session.execute(f"do $$ begin for i in 1..{count} loop perform pg_current_xact_id(); commit; end loop; end $$")


def next_xid(session: Session) -> int:
    """The id of a transaction of now."""
    return int(session.value("select pg_current_xact_id()::text"))


@pytest.mark.parametrize("later", [False, True], ids=["lower", "higher"])
def test_a_restored_database_goes_on(start_server: Callable[..., LocalServer], tmp_path: Path, *, later: bool) -> None:
    """
    A dump restored on another cluster, whose transaction ids mean something else: every job is claimed once.

    With the server's own ids lower than those in the dump, or higher; counts are right, and virtual times kept.
    """
    old, new = start_server(), start_server()
    with old.databases.clone() as db:
        if not later:
            burn_xids(db, 4000)
        kept = before_the_dump(db)
        file = tmp_path / "dump.sql"
        dump(old, db, file)
        xid = next_xid(db)

    with new.databases.empty() as dsn:
        name = str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])
        run(new, "psql", "-d", name, "-q", "-v", "ON_ERROR_STOP=0", text=file.read_bytes())
        with Database(dsn) as db:
            burn_xids(db, 4000 if later else 1)
            assert (next_xid(db) > xid) == later
            after_the_restore(db, kept)


class Kept:
    """What must survive the move."""

    def __init__(self, db: Database) -> None:
        self.running: list[Any] = []
        self.waiting: list[int] = []
        self.virgin: list[int] = []
        self.everything = [row.job_id for row in db.rows("select job_id from fairq.all_jobs")]
        self.vtimes = dict(db.rows("select tenant, vtime from fairq.flows"))


def before_the_dump(db: Database) -> Kept:
    """A queue in full use: running, waiting, scheduled, settled and not, looked at and not; and one never claimed."""
    db.set_tenant("capped", max_running=2)
    a, b, capped = db.given_jobs("a", 12), db.given_jobs("b", 6), db.given_jobs("capped", 4)
    virgin = db.given_jobs("a", 3, queue="virgin") + db.given_jobs("v", 2, queue="virgin")
    done = db.claim(6)
    look(db)
    held = db.claim(5)
    scheduled = db.given_jobs("a", 2, delay=timedelta(hours=1))
    look(db)
    # not seen by any look
    late = db.given_jobs("b", 2) + db.given_jobs("late", 1)
    db.complete_all(done[:4])
    db.fail(done[4], retry_delay=timedelta(0))
    db.release(done[5])

    kept = Kept(db)
    kept.running, kept.virgin = held, virgin
    gone = {*ids(done[:4]), *ids(held), *scheduled}
    kept.waiting = [job for job in a + b + capped + late if job not in gone]
    return kept


def after_the_restore(db: Database, kept: Kept) -> None:
    """The scheduler notices, and goes on where it was."""
    look(db)
    vtimes = dict(db.rows("select tenant, vtime from fairq.flows"))
    assert kept.vtimes == {tenant: vtimes[tenant] for tenant in kept.vtimes}
    check_books(db, kept.everything)
    counts = Counter(job.tenant for job in kept.running)
    assert dict(db.rows("select tenant, running from fairq.flows where running > 0")) == counts

    claimed = []
    while jobs := db.claim(3):
        claimed += ids(jobs)
        assert db.value("select count(*) from fairq.leases where tenant = 'capped'") <= 2
        db.complete_all(jobs)
    capped = {job.job_id for job in kept.running if job.tenant == "capped"}
    assert set(db.complete_all(kept.running).values()) == {"succeeded"}
    claimed += drain(db)
    assert Counter(claimed) == Counter(kept.waiting)
    assert capped <= set(ids(kept.running))
    assert sorted(drain(db, "virgin")) == sorted(kept.virgin)
    db.given_jobs("a", 1, queue="virgin")
    assert len(drain(db, "virgin")) == 1
    look(db)
    assert db.value("select sum(running) from fairq.flows") == 0
    assert db.claim(1, tenant=NOBODY) == []


def test_a_restart_keeps_the_leases(private_server: LocalServer) -> None:
    """Faults 32: a worker that outlives a restart of the server completes its job under its lease."""
    with private_server.databases.clone() as db:
        dsn, jobs = db.dsn, db.given_jobs("a", 2)
        (held,) = db.claim(1)
        private_server.restart()
        with Database(dsn) as after:
            assert ids(after.claim(10)) == jobs[1:]
            assert after.complete(held)
            look(after)
            check_books(after, jobs)
