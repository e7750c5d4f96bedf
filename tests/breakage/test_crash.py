"""The server is killed in the middle of a storm, or restarted in peace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.races.helpers import check_books, ids, look
from tests.support import Database

from .crew import Crew, account, prepare

if TYPE_CHECKING:
    from tests.support.servers import LocalServer


@pytest.mark.parametrize(
    ("async_commit", "read_ahead"), [(False, 0), (True, 0), (True, 20)], ids=["sync", "async", "ahead"]
)
def test_a_crash_loses_nothing(private_server: LocalServer, read_ahead: int, *, async_commit: bool) -> None:
    """The server dies by SIGKILL in a storm, twice: what it had acknowledged is there, and the storm goes on."""
    with private_server.databases.clone() as db:
        dsn = db.dsn
        prepare(db, read_ahead)
        with Crew(dsn, async_commit=async_commit) as crew:
            for _ in range(2):
                crew.complete_more()
                private_server.kill9()
                private_server.restart()
            crew.all_turn()
        assert crew.errors["connection"] > 0
        with Database(dsn) as after:
            account(after, crew)


def test_a_restart_keeps_the_leases(private_server: LocalServer) -> None:
    """Faults 32: a worker that outlives a restart of the server completes its job under its lease."""
    with private_server.databases.clone() as db:
        dsn, jobs = db.dsn, db.given_jobs("a", 2)
        (held,) = db.claim(1)
        private_server.restart()
        with Database(dsn) as after:
            assert ids(after.claim(10)) == jobs[1:]
            assert after.complete(held)
            look(after)
            check_books(after, jobs)
