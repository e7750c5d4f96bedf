"""What is to be true of every worker of examples/, and the world it is true in."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tests.support import wait_until
from tests.support.pooler import pooled

from .gateway import gateway
from .programs import EXAMPLES, Running, running, url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.support import Database, Session

    from .programs import Program

A_LONG_TIME = 3600
TIMEOUT = 120
TENANTS = ("amber", "birch", "cedar")


@dataclass
class World:
    """A queue for letters, a table of those sent, and a worker's environment."""

    db: Database
    program: Program
    copied: Path
    environment: dict[str, str]

    def enqueue(self, tenant: str, letter: int | None, seconds: float = 0, **options: Any) -> int:
        """A job of so many seconds; without a letter it fails."""
        payload = {"seconds": seconds} | ({} if letter is None else {"letter": letter})
        return int(self.db.enqueue(tenant, task="send", payload=payload, queue="mail", **options).job_id)

    @contextmanager
    def workers(self, *owners: str) -> Iterator[list[Running]]:
        """Workers of these names; of several, each has done a job, so that it is known to be up."""
        with running(self.program, self.copied, self.environment, *owners) as started:
            if len(owners) > 1:
                self._warm_up(*started)
            yield started

    def _warm_up(self, *workers: Running) -> None:
        """More jobs than one worker takes at once, until each has done one."""
        seen: set[str] = set()
        while seen != {worker.owner for worker in workers}:
            jobs = [self.enqueue("warm-up", n, 0.2) for n in range(1, 11)]
            seen |= {self.becomes(job, "succeeded", *workers)["lease_owner"] for job in jobs}

    def becomes(self, job: int, state: str, *workers: Running) -> dict[str, Any]:
        """Wait for a state of a job while these workers live."""
        wait_until(
            lambda: all(worker.lives() for worker in workers) and self.db.state(job) == state,
            f"job {job} to be {state}",
            timeout=TIMEOUT,
        )
        return self.db.job(job)

    def is_short_from_now_on(self, job: int) -> None:
        """For whoever gets it next; who has it knows nothing of it."""
        self.db.execute("update fairq.jobs set payload = payload || '{\"seconds\": 0}' where job_id = %s", job)

    def sent(self, job: int) -> int:
        """How often a letter is in the table."""
        return int(self.db.value("select count(*) from sent where job_id = %s", job))

    def in_the_middle_of_completing(self, holder: Session, *workers: Running) -> tuple[int, Running]:
        """A job whose worker has done all but to complete it, and waits for the lease's row until `holder` lets go."""
        names = {worker.owner: worker for worker in workers}
        gate = self.db.session(autocommit=False)
        gate.execute("lock table sent in share mode")
        job = self.enqueue("birch", 1000)
        self.becomes(job, "running", *workers)
        at_the_gate = "select count(*) from pg_locks where relation = 'sent'::regclass and not granted"
        self._waits(at_the_gate, *workers)
        query = "select lease_owner from fairq.leases where job_id = %s for update"
        owner = holder.value(query, job)
        gate.conn.rollback()
        completes = """
            select count(*) from pg_stat_activity as a
            where a.datname = current_database() and a.wait_event_type = 'Lock' and a.query ~ %s
        """
        self._waits(completes, *workers, arguments=[self.program.completes])
        return job, names[owner]

    def _waits(self, query: str, *workers: Running, arguments: Sequence[Any] = ()) -> None:
        wait_until(
            lambda: all(worker.lives() for worker in workers) and self.db.value(query, *arguments),
            f"a worker to wait: {query}",
            timeout=TIMEOUT,
        )


@contextmanager
def world(
    db: Database, program: Program, folder: Path, *edits: tuple[str, str], pooler: bool = False
) -> Iterator[World]:
    """The worker as it stands or edited; with a direct connection to listen on, or with a pooler and polling."""
    db.set_queue("mail", notify=True, default_lease=timedelta(seconds=2), backoff_base=timedelta(seconds=0))
    db.execute((EXAMPLES / "tables.sql").read_text(encoding="utf-8"))
    user = db.login("fairq_worker")
    db.execute(f"grant select, insert on sent to {user}")
    copied = program.copy(folder, *edits)
    direct = url(db.dsn, user=user)
    if program.folder == "postgrest":
        with gateway(db, worker=user, pooler=pooler) as served:
            environment = {"API_URL": served.url, "API_TOKEN": served.token(role=user)}
            yield World(db, program, copied, environment)
    elif pooler:
        with pooled(db.dsn, user=user) as through:
            yield World(db, program, copied, {"DATABASE_URL": url(through, user=user)})
    else:
        yield World(db, program, copied, {"DATABASE_URL": direct, "LISTEN_URL": direct})


@contextmanager
def pooled_again(w: World) -> Iterator[World]:
    """The same, through a pooler."""
    user = w.db.login("fairq_worker")
    w.db.execute(f"grant select, insert on sent to {user}")
    with pooled(w.db.dsn, user=user) as through:
        yield replace(w, environment={"DATABASE_URL": url(through, user=user)})


def check_leases_are_renewed_and_jobs_change_hands(w: World, patience: float = TIMEOUT) -> None:
    """
    A job that is longer than its lease stays with its worker; others are done meanwhile, or are dead with their error.

    SIGTERM gives the long job back: another one does it, and no attempt is lost.
    """
    long = w.enqueue("amber", 1, A_LONG_TIME)
    with w.workers("first") as (first,):
        w.becomes(long, "running", first)
        _outlives_its_lease(w, long, first, patience)
        with w.workers("second") as (second,):
            good = [w.enqueue(tenant, n) for n in range(2, 6) for tenant in TENANTS]
            bad = [w.enqueue(tenant, None, max_attempts=2) for tenant in TENANTS]
            for job in good:
                w.becomes(job, "succeeded", first, second)
            for job in bad:
                assert "letter" in str(w.becomes(job, "dead", first, second)["last_error"])
            w.is_short_from_now_on(long)
            first.leave()
            ended = w.becomes(long, "succeeded", second)
            log = w.db.rows("select event_type, actor from fairq.job_log where job_id = %s", long)
            assert ("released", "first") in log, log
            # a lease is lost only where the machine was too slow to renew it
            lost = sum(event.event_type == "lease_expired" for event in log)
            assert ended["attempts"] == 1 + lost, (ended, log)
            second.leave()
    assert {job: w.sent(job) for job in [long, *good, *bad]} == dict.fromkeys([long, *good], 1) | dict.fromkeys(bad, 0)


def check_what_is_not_completed_is_undone(w: World) -> None:
    """A worker whose lease ends while it completes undoes what it did; the job runs again, and one effect is left."""
    holder = w.db.session(autocommit=False)
    with w.workers("first", "second") as workers:
        job, _ = w.in_the_middle_of_completing(holder, *workers)
        over = "select lease_expires_at < clock_timestamp() from fairq.leases where job_id = %s"
        wait_until(lambda: holder.value(over, job), "the lease to end", timeout=TIMEOUT)
        w.is_short_from_now_on(job)
        holder.conn.rollback()
        ended = w.becomes(job, "succeeded", *workers)
        assert ended["attempts"] > 1
        assert w.sent(job) == 1
        for worker in workers:
            worker.leave()


def check_a_worker_may_have_its_lost_job_again(w: World) -> None:
    """One that does several at once, and is slow to end an attempt: both attempts end, one has its effects."""
    gate = w.db.session(autocommit=False)
    gate.execute("lock table sent in share mode")
    with w.workers("only") as (only,):
        job = w.enqueue("birch", 1000)
        again = "select exists (select from fairq.leases where job_id = %s and attempt > 1)"
        wait_until(lambda: only.lives() and w.db.value(again, job), "the worker to have its job again", timeout=TIMEOUT)
        gate.conn.rollback()
        w.becomes(job, "succeeded", only)
        assert w.sent(job) == 1
        only.leave()


def check_a_killed_worker_leaves_no_trace(w: World, *, dies_with_it: bool = True) -> None:
    """A worker that is killed as it completes has done nothing; another one does the job when the lease is over."""
    holder = w.db.session(autocommit=False)
    with w.workers("first", "second") as workers:
        job, killed = w.in_the_middle_of_completing(holder, *workers)
        (other,) = set(workers) - {killed}
        w.is_short_from_now_on(job)
        killed.kill()
        holder.conn.rollback()
        ended = w.becomes(job, "succeeded", other)
        # behind a gateway the request outlives the worker that sent it
        assert (ended["attempts"] > 1) is dies_with_it
        assert w.sent(job) == 1
        other.leave()


def check_a_notification_wakes(w: World) -> None:
    """A worker that polls once an hour has a job at once, since it listens."""
    with w.workers("first") as (first,):
        # an enqueue notifies once a worker has found the queue empty, which it has not as long as it finds jobs
        empty = "select (fairq._newest_tick('mail')).found_empty"
        for letter in (1, 2):
            wait_until(lambda: first.lives() and w.db.value(empty), "the worker to find nothing", timeout=TIMEOUT)
            w.becomes(w.enqueue("amber", letter), "succeeded", first)


def _outlives_its_lease(w: World, job: int, worker: Running, patience: float) -> None:
    """Wait until one lease of the job has lasted longer than it was given for."""
    ends: dict[str, Any] = {}

    def outlived() -> bool:
        query = "select lease_token, lease_expires_at, clock_timestamp() as now from fairq.leases where job_id = %s"
        return worker.lives() and any(
            row.lease_expires_at > row.now > ends.setdefault(row.lease_token, row.lease_expires_at)
            for row in w.db.rows(query, job)
        )

    wait_until(outlived, "a lease to be renewed", timeout=patience)
