"""
What version 2 brought, on the way there and back: pauses that say since when, by whom and why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import fairq_schema
from tests.package.clients import DRIVERS, RefusedError
from tests.support import Database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.databases import Databases

pytestmark = pytest.mark.short

PAUSES = "select tenant, (paused_at is not null)::text, reason from fairq.pauses(p_queue => $1::text)"


@pytest.fixture
def db(databases: Databases) -> Iterator[Database]:
    """
    A database of version 1, with a queue and a tenant that are paused.
    """
    with databases.empty() as dsn:
        fairq_schema.apply(dsn, to=1)
        with Database(dsn) as db:
            db.set_queue("q", paused=True)
            db.call("pause_tenant", p_queue="q", p_tenant="a")
            yield db


def paused(db: Database) -> list[Any]:
    """
    What is paused, in either version.
    """
    return db.rows("""
        select t.queue, t.tenant from fairq.tenants as t where t.paused
        union all select q.queue, null from fairq.queues as q where q.paused
        order by 1, 2
    """)


def test_pauses_go_on(db: Database) -> None:
    """
    A pause of version 1 is one in version 2, of which nobody knows the beginning; one of version 2 is one in version 1.
    """
    assert paused(db) == [("q", "a"), ("q", None)]
    fairq_schema.apply(db.dsn, to=2)
    assert paused(db) == [("q", "a"), ("q", None)]
    assert {(each.paused_at, each.paused_by, each.reason) for each in db.call("pauses")} == {(None, None, None)}
    db.call("pause_tenant_because", p_queue="q", p_tenant="b", p_reason="so")
    db.call("pause_queue", p_queue="q", p_reason="ticket 42")
    assert [each.reason for each in db.call("pauses")] == [None, "so", "ticket 42"]

    fairq_schema.rollback(db.dsn, to=1)
    assert paused(db) == [("q", "a"), ("q", "b"), ("q", None)]
    assert db.claim(queue="q") == []
    fairq_schema.apply(db.dsn, to=2)
    assert paused(db) == [("q", "a"), ("q", "b"), ("q", None)]
    db.call("resume_queue", p_queue="q")
    db.given_jobs("c", queue="q")
    assert len(db.claim(queue="q")) == 1


def test_what_version_1_lost_sight_of_is_found(db: Database) -> None:
    """
    Where a queue reads ahead, and nowhere else, all jobs are looked at once, also those that no look can find.
    """
    db.set_queue("ahead", read_ahead=10)
    for queue in ("ahead", "other"):
        db.given_jobs("a", 4, queue=queue)
        (first,) = db.claim(1, queue=queue)
        db.complete(first)
        db.claim(1, queue=queue)
    db.execute("delete from fairq.ready_picks")
    db.execute("""
        update fairq.flows set head_at = array_fill(null::timestamptz, '{4}'), head_id = array_fill(null::bigint, '{4}')
    """)
    assert db.claim(10, queue="ahead") == []
    fairq_schema.apply(db.dsn, to=2)
    assert [job.queue for job in db.claim(10, queue="ahead")] == ["ahead"] * 2
    assert db.claim(10, queue="ahead") == []
    assert db.claim(10, queue="other") == []


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_new_client_meets_the_older_version(db: Database, driver: str) -> None:
    """
    What only version 2 has gets 42883 from version 1; the statement that was prepared is good again after an upgrade.
    """
    user = db.login("fairq_operator")
    told = [(None, "false", None), ("a", "false", None)]
    with DRIVERS[driver](f"{db.dsn} user={user}") as client:
        for _ in range(2):
            with pytest.raises(RefusedError) as refused:
                client.run(PAUSES, ("q",))
            assert refused.value.sqlstate == "42883"
            fairq_schema.apply(db.dsn, to=2)
            assert client.run(PAUSES, ("q",)) == told
            fairq_schema.rollback(db.dsn, to=1)
