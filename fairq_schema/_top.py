"""
One look at all that goes on: queues, tenants, the dead, and who holds what.

It changes nothing and holds up nobody: each part reads in one read-only transaction and is cut off after two seconds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.rows import class_row

from fairq_schema._rename import DEFAULT_SCHEMA
from fairq_schema._session import Connection, session
from fairq_schema._statements import statements
from fairq_schema.errors import NotInstalledError, NotPermittedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

ORDERS = ("backlog", "share", "turn")
_LONGEST = "2s"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Server:
    """
    The server, and who looks at it.
    """

    database: str
    login: str
    version: int  # of the schema
    looked_at: datetime
    sees_sessions: bool  # whether the login sees what others do, as members of pg_monitor do
    connections: int
    most_connections: int
    notify_queue: float  # 0 to 1: full


@dataclass(frozen=True, slots=True)
class Queue:
    """
    A queue; times in seconds, counts that stop at 10,000.
    """

    queue: str
    paused: bool
    charge: str
    max_running: int | None
    rate: float | None
    tenants: int
    eligible_tenants: int
    queued: int
    scheduled: int
    running: int
    per_second: float  # jobs started, in the last minute
    oldest_wait: float | None
    last_claim: float | None  # None: nobody ever claimed from it
    expired: int
    dead: int


@dataclass(frozen=True, slots=True)
class Tenant:
    """
    A tenant of a queue; times in seconds, counts that stop at 1,000.
    """

    queue: str
    tenant: str
    weight: float
    queued: int
    backlog_share: float | None  # its part of the queue's backlog, about
    running: int
    per_second: float
    share: float | None
    entitled: float | None
    oldest_wait: float | None
    lag_jobs: float | None
    lag_seconds: float | None
    blocked_by: str | None


@dataclass(frozen=True, slots=True)
class Dead:
    """
    A job that died, how many seconds ago, and of what.
    """

    job_id: int
    queue: str
    tenant: str
    task: str
    attempts: int
    ago: float
    error: str


@dataclass(frozen=True, slots=True)
class Lock:
    """
    Who holds a queue's lock, how many wait for it; what only members of pg_monitor see is None for others.
    """

    queue: str
    pid: int
    login: str | None
    application: str | None
    state: str | None
    age: float | None  # of its transaction, in seconds
    waiting: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """
    What keeps dead rows from being removed: a session, a standby, a prepared transaction or a replication slot.
    """

    kind: str
    name: str
    login: str | None
    application: str | None
    state: str | None
    age: float | None  # seconds; None where the login may not see it, and for slots
    transactions: int  # begun since


@dataclass(frozen=True, slots=True)
class Look:
    """
    All that one look saw, and notes on what it could not see.
    """

    server: Server
    queues: tuple[Queue, ...]
    tenants: tuple[Tenant, ...]
    dead: tuple[Dead, ...]
    locks: tuple[Lock, ...]
    snapshots: tuple[Snapshot, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """
        Return it as what JSON can hold.
        """
        document = asdict(self)
        document["server"]["looked_at"] = self.server.looked_at.isoformat()
        return document


@dataclass(frozen=True, slots=True)
class Wanted:
    """
    What to look at.
    """

    schema: str = DEFAULT_SCHEMA
    queue: str | None = None
    tenants: int = 10  # of each queue
    queues: int = 8  # whose tenants are looked at, those with most jobs first
    by: str = "backlog"


def look(connection: str | Connection, wanted: Wanted) -> Look:
    """
    Look once.
    """
    with session(connection) as conn:
        return _Looker(conn, wanted).look()


class _Looker:
    def __init__(self, conn: Connection, wanted: Wanted) -> None:
        self.conn = conn
        self.wanted = wanted
        self.texts = statements("top.sql", wanted.schema)
        self.notes: list[str] = []

    def look(self) -> Look:
        with self.conn.transaction():
            self.conn.execute("set transaction isolation level read committed, read only")
            self.conn.execute("set local search_path = pg_catalog, pg_temp")
            self.conn.execute(f"set local statement_timeout = '{_LONGEST}'".encode())
            self.conn.execute("set local lock_timeout = '200ms'")
            self.conn.execute("set local application_name = 'fairq top'")
            (server,) = self._first()
            queue, limit = self.wanted.queue, self.wanted.tenants
            queues = self._part("queues", Queue, queue=queue)
            shown = [each.queue for each in queues if each.tenants or each.queued][: self.wanted.queues]
            found = Look(
                server=server,
                queues=queues,
                tenants=tuple(self._tenants(shown, limit)),
                dead=self._part("dead", Dead, queue=queue, limit=5),
                locks=self._part("locks", Lock, queue=queue),
                snapshots=self._part("snapshots", Snapshot, limit=5),
                notes=(),
            )
        if not server.sees_sessions:
            self.notes.append(
                "ages, states and names of other sessions are for members of pg_monitor: "
                f'grant pg_monitor to "{server.login}";'
            )
        values = {field.name: getattr(found, field.name) for field in fields(found)}
        return Look(**values | {"notes": tuple(self.notes)})

    def _first(self) -> tuple[Server, ...]:
        try:
            return self._rows("server", Server, {})
        except (psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName):
            message = f"there is no fairq in schema {self.wanted.schema} that this version can look at: fairq status"
            raise NotInstalledError(message) from None
        except psycopg.errors.InsufficientPrivilege as error:
            raise self._not_allowed(error) from None

    def _not_allowed(self, error: psycopg.Error) -> NotPermittedError:
        who = self.conn.info.user
        return NotPermittedError(
            f'{error.diag.message_primary}; to look takes an operator: grant fairq_operator to "{who}";'
        )

    def _tenants(self, queues: list[str], limit: int) -> Iterator[Tenant]:
        for queue in queues:
            yield from self._part("tenants", Tenant, queue=queue, limit=limit, by=self.wanted.by)

    def _part(self, name: str, kind: type[_T], **parameters: object) -> tuple[_T, ...]:
        try:
            with self.conn.transaction():
                return self._rows(name, kind, parameters)
        except psycopg.errors.InsufficientPrivilege as error:
            raise self._not_allowed(error) from None
        except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable) as error:
            where = f" of queue {parameters['queue']}" if parameters.get("queue") else ""
            self.notes.append(f"{name}{where}: not seen within {_LONGEST} ({error.diag.message_primary})")
            return ()

    def _rows(self, name: str, kind: type[_T], parameters: dict[str, object]) -> tuple[_T, ...]:
        with self.conn.cursor(row_factory=class_row(kind)) as cursor:
            return tuple(cursor.execute(self.texts[name].encode(), parameters or None).fetchall())
