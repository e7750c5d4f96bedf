"""
From every version to the newest and back, with jobs in every state; ours, and one more that is made up for the test.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import fairq_schema
from fairq_schema import _files
from tests.package.upgrades import LOCKED, OURS, VARIANT
from tests.support import Database

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.databases import Databases

pytestmark = pytest.mark.short

# tables that a queue at work has rows in
FILLED = ("access_grants", "flows", "job_keys", "job_log", "leases", "queues", "schedulers", "tenants", "ticks")
STATES = ["cancelled", "dead", "queued", "running", "scheduled", "succeeded"]


@pytest.mark.parametrize("start", [file.number for file in _files.load(OURS)])
def test_from_every_version_to_the_newest_and_back(databases: Databases, one_more: Path, start: int) -> None:
    """
    An upgraded schema is a fresh one, object by object; a downgraded one is what it was; no job is lost on the way.
    """
    check_upgrade(databases, one_more, start)


@pytest.mark.parametrize("start", [file.number for file in _files.load(OURS)])
def test_ours_alone(databases: Databases, start: int) -> None:
    """
    The same with the versions that we ship; from the newest to itself this is: nothing happens.
    """
    check_upgrade(databases, OURS, start)


def test_two_installs_have_their_own_versions(databases: Databases, one_more: Path) -> None:
    """
    Beside each other, one schema is upgraded, checked and removed without a change of the other.
    """
    newest = _files.load(one_more)[-1]
    with databases.empty() as dsn:
        fairq_schema.apply(dsn, "My-Queue", to=newest.number - 1, migrations=one_more)
        fairq_schema.apply(dsn, migrations=one_more)
        for schema, version in (("fairq", newest.number), ("My-Queue", newest.number - 1)):
            report = fairq_schema.check(dsn, schema, migrations=one_more)
            assert (report.version, report.differences) == (version, ())
        before = snapshot(dsn, "My-Queue")
        fairq_schema.rollback(dsn, to=0, migrations=one_more)
        assert snapshot(dsn, "My-Queue") == before
        with psycopg.connect(dsn, autocommit=True) as connection:
            assert connection.execute("select to_regnamespace('fairq')").fetchone() == (None,)
            connection.execute("""select "My-Queue".enqueue_job('a', 'mail')""")
            claimed = connection.execute("""select count(*) from "My-Queue".claim_jobs(p_owner => 'w')""").fetchone()
            assert claimed == (1,)


def test_the_plan_names_the_locks(databases: Databases, one_more: Path) -> None:
    """
    plan() says which tables are locked and who waits for that; it changes nothing.
    """
    newest = _files.load(one_more)[-1]
    with databases.empty() as dsn:
        fairq_schema.apply(dsn, to=newest.number - 1, migrations=one_more)
        (planned,) = fairq_schema.plan(dsn, migrations=one_more)
        assert fairq_schema.status(dsn, migrations=one_more).pending == (newest.id,)
    assert planned.id == newest.id
    told = [line.split(" on ")[1].split(":")[0] for line in planned.lines() if line.startswith("AccessExclusiveLock")]
    assert len(told) == len(planned.lines())
    assert {re.sub(r"_\d$", "", table) for table in told} == set(LOCKED), "these tables, and their partitions"


def test_a_variant_that_is_shipped_is_no_drift(databases: Databases, one_more: Path) -> None:
    """
    What a file of ours replaced on purpose is as it should be, in every version; what was done beyond it is named.
    """
    newest = _files.load(one_more)[-1]
    with databases.empty() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        for version in (newest.number - 1, newest.number):
            fairq_schema.apply(dsn, to=version, migrations=one_more)
            connection.execute(f"begin; {VARIANT.replace('create table', 'create table if not exists')}; commit")
            assert fairq_schema.check(dsn, migrations=one_more).differences == ()
        connection.execute("alter table fairq.made_up add column more integer")
        told = (f"column fairq.made_up.more is no part of version {newest.number}",)
        assert fairq_schema.check(dsn, migrations=one_more).differences == told


# --- how it is done ----------------------------------------------------------------------------------------


def check_upgrade(databases: Databases, folder: Path, start: int) -> None:
    """
    Up from `start` with jobs in every state, down again, and up again.
    """
    with databases.empty() as fresh, databases.empty() as dsn:
        fairq_schema.apply(fresh, migrations=folder)
        fairq_schema.apply(dsn, to=start, migrations=folder)
        with Database(dsn) as db:
            fill(db)
            jobs = contents(db)
            assert {row["state"] for row in jobs["jobs"] + jobs["finished_jobs"]} | {"running"} == set(STATES)
            assert all(jobs[table] for table in FILLED)
            old = snapshot(dsn)

            for _ in range(2):
                fairq_schema.apply(dsn, migrations=folder)
                assert old_differs_from_new(snapshot(fresh), snapshot(dsn)) == []
                assert fairq_schema.check(dsn, migrations=folder).differences == ()
                assert kept(jobs, contents(db)) == jobs
                fairq_schema.rollback(dsn, to=start, migrations=folder)
                assert old_differs_from_new(old, snapshot(dsn)) == []
                assert fairq_schema.check(dsn, migrations=folder).differences == ()
                assert contents(db) == jobs
            fairq_schema.apply(dsn, migrations=folder)
            assert drain(db) == 6


def fill(db: Database) -> None:
    """
    A job in every state, and a row in every table: wishes, pauses, keys, events, who may do what.
    """
    db.set_queue(max_running=50)
    db.set_queue("paused", paused=True)
    db.given_jobs("a", 1, queue="paused")
    db.set_tenant("a", weight=2, max_running=10, rate=1000, burst=100)
    db.call("pause_tenant", p_queue="default", p_tenant="paused")
    db.given_jobs("paused")
    db.given_jobs("a", 8)
    db.given_jobs("a", 1, delay=timedelta(hours=1))
    db.enqueue("a", key="k")
    ended, dead, failed, released, stopped, _ = db.claim(6, lease="1 hour")
    db.complete(ended, {"sum": 1})
    db.fail(dead, retry=False)
    db.fail(failed, error="so", retry_delay="1 hour")
    db.release(released)
    db.cancel(stopped.job_id)
    db.cancel(db.given_jobs("b")[0])


def drain(db: Database) -> int:
    """
    Complete all that may run, with what was leased before the way; return how many were claimed.
    """
    db.set_queue("paused", paused=False)
    db.call("resume_tenant", p_queue="default", p_tenant="paused")
    leased = db.rows("select l.job_id, l.lease_token from fairq.leases as l")
    assert {db.complete(job) for job in leased} == {True}
    jobs = [*db.claim(100), *db.claim(100, queue="paused")]
    assert set(db.complete_all(jobs).values()) == {"succeeded"}
    return len(jobs)


def contents(db: Database) -> dict[str, list[dict[str, Any]]]:
    """
    Every row of every table.
    """
    tables = db.rows("""
        select c.relname from pg_class as c
        where c.relnamespace = 'fairq'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
    """)
    rows = "select to_jsonb(t) as row from fairq.{} as t order by to_jsonb(t)::text"
    return {table.relname: [each.row for each in db.rows(rows.format(table.relname))] for table in tables}


def kept(old: dict[str, list[dict[str, Any]]], new: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """
    What of the newer rows the older version knows, too.
    """
    found = {}
    for table, rows in old.items():
        known = rows[0].keys() if rows else ()
        cut = [{column: row[column] for column in known} for row in new[table]]
        found[table] = [row for row in rows if row in cut] if len(cut) == len(rows) else cut
    return found


def snapshot(dsn: str, schema: str = "fairq") -> fairq_schema.Fingerprint:
    """
    What a schema is.
    """
    with psycopg.connect(dsn) as connection:
        return fairq_schema.fingerprint(connection, schema)


def old_differs_from_new(one: fairq_schema.Fingerprint, two: fairq_schema.Fingerprint) -> list[str]:
    """
    What is not the same, of something.
    """
    assert one.objects
    return one.differences(two)
