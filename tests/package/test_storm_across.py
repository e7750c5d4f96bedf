"""
A storm of producers, workers and an operator goes on while the schema is upgraded and downgraded under it.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import fairq_schema
from tests.package.upgrades import WAYS
from tests.races.helpers import check_books, let_leases_end
from tests.support import Database, Session, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.package.upgrades import Way
    from tests.support.servers import LocalServer

pytestmark = pytest.mark.short

# what docs/upgrading.md says: the call has done nothing, and is made again
DOCUMENTED = {"40P01", "55P03"}
CYCLES = 3
TENANTS = ("a", "b", "c")
LONG = "10 minutes"
PATIENCE = 120.0


@pytest.mark.parametrize("name", WAYS)
def test_a_storm_goes_on(start_server: Callable[..., LocalServer], find_way: Callable[[str], Way], name: str) -> None:
    """
    Upgrades and downgrades are met by no error but those of the page; no job is lost, handed out or completed twice.

    With the deadlock_timeout that servers have, and statements that the server has prepared.
    """
    way = find_way(name)
    server = start_server(deadlock_timeout="1s")
    with server.databases.empty() as dsn:
        fairq_schema.apply(dsn, to=way.old, migrations=way.folder)
        with Database(dsn) as db:
            check_storm(db, way, seed=random.randrange(2**32))


def check_storm(db: Database, way: Way, seed: int) -> None:
    """
    Go up and down while everybody works, and look into the books afterwards.
    """
    books = Books()
    user = db.login("fairq_producer", "fairq_worker", "fairq_operator")
    roles = [produce, produce, work, work, work, operate]
    crew = [
        threading.Thread(target=books.run, args=(role, db.session(user=user), random.Random(f"{seed}/{number}")))
        for number, role in enumerate(roles)
    ]
    for thread in crew:
        thread.start()
    try:
        books.wait_for_more()
        for _ in range(CYCLES):
            for go in (way.up, way.down):
                go(db.dsn)
                books.turns += 1
                books.wait_for_more()
        way.up(db.dsn)
        books.turns += 1
        books.wait_for_more()
    finally:
        books.stop.set()
        for thread in crew:
            thread.join(timeout=PATIENCE)
    assert books.errors == [], f"seed {seed}"
    finish(db, books)


class Books:
    """
    What everybody did, as they saw it.
    """

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self.again: Counter[str] = Counter()
        self.enqueued: list[int] = []
        self.completed: Counter[int] = Counter()
        self.held: set[int] = set()
        self.held_across = 0
        self.turns = 0
        self.lock = threading.Lock()

    def run(self, role: Callable[[Books, Session, random.Random], None], session: Session, luck: random.Random) -> None:
        """
        Be one of the crew.
        """
        session.conn.prepare_threshold = 0
        try:
            role(self, session, luck)
        except BaseException as error:  # noqa: BLE001  told by the test
            self.errors.append(error)
            self.stop.set()

    def do(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """
        Make a call, and make it again after an error that is documented.
        """
        while True:
            try:
                return call(*arguments, **named)
            except psycopg.Error as error:
                if error.sqlstate not in DOCUMENTED:
                    error.add_note(f"after {self.turns} turns: {call}")
                    raise
                self.again[str(error.sqlstate)] += 1

    def take(self, jobs: list[Any]) -> list[Any]:
        """
        Note that these were handed out: nobody else may have them.
        """
        with self.lock:
            twice = self.held & {job.job_id for job in jobs}
            assert not twice, f"handed out twice: {twice}"
            self.held |= {job.job_id for job in jobs}
        return jobs

    def let_go(self, job: Any) -> None:
        """
        Note that one is about to be given up or done.
        """
        with self.lock:
            self.held.discard(job.job_id)

    def wait_for_more(self) -> None:
        """
        Wait until a good deal was done since now.
        """
        goal = len(self.completed) + 30
        wait_until(lambda: self.errors or len(self.completed) >= goal, "jobs to be completed", PATIENCE)


def produce(books: Books, session: Session, luck: random.Random) -> None:
    """
    Enqueue, one by one and in batches, but not without end.
    """
    while not books.stop.is_set():
        if len(books.enqueued) - len(books.completed) > 300:
            books.stop.wait(0.01)
            continue
        tenant = luck.choice(TENANTS)
        if luck.random() < 0.5:
            books.enqueued.append(books.do(session.enqueue, tenant, payload={"n": luck.random()}).job_id)
        else:
            wanted = [{"tenant": tenant, "task": "work", "priority": luck.randint(0, 3)}] * luck.randint(1, 5)
            books.enqueued += [row.job_id for row in books.do(session.enqueue_jobs, wanted)]


def work(books: Books, session: Session, luck: random.Random) -> None:
    """
    Claim, renew, complete, fail, release; some jobs are kept until the schema is another.
    """
    kept: list[tuple[int, Any]] = []
    while not books.stop.is_set():
        for job in books.take(books.do(session.claim, luck.choice([1, 1, 4]), lease=LONG)):
            if luck.random() < 0.1:
                kept.append((books.turns, job))
            else:
                end(books, session, luck, job)
        for turn, job in [each for each in kept if each[0] != books.turns]:
            kept.remove((turn, job))
            renew(books, session, job)
            complete(books, session, [job])
            books.held_across += 1
    for _, job in kept:
        complete(books, session, [job])


def end(books: Books, session: Session, luck: random.Random, job: Any) -> None:
    """
    End an attempt, most often well.
    """
    chance = luck.random()
    if chance < 0.1:
        books.let_go(job)
        assert books.do(session.fail, job, error="so", retry_delay="0") in {"queued", "scheduled", "dead", "cancelled"}
    elif chance < 0.2:
        books.let_go(job)
        assert books.do(session.release, job) in {"queued", "cancelled"}
    else:
        if chance < 0.4:
            renew(books, session, job)
        complete(books, session, [job])


def renew(books: Books, session: Session, job: Any) -> None:
    """
    Renew a lease that is alive, though somebody may have asked for the job's cancellation.
    """
    assert books.do(session.renew_all, [job], LONG)[job.job_id] in {"renewed", "cancel_requested"}


def complete(books: Books, session: Session, jobs: list[Any]) -> None:
    """
    Complete by the batch verb or by the other one: a job that this worker holds is always completed.
    """
    for job in jobs:
        books.let_go(job)
    done = (
        books.do(session.complete_all, jobs)
        if len(books.completed) % 2
        else {job.job_id: "succeeded" for job in jobs if books.do(session.complete, job)}
    )
    assert done == {job.job_id: "succeeded" for job in jobs}
    with books.lock:
        books.completed.update(done.keys())


def operate(books: Books, session: Session, luck: random.Random) -> None:
    """
    Change wishes, look at the queue, cancel a job now and then, and bring back what is dead.
    """
    while not books.stop.is_set():
        tenant = luck.choice(TENANTS)
        books.do(session.call, "pause_tenant", p_queue="default", p_tenant=tenant)
        books.do(session.call, "queue_stats")
        books.do(session.call, "tenant_stats", p_queue="default")
        books.do(session.call, "resume_tenant", p_queue="default", p_tenant=tenant)
        books.do(session.set_tenant, tenant, weight=luck.choice([1, 2]))
        books.do(session.set_queue, "default", max_running=luck.choice([50, 60]))
        if books.enqueued:
            job = luck.choice(books.enqueued)
            books.do(session.call, "explain_wait", p_job_id=job)
            if luck.random() < 0.2:
                books.do(session.cancel, job)
        books.stop.wait(0.02)


def finish(db: Database, books: Books) -> None:
    """
    Complete what is left, and compare what was done with what is there.
    """
    worker = db.session()
    for tenant in TENANTS:
        db.call("resume_tenant", p_queue="default", p_tenant=tenant)
    assert books.held == set()
    while True:
        db.execute(
            "select fairq.reschedule_job(j.job_id, clock_timestamp()) from fairq.jobs as j where j.state = 'scheduled'"
        )
        jobs = worker.claim(100)
        if not jobs:
            break
        books.completed.update(worker.complete_all(jobs).keys())
    let_leases_end(db)
    check_books(db, books.enqueued)
    states = dict(db.rows("select job_id, state from fairq.all_jobs"))
    assert set(states.values()) <= {"succeeded", "dead", "cancelled"}
    succeeded = {job for job, state in states.items() if state == "succeeded"}
    assert books.completed == Counter(succeeded)
    assert len(succeeded) > 100
    assert books.held_across > 0
