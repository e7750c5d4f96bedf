"""The cast: two tenants with rows everywhere, and logins that mean no good."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from tests.support.database import Database, Session

OK = "done"
NOT_ALLOWED = "42501"


@dataclass
class World:
    """A database with two tenants, and what an attacker may have overheard of the other one."""

    db: Database
    running: dict[str, Any]  # tenant -> its claimed job, by a worker who is not the attacker

    def login(self, *groups: str, tenant: str | None = None) -> Session:
        """A new login in these groups, in a session of its own."""
        session = self.db.session(user=self.db.login(*groups))
        if tenant is not None:
            session.execute("select set_config('app.tenant_id', %s, false)", tenant)
        return session

    def tenant(self, tenant: str | None = "a") -> Session:
        """A login of fairq_tenant that says it is this tenant."""
        return self.login("fairq_tenant", tenant=tenant)

    def worker(self) -> Session:
        """A login of fairq_worker."""
        return self.login("fairq_worker")

    def producer(self) -> Session:
        """A login of fairq_producer."""
        return self.login("fairq_producer")

    def operator(self) -> Session:
        """A login of fairq_operator."""
        return self.login("fairq_operator")

    def stranger(self) -> Session:
        """A login that has no part in fairq."""
        return self.login()


TABLES_OF_TENANTS = ("jobs", "leases", "finished_jobs", "job_log", "all_jobs", "job_events")


def world(db: Database) -> World:
    """Give tenants a and b a queued, a running, a succeeded and a snoozed job each."""
    for tenant in "ab":
        db.given_jobs(tenant, 4, payload={"of": tenant})
    held = db.claim(6, owner="honest", lease=timedelta(hours=1))
    of = {tenant: [job for job in held if job.tenant == tenant] for tenant in "ab"}
    for jobs in of.values():
        assert len(jobs) == 3
        db.complete(jobs[0], {"secret": True})
        db.release(jobs[1], timedelta(hours=1))
    return World(db, {tenant: jobs[2] for tenant, jobs in of.items()})


def code(session: Session, statement: str, *args: Any) -> str:
    """What comes of a statement: its SQLSTATE, or `done`; nothing of it is kept, and the session lives on."""
    try:
        with session.conn.transaction(force_rollback=True):
            session.conn.execute(statement.encode(), args or None)
    except psycopg.Error as error:
        return error.sqlstate or type(error).__name__
    return OK


def codes(session: Session, statements: list[str]) -> dict[str, str]:
    """The same of many."""
    return {statement: code(session, statement) for statement in statements}


def refused(session: Session, statements: list[str], sqlstate: str = NOT_ALLOWED) -> None:
    """Assert that each of the statements is refused with this code."""
    let_through = {each: found for each, found in codes(session, statements).items() if found != sqlstate}
    assert not let_through, f"{session.conn.info.user}: {let_through}"


def seen(session: Session) -> set[str]:
    """The tenants that a session sees rows of, in any table or view that tenants may read."""
    return {
        row.tenant for table in TABLES_OF_TENANTS for row in session.rows(f"select distinct tenant from fairq.{table}")
    }
