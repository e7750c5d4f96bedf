"""
Storms: many sessions do everything at once, and the books are right afterwards.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support import Database, Worker, storm, wait_until

from .helpers import check, check_books, drain, ids, let_leases_end, look

if TYPE_CHECKING:
    from collections.abc import Callable

TENANTS = ("a", "b", "c", "capped")
CAP = 2
QUEUE_CAP = 5
WORKERS = 9  # in the storm of kills, the killer among them


@check
def check_one_queue_drained_by_many(db: Database) -> None:
    """Eight workers drain one queue: every job is handed out once, and no claim is empty while jobs wait."""
    enqueued = [job for tenant in "abc" for job in db.given_jobs(tenant, 120)]
    claimed = storm(db, workers=8, step=lambda w: w.claim(w.random.choice([1, 3, 10])))
    assert Counter(ids(claimed)) == Counter(enqueued)
    assert set(db.complete_all(claimed).values()) == {"succeeded"}
    check_books(db, enqueued)
    assert db.value("select sum(running) from fairq.flows") == 0


@pytest.mark.short
def test_one_queue_drained_by_many(db: Database) -> None:
    """No job twice, none left."""
    check_one_queue_drained_by_many(db)


@check
def check_caps_hold(db: Database) -> None:
    """However many claim and complete, a capped tenant never runs more than its cap, as each claim counts it."""
    enqueued = db.given_jobs("capped", 150) + db.given_jobs("free", 60)
    db.set_tenant("capped", max_running=CAP)
    counted = "select count(*) from fairq.leases where tenant = 'capped'"

    def work(worker: Worker) -> list[int]:
        with worker.conn.transaction():
            jobs = worker.claim(worker.random.randint(1, 5))
            running = worker.value(counted)
        assert running <= CAP
        done = worker.complete_all(jobs) if jobs else {}
        assert set(done.values()) <= {"succeeded"}
        # a turn without a job must not end the worker while others run
        return list(done) or [0] * bool(worker.rows("select from fairq.jobs limit 1"))

    done = storm(db, workers=8, step=work)
    assert Counter(job for job in done if job) == Counter(enqueued)
    check_books(db, enqueued)


def test_caps_hold(db: Database) -> None:
    """R9 under eight claimers."""
    check_caps_hold(db)


@check
def check_the_cap_of_the_queue_holds(db: Database) -> None:
    """However many claim and complete, all tenants together never run more than the queue's cap, but as many."""
    enqueued = [job for tenant in "abc" for job in db.given_jobs(tenant, 40)]
    db.set_queue(max_running=QUEUE_CAP)
    # full before anybody comes
    first = db.claim(QUEUE_CAP + 1)
    assert len(first) == QUEUE_CAP
    left = iter(first)

    def work(worker: Worker) -> list[int]:
        with worker.conn.transaction():
            jobs = worker.claim(worker.random.randint(1, 4))
            running = worker.value("select count(*) from fairq.leases")
        assert running <= QUEUE_CAP
        jobs += [job] if (job := next(left, None)) else []
        done = worker.complete_all(jobs) if jobs else {}
        return list(done) or [0] * bool(worker.rows("select from fairq.jobs limit 1"))

    done = storm(db, workers=8, step=work)
    assert Counter(job for job in done if job) == Counter(enqueued)
    check_books(db, enqueued)


def test_the_cap_of_the_queue_holds(db: Database) -> None:
    """The queue's max_running under eight claimers."""
    check_the_cap_of_the_queue_holds(db)


@check
def check_slow_producers_lose_nothing(db: Database) -> None:  # noqa: C901 - one story
    """Producers are slow and change their minds, and so do workers that enqueue children around their claims."""
    made: list[int] = []

    def produce(worker: Worker) -> list[int]:
        with worker.conn.transaction(force_rollback=worker.random.random() < 0.3) as outer:
            jobs: list[int] = []
            for _ in range(worker.random.randint(1, 4)):
                # others claim meanwhile: the first xid of this transaction is older than theirs
                jobs += worker.given_jobs(worker.random.choice("abc"), worker.random.randint(1, 3))
                with worker.conn.transaction(force_rollback=True):
                    worker.given_jobs("undone", 1)
        if not outer.force_rollback:
            made.extend(jobs)
        return jobs

    def consume(worker: Worker) -> list[int]:
        done: list[int] = []
        children: list[int] = []
        rolled_back = worker.random.random() < 0.2
        with worker.conn.transaction(force_rollback=rolled_back):
            if worker.random.random() < 0.5:
                children += worker.given_jobs("child", 1)
            with worker.conn.transaction(force_rollback=worker.random.random() < 0.3) as inner:
                jobs = worker.claim(worker.random.randint(1, 6))
            if inner.force_rollback:
                jobs = worker.claim(2)
            if worker.random.random() < 0.3:
                children += worker.given_jobs(worker.random.choice("abc"), 1)
            if worker.random.random() < 0.5 and jobs:
                assert set(worker.complete_all(jobs).values()) == {"succeeded"}
                done, jobs = ids(jobs), []
        if rolled_back:
            return []
        made.extend(children)
        if jobs:
            assert set(worker.complete_all(jobs).values()) == {"succeeded"}
        return done + ids(jobs)

    def either(worker: Worker) -> list[tuple[str, int]]:
        if worker.number % 2:
            return [("made", job) for job in produce(worker)]
        return [("done", job) for job in consume(worker)]

    results = storm(db, workers=8, step=either, rounds=25)
    done = [job for what, job in results if what == "done"]
    assert len(set(done)) == len(done)
    done += drain(db)
    assert Counter(done) == Counter(made)
    check_books(db, made)
    assert db.value("select sum(running) from fairq.flows") == 0


def test_slow_producers_lose_nothing(db: Database) -> None:
    """Late commits, rollbacks, savepoints, own transactions: all at once."""
    check_slow_producers_lose_nothing(db)


class Crowd:
    """What the workers of the mixed storm know together."""

    def __init__(self, enqueued: list[int]) -> None:
        self.enqueued = enqueued
        self.held: list[Any] = []
        self.succeeded: Counter[int] = Counter()

    def take(self, worker: Worker) -> Any:
        """A claimed job, often one that another worker deals with at the same moment."""
        return worker.random.choice(self.held[-30:]) if self.held else None


def purge(w: Worker) -> None:
    """Purge a few jobs. One that is claimed just as it is locked: nothing is purged, and it may be tried again."""
    with contextlib.suppress(psycopg.errors.SerializationFailure):
        w.call("purge_tenant", p_queue="default", p_tenant="a", p_limit=3)


def everything(crowd: Crowd) -> Callable[[Worker], int]:
    """One turn of a worker that may do anything."""
    short, long = timedelta(milliseconds=30), timedelta(seconds=30)

    def claim(w: Worker) -> None:
        with w.conn.transaction():
            jobs = w.claim(w.random.randint(1, 5), lease=w.random.choice([short, long]))
            running = w.value("select count(*) from fairq.leases where tenant = 'capped'")
        assert running <= CAP
        crowd.held.extend(jobs)

    def complete(w: Worker) -> None:
        # a copy: others add to the list meanwhile
        recent = crowd.held[-30:]
        if jobs := {job.job_id: job for job in w.random.sample(recent, k=min(3, len(recent)))}:
            done = w.complete_all(jobs.values())
            crowd.succeeded.update(job for job, outcome in done.items() if outcome == "succeeded")

    def with_one(verb: Callable[[Worker, Any], Any]) -> Callable[[Worker], None]:
        def act(w: Worker) -> None:
            if (job := crowd.take(w)) is not None:
                verb(w, job)

        return act

    def enqueue(w: Worker) -> None:
        batch = [
            {"tenant": w.random.choice(TENANTS), "task": "work", "key": f"k{w.random.randrange(80)}"} for _ in range(3)
        ]
        batch.append({"tenant": "a", "task": "work", "delay": "0.02 seconds"})
        w.random.shuffle(batch)
        crowd.enqueued.extend(row.job_id for row in w.enqueue_jobs(batch) if row.outcome == "created")

    def any_id(w: Worker) -> int:
        return int(w.random.choice(crowd.enqueued))

    moves: list[Callable[[Worker], Any]] = [
        claim,
        claim,
        claim,
        complete,
        complete,
        complete,
        enqueue,
        with_one(lambda w, job: w.fail(job, retry_delay=timedelta(0), retry=w.random.random() < 0.7)),
        with_one(lambda w, job: w.fail(job, retry_delay=timedelta(milliseconds=10))),
        with_one(lambda w, job: w.release(job)),
        with_one(lambda w, job: w.release(job, delay=timedelta(milliseconds=10))),
        with_one(lambda w, job: w.renew(job, lease=short)),
        lambda w: w.cancel(any_id(w)),
        lambda w: w.retry(any_id(w)),
        lambda w: w.reschedule(any_id(w), delay=timedelta(milliseconds=w.random.choice([0, 5]))),
        lambda w: w.reschedule(any_id(w), priority=w.random.randrange(4)),
        lambda w: w.promote(),
        lambda w: w.expire(),
        lambda w: w.set_tenant("b", weight=w.random.choice([1, 3]), paused=w.random.random() < 0.2),
        lambda w: w.set_tenant("c", rate=w.random.choice([None, 50]), burst=3),
        lambda w: w.set_tenant("*", weight=w.random.choice([1, 2])),
        purge,
    ]

    def turn(worker: Worker) -> int:
        worker.random.choice(moves)(worker)
        return 1

    return turn


@check
def check_everything_at_once(db: Database) -> None:
    """Every verb from twelve sessions on the same jobs: no deadlock, no error, no job twice, none lost."""
    db.set_tenant("capped", max_running=CAP)
    crowd = Crowd([job for tenant in TENANTS for job in db.given_jobs(tenant, 25, max_attempts=1000)])
    storm(db, workers=12, step=everything(crowd), rounds=60)
    assert not crowd.succeeded or max(crowd.succeeded.values()) == 1
    look(db)
    check_books(db, crowd.enqueued)

    db.set_tenant("b")
    db.set_tenant("c")
    for job in db.rows("select job_id from fairq.jobs where state = 'scheduled'"):
        db.reschedule(job.job_id, delay=timedelta(0))
    db.execute("update fairq.leases set lease_expires_at = greatest(clock_timestamp(), started_at + interval '1 ms')")
    db.execute("update fairq.ticks set expire_floor = '-infinity'")
    let_leases_end(db)
    drain(db)
    assert db.rows("select from fairq.jobs") == []
    check_books(db, crowd.enqueued)
    assert db.value("select sum(running) from fairq.flows") == 0
    succeeded = {row.job_id for row in db.rows("select job_id from fairq.finished_jobs where state = 'succeeded'")}
    assert set(crowd.succeeded) <= succeeded


def test_everything_at_once(db: Database) -> None:
    """The mixed storm."""
    check_everything_at_once(db)


@check
def check_killed_workers_lose_nothing(db: Database) -> None:
    """Sessions are terminated in the middle of claims and of jobs; their jobs run again once the leases are over."""
    enqueued = [job for tenant in "abc" for job in db.given_jobs(tenant, 60, max_attempts=1000)]
    lease = timedelta(milliseconds=300)
    completed: Counter[int] = Counter()
    killed: list[int] = []
    turns = [0] * WORKERS

    def work(worker: Worker) -> list[int]:
        try:
            with worker.conn.transaction():
                jobs = worker.claim(worker.random.randint(1, 4), lease=lease)
            if worker.random.random() < 0.7 and jobs:
                done = worker.complete_all(jobs)
                completed.update(job for job, outcome in done.items() if outcome == "succeeded")
        except psycopg.OperationalError:
            worker.reconnect(db)
        turns[worker.number] += 1
        return [1]

    def kill(worker: Worker) -> list[int]:
        # as often as the others have a turn each, to the end; those in the middle of a claim first
        turns[0] += 1
        wait_until(lambda: sum(turns[1:]) >= (turns[0] - 1) * (WORKERS - 1), "the others to take their turns")
        victims = worker.rows("""
            select pg_terminate_backend(pid) from (
                select pid from pg_stat_activity
                where application_name like 'storm-%%' and pid <> pg_backend_pid() and datname = current_database()
                order by xact_start is null, random() limit 1
            ) as victim
        """)
        killed.extend(row[0] for row in victims)
        return [1]

    def either(worker: Worker) -> list[int]:
        return kill(worker) if worker.number == 0 else work(worker)

    storm(db, workers=WORKERS, step=either, rounds=30)
    assert len(killed) == 30
    let_leases_end(db)
    drain(db)
    assert not completed or max(completed.values()) == 1
    assert {row.state for row in db.rows("select state from fairq.all_jobs")} == {"succeeded"}
    check_books(db, enqueued)
    assert db.value("select sum(running) from fairq.flows") == 0


def test_killed_workers_lose_nothing(db: Database) -> None:
    """pg_terminate_backend, mid-claim and mid-job."""
    check_killed_workers_lose_nothing(db)
