"""Connections, roles, storms, waiting and plans, on a stand-in schema."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pytest

from tests.support import (
    Database,
    NeverHappened,
    Session,
    Worker,
    buffers_of,
    explain,
    in_background,
    indexes,
    node_types,
    plans_inside,
    storm,
    wait_until_blocked,
)

pytestmark = pytest.mark.once


def take(session: Session) -> Any:
    """One claim of the stand-in schema."""
    return session.value("select fairq.take(%s)", f"worker-{getattr(session, 'number', 0)}")


def test_no_statement_runs_for_ever(toy: Database) -> None:
    """Every connection has a statement timeout, which a test can shorten."""
    assert toy.value("show statement_timeout") == "1min"
    with pytest.raises(psycopg.errors.QueryCanceled):
        toy.connect(statement_timeout="50ms").execute("select pg_sleep(20)")


def test_a_session_can_act_as_a_role(toy: Database) -> None:
    """`role=` takes a role's rights, and only those."""
    session = toy.session(role="pg_read_all_settings")
    assert session.value("select current_user") == "pg_read_all_settings"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        take(session)


def test_a_login_is_no_superuser_in_disguise(toy: Database) -> None:
    """A login role connects as itself, has its groups' rights, and goes with the database."""
    login = toy.login("pg_monitor")
    session = toy.session(user=login)
    assert session.value("select session_user") == login
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        session.execute("select * from fairq.jobs")
    toy.close()
    with psycopg.connect(toy.dsn) as conn:
        assert conn.execute("select 1 from pg_roles where rolname = %s", [login]).fetchone() is None


@pytest.mark.short
def test_a_storm_drains_the_queue(toy: Database) -> None:
    """Workers repeat their step until it returns nothing, and all that they got comes back."""
    toy.execute("insert into fairq.jobs (owner) select null from generate_series(1, 50)")
    taken = storm(toy, workers=4, step=take)
    assert Counter(taken) == Counter(range(1, 51))


def test_a_storm_of_several_steps_runs_the_asked_rounds(toy: Database) -> None:
    """With a sequence of steps, workers take turns in it, and `rounds` bounds them."""
    steps = [lambda worker: f"even {worker.number}", lambda worker: [f"odd {worker.number}"]]
    assert Counter(storm(toy, workers=3, step=steps, rounds=2)) == {"even 0": 2, "odd 1": 2, "even 2": 2}


def test_a_storm_has_one_seed(toy: Database) -> None:
    """The same seed gives each worker the same chance again."""

    def roll(worker: Worker) -> int:
        return worker.random.randrange(1, 10**9)

    rolls = [sorted(storm(toy, workers=2, step=roll, rounds=3, seed=7)) for _ in range(2)]
    assert rolls[0] == rolls[1]


def test_a_storm_raises_its_workers_errors(toy: Database) -> None:
    """An assertion in one worker fails the test, and stops the others."""

    def check(worker: Worker) -> bool:
        assert worker.number != 1, "found by worker 1"
        return True

    with pytest.raises(AssertionError, match="found by worker 1"):
        storm(toy, workers=3, step=check)


def test_a_stuck_storm_fails(toy: Database) -> None:
    """A storm that does not end by its deadline is an error, and its sessions are cancelled."""
    with pytest.raises(NeverHappened, match="the storm to end"):
        storm(toy, workers=1, step=lambda worker: worker.execute("select pg_sleep(25)"), deadline=0.2)


@pytest.mark.short
def test_a_blocked_session_is_seen(toy: Database) -> None:
    """`wait_until_blocked` comes back as soon as the rival waits for the lock."""
    holder, rival = toy.session(autocommit=False), toy.session()
    holder.execute("lock table fairq.jobs")
    waiting = in_background(lambda: take(rival))
    wait_until_blocked(toy, rival)
    assert waiting.running()
    holder.conn.rollback()
    assert waiting.result() is None


def test_nobody_blocked_is_an_error(toy: Database) -> None:
    """Waiting for a session that does not block ends in an error that says so."""
    with pytest.raises(NeverHappened, match="to wait for a lock"):
        wait_until_blocked(toy, toy.session(), timeout=0.1)


@pytest.mark.short
def test_plans_inside_functions_are_seen(toy: Database) -> None:
    """The statement inside a function is reported with its plan; so are the pages of the whole call."""
    toy.execute("insert into fairq.jobs (owner) select null from generate_series(1, 500); analyze fairq.jobs")
    plans = plans_inside(toy.conn, "select fairq.take('me')")
    inner = [plan for text, plan in plans if "skip locked" in text]
    assert len(inner) == 1
    assert "jobs_pkey" in indexes(inner[0])
    assert "LockRows" in node_types(inner[0])
    assert buffers_of(toy.conn, "select fairq.take('me')") > 3


def test_explain_does_not_run_the_statement(toy: Database) -> None:
    """Without `analyze` nothing is changed."""
    toy.execute("insert into fairq.jobs (owner) values (null)")
    explain(toy.conn, "update fairq.jobs set owner = %s", "x")
    assert toy.value("select owner from fairq.jobs") is None
