"""The clock of the server steps: forward, and back, under libfaketime."""

from __future__ import annotations

import shutil
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.races.helpers import check_books, ids
from tests.support import in_background, wait_until
from tests.support.binaries import CACHE
from tests.support.servers import temporary_folder

from .crew import Crew, account, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support import Database
    from tests.support.servers import LocalServer

pytestmark = pytest.mark.once

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


class Clock:
    """The clock of a server, which `step` moves against that of everybody else."""

    def __init__(self, folder: Path, library: str) -> None:
        self._file = folder / "time"
        self._offset = timedelta(0)
        self.step(timedelta(0))
        self.environment = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DISABLE_SHM": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, by: timedelta) -> None:
        """Move the clock, at once."""
        self._offset += by
        # never half written: the server reads it all the time
        new = self._file.with_suffix(".new")
        new.write_text(f"{self._offset.total_seconds():+.0f}")
        new.chmod(0o644)
        new.replace(self._file)


@pytest.fixture
def clock() -> Iterator[Clock]:
    """A clock for one server."""
    found = list((CACHE / "faketime").glob("usr/lib/*/faketime/libfaketimeMT.so.1"))
    if not found:
        pytest.fail("no libfaketime here: `ci/fetch faketime` brings it")
    folder = temporary_folder()
    # where the user that runs the server may read it
    library = shutil.copy(found[0], folder)
    yield Clock(folder, library)
    shutil.rmtree(folder)


@pytest.fixture
def db(start_server: Callable[..., LocalServer], clock: Clock) -> Iterator[Database]:
    """A database on a server with that clock."""
    with start_server(environment=clock.environment).databases.keep() as fresh:
        yield fresh


def test_a_clock_that_jumps_ahead_ends_leases(db: Database, clock: Clock) -> None:
    """All leases are over at once: the jobs start again elsewhere, and the first workers are fenced."""
    jobs = db.given_jobs("a", 3)
    later = db.given_jobs("a", 1, delay=MINUTE)
    first = db.claim(3, lease=MINUTE)
    clock.step(HOUR)
    second = db.claim(10, lease=MINUTE)
    assert sorted(ids(second)) == jobs + later
    assert set(db.complete_all(first).values()) == {"lost"}
    assert db.renew(second[0])
    assert set(db.complete_all(second).values()) == {"succeeded"}
    check_books(db, jobs + later)


def test_a_clock_that_jumps_ahead_ends_transactions(db: Database, clock: Clock) -> None:
    """PostgreSQL's timers go by its clock: what a session was allowed is over, and what it had claimed still waits."""
    (job,) = db.given_jobs("a", 1)
    worker = db.session()
    worker.execute("set statement_timeout = '10s'")
    # leaves an alarm behind, and at that the server looks what is over
    worker.execute("set statement_timeout = '30min'")
    worker.execute("begin")
    assert ids(worker.claim(1)) == [job]
    number = "generate_series(1, 100000)"
    work = in_background(lambda: worker.execute(f"select count(*) from {number} as a, {number} as b, {number} as c"))
    at_work = "select state = 'active' and query like '%%as c' from pg_stat_activity where pid = %s"
    wait_until(lambda: db.value(at_work, worker.conn.info.backend_pid), "the work to begin")
    clock.step(HOUR)
    with pytest.raises(psycopg.errors.QueryCanceled):
        work.result(60)
    worker.execute("rollback")
    assert ids(db.claim(1)) == [job]
    check_books(db, [job])


def test_a_clock_that_is_set_back_keeps_leases(db: Database, clock: Clock) -> None:
    """
    No job is handed out while its lease holds by the server's clock, and what waits starts.

    None is stuck for longer than the step: neither a dead worker's job, nor a retry, nor a tenant without tokens.
    """
    db.set_tenant("limited", rate=0.1)
    waiting, limited = db.given_jobs("a", 4), db.given_jobs("limited", 2)
    first = db.claim(3, lease=MINUTE, tenant="a")
    (spent,) = db.claim(5, tenant="limited")
    assert db.complete(spent)
    alive, dead, failed = first
    assert db.fail(failed, retry_delay=MINUTE) == "scheduled"
    clock.step(-HOUR)

    assert db.renew(alive, MINUTE)
    assert ids(db.claim(10)) == waiting[3:]
    new = db.given_jobs("a", 1)
    assert ids(db.claim(10)) == new
    clock.step(2 * MINUTE)
    # by this clock, the leases alone are over that it has given itself, for half a minute
    assert sorted(ids(db.claim(10, tenant="a"))) == waiting[3:] + new
    assert db.complete(alive)
    clock.step(HOUR)
    again = db.claim(10)
    assert {dead.job_id, failed.job_id, limited[1]} <= set(ids(again))
    assert not db.complete(dead)
    check_books(db, waiting + limited + new)


def test_a_storm_under_a_clock_that_steps(db: Database, clock: Clock) -> None:
    """An hour ahead, back, and ahead again, while clients work: each job's effects are there once."""
    prepare(db)
    with Crew(db.dsn) as crew:
        for step in (HOUR, -HOUR, HOUR):
            crew.complete_more()
            clock.step(step)
        crew.complete_more()
    account(db, crew)
