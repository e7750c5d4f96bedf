"""
The real thing behind the interface of the model: a queue of its own in a database.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

_names = count(1)

LEASE = "10 minutes"  # longer than any test

# The simulated clock starts beyond the real one: whatever the real clock judges is in order.
START = datetime(2100, 1, 1, tzinfo=timezone.utc)

# What claim_jobs() sets for the steps it calls; here some steps are called directly.
PLANNER = """
    set plan_cache_mode = force_generic_plan;
    set enable_seqscan = off;
    set enable_bitmapscan = off;
    set enable_hashjoin = off;
    set enable_mergejoin = off;
    set enable_material = off;
    set jit = off
"""


def _span(microseconds: int) -> timedelta:
    return timedelta(microseconds=microseconds)


class SqlQueue:
    """
    Every method is one committed transaction; jobs are numbered from 0 in the order of enqueueing.

    A simulated clock is the argument p_now of the functions inside; without one the public functions are called.
    """

    def __init__(self, conn: psycopg.Connection[Any], *, simulated: bool = False) -> None:
        assert conn.autocommit
        self.conn = conn
        self.name = f"queue-{next(_names)}"
        self.now = START if simulated else None
        self.jobs: list[int] = []  # ids
        self.tenants: list[str] = []
        self.numbers: dict[int, int] = {}
        self.tokens: dict[int, Any] = {}
        if simulated:
            conn.execute(PLANNER)
        conn.execute("select fairq.set_queue(%s, p_charge => 'jobs')", [self.name])

    def wait(self, span: int) -> None:
        """
        Let simulated time go by.
        """
        assert self.now
        self.now += _span(span)

    def enqueue(self, tenant: str, count: int = 1, priority: int = 2, run_at: int = 0, cost: float = 1) -> list[int]:
        """
        Enqueue equal jobs, one by one below a hundred, else as a superuser loads them.
        """
        if count < 100:
            query = """
                select (fairq.enqueue_job(
                    %s, 'work', p_queue => %s, p_priority => %s, p_max_attempts => 1000, p_cost => %s,
                    p_run_at => timestamptz '2001-01-01' + make_interval(secs => %s))).job_id
                from generate_series(1, %s)"""
            rows = self.conn.execute(query, [tenant, self.name, priority, cost, run_at, count])
            return self._number(tenant, [job_id for (job_id,) in rows])
        query = """
            insert into fairq.jobs (tenant, task, queue, priority, max_attempts, cost, run_at)
            select %s, 'work', %s, %s, 1000, %s, timestamptz '2001-01-01' + make_interval(secs => %s)
            from generate_series(1, %s)
            returning job_id"""
        rows = self.conn.execute(query, [tenant, self.name, priority, cost, run_at, count])
        return self._number(tenant, [job_id for (job_id,) in rows])

    def enqueue_each(self, tenants: list[str], count: int) -> None:
        """
        Enqueue jobs of many tenants, as a superuser loads them.
        """
        query = """
            insert into fairq.jobs (tenant, task, queue)
            select t.name, 'work', %s from unnest(%s::text[]) as t(name) cross join generate_series(1, %s)
            returning tenant, job_id"""
        for tenant, job_id in self.conn.execute(query, [self.name, tenants, count]).fetchall():
            self._number(tenant, [job_id])

    def _number(self, tenant: str, ids: list[int]) -> list[int]:
        """
        Give new jobs their numbers.
        """
        numbers = list(range(len(self.jobs), len(self.jobs) + len(ids)))
        assert len({*ids}) == len(ids)
        self.numbers.update(zip(sorted(ids), numbers, strict=True))
        self.jobs += sorted(ids)
        self.tenants += [tenant] * len(ids)
        return numbers

    def claim(self, n: int, tenant: str | None = None, lease: int | None = None) -> list[int]:
        """
        Claim jobs.
        """
        span = LEASE if lease is None else _span(lease)
        if self.now:
            rows = self.conn.execute(
                "select job_id, lease_token"
                " from unnest(fairq._dispatch(%s, 'oracle', fairq._caller(), %s, %s, %s, %s))",
                [self.name, n, span, [tenant or "*"], self.now],
            ).fetchall()
        else:
            rows = self.conn.execute(
                "select job_id, lease_token from fairq.claim_jobs(%s, 'oracle', %s, %s, %s)",
                [self.name, n, span, tenant],
            ).fetchall()
        jobs = [self.numbers[job_id] for job_id, _ in rows]
        self.tokens.update(zip(jobs, (token for _, token in rows), strict=True))
        return jobs

    def renew(self, job: int, span: int) -> None:
        """
        Renew a running job's lease.
        """
        query = "select fairq._renew(%s, %s, %s, %s)"
        outcome = self._value(query, self.jobs[job], self.tokens[job], _span(span), self.now)
        assert outcome in ("renewed", "cancel_requested")

    def complete(self, job: int) -> None:
        """
        Complete a running job: every other one by the path that batches take, as a batch of one.
        """
        if job % 2:
            self.complete_all([job])
            return
        query = "select fairq._complete_one(%s, %s, null, %s)"
        assert self._value(query, self.jobs[job], self.tokens[job], self.now)

    def complete_all(self, jobs: list[int]) -> None:
        """
        Complete running jobs in one call.
        """
        ids, tokens = [self.jobs[job] for job in jobs], [self.tokens[job] for job in jobs]
        done = self._value("select fairq._complete(%s, %s, %s::jsonb[], %s)", ids, tokens, [None] * len(ids), self.now)
        assert len(done) == len(ids)

    def fail(self, job: int, *, retry: bool = True, delay: int = 0) -> None:
        """
        Fail a running job, to be retried at once, later, or not at all.
        """
        query = "select fairq._fail(%s, %s, null, %s, %s, %s)"
        assert self._value(query, self.jobs[job], self.tokens[job], _span(delay), retry, self.now)

    def release(self, job: int, delay: int = 0) -> None:
        """
        Give a running job back.
        """
        query = "select fairq._release(%s, %s, %s, %s)"
        assert self._value(query, self.jobs[job], self.tokens[job], _span(delay), self.now)

    def expire(self, job: int) -> None:
        """
        Let a running job's lease be over, by whatever clock.
        """
        with self.conn.transaction():
            self.conn.execute(
                "update fairq.leases set started_at = '2001-01-01', lease_expires_at = '2001-01-02' where job_id = %s",
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
        Cancel all that waits of a tenant: by a purge up to a thousand, else the rows go as a cancellation takes them.
        """
        if self._value("select fairq.purge_tenant(%s, %s)", self.name, tenant) == 1000:
            self.conn.execute(
                """
                delete from fairq.jobs as j
                where j.queue = %s and j.tenant = %s
                  and not exists (select from fairq.leases as l where l.job_id = j.job_id)""",
                [self.name, tenant],
            )

    def set_tenant(self, tenant: str, weight: float = 1, cap: int | None = None, **wish: Any) -> None:
        """
        State the operator's wish for a tenant, or for all that have none (*).
        """
        query = "select fairq.set_tenant(%s, %s, %s, %s, %s, %s, %s)"
        named = [wish.get(name, default) for name, default in (("paused", False), ("rate", None), ("burst", 1))]
        self.conn.execute(query, [self.name, tenant, weight, cap, *named])

    def set_queue(self, **changes: Any) -> None:
        """
        Change settings of the queue; no cap is -1, no rate 0.
        """
        if "cap" in changes:
            changes["max_running"] = -1 if changes["cap"] is None else changes["cap"]
        if "rate" in changes:
            changes["rate"] = changes["rate"] or 0
        names = [name for name in changes if name != "cap"]
        said = ", ".join(f"p_{name} => %s" for name in names)
        self.conn.execute(f"select fairq.set_queue(%s, {said})", [self.name, *(changes[name] for name in names)])

    def tenant_of(self, job: int) -> str:
        """
        Whose job it is.
        """
        return self.tenants[job]

    def books(self) -> dict[str, tuple[float, ...]]:
        """
        What the scheduler knows of each tenant: S, lifts, what runs, what it expects.
        """
        query = "select tenant, vtime, epoch, running, estimate from fairq.flows where queue = %s"
        return {tenant: (*known,) for tenant, *known in self.conn.execute(query, [self.name])}

    def vtime(self, tenant: str) -> int:
        """
        A tenant's S after a look, which a claim for nobody takes.
        """
        assert self.now
        self.claim(1, "nobody")
        query = "select vtime from fairq.flows where queue = %s and tenant = %s"
        return int(self._value(query, self.name, tenant))

    def _value(self, query: str, *args: Any) -> Any:
        return self.conn.execute(query, args).fetchone()[0]  # type: ignore[index]
