"""
Clients that go on whatever breaks, and what must be true of all that they were told.

Each client is a producer and a worker. It repeats what was not answered: an enqueue under its key, a completion under
its token. So every job is accounted for by the keys, and the effects of every job by a table that is written in the
transaction of its completion.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import make_conninfo

from tests.races.helpers import check_books, drain, let_leases_end
from tests.support import Database, Session, in_background, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from tests.support.servers import LocalServer

CAP = 2
TENANTS = ("a", "b", "capped")
LEASE = timedelta(seconds=1)

# What a client makes of an error by trying again: the server is away, full, or busy. Everything else is a fault.
AGAIN = (
    psycopg.OperationalError,  # no connection, 53xxx, 57014, 57P01 to 57P03, 55P03
    psycopg.errors.IdleInTransactionSessionTimeout,  # too slow between two statements, or so it seemed by the clock
    psycopg.errors.ReadOnlySqlTransaction,  # a standby
    psycopg.errors.ObjectNotInPrerequisiteState,  # a standby that is being promoted
)

PREPARE = """
    create table public.effects (job_id bigint not null, client text not null);
    grant insert on public.effects to fairq_worker
"""
RUNNING = "select count(*) from fairq.leases where tenant = 'capped'"


def anywhere(*servers: LocalServer, dbname: str, **options: Any) -> str:
    """The conninfo of a database that is wherever the one writable server is, as clients of a failover use it."""
    return make_conninfo(
        "",
        host=",".join(str(server.folder) for server in servers),
        port=",".join(server.port for server in servers),
        user="postgres",
        dbname=dbname,
        **{"target_session_attrs": "read-write", **options},
    )


class Client:
    """One producer and worker; what it was told is in `enqueued`, `started` and `completed`."""

    def __init__(self, dsn: str, number: int, stop: threading.Event, *, async_commit: bool, turns: int | None) -> None:
        self.name = f"client-{number}"
        self.enqueued: dict[str, int] = {}
        self.tried: set[str] = set()
        self.started: list[int] = []
        self.completed: list[int] = []
        self.errors: Counter[str] = Counter()
        self.turns = 0
        self._dsn = make_conninfo(
            dsn, application_name=self.name, connect_timeout=10, options="-c statement_timeout=60s"
        )
        self._random = random.Random(number)
        self._stop = stop
        self._async_commit = async_commit
        # how long a connection is kept
        self._stay = turns
        self._session: Session | None = None
        self._jobs = 0
        # what was sent and not answered yet
        self._pending: list[dict[str, Any]] = []
        self._held: list[Any] = []

    def run(self) -> None:
        """Take turns until told to stop; the last one is finished."""
        try:
            while not self._stop.is_set() or self._pending or self._held:
                self._try_a_turn()
        finally:
            self._leave()

    def _try_a_turn(self) -> None:
        try:
            if self._session is None:
                self._session = Session(psycopg.connect(self._dsn, autocommit=True))
            self._turn(self._session)
            if self._stay and self.turns % self._stay == 0:
                self._leave()
        except AGAIN as error:
            self.errors[error.sqlstate or "connection"] += 1
            self._leave()
            # as a client that backs off; nothing is awaited by it
            threading.Event().wait(self._random.uniform(0.02, 0.2))

    def _turn(self, session: Session) -> None:
        if not self._pending and not self._stop.is_set():
            self._pending = [self._job() for _ in range(3)]
        if self._pending:
            self.tried.update(job["key"] for job in self._pending)
            rows = session.enqueue_jobs(self._pending)
            assert {row.outcome for row in rows} <= {"created", "exists"}
            self.enqueued |= {job["key"]: row.job_id for job, row in zip(self._pending, rows, strict=True)}
            self._pending = []
        if not self._held and not self._stop.is_set():
            with session.conn.transaction():
                held = session.claim(4, owner=self.name, lease=LEASE, async_commit=self._async_commit)
                assert session.value(RUNNING) <= CAP, "more than the cap run together"
            self._held = held
            self.started += [job.job_id for job in self._held]
        if self._held:
            self._work(session, self._held)
            self._held = []
        self.turns += 1

    def _work(self, session: Session, jobs: list[Any]) -> None:
        # one of many is given up, fails, or is forgotten until its lease is over
        fate = self._random.randrange(12)
        done = jobs if fate > 2 else jobs[1:]
        if done:
            with session.conn.transaction():
                outcomes = session.complete_all(done)
                mine = [job for job, outcome in outcomes.items() if outcome == "succeeded"]
                session.execute("insert into public.effects select unnest(%s::bigint[]), %s", mine, self.name)
            # one that had succeeded before did so by the same call, of which the answer was lost
            done_now = [job for job, outcome in outcomes.items() if outcome.endswith("succeeded")]
            self.completed += [job for job in done_now if job not in self.completed]
        if fate == 0:
            session.fail(jobs[0], error="again", retry_delay=timedelta(0))
        elif fate == 1:
            session.release(jobs[0])

    def _job(self) -> dict[str, Any]:
        self._jobs += 1
        key = f"{self.name}/{self._jobs}"
        return {"tenant": self._random.choice(TENANTS), "task": "work", "key": key, "max_attempts": 1000}

    def _leave(self) -> None:
        if self._session is not None:
            with suppress(psycopg.Error):
                self._session.conn.close()
        self._session = None


class Crew:
    """
    Some clients at work: `with Crew(dsn) as crew`. Leaving waits for them, and raises what one could not bear.

    With `turns` each keeps a connection for so many turns only.
    """

    def __init__(self, dsn: str, clients: int = 6, *, async_commit: bool = False, turns: int | None = None) -> None:
        self._stop = threading.Event()
        self.clients = [Client(dsn, n, self._stop, async_commit=async_commit, turns=turns) for n in range(clients)]
        self._runs = [in_background(client.run) for client in self.clients]

    def __enter__(self) -> Self:
        """They have begun."""
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        """Let them finish what they have begun."""
        self._stop.set()
        if kind is None:
            for run in self._runs:
                run.result(120)

    def complete_more(self, count: int = 90) -> None:
        """Come back when so many more jobs are completed."""
        before = self._completed()
        wait_until(lambda: self._fault() or self._completed() >= before + count, "the storm to go on", 120)

    def all_turn(self) -> None:
        """Come back when each client has finished a turn that it begins from now on."""
        before = {client: client.turns for client in self.clients}
        wait_until(
            lambda: self._fault() or all(client.turns >= before[client] + 2 for client in self.clients),
            "each client to go on",
            120,
        )

    @property
    def errors(self) -> Counter[str]:
        """What the clients met and bore, by SQLSTATE."""
        return sum((client.errors for client in self.clients), Counter())

    def told(self, what: Callable[[Client], Any]) -> list[Any]:
        """All that the clients were told, in one list."""
        return [item for client in self.clients for item in what(client)]

    def _completed(self) -> int:
        return sum(len(client.completed) for client in self.clients)

    def _fault(self) -> None:
        for run in self._runs:
            if not run.running():
                run.result()


def account(db: Database, crew: Crew, *, may_forget: bool = False) -> None:
    """
    Account for every job of a crew that has left, then run all that is left.

    `may_forget`: the server may have forgotten the end of what it had acknowledged, but nothing in the middle.
    """
    keys = Counter(row.operation_key for row in db.rows("select operation_key from fairq.all_jobs"))
    assert set(keys.values()) <= {1}, "a key has two jobs"
    assert set(keys) <= set().union(*(client.tried for client in crew.clients)), "a job that nobody enqueued"
    state = {row.job_id: row.state for row in db.rows("select job_id, state from fairq.all_jobs")}
    succeeded = {job for job, became in state.items() if became == "succeeded"}
    effects = Counter(row.job_id for row in db.rows("select job_id from public.effects"))
    assert set(effects.values()) <= {1}, "effects of one job twice"
    assert set(effects) == succeeded, "effects of what has not succeeded, or none of what has"
    if may_forget:
        assert all(is_one_gap([key in keys for key in client.enqueued]) for client in crew.clients)
    else:
        assert set(crew.told(lambda client: client.enqueued)) <= set(keys), "an acknowledged job is lost"
        assert set(crew.told(lambda client: client.enqueued.values())) <= set(state), "an acknowledged job is lost"
        assert set(crew.told(lambda client: client.completed)) <= succeeded, "an acknowledged end is lost"
        assert max(Counter(crew.told(lambda client: client.completed)).values()) == 1

    let_leases_end(db)
    check_books(db, list(state))
    waiting = [row.job_id for row in db.rows("select job_id from fairq.jobs")]
    ran = drain(db)
    assert Counter(ran) == Counter(waiting), "what waits is not handed out once each"
    check_books(db, list(state))
    assert db.value("select sum(running) from fairq.flows") == 0


def is_one_gap(kept: list[bool]) -> bool:
    """Whether what was forgotten is one piece of what a client was told, in that order."""
    return sum(before and not after for before, after in pairwise([True, *kept])) <= 1


def prepare(db: Database, read_ahead: int = 0) -> None:
    """A cap, and a table for the effects of jobs."""
    db.set_queue(read_ahead=read_ahead)
    db.set_tenant("capped", max_running=CAP)
    db.execute(PREPARE)
