"""
The scenarios of fairness.md against the real SQL, with their exact answers.

Each check is a plain function of a fresh database, so that a mutant runner can hold it against a broken one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pytest

from tests.support import Database, Worker, buffers_of, storm

from . import scenarios
from .history import lag_ratio
from .oracle import JOB
from .scenarios import longest_other, longest_run, order, served
from .sql_queue import LEASE, SqlQueue

BLOCKED = "an open transaction blocks others"


def check_scenario(db: Database, name: str) -> None:
    """
    One of the scenarios that the model answers too.
    """
    scenarios.CHECKS[name](lambda: SqlQueue(db.conn, simulated=True))


@pytest.mark.parametrize("name", scenarios.CHECKS)
def test_a_known_answer(db: Database, name: str) -> None:
    """
    The scenarios that one session can play: claims in the exact order of fairness.md, time by a simulated clock.
    """
    check_scenario(db, name)


def check_13_a_late_commit_earns_nothing(db: Database) -> None:
    """
    Scenario 13: 1,000 jobs inserted before 10,000 dispatches of another tenant and committed after them.
    """
    queue = SqlQueue(db.conn)
    queue.enqueue("A", 10_400)
    assert order(queue, 1) == "A"

    late = db.connect(autocommit=False)
    held = SqlQueue(db.connect())
    held.conn, held.name = late, queue.name
    held.enqueue("B", 1000)
    served(queue, 10_000, batch=1000)
    late.commit()
    queue.numbers.update({job_id: len(queue.tenants) + job for job_id, job in held.numbers.items()})
    queue.jobs += held.jobs
    queue.tenants += held.tenants

    tenants = served(queue, 100) + served(queue, 200, batch=100)
    assert longest_run(tenants, "B") == 1
    assert tenants.count("B") == 150


def test_13_a_late_commit_earns_nothing(db: Database) -> None:
    """
    Scenario 13: work that was not committed earned no turns while it was not; the longest run of B is 1.
    """
    check_13_a_late_commit_earns_nothing(db)


def check_14_an_open_transaction_stops_nobody(db: Database) -> None:
    """
    Scenario 14: a producer forgets its transaction; the others enqueue and are claimed from.
    """
    queue = SqlQueue(db.conn)
    queue.enqueue("A", 3)
    assert queue.claim(1) == [0]
    opened = db.connect(autocommit=False)
    for tenant in ("A", "new"):
        opened.execute("select fairq.enqueue_job(%s, 'work', p_queue => %s)", [tenant, queue.name])

    # 100 ms is the promise; a lock that is waited for is an error, a slow machine is not
    db.execute("set lock_timeout = '100ms'")
    try:
        for tenant in ("A", "new"):
            queue.enqueue(tenant)
        claimed = queue.claim(10)
    except psycopg.errors.LockNotAvailable as error:
        raise AssertionError(BLOCKED) from error
    assert claimed == [4, 1, 2, 3]

    opened.commit()
    rows = db.rows("select tenant from fairq.claim_jobs(%s, 'oracle')", queue.name)
    assert sorted(row.tenant for row in rows) == ["A", "new"]


def test_14_an_open_transaction_stops_nobody(db: Database) -> None:
    """
    Scenario 14: while a transaction that enqueued for two tenants stays open, others do, and wait for no lock.

    Their jobs are claimed; at its commit its own jobs are.
    """
    check_14_an_open_transaction_stops_nobody(db)


def _in_lock_order(db: Database, queue: str) -> list[Any]:
    """
    All that runs, in the order in which the queue's lock handed it out.
    """
    return db.rows("select l.job_id, l.tenant from fairq.leases as l where l.queue = %s order by l.dispatch", queue)


def check_16_sixteen_sessions_share_by_weight(db: Database) -> None:
    """
    Scenario 16: 16 real sessions claim one job each in a loop, weights 1, 2, 4.
    """
    weights = {"A": 1, "B": 2, "C": 4}
    queue = SqlQueue(db.conn)
    for tenant, weight in weights.items():
        queue.set_tenant(tenant, weight)
        queue.enqueue(tenant, 500)

    def step(worker: Worker) -> list[Any]:
        jobs = worker.claim(1, queue.name, lease=LEASE)
        assert len(jobs) == 1, "an empty claim while jobs wait"
        return jobs

    claimed = storm(db, workers=16, step=step, rounds=40)

    rows = _in_lock_order(db, queue.name)
    assert Counter(row.job_id for row in rows) == Counter(job.job_id for job in claimed)
    assert len(rows) == 640
    tenants = [row.tenant for row in rows]
    assert lag_ratio(tenants, {t: JOB // w for t, w in weights.items()}) <= 1


def test_16_sixteen_sessions_share_by_weight(db: Database) -> None:
    """
    Scenario 16: in lock order no two tenants ever differ by more than one job of each (rho <= 1).

    And no claim is empty while jobs wait.
    """
    check_16_sixteen_sessions_share_by_weight(db)


def check_17_one_tenant_many_claimers(db: Database) -> None:
    """
    Scenario 17: 64 sessions drain one tenant.
    """
    queue = SqlQueue(db.conn)
    queue.enqueue("A", 640)

    def step(worker: Worker) -> list[Any]:
        try:
            jobs = worker.claim(2, queue.name, lease=LEASE)
        except (psycopg.IntegrityError, psycopg.OperationalError) as error:
            msg = f"two sessions were in each other's way: {error}"
            raise AssertionError(msg) from error
        assert len(jobs) == 2, "a short claim while jobs wait"
        return jobs

    claimed = storm(db, workers=64, step=step, rounds=5)
    assert Counter(job.job_id for job in claimed) == Counter(queue.jobs)


def test_17_one_tenant_many_claimers(db: Database) -> None:
    """
    Scenario 17: 64 claimers of one tenant's jobs: no empty claim, no job twice, none left.
    """
    check_17_one_tenant_many_claimers(db)


def check_18_a_cap_is_exact(db: Database) -> None:
    """
    Scenario 18: a tenant capped at 3, 32 claimers that complete, fail, forget and are killed.
    """
    queue = SqlQueue(db.conn)
    queue.set_tenant("A", 1, 3)
    queue.enqueue("A", 3000)
    # Inside the database every change of a lease is judged by what is then committed or its own.
    # Claims come one after another under the queue's lock and an ended attempt only lowers the count,
    # so a claim that leaves at most 3 behind it proves every moment.
    db.execute(
        """
        create table public.seen (running bigint not null);
        create function public.count_running() returns trigger language plpgsql security definer as $fn$
        begin
            insert into public.seen select count(*) from fairq.leases;
            return null;
        end
        $fn$;
        create trigger count_running after insert on fairq.leases
            for each statement execute function public.count_running();
        """
    )

    def work(worker: Worker) -> bool:
        try:
            jobs = worker.claim(worker.random.randint(1, 5), queue.name, lease=LEASE)
            for job in jobs:
                _end_somehow(worker, job)
        except psycopg.OperationalError:
            worker.reconnect(db)
        return True

    def kill(worker: Worker) -> bool:
        worker.rows(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'storm-%%' "
            "and datname = current_database() and pid <> pg_backend_pid() order by random() limit 1"
        )
        return True

    storm(db, workers=33, step=[work] * 32 + [kill], rounds=25)

    assert db.value("select max(running) from public.seen") == 3
    # whoever was killed left leases behind: they end, and the cap still lets exactly three run
    db.execute("update fairq.leases set lease_expires_at = started_at + interval '1 us' where queue = %s", queue.name)
    db.execute("select fairq.release_expired_jobs(%s)", queue.name)
    assert [len(queue.claim(10)), len(queue.claim(10))] == [3, 0]


def _end_somehow(worker: Worker, job: Any) -> None:
    """
    Complete, fail, release, or forget and let the lease expire.
    """
    token = (job.job_id, job.lease_token)
    match worker.random.randrange(6):
        case 0:
            worker.execute("select fairq.fail_job(%s, %s, 'no', interval '0')", *token)
        case 1:
            worker.execute("select fairq.release_job(%s, %s)", *token)
        case 2:
            worker.execute(
                "update fairq.leases set lease_expires_at = started_at + interval '1 us' where job_id = %s", job.job_id
            )
            worker.execute("select fairq.release_expired_jobs()")
        case _:
            worker.execute("select fairq.complete_job(%s, %s)", *token)


def test_18_a_cap_is_exact(db: Database) -> None:
    """
    Scenario 18: with 32 claimers, ends and kills at random, a tenant capped at 3 never runs a fourth.

    It reaches the third, and has all three slots back afterwards.
    """
    check_18_a_cap_is_exact(db)


def check_19_a_capped_backlog_is_passed_by(db: Database) -> None:
    """
    Scenario 19: 100,000 jobs of a tenant that may not run any stand before one free job.
    """
    claim = "select * from fairq.claim_jobs(%s, 'oracle', 1)"
    plain, capped = SqlQueue(db.conn), SqlQueue(db.conn)
    capped.set_tenant("A", 1, 1)
    capped.enqueue("A", 100_000)
    assert order(capped, 1) == "A"
    cost = []
    for queue in (plain, capped):
        queue.enqueue("free", 20)
        [first] = queue.claim(1)  # the look at the new work is not what is measured
        assert queue.tenant_of(first) == "free"
        cost.append(min(buffers_of(db.conn, claim, queue.name) for _ in range(5)))
    assert cost[1] - cost[0] <= 50, cost


def test_19_a_capped_backlog_is_passed_by(db: Database) -> None:
    """
    Scenario 19: the free tenant's job is claimed at once, for at most 50 buffers more than without the 100,000.
    """
    check_19_a_capped_backlog_is_passed_by(db)


def check_25_a_crowd_of_5000_hides_nobody(db: Database, arrives: str = "middle") -> None:
    """
    Scenario 25: 5,000 tenants of weight 1 arrive before, around or after one of weight 100.
    """
    queue = SqlQueue(db.conn)
    queue.set_tenant("heavy", 100)
    before = {"first": 0, "middle": 2500, "last": 5000}[arrives]
    crowd = [f"t{i:04}" for i in range(5000)]
    queue.enqueue_each(crowd[:before], 2)
    queue.enqueue("heavy", 400)
    served(queue, 10)
    queue.enqueue_each(crowd[before:], 2)
    tenants = served(queue, 7000, batch=500)
    assert "heavy" in tenants
    assert longest_other(tenants, "heavy") <= 102


@pytest.mark.parametrize(
    "arrives",
    ["middle", *(pytest.param(arrives, marks=[pytest.mark.slow, pytest.mark.once]) for arrives in ("first", "last"))],
)
def test_25_a_crowd_of_5000_hides_nobody(db: Database, arrives: str) -> None:
    """
    Scenario 25: the heavy one is never more than 102 dispatches from its next, in whatever order they arrive.
    """
    check_25_a_crowd_of_5000_hides_nobody(db, arrives)


def check_virtual_time_is_moved_down(db: Database) -> None:
    """
    Past 2^60 all of a queue's virtual times go down together: neither order nor debt is changed.
    """
    queue = SqlQueue(db.conn)
    queue.set_tenant("B", 3)
    queue.enqueue("A", 40)
    queue.enqueue("B", 40)
    before = order(queue, 6)
    far = 2**60
    db.execute("update fairq.flows set vtime = vtime + %s, stamp = stamp + 1", far)
    db.execute(
        """
        update fairq.ticks as t set
            virtual_time = t.virtual_time + %s,
            pick_floor = row((t.pick_floor).vtime + %s, (t.pick_floor).charge, (t.pick_floor).served, '')::fairq.place
        """,
        far,
        far,
    )
    queue.enqueue("C", 1)  # news, so that the scheduler takes the virtual time
    assert before + order(queue, 10) == "BABBBA" + "BCBBABBBAB"
    assert db.value("select max(vtime) from fairq.flows") < far
    assert db.value("select virtual_time from fairq.ticks") < far


def test_virtual_time_is_moved_down(db: Database) -> None:
    """
    A queue may run for ever: its virtual time does not overflow.
    """
    check_virtual_time_is_moved_down(db)


def check_held_jobs_earn_nothing(db: Database) -> None:
    """
    While A's transaction holds all of A's jobs B is served.

    Neither A, when it lets go, nor C, which comes meanwhile, gets more than one job ahead of B.
    """
    queue = SqlQueue(db.conn)
    held = queue.enqueue("A", 12)
    queue.enqueue("B", 300)
    order(queue, 2)
    holder = db.connect(autocommit=False)
    for job in held[1:]:
        assert holder.execute("select fairq.cancel_job(%s)", [queue.jobs[job]]).fetchone() == ("cancelled",)
    assert set(order(queue, 60)) == {"B"}
    queue.enqueue("C", 60)
    assert longest_run(order(queue, 40), "C") <= 2
    holder.rollback()
    assert longest_run(order(queue, 30), "A") <= 2


def test_held_jobs_earn_nothing(db: Database) -> None:
    """
    A tenant cannot bank time by holding its own jobs, nor hold the virtual time down.
    """
    check_held_jobs_earn_nothing(db)


def check_a_held_job_earns_nothing_beside_full_claims(db: Database, batch: int = 10) -> None:
    """
    A is first in order, and its only job is held by an open transaction, while claims serve B.

    Each claim is full, so that no pass after the last one looks for who is first now. Neither C, which comes meanwhile,
    nor A, when it lets go, gets more than one job ahead of B.
    """
    queue = SqlQueue(db.conn)
    [held] = queue.enqueue("A", 1)
    queue.enqueue("B", 300)
    holder = db.connect(autocommit=False)
    assert holder.execute("select fairq.cancel_job(%s)", [queue.jobs[held]]).fetchone() == ("cancelled",)
    assert set(order(queue, 60, batch)) == {"B"}
    # at the virtual time of the others, neither below it nor above
    query = "select f.tenant, f.vtime from fairq.flows as f where f.queue = %s order by f.tenant"
    assert db.rows(query, queue.name) == [("A", 60 * JOB), ("B", 60 * JOB)]
    queue.enqueue("C", 60)
    assert longest_run(order(queue, 40, batch), "C") <= 2
    holder.rollback()
    queue.enqueue("A", 30)
    assert longest_run(order(queue, 30, batch), "A") <= 2


@pytest.mark.parametrize("batch", [1, 10])
def test_a_held_job_earns_nothing_beside_full_claims(db: Database, batch: int) -> None:
    """
    Whoever holds up its one job waits as one without work, also when claims are filled by others.
    """
    check_a_held_job_earns_nothing_beside_full_claims(db, batch)


def check_a_debt_does_not_overflow(db: Database) -> None:
    """
    Thousands of leases of a week, renewed, at the least weight: the tenant waits, the others go on.
    """
    db.set_queue("week", longest_lease="7 days", charge="time")
    db.set_tenant("evil", queue="week", weight=0.001)
    db.given_jobs("evil", 3000, queue="week")
    for _ in range(3):
        jobs = db.claim(1000, queue="week", lease="7 days")
        assert set(db.renew_all(jobs, lease="7 days").values()) == {"renewed"}
    # as if they had gone on for years
    db.execute("update fairq.settlements set endings[1].extra = (endings[1]).extra * 1000")
    db.given_jobs("evil", 5, queue="week")
    db.given_jobs("good", 5, queue="week")
    assert [job.tenant for job in db.claim(5, queue="week")] == ["good"] * 5


def test_a_debt_does_not_overflow(db: Database) -> None:
    """
    However much a tenant owes, no claim fails of it.
    """
    check_a_debt_does_not_overflow(db)


def test_an_idle_tenant_does_not_sink_out_of_range(db: Database) -> None:
    """
    Each time virtual times are moved down, those of idle tenants go down, too: as far as there is room, and no further.
    """
    for tenant in ("idle", "a"):
        db.given_jobs(tenant, 2)
        db.complete_all(db.claim(2))
    db.execute("update fairq.flows set vtime = -9223372036854775000 where tenant = 'idle'")
    db.execute("update fairq.flows set vtime = 1152921504606846977 where tenant = 'a'")
    db.execute("update fairq.ticks set virtual_time = 1152921504606846977")
    db.given_jobs("a", 1)
    assert [job.tenant for job in db.claim(1)] == ["a"]
    assert db.value("select vtime from fairq.flows where tenant = 'idle'") == -(2**62)
