"""
Clients that live through an upgrade and a downgrade: what they have prepared, hold and are in the middle of goes on.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import psycopg
import pytest

import fairq_schema
from tests.package.clients import DRIVERS, RefusedError
from tests.package.upgrades import WAYS, calls
from tests.support import Database, in_background, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.package.clients import Client
    from tests.package.upgrades import Call, Way
    from tests.support import Session
    from tests.support.databases import Databases

pytestmark = pytest.mark.short

PARTS = ("fairq_producer", "fairq_worker", "fairq_operator")
names = (f"q{number}" for number in count())


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, find_way: Callable[[str], Way]) -> Way:
    """
    From a version to a newer one.
    """
    return find_way(request.param)


@pytest.fixture
def old_db(databases: Databases, way: Way) -> Iterator[Database]:
    """
    A database of the older version.
    """
    with databases.empty() as dsn:
        fairq_schema.apply(dsn, to=way.old, migrations=way.folder)
        with Database(dsn) as db:
            yield db


# --- prepared statements -----------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", DRIVERS)
def test_what_is_prepared_goes_on(old_db: Database, way: Way, driver: str) -> None:
    """
    A session of the older version has every statement prepared; it runs them on the newer one, and on the older again.

    So does one that begins with the newer version and is led back to the older.
    """
    user = old_db.login(*PARTS)
    helper = old_db.session(user=user)
    connect = DRIVERS[driver]
    with connect(f"{old_db.dsn} user={user}") as old:
        run_all(helper, old)
        way.up(old_db.dsn)
        with connect(f"{old_db.dsn} user={user}") as new:
            for _ in range(2):
                run_all(helper, old, new)
                way.down(old_db.dsn)
                run_all(helper, old, new)
                way.up(old_db.dsn)
            for client in (old, new):
                (held,) = client.run("select count(*)::text from pg_prepared_statements where from_sql is false")
                assert int(held[0] or 0) == 1 + len({call.statement for call in calls(helper, next(names))})


def run_all(db: Session, *clients: Client) -> None:
    """
    Let each client make every call.
    """
    for client in clients:
        for call in calls(db, next(names)):
            assert client.run(call.statement, call.arguments) == call.answer, call.statement


# --- calls that are under way ------------------------------------------------------------------------------


def test_what_is_under_way_goes_on(old_db: Database, way: Way) -> None:
    """
    Whoever calls while the files run waits, if at all, until they are committed, and then has the usual answer.

    Each call has been made before in its session, so that it goes by plans and types that are no longer right.
    """
    helper = old_db.session(user=old_db.login(*PARTS))
    for direction in (True, False, True):
        for text in way.texts(forward=direction):
            check_calls_meanwhile(old_db, helper, text)


def check_calls_meanwhile(db: Database, helper: Session, text: str) -> None:
    """
    Run a file, let everybody call before it is committed, and commit.
    """
    before, meanwhile = calls(helper, next(names)), calls(helper, next(names))
    sessions = [psycopg.connect(f"{db.dsn} user={helper.conn.info.user}", autocommit=True) for _ in meanwhile]
    try:
        for session, call in zip(sessions, before, strict=True):
            assert run(session, call) == call.answer, call.statement
        with psycopg.connect(db.dsn) as migration:
            migration.execute(text.encode())
            begun = [
                in_background(lambda session=session, call=call: run(session, call))  # type: ignore[misc]
                for session, call in zip(sessions, meanwhile, strict=True)
            ]
            for call, session, each in zip(meanwhile, sessions, begun, strict=True):
                wait_until(lambda e=each, s=session: not e.running() or blocked(db, s), call.statement)  # type: ignore[misc]
            waiting = sum(each.running() for each in begun)
            migration.commit()
        for call, each in zip(meanwhile, begun, strict=True):
            assert each.result() == call.answer, call.statement
        assert waiting > 0 or "lock table" not in text, "nobody met the file"
    finally:
        for session in sessions:
            session.close()


def run(session: psycopg.Connection[tuple[str | None, ...]], call: Call) -> list[tuple[str | None, ...]]:
    """
    Make a call by a statement that is prepared.
    """
    return psycopg.RawCursor(session).execute(call.statement.encode(), call.arguments, prepare=True).fetchall()


def blocked(db: Database, session: psycopg.Connection[tuple[str | None, ...]]) -> bool:
    """
    Whether the server says that a session waits for a lock.
    """
    waits = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
    return bool(db.value(waits, session.info.backend_pid))


# --- and what would not go on ------------------------------------------------------------------------------

# Another result under the same name, as no migration may have it.
OTHER_RESULT = """
    drop function fairq.cancel_job(bigint);
    create function fairq.cancel_job(p_job_id bigint) returns integer language sql as 'select 1';
    grant execute on function fairq.cancel_job(bigint) to public;
"""
# A function that is called in the middle is gone: whoever calls claim_jobs() from now on does not need it.
GONE = """
    do $fn$
    declare
        v_claim text := pg_get_functiondef('fairq.claim_jobs'::regproc);
    begin
        assert v_claim like '%fairq._dispatch(%';
        execute replace(v_claim, 'fairq._dispatch(', 'fairq._dispatched(');
        execute format('alter function %s rename to _dispatched', 'fairq._dispatch'::regproc::oid::regprocedure);
    end
    $fn$;
"""


@pytest.mark.parametrize("driver", DRIVERS)
def test_another_result_is_noticed(databases: Databases, driver: str) -> None:
    """
    Had a function another result, who has prepared a call of it would not go on.
    """
    with databases.clone() as db:
        user = db.login(*PARTS)
        helper = db.session(user=user)
        with DRIVERS[driver](f"{db.dsn} user={user}") as client:
            run_all(helper, client)
            db.execute(OTHER_RESULT)
            with pytest.raises(RefusedError) as refused:
                run_all(helper, client)
            assert refused.value.sqlstate == "0A000"


def test_what_is_gone_is_noticed(databases: Databases) -> None:
    """
    Were a function gone that a call in the middle needs, it would not go on.
    """
    with databases.clone() as db:
        helper = db.session(user=db.login(*PARTS))
        lock = "lock table fairq.queues in access exclusive mode;"
        check_calls_meanwhile(db, helper, lock)
        with pytest.raises(psycopg.errors.UndefinedFunction, match="_dispatch"):
            check_calls_meanwhile(db, helper, lock + GONE)
