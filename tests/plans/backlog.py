"""Backlogs by the hundred thousand, put in at once and never analyzed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.database import Database

FILL = """
    insert into fairq.jobs (queue, tenant, task, priority, state, run_at)
    select %(queue)s, %(prefix)s || n %% %(tenants)s, 'work', %(priority)s, %(state)s, clock_timestamp() + %(delay)s
    from generate_series(1, %(jobs)s) as n
"""


def fill(db: Database, jobs: int, tenants: int, **how: Any) -> None:
    """Put in jobs, the tenants taking turns. `how`: queue, prefix (of the tenants' names), priority, state, delay."""
    kind = {"queue": "default", "prefix": "t", "priority": 2, "state": "queued", "delay": "0"}
    with db.connect(statement_timeout="0") as conn:
        conn.execute(FILL, {"jobs": jobs, "tenants": tenants} | kind | how)
