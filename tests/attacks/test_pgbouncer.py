"""Behind pgbouncer, which hands one server session from client to client, transaction by transaction."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import fairq_schema
from tests.support.binaries import give_away, run_as
from tests.support.database import Session
from tests.support.servers import temporary_folder
from tests.support.waiting import wait_until

from .attacks import TYPES, life, nothing_was_trapped, thief
from .cast import NOT_ALLOWED, code, refused, seen, world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.database import Database

    Connect = Callable[[], Session]

pytestmark = pytest.mark.short


def program() -> str:
    """Where pgbouncer is; Debian puts it where only root looks."""
    found = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")
    assert found, "pgbouncer is missing: ci/fetch pgbouncer"
    return found


@contextmanager
def pooled(db: Database, user: str, folder: Path) -> Iterator[Connect]:
    """`connect()`: a client of a pool that has one server session, for this login."""
    server = conninfo_to_dict(db.dsn)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "users").write_text(f'"{user}" ""\n')
    (folder / "ini").write_text(f"""
[databases]
pool = host={server["host"]} port={server["port"]} dbname={db.dbname}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder / "users"}
pool_mode = transaction
default_pool_size = 1
ignore_startup_parameters = extra_float_digits,options
""")
    for each in (folder, folder / "users", folder / "ini"):
        give_away(each)
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running = subprocess.Popen([program(), str(folder / "ini")], **quiet, **run_as())
    try:
        with ExitStack() as stack:

            def connect() -> Session:
                conn = psycopg.connect(
                    host="127.0.0.1", port=port, dbname="pool", user=user, autocommit=True, prepare_threshold=None
                )
                stack.callback(conn.close)
                return Session(conn)

            def lets_in() -> bool:
                assert running.poll() is None, "pgbouncer did not start"
                try:
                    return connect().value("select true")
                except psycopg.OperationalError:
                    return False

            wait_until(lets_in, "pgbouncer to let somebody in")
            yield connect
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(timeout=20)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that pgbouncer may read, whoever it runs as."""
    made = temporary_folder()
    yield made
    shutil.rmtree(made, ignore_errors=True)


def one_server_session(*clients: Session) -> None:
    """The canary: all of them are the same session to the server."""
    assert len({client.value("select pg_backend_pid()") for client in clients}) == 1


def test_a_tenant_that_is_set_for_a_transaction_ends_with_it(db: Database, folder: Path) -> None:
    """SET LOCAL and set_config(..., true) meet no other client; between transactions a client is nobody."""
    world(db)
    with pooled(db, db.login("fairq_tenant"), folder) as connect:
        a, b = connect(), connect()
        one_server_session(a, b)
        for statement in ("set local app.tenant_id = 'a'", "select set_config('app.tenant_id', 'a', true)"):
            with a.conn.transaction():
                a.execute(statement)
                assert seen(a) == {"a"}
                assert a.value("select (fairq.enqueue_job(p_task => 't')).created")
            for client in (a, b):
                assert seen(client) == set()
                refused(client, ["select fairq.enqueue_job(p_task => 't')", "select fairq.cancel_job(1)"])


def test_a_tenant_that_is_set_for_a_session_meets_the_next_client(db: Database, folder: Path) -> None:
    """What the documentation warns of is so: a plain SET stays on the server's session."""
    world(db)
    with pooled(db, db.login("fairq_tenant"), folder) as connect:
        a, b = connect(), connect()
        one_server_session(a, b)
        a.execute("set app.tenant_id = 'a'")
        assert seen(b) == {"a"}


def test_a_token_for_a_transaction_ends_with_it(db: Database, folder: Path) -> None:
    """The provider token, bound as a parameter."""
    fairq_schema.set_tenant_provider(db.dsn, "token")
    db.call("set_tenant_key", p_kid="k")
    token = db.call_one("issue_tenant_token", p_tenant="a")
    world(db)
    with pooled(db, db.login("fairq_tenant"), folder) as connect:
        a, b = connect(), connect()
        one_server_session(a, b)
        with a.conn.transaction():
            a.execute("select set_config('app.tenant_token', %s, true)", token)
            assert seen(a) == {"a"}
        assert seen(a) == seen(b) == set()
        assert code(b, "select fairq.get_job(1)") == NOT_ALLOWED


def test_a_role_for_a_transaction_ends_with_it(db: Database, folder: Path) -> None:
    """The provider role, behind a gateway that sets the tenant's role for the transaction."""
    fairq_schema.set_tenant_provider(db.dsn, "role")
    world(db)
    gateway, tenant = db.login(), db.login("fairq_tenant")
    db.execute(f"grant {tenant} to {gateway}")
    db.execute("insert into fairq.tenant_roles values (%s, 'a')", tenant)
    with pooled(db, gateway, folder) as connect:
        a, b = connect(), connect()
        one_server_session(a, b)
        with a.conn.transaction():
            a.execute(f"set local role {tenant}")
            assert seen(a) == {"a"}
        assert (a.value("select current_user"), b.value("select current_user")) == (gateway, gateway)
        with b.conn.transaction():
            b.execute(f"set local role {tenant}")
            assert seen(b) == {"a"}


def test_temporary_objects_of_one_client_do_no_harm_to_another(db: Database, folder: Path) -> None:
    """They stay in the server's session, and are still no part of what the functions do."""
    session = thief(db)
    with pooled(db, session.conn.info.user, folder) as connect:
        evil, honest = connect(), connect()
        one_server_session(evil, honest)
        for name in TYPES:
            evil.execute(f"create domain pg_temp.{name} as pg_catalog.{name} check (trap.leave(value))")
        evil.execute("set search_path = pg_temp, pg_catalog, trap")
        life(honest)
        for name in TYPES:
            evil.execute(f"drop domain pg_temp.{name}")
        nothing_was_trapped(session)


def test_a_worker_works_behind_the_pool(db: Database, folder: Path) -> None:
    """Claim, renew and complete are transactions of their own: a lease belongs to the login."""
    jobs = db.given_jobs("a", 3)
    with pooled(db, db.login("fairq_worker"), folder) as connect:
        one, other = connect(), connect()
        one_server_session(one, other)
        claimed = one.claim(3)
        assert [job.job_id for job in claimed] == jobs
        assert other.renew(claimed[0])
        assert other.complete(claimed[0])
        assert one.fail(claimed[1], error="x") == "scheduled"
        assert one.release(claimed[2]) == "queued"
        assert one.value("show idle_in_transaction_session_timeout") == "0", "what a claim sets ends with it"
