"""A standby is promoted, in the middle of a storm or with the end of the old primary's work unknown to it."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.races.helpers import NOBODY, check_books, drain, ids, look
from tests.support import Database, wait_until

from .crew import Crew, account, anywhere, prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.servers import LocalServer

REPLAYED = """
    select count(*) = 1 from pg_stat_replication where replay_lsn >= pg_current_wal_flush_lsn()
"""
LONG = timedelta(hours=1)


def standby_of(start_server: Callable[..., LocalServer], primary: LocalServer) -> LocalServer:
    """A standby that streams."""
    standby = start_server(durable=True, copy_of=primary)
    with psycopg.connect(primary.maintenance_dsn, autocommit=True) as conn:
        wait_until(lambda: conn.execute(REPLAYED).fetchone() == (True,), "the standby to stream")
    return standby


def wait_for_standby(db: Database) -> None:
    """Come back when the standby has all that is committed."""
    wait_until(lambda: db.value(REPLAYED), "the standby to catch up")


def wait_from_now_on(primary: LocalServer) -> None:
    """Every commit waits for the standby."""
    with psycopg.connect(primary.maintenance_dsn, autocommit=True) as conn:
        conn.execute("alter system set synchronous_standby_names = '*'")
        conn.execute("select pg_reload_conf()")
        sync = "select count(*) = 1 from pg_stat_replication where sync_state = 'sync'"
        wait_until(lambda: conn.execute(sync).fetchone() == (True,), "the standby to be waited for")


def promote(standby: LocalServer) -> None:
    """Make it the primary; it is not started anew."""
    with psycopg.connect(standby.maintenance_dsn, autocommit=True) as conn:
        assert conn.execute("select pg_promote()").fetchone() == (True,)


@pytest.mark.parametrize("waits", [False, True], ids=["async", "sync"])
def test_a_storm_goes_on_at_the_promoted_standby(start_server: Callable[..., LocalServer], *, waits: bool) -> None:
    """
    The primary dies in a storm and the standby is promoted: clients find it by themselves, and go on.

    Where commits wait for the standby, nothing that was acknowledged is lost; else the end may be, but nothing before.
    """
    primary = start_server(durable=True)
    with primary.databases.keep() as db:
        prepare(db, read_ahead=0 if waits else 20)
        standby = standby_of(start_server, primary)
        if waits:
            wait_from_now_on(primary)
        with Crew(anywhere(primary, standby, dbname=db.dbname)) as crew:
            crew.complete_more()
            primary.kill9()
            promote(standby)
            crew.complete_more()
            crew.all_turn()
        with Database(standby.dsn(db.dbname)) as after:
            account(after, crew, may_forget=not waits)


class Tail:
    """What a primary acknowledged after its standby had heard the last of it."""

    def __init__(self, db: Database, known: list[Any]) -> None:
        self.completed = known[:2]
        assert set(db.complete_all(self.completed).values()) == {"succeeded"}
        self.enqueued = [db.enqueue("a", key=f"lost {n}").job_id for n in range(40)]
        self.claimed = db.claim(12, lease=LONG)


def deaf(db: Database) -> None:
    """The standby hears nothing from now on."""
    os.kill(db.value("select pid from pg_stat_replication"), signal.SIGSTOP)


def test_what_a_promoted_standby_has_not_heard_of_is_fenced(start_server: Callable[..., LocalServer]) -> None:
    """
    The end that asynchronous replication loses: attempts of it have no lease, and what they did is done again.

    Ids of jobs that were lost are given out again, and the lease tokens of their first bearers mean nothing. What the
    standby had heard of goes on: leases hold, looks miss nothing, also of what was under way.
    """
    primary = start_server(durable=True)
    with primary.databases.keep() as db:
        jobs = db.given_jobs("a", 6) + db.given_jobs("b", 6)
        held = db.claim(4, lease=LONG)
        # two that the look could not see, of which one commits before the end
        open_ones = [db.session(autocommit=False) for _ in range(2)]
        under_way = [session.given_jobs("a", 2) for session in open_ones]
        look(db)
        open_ones[0].conn.commit()
        jobs += under_way[0]
        standby = standby_of(start_server, primary)
        wait_for_standby(db)
        deaf(db)
        tail = Tail(db, held)
        primary.kill9()
        promote(standby)

    with Database(standby.dsn(db.dbname)) as after:
        # nothing of the tail is known, and all before it
        assert {row.job_id for row in after.rows("select job_id from fairq.all_jobs")} == set(jobs)
        new = [after.enqueue("a", key=f"lost {n}") for n in range(40)]
        assert all(row.created for row in new)
        new_ids = [row.job_id for row in new]
        assert set(new_ids) & set(tail.enqueued)
        assert set(after.complete_all(tail.claimed).values()) == {"lost"}
        # leases that the standby knows are as good as before, and hold
        again = after.claim(100, lease=LONG)
        assert sorted(ids(again)) == sorted({*jobs, *new_ids} - set(ids(held)))
        assert set(after.complete_all(tail.claimed).values()) == {"lost"}
        assert set(after.complete_all(held).values()) == {"succeeded"}
        assert set(after.complete_all(again).values()) == {"succeeded"}
        check_books(after, jobs + new_ids)
        assert after.claim(1, tenant=NOBODY) == []


def test_a_standby_says_that_it_is_one(start_server: Callable[..., LocalServer]) -> None:
    """Faults 125: a claim, an enqueue and a completion at a standby get 25006; looking works."""
    primary = start_server()
    with primary.databases.keep() as db:
        db.given_jobs("a", 2)
        (held,) = db.claim(1)
        standby = standby_of(start_server, primary)
        wait_for_standby(db)
        with Database(standby.dsn(db.dbname)) as there:
            for call in (lambda: there.claim(1), lambda: there.enqueue("a"), lambda: there.complete(held)):
                with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                    call()
            assert there.value("select queued from fairq.queue_stats()") == 1
        assert db.complete(held)
        assert drain(db)
