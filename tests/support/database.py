"""The words tests are written in: a `Session` speaks fairq over one connection, a `Database` is a fresh clone."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row, namedtuple_row
from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Self

STATEMENT_TIMEOUT = "60s"


class Session:
    """
    One connection, and the functions of fairq as methods; each is one call, with the SQL defaults.

    A method that takes jobs takes what `claim` returned: anything with `job_id` and `lease_token`.
    """

    name = "worker"

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn

    # --- plain SQL -------------------------------------------------------------------------------------

    def execute(self, query: str, *args: Any) -> psycopg.Cursor[Any]:
        """Run one statement (several, when there are no arguments)."""
        return self.conn.execute(query, args or None)

    def rows(self, query: str, *args: Any) -> list[Any]:
        """All rows, as named tuples."""
        with self.conn.cursor(row_factory=namedtuple_row) as cursor:
            return cursor.execute(query, args or None).fetchall()

    def value(self, query: str, *args: Any) -> Any:
        """The one value of the one row."""
        rows = self.conn.execute(query, args or None).fetchall()
        assert len(rows) == 1, f"expected one row, got {len(rows)}: {query}"
        return rows[0][0]

    def call(self, function: str, **arguments: Any) -> list[Any]:
        """The rows of a function of fairq, arguments by name; those that are `...` keep their SQL default."""
        given = {name: value for name, value in arguments.items() if value is not ...}
        pairs = [sql.SQL("{} => {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in given]
        query = sql.SQL("select * from fairq.{}({})").format(sql.Identifier(function), sql.SQL(", ").join(pairs))
        with self.conn.cursor(row_factory=namedtuple_row) as cursor:
            return cursor.execute(query, given).fetchall()

    def call_one(self, function: str, **arguments: Any) -> Any:
        """The value of a function of fairq that returns a scalar."""
        return self.call(function, **arguments)[0][0]

    # --- given -----------------------------------------------------------------------------------------

    def given_jobs(self, tenant: str, n: int = 1, queue: str = "default", **wishes: Any) -> list[int]:
        """
        Enqueue `n` equal jobs and return their ids, oldest first.

        `wishes` are the keys of `enqueue_jobs`: task, payload, run_at, delay, priority, max_attempts, cost.
        """
        job = {"tenant": tenant, "task": "work", "queue": queue} | {k: _plain(v) for k, v in wishes.items()}
        return [row.job_id for row in self.enqueue_jobs([job] * n)]

    def set_tenant(self, tenant: str, queue: str = "default", **wish: Any) -> None:
        """State an operator's whole wish for one tenant of one queue: weight, max_running, paused."""
        self.call("set_tenant", p_queue=queue, p_tenant=tenant, **_named(wish))

    def set_queue(self, queue: str = "default", **settings: Any) -> None:
        """State an operator's wish for a queue; settings by their SQL names without `p_`."""
        self.call("set_queue", p_queue=queue, **_named(settings))

    # --- verbs -----------------------------------------------------------------------------------------

    def enqueue(self, tenant: str, task: str = "work", payload: Any = ..., **options: Any) -> Any:
        """Enqueue one job: a row (job_id, created). Options by their SQL names without `p_`."""
        payload = payload if payload is ... else Jsonb(payload)
        return self.call("enqueue_job", p_tenant=tenant, p_task=task, p_payload=payload, **_named(options))[0]

    def enqueue_jobs(self, jobs: Sequence[dict[str, Any]]) -> list[Any]:
        """Enqueue a batch: rows (ordinal, job_id, outcome) in input order."""
        return self.call("enqueue_jobs", p_jobs=Jsonb(list(jobs)))

    def claim(self, n: int = 1, queue: str = "default", owner: str | None = None, **options: Any) -> list[Any]:
        """Claim up to `n` jobs: rows of `claimed_job` in pick order. Options: lease, tenant, async_commit."""
        return self.call("claim_jobs", p_queue=queue, p_owner=owner or self.name, p_limit=n, **_named(options))

    def renew(self, job: Any, lease: Any = ...) -> bool:
        """Keep a job longer; False means stop working on it."""
        return bool(self.call_one("renew_job_lease", **_held(job), p_lease=lease))

    def complete(self, job: Any, result: Any = ...) -> bool:
        """The job is done; False means that its lease was lost."""
        result = result if result is ... else Jsonb(result)
        return bool(self.call_one("complete_job", **_held(job), p_result=result))

    def complete_all(self, jobs: Iterable[Any]) -> dict[int, str]:
        """Complete a batch: job id to outcome."""
        return self._batch("complete_jobs", jobs)

    def fail(self, job: Any, **how: Any) -> str | None:
        """The attempt failed: the new state, None when its lease was lost. How: error, retry_delay, retry."""
        state: str | None = self.call_one("fail_job", **_held(job), **_named(how))
        return state

    def release(self, job: Any, delay: Any = ...) -> str | None:
        """Give the job and its attempt back: the new state, None when its lease was lost."""
        state: str | None = self.call_one("release_job", **_held(job), p_delay=delay)
        return state

    def renew_all(self, jobs: Iterable[Any], lease: Any = ...) -> dict[int, str]:
        """Renew a batch: job id to outcome."""
        return self._batch("renew_job_leases", jobs, p_lease=lease)

    def fail_all(self, jobs: Iterable[Any], **how: Any) -> dict[int, str]:
        """Fail a batch: job id to outcome. How: errors, retry_delay, retry."""
        return self._batch("fail_jobs", jobs, **_named(how))

    def release_all(self, jobs: Iterable[Any], delay: Any = ...) -> dict[int, str]:
        """Release a batch: job id to outcome."""
        return self._batch("release_jobs", jobs, p_delay=delay)

    def expire(self, queue: Any = ..., limit: Any = ...) -> int:
        """Take back jobs whose lease is over: how many."""
        return int(self.call_one("release_expired_jobs", p_queue=queue, p_limit=limit))

    def promote(self, queue: Any = ..., limit: Any = ...) -> int:
        """Queue the scheduled jobs that are due: how many."""
        return int(self.call_one("promote_due_jobs", p_queue=queue, p_limit=limit))

    def cancel(self, job_id: int) -> str:
        """Cancel a job: the outcome."""
        return str(self.call_one("cancel_job", p_job_id=job_id))

    def retry(self, job_id: int) -> str:
        """Put a dead or cancelled job back: the outcome."""
        return str(self.call_one("retry_job", p_job_id=job_id))

    def reschedule(self, job_id: int, **wish: Any) -> str:
        """Change when or how urgently a waiting job runs: the outcome. Wishes: run_at, delay, priority."""
        return str(self.call_one("reschedule_job", p_job_id=job_id, **_named(wish)))

    # --- then ------------------------------------------------------------------------------------------

    def job(self, job_id: int) -> dict[str, Any]:
        """The job as `all_jobs` shows it, wherever it is."""
        with self.conn.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute("select * from fairq.all_jobs where job_id = %s", [job_id]).fetchall()
        assert len(rows) == 1, f"job {job_id} has {len(rows)} rows in all_jobs"
        return rows[0]

    def state(self, job_id: int) -> str:
        """The job's state in the user's words."""
        return str(self.job(job_id)["state"])

    def states(self, tenant: str) -> dict[str, int]:
        """How many of a tenant's jobs are in each state."""
        query = "select state, count(*) from fairq.all_jobs where tenant = %s group by state"
        return dict(self.rows(query, tenant))

    def job_ids(self, tenant: str) -> list[int]:
        """Every job of a tenant, wherever it is, oldest first."""
        rows = self.rows("select job_id from fairq.all_jobs where tenant = %s order by job_id", tenant)
        return [row.job_id for row in rows]

    def _batch(self, function: str, jobs: Iterable[Any], **arguments: Any) -> dict[int, str]:
        held = list(jobs)
        arguments["p_job_ids"] = [job.job_id for job in held]
        arguments["p_tokens"] = [job.lease_token for job in held]
        return {row.job_id: row.outcome for row in self.call(function, **arguments)}


class Database(Session):
    """A fresh database: itself a session of a superuser in autocommit, and the maker of further ones."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.dbname = str(conninfo_to_dict(dsn)["dbname"])
        self._connections: list[psycopg.Connection[Any]] = []
        self._roles: list[str] = []
        super().__init__(self.connect(application_name="test"))

    def __enter__(self) -> Self:
        """Hold the database for a while."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close its connections."""
        self.close()

    def connect(
        self,
        *,
        autocommit: bool = True,
        role: str | None = None,
        statement_timeout: str = STATEMENT_TIMEOUT,
        lock_timeout: str = "0",
        **how: Any,
    ) -> psycopg.Connection[Any]:
        """
        A real connection, closed with the database. `how` is for libpq: `user=`, `application_name=`.

        `role` is taken by `set role`; `user` logs in as that role (see `login`), which hides no right. Where a call is
        not to wait for anybody, `lock_timeout` says so: a `statement_timeout` counts the slowness of the machine, too.
        """
        timeouts = f"-c statement_timeout={statement_timeout} -c lock_timeout={lock_timeout}"
        dsn = make_conninfo(self.dsn, options=timeouts, **how)
        conn = psycopg.connect(dsn, autocommit=True)
        self._connections.append(conn)
        if role is not None:
            conn.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
        conn.autocommit = autocommit
        return conn

    def session(self, **how: Any) -> Session:
        """`connect`, with the verbs."""
        return Session(self.connect(**how))

    def login(self, *groups: str) -> str:
        """A new role that may log in and is a member of `groups`; dropped with the database."""
        name = f"{self.dbname}_login_{len(self._roles) + 1}"
        self._as_admin(sql.SQL("create role {} login").format(sql.Identifier(name)))
        self._roles.append(name)
        for group in groups:
            self._as_admin(sql.SQL("grant {} to {}").format(sql.Identifier(group), sql.Identifier(name)))
        return name

    def close(self) -> None:
        """Close every connection made here and drop the roles."""
        for conn in self._connections:
            conn.close()
        self._connections.clear()
        for name in self._roles:
            self._as_admin(sql.SQL("drop owned by {}").format(sql.Identifier(name)))
            self._as_admin(sql.SQL("drop role {}").format(sql.Identifier(name)))
        self._roles.clear()

    def _as_admin(self, command: sql.Composed) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(command)


def _held(job: Any) -> dict[str, Any]:
    return {"p_job_id": job.job_id, "p_token": job.lease_token}


def _named(arguments: dict[str, Any]) -> dict[str, Any]:
    return {f"p_{name}": value for name, value in arguments.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} seconds"
    return value
