"""Behind pgbouncer, which hands one server session from client to client, transaction by transaction."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

import fairq_schema
from tests.support.database import Session
from tests.support.pooler import pooled

from .attacks import TYPES, life, nothing_was_trapped, thief
from .cast import NOT_ALLOWED, code, refused, seen, world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.database import Database

    Connect = Callable[[], Session]

pytestmark = pytest.mark.short


@contextmanager
def clients(db: Database, login: str) -> Iterator[Connect]:
    """`connect()`: a client of a pool that has one server session, for this login."""
    with pooled(db.dsn, one_session=login) as through, ExitStack() as stack:

        def connect() -> Session:
            conn = psycopg.connect(through, autocommit=True, prepare_threshold=None)
            stack.callback(conn.close)
            return Session(conn)

        yield connect


def one_server_session(*clients: Session) -> None:
    """The canary: all of them are the same session to the server."""
    assert len({client.value("select pg_backend_pid()") for client in clients}) == 1


def test_a_tenant_that_is_set_for_a_transaction_ends_with_it(db: Database) -> None:
    """SET LOCAL and set_config(..., true) meet no other client; between transactions a client is nobody."""
    world(db)
    with clients(db, db.login("fairq_tenant")) as connect:
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


def test_a_tenant_that_is_set_for_a_session_meets_the_next_client(db: Database) -> None:
    """What the documentation warns of is so: a plain SET stays on the server's session."""
    world(db)
    with clients(db, db.login("fairq_tenant")) as connect:
        a, b = connect(), connect()
        one_server_session(a, b)
        a.execute("set app.tenant_id = 'a'")
        assert seen(b) == {"a"}


def test_a_token_for_a_transaction_ends_with_it(db: Database) -> None:
    """The provider token, bound as a parameter."""
    fairq_schema.set_tenant_provider(db.dsn, "token")
    db.call("set_tenant_key", p_kid="k")
    token = db.call_one("issue_tenant_token", p_tenant="a")
    world(db)
    with clients(db, db.login("fairq_tenant")) as connect:
        a, b = connect(), connect()
        one_server_session(a, b)
        with a.conn.transaction():
            a.execute("select set_config('app.tenant_token', %s, true)", token)
            assert seen(a) == {"a"}
        assert seen(a) == seen(b) == set()
        assert code(b, "select fairq.get_job(1)") == NOT_ALLOWED


def test_a_role_for_a_transaction_ends_with_it(db: Database) -> None:
    """The provider role, behind a gateway that sets the tenant's role for the transaction."""
    fairq_schema.set_tenant_provider(db.dsn, "role")
    world(db)
    gateway, tenant = db.login(), db.login("fairq_tenant")
    db.execute(f"grant {tenant} to {gateway}")
    db.execute("insert into fairq.tenant_roles values (%s, 'a')", tenant)
    with clients(db, gateway) as connect:
        a, b = connect(), connect()
        one_server_session(a, b)
        with a.conn.transaction():
            a.execute(f"set local role {tenant}")
            assert seen(a) == {"a"}
        assert (a.value("select current_user"), b.value("select current_user")) == (gateway, gateway)
        with b.conn.transaction():
            b.execute(f"set local role {tenant}")
            assert seen(b) == {"a"}


def test_temporary_objects_of_one_client_do_no_harm_to_another(db: Database) -> None:
    """They stay in the server's session, and are still no part of what the functions do."""
    session = thief(db)
    with clients(db, session.conn.info.user) as connect:
        evil, honest = connect(), connect()
        one_server_session(evil, honest)
        for name in TYPES:
            evil.execute(f"create domain pg_temp.{name} as pg_catalog.{name} check (trap.leave(value))")
        evil.execute("set search_path = pg_temp, pg_catalog, trap")
        life(honest)
        for name in TYPES:
            evil.execute(f"drop domain pg_temp.{name}")
        nothing_was_trapped(session)


def test_a_worker_works_behind_the_pool(db: Database) -> None:
    """Claim, renew and complete are transactions of their own: a lease belongs to the login."""
    jobs = db.given_jobs("a", 3)
    with clients(db, db.login("fairq_worker")) as connect:
        one, other = connect(), connect()
        one_server_session(one, other)
        claimed = one.claim(3)
        assert [job.job_id for job in claimed] == jobs
        assert other.renew(claimed[0])
        assert other.complete(claimed[0])
        assert one.fail(claimed[1], error="x") == "scheduled"
        assert one.release(claimed[2]) == "queued"
        assert one.value("show idle_in_transaction_session_timeout") == "0", "what a claim sets ends with it"
