"""Servers and databases: the asked one or an error, nothing shared, nothing left."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pytest

from tests.support import wait_until
from tests.support.binaries import CHECKOUT, MissingServer
from tests.support.servers import LocalServer, Server, server_named
from tests.support_tests.conftest import with_stand_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Databases

PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}

pytestmark = pytest.mark.once


@pytest.mark.short
def test_the_asked_version_answers(server: Server, pg: str) -> None:
    """`--pg 15` tests on 15 and on nothing else."""
    if pg.isdigit():
        assert server.major == int(pg)
    assert server.major >= 15


def test_a_missing_server_is_an_error() -> None:
    """A version that is not on this machine raises; nothing is skipped, nothing else is taken instead."""
    with pytest.raises(MissingServer, match="no PostgreSQL 9 here"):
        server_named("9")


def test_a_server_survives_kill9(private_server: LocalServer) -> None:
    """What was committed before a crash is there after the restart, and old sessions are dead."""
    with private_server.databases.clone(with_stand_in) as db:
        session = db.session()
        db.execute("insert into fairq.jobs (owner) values ('kept')")
        private_server.kill9()
        with pytest.raises(psycopg.OperationalError):
            session.value("select 1")
        private_server.restart()
        with psycopg.connect(db.dsn) as conn:
            assert conn.execute("select owner from fairq.jobs").fetchall() == [("kept",)]


def test_a_stopped_server_leaves_nothing(start_server: Callable[..., LocalServer]) -> None:
    """After `stop` there is no process and no folder, also after a crash."""
    private = start_server(work_mem="5MB")
    assert private.process is not None
    family = [psutil.Process(private.process.pid), *psutil.Process(private.process.pid).children()]
    private.stop()
    assert not private.folder.exists()
    assert not [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_a_server_goes_with_a_killed_run(pg: str) -> None:
    """When the process that started it is killed, the server stops by itself."""
    if not pg.isdigit():
        pytest.skip(f"{pg} is somebody else's server: it neither starts nor has to stop with this run")
    code = f"""
from tests.support.servers import LocalServer
server = LocalServer({pg!r})
print(server.process.pid, server.folder, flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", code], **PIPES, cwd=CHECKOUT) as run:
        assert run.stdout is not None
        pid, folder = run.stdout.readline().split()
        run.kill()
    try:
        wait_until(lambda: not psutil.pid_exists(int(pid)), "the orphaned server to stop")
    finally:
        shutil.rmtree(folder)


def test_clones_share_nothing(databases: Databases) -> None:
    """What one test writes, another does not see."""
    with databases.clone(with_stand_in) as one, databases.clone(with_stand_in) as other:
        one.execute("insert into fairq.jobs (owner) values ('one')")
        assert other.value("select count(*) from fairq.jobs") == 0


def test_a_database_goes_with_its_test(databases: Databases, server: Server) -> None:
    """A clone is dropped at the end, with sessions still open in it."""
    with databases.clone(with_stand_in) as db:
        leftover = psycopg.connect(db.dsn)
    with psycopg.connect(server.maintenance_dsn) as conn:
        query = "select count(*) from pg_database where datname = %s"
        assert conn.execute(query, [db.dbname]).fetchone() == (0,)
    leftover.close()


def test_an_empty_database_is_empty(empty_db: str) -> None:
    """`empty_db` has no schema of ours."""
    with psycopg.connect(empty_db) as conn:
        assert conn.execute("select to_regnamespace('fairq')").fetchone() == (None,)
