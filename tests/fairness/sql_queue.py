"""
The real thing behind the interface of the model: a queue of its own in a database.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

_names = count(1)

LEASE = "10 minutes"  # longer than any test


class SqlQueue:
    """
    Every method is one committed transaction; jobs are numbered from 0 in the order of enqueueing.
    """

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        assert conn.autocommit
        self.conn = conn
        self.name = f"queue-{next(_names)}"
        self.jobs: list[int] = []  # ids
        self.tenants: list[str] = []
        self.numbers: dict[int, int] = {}
        self.tokens: dict[int, Any] = {}

    def enqueue(self, tenant: str, count: int = 1, priority: int = 2, run_at: int = 0) -> list[int]:
        """
        Enqueue equal jobs, one by one below a hundred, else as a superuser loads them.
        """
        if count < 100:
            query = """
                select (fairq.enqueue_job(
                    %s, 'work', p_queue => %s, p_priority => %s, p_max_attempts => 1000,
                    p_run_at => timestamptz '2001-01-01' + make_interval(secs => %s))).job_id
                from generate_series(1, %s)"""
            rows = self.conn.execute(query, [tenant, self.name, priority, run_at, count])
        else:
            query = """
                insert into fairq.jobs (tenant, task, queue, priority, max_attempts, run_at)
                select %s, 'work', %s, %s, 1000, timestamptz '2001-01-01' + make_interval(secs => %s)
                from generate_series(1, %s)
                returning job_id"""
            rows = self.conn.execute(query, [tenant, self.name, priority, run_at, count])
        ids = sorted(job_id for (job_id,) in rows)
        first = len(self.jobs)
        numbers = list(range(first, first + count))
        assert len({*ids}) == count
        self.jobs += ids
        self.tenants += [tenant] * count
        self.numbers.update(zip(ids, numbers, strict=True))
        return numbers

    def claim(self, n: int, tenant: str | None = None) -> list[int]:
        """
        Claim jobs.
        """
        rows = self.conn.execute(
            "select job_id, lease_token from fairq.claim_jobs(%s, 'oracle', %s, %s, %s)", [self.name, n, LEASE, tenant]
        ).fetchall()
        jobs = [self.numbers[job_id] for job_id, _ in rows]
        self.tokens.update(zip(jobs, (token for _, token in rows), strict=True))
        return jobs

    def complete(self, job: int) -> None:
        """
        Complete a running job.
        """
        assert self._value("select fairq.complete_job(%s, %s)", self.jobs[job], self.tokens[job])

    def fail(self, job: int, *, retry: bool = True) -> None:
        """
        Fail a running job, to be retried at once or not at all.
        """
        query = "select fairq.fail_job(%s, %s, 'no', interval '0', %s)"
        assert self._value(query, self.jobs[job], self.tokens[job], retry)

    def release(self, job: int) -> None:
        """
        Give a running job back.
        """
        assert self._value("select fairq.release_job(%s, %s)", self.jobs[job], self.tokens[job])

    def expire(self, job: int) -> None:
        """
        Let a running job's lease be over.
        """
        with self.conn.transaction():
            self.conn.execute(
                "update fairq.leases set lease_expires_at = started_at + interval '1 us' where job_id = %s",
                [self.jobs[job]],
            )
            assert self._value("select fairq.release_expired_jobs(%s)", self.name) == 1

    def cancel(self, job: int) -> None:
        """
        Cancel a waiting job or ask a running one to stop.
        """
        assert self._value("select fairq.cancel_job(%s)", self.jobs[job]) in ("cancelled", "cancel_requested")

    def cancel_all(self, tenant: str) -> None:
        """
        Cancel all that waits of a tenant: one by one below a thousand, else the rows go as a cancellation takes them.
        """
        waiting = """
            from fairq.jobs as j
            where j.queue = %s and j.tenant = %s
              and not exists (select from fairq.leases as l where l.job_id = j.job_id)"""
        if self._value(f"select count(*) {waiting}", self.name, tenant) < 1000:
            self.conn.execute(f"select count(fairq.cancel_job(j.job_id)) {waiting}", [self.name, tenant])
        else:
            self.conn.execute(f"delete {waiting}", [self.name, tenant])

    def set_tenant(self, tenant: str, weight: float = 1, cap: int | None = None, *, paused: bool = False) -> None:
        """
        State the operator's wish for a tenant.
        """
        self.conn.execute("select fairq.set_tenant(%s, %s, %s, %s, %s)", [self.name, tenant, weight, cap, paused])

    def set_queue(self, *, paused: bool) -> None:
        """
        Pause or resume the queue.
        """
        self.conn.execute("select fairq.set_queue(%s, p_paused => %s)", [self.name, paused])

    def tenant_of(self, job: int) -> str:
        """
        Whose job it is.
        """
        return self.tenants[job]

    def _value(self, query: str, *args: Any) -> Any:
        return self.conn.execute(query, args).fetchone()[0]  # type: ignore[index]
