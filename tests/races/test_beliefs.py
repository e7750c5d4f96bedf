"""What no constraint forbids any more is noticed wherever the books are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .helpers import assert_agrees

if TYPE_CHECKING:
    from tests.support import Database

LEASE = """
    insert into fairq.jobs (job_id, queue, tenant, task) values (1, 'q', 't', 'k');
    insert into fairq.leases (
        job_id, queue, tenant, caller, lease_owner, lease_token, attempt, started_at, lease_expires_at, dispatch
    )
    values (1, 'q', 't', 'c', 'w', gen_random_uuid(), 0, now(), now() + interval '1 hour', 1)
"""
ENDED = """
    insert into fairq.finished_jobs (
        job_id, queue, tenant, task, payload, priority, state, attempts, max_attempts, run_at, cost, created_at,
        finished_at
    )
    values (1, 'q', 't', 'k', '{}', 2, 'dead', 1, 5, now(), 1, now(), now())
"""


@pytest.mark.once
@pytest.mark.parametrize(
    ("written", "noticed"),
    [
        ("insert into fairq.jobs (queue, tenant, task, cost) values ('q', 't', 'k', 0)", "a job as there is none"),
        (LEASE, "a lease as there is none"),
        (ENDED, "an ended job as there is none"),
        ("insert into fairq.ready_picks (queue, dispatch, jobs) values ('q', 1, '{}')", "nothing in it"),
    ],
    ids=["job", "lease", "ended", "picks"],
)
def test_a_row_that_no_function_writes_is_noticed(db: Database, written: str, noticed: str) -> None:
    """By name."""
    assert_agrees(db)
    db.execute(written)
    with pytest.raises(AssertionError, match=noticed):
        assert_agrees(db)
