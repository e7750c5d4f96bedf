"""The queue moves to where transaction ids mean something else: by dump, logical replication or pg_upgrade."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from fairq_schema import check
from tests.races.helpers import NOBODY, check_books, drain, ids, look
from tests.support import Database, Session, wait_until
from tests.support.binaries import run_as
from tests.support.servers import LocalServer

from .page import block
from .test_failover import promote, standby_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def dump(server: LocalServer, db: Database, file: Path) -> None:
    """Roles and one database, as SQL."""
    roles = server.run("pg_dumpall", "--roles-only")
    file.write_bytes(roles + server.run("pg_dump", "--no-comments", "-d", db.dbname))


def restore(server: LocalServer, dsn: str, file: Path) -> None:
    """Read the file; some of its roles are there already."""
    name = str(conninfo_to_dict(dsn)["dbname"])
    server.run("psql", "-d", name, "-q", "-v", "ON_ERROR_STOP=0", text=file.read_bytes())


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
        kept = before_the_move(db)
        file = tmp_path / "dump.sql"
        dump(old, db, file)
        xid = next_xid(db)

    with new.databases.empty() as dsn:
        restore(new, dsn, file)
        with Database(dsn) as db:
            burn_xids(db, 4000 if later else 1)
            assert (next_xid(db) > xid) == later
            after_the_move(db, kept)


def test_a_database_restored_on_a_copy_of_its_cluster_goes_on(
    start_server: Callable[..., LocalServer], tmp_path: Path
) -> None:
    """A cluster copied from the old one has its identifier, and ids of its own since: it is noticed, too."""
    old = start_server()
    with old.databases.clone() as db:
        new = standby_of(start_server, old)
        promote(new)
        burn_xids(db, 4000)
        kept = before_the_move(db)
        file = tmp_path / "dump.sql"
        dump(old, db, file)
        xid = next_xid(db)
    with new.databases.empty() as dsn:
        restore(new, dsn, file)
        with Database(dsn) as there:
            assert next_xid(there) < xid
            after_the_move(there, kept)


def test_a_published_queue_goes_on_and_moves(start_server: Callable[..., LocalServer]) -> None:
    """
    A publication of all tables stops nobody, and a subscriber takes the queue over by the steps of docs/operations.md.
    """
    old, new = start_server(wal_level="logical"), start_server()
    with old.databases.keep() as db, new.databases.keep() as there:
        db.execute(block("sql", "create publication"))
        there.execute(block("sql", "truncate"))
        subscribe = block("sql", "create subscription").replace("host=old dbname=app user=postgres", db.dsn)
        if new.major < 16:
            subscribe = subscribe.replace(" with (run_as_owner = true)", "")
        there.execute(subscribe)
        synced = "select count(*) > 0 and bool_and(srsubstate = 'r') from pg_subscription_rel"
        wait_until(lambda: there.value(synced), "the tables to be copied")
        # flows, settlements and ticks change while the stream is on
        kept = before_the_move(db)
        end = db.value("select pg_current_wal_lsn()")
        caught_up = "select latest_end_lsn >= %s::pg_lsn from pg_stat_subscription where subname = 'fairq_move'"
        wait_until(lambda: there.rows(caught_up, end) == [(True,)], "the subscriber to catch up")
        for statement in block("sql", "drop subscription").splitlines():
            there.execute(statement)
        after_the_move(there, kept)
        assert min(there.given_jobs("a", 1)) > max(kept.everything)


@pytest.mark.once
def test_an_upgraded_server_goes_on(start_server: Callable[..., LocalServer]) -> None:
    """pg_upgrade from 15 to 18: `fairq check` finds nothing, and every job is claimed once."""
    old = LocalServer("15", durable=True)
    try:
        with old.databases.keep() as db:
            kept = before_the_move(db)
        old.halt()
        # 18 makes clusters with checksums, 15 without
        subprocess.run([old.bin / "pg_checksums", "--enable", "-D", old.data], check=True, **run_as())
        new = start_server(durable=True)
        new.halt()
        upgrade(old, new)
        new.start()
        with Database(new.dsn(db.dbname)) as after:
            assert after.value("show server_version_num") >= "180000"
            assert check(after.dsn).differences == ()
            after_the_move(after, kept)
            assert check(after.dsn).differences == ()
    finally:
        old.stop()


def upgrade(old: LocalServer, new: LocalServer) -> None:
    """Bring the databases of a server that stands still into the empty one of a newer version."""
    folders = ["-b", old.bin, "-B", new.bin, "-d", old.data, "-D", new.data, "-s", new.folder, "-U", "postgres"]
    command = [new.bin / "pg_upgrade", *folders, "-p", "50432", "-P", "50433"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, **run_as() | {"cwd": new.folder}, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Kept:
    """What must survive the move."""

    def __init__(self, db: Database) -> None:
        self.running: list[Any] = []
        self.waiting: list[int] = []
        self.virgin: list[int] = []
        self.everything = [row.job_id for row in db.rows("select job_id from fairq.all_jobs")]
        self.vtimes = dict(db.rows("select tenant, vtime from fairq.flows"))


def before_the_move(db: Database) -> Kept:
    """A queue in full use: running, read ahead, waiting, scheduled, looked at and not; and one never claimed."""
    db.set_tenant("capped", max_running=2)
    a, b, capped = db.given_jobs("a", 12), db.given_jobs("b", 6), db.given_jobs("capped", 4)
    virgin = db.given_jobs("a", 3, queue="virgin") + db.given_jobs("v", 2, queue="virgin")
    done = db.claim(6, lease=timedelta(hours=1))
    look(db)
    db.set_queue(read_ahead=8)
    held = db.claim(5, lease=timedelta(hours=1))
    assert db.rows("select from fairq.ready_picks")
    scheduled = db.given_jobs("a", 2, delay=timedelta(hours=1))
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


def after_the_move(db: Database, kept: Kept) -> None:
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
