"""
No plan depends on luck: not on statistics, not on what the tables held when a session made its plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plans.backlog import fill
from tests.plans.hot import HOT, faults, most_rows, names_of
from tests.plans.walk import LONG, walk
from tests.support import Statement
from tests.support.plans import overheard

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.database import Database

TABLES = "fairq.jobs, fairq.leases, fairq.flows, fairq.ticks, fairq.settlements, fairq.job_keys, fairq.finished_jobs"


def test_every_statement_rides_its_index_all_life_long(db: Database, subtests: pytest.Subtests) -> None:
    """From an empty table to a full one and back, under plans made when it was empty and under new ones."""
    old = db.session()
    unheard = set(HOT)
    for stage in (empty, loaded, analyzed, emptied, vacuumed):
        stage(db)
        for age, session in (("old", old), ("new", db.session())):
            with subtests.test(stage=stage.__name__, plans=age):
                heard = walk(db, session)
                unheard -= {name for statement, _ in heard for name in names_of(statement)}
                wrong = {fault for statement, plan in heard for fault in faults(statement, plan)}
                assert not wrong, "\n".join(["", *sorted(wrong)])
    assert not unheard, "hot.py names statements that no verb runs"


def empty(db: Database) -> None:
    """Tables known to be empty: the worst that statistics can say of them."""
    db.execute(f"vacuum analyze {TABLES}")


def loaded(db: Database) -> None:
    """A million jobs, of which no statistics tell."""
    fill(db, jobs=1_000_000, tenants=1_000)
    # the look that reads all of them is not what is tested, and takes a while on a slow machine
    db.session(statement_timeout="0").claim(1, lease=LONG)


def analyzed(db: Database) -> None:
    """The same jobs, and statistics of them."""
    db.execute(f"analyze {TABLES}")


def emptied(db: Database) -> None:
    """All jobs gone, and statistics that tell of a million."""
    with db.connect(statement_timeout="0") as conn:
        conn.execute("delete from fairq.leases")
        conn.execute("delete from fairq.jobs")
    db.claim(1)


def vacuumed(db: Database) -> None:
    """Tables that are known to be empty again."""
    with db.connect(statement_timeout="0") as conn:
        conn.execute("delete from fairq.leases")
        conn.execute("delete from fairq.jobs")
        conn.execute(f"vacuum analyze {TABLES}")


def check_a_great_batch_is_completed_in_a_line(db: Database) -> None:
    """Four times as many jobs are four times as many rows in the dearest step, and not sixteen times."""
    db.given_jobs("a", 500)
    # whatever somebody has set, for this session or for all
    for hash_joins in ("on", "off"):
        session = db.session()
        session.execute(f"set enable_hashjoin = {hash_joins}")
        most = {}
        for size in (50, 200):
            jobs = session.claim(size, lease=LONG)
            with overheard(session.conn) as heard:
                assert set(session.complete_all(jobs).values()) == {"succeeded"}
            most[size] = max(most_rows(plan) for _, plan in heard)
        assert most[200] <= 4 * most[50]


def test_a_great_batch_is_completed_in_a_line(db: Database) -> None:
    """What was deleted meets what it is kept as by hash."""
    check_a_great_batch_is_completed_in_a_line(db)


@pytest.mark.once
def test_without_the_hash_it_is_not(assert_killed: Callable[..., None]) -> None:
    """Each with each: the plan of somebody who expects ten."""
    complete = "alter function fairq.complete_jobs(bigint[], uuid[], jsonb[])"
    assert_killed(
        check_a_great_batch_is_completed_in_a_line,
        Statement(f"{complete} set enable_nestloop = on; {complete} set enable_hashjoin = off"),
    )
