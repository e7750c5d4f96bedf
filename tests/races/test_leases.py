"""
Leases: what they hand over, who may end an attempt, and when it is too late.
"""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from tests.support import wait_until

from .helpers import NOBODY, assert_agrees, assert_agrees_after_look, check, check_books, ids, look, waits

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Database, Session

HOUR = timedelta(hours=1)
# how long a lease is to last that is to end while somebody waits; the next when it ended before
SOON = [timedelta(seconds=1), timedelta(seconds=5), timedelta(seconds=25)]

ENDS: dict[str, tuple[Callable[[Session, Any], Any], Any]] = {
    "renew": (lambda s, job: s.renew(job), False),
    "complete": (lambda s, job: s.complete(job), False),
    "complete_all": (lambda s, job: s.complete_all([job])[job.job_id], "lost"),
    # one with another is completed otherwise than one alone
    "complete_two": (lambda s, job: s.complete_all([_no_job(job), job])[job.job_id], "lost"),
    "fail": (lambda s, job: s.fail(job), None),
    "release": (lambda s, job: s.release(job), None),
}


def _no_job(job: Any) -> Any:
    """A lease that nobody has."""
    return job._replace(job_id=0, lease_token=uuid4())


@check
def check_a_lease_is_judged_once_its_row_is_locked(db: Database) -> None:
    """A lease that ends while its worker waits for the row has ended, though the holder changed nothing."""
    enqueued = db.given_jobs("a", len(ENDS), max_attempts=len(SOON) + 1)
    holder = db.session(autocommit=False)
    sessions = [db.session() for _ in ENDS]
    over = "select bool_or(lease_expires_at < clock_timestamp()) from fairq.leases"
    for lease in SOON:
        jobs = db.claim(len(ENDS), lease=lease)
        holder.execute("select from fairq.leases for update")
        begun = [
            waits(db, session, lambda verb=verb, session=session, job=job: verb(session, job))
            for session, job, (verb, _) in zip(sessions, jobs, ENDS.values(), strict=True)
        ]
        in_time = not db.value(over)
        wait_until(lambda: db.value(over), "the leases to end")
        holder.conn.rollback()
        assert [call.result() for call in begun] == [lost for _, lost in ENDS.values()]
        assert db.expire() == len(jobs)
        if in_time:
            break
    assert in_time
    check_books(db, enqueued)


def test_a_lease_is_judged_once_its_row_is_locked(db: Database) -> None:
    """Row held past the end of the lease: lost, for every verb."""
    check_a_lease_is_judged_once_its_row_is_locked(db)


@check
def check_a_worker_can_end_what_it_just_renewed(db: Database) -> None:
    """Whatever changes the lease while its worker waits for the row: a live lease stays good for every verb."""
    db.given_jobs("a", 9)
    jobs = db.claim(9)
    heart, worker = db.session(autocommit=False), db.session()
    for n, (verb, lost) in enumerate(ENDS.values()):
        heart.renew(jobs[n], lease=HOUR)
        begun = waits(db, worker, lambda verb=verb, n=n: verb(worker, jobs[n]))
        heart.conn.commit()
        assert begun.result() != lost
    heart.cancel(jobs[8].job_id)
    begun = waits(db, worker, lambda: worker.complete_all(jobs[6:]))
    heart.conn.commit()
    assert set(begun.result().values()) == {"succeeded"}


def test_a_worker_can_end_what_it_just_renewed(db: Database) -> None:
    """A heartbeat in another thread is no reason to lose a lease."""
    check_a_worker_can_end_what_it_just_renewed(db)


@check
def check_a_renewal_in_flight_is_waited_for_after_the_end_of_the_lease(db: Database) -> None:
    """
    The worker completes after the old end of its lease, while a renewal that was in time is not committed.

    It waits for it: the lease it leaves is good, the one that a rollback leaves is over. One alone and one with another
    are completed otherwise.
    """
    enqueued = db.given_jobs("a", 4, max_attempts=len(SOON) + 1)
    heart, given_up = db.session(autocommit=False), db.session(autocommit=False)
    sessions = [db.session() for _ in enqueued]
    complete = [ENDS["complete"][0], ENDS["complete_two"][0]] * 2
    over = "select bool_and(lease_expires_at < clock_timestamp()) from fairq.leases"
    for lease in SOON:
        jobs = db.claim(4, lease=lease)
        in_time = [heart.renew(job, lease=HOUR) for job in jobs[:2]] + [given_up.renew(job) for job in jobs[2:]]
        wait_until(lambda: db.value(over), "the leases to end, as they were before")
        if all(in_time):
            break
        heart.conn.rollback()
        given_up.conn.rollback()
        assert db.expire() == len(jobs)
    assert all(in_time)
    begun = [
        waits(db, session, lambda verb=verb, session=session, job=job: verb(session, job))
        for session, job, verb in zip(sessions, jobs, complete, strict=True)
    ]
    heart.conn.commit()
    given_up.conn.rollback()
    assert [call.result() for call in begun] == [True, "succeeded", False, "lost"]
    assert [db.state(job.job_id) for job in jobs] == ["succeeded"] * 2 + ["running"] * 2
    assert db.expire() == 2
    check_books(db, enqueued)


def test_a_renewal_in_flight_is_waited_for_after_the_end_of_the_lease(db: Database) -> None:
    """A heartbeat that came just in time, and commits late."""
    check_a_renewal_in_flight_is_waited_for_after_the_end_of_the_lease(db)


@check
def check_a_second_completion_waits_for_the_first(db: Database) -> None:
    """Who asks again while the first call is not committed hears what became of it: done, or done by the second."""
    enqueued = db.given_jobs("a", 6)
    jobs = db.claim(6)
    first, second = db.session(autocommit=False), db.session()
    answers = {"complete": True, "complete_all": "already_succeeded", "complete_two": "already_succeeded"}
    for job, (verb, answer) in zip(jobs, answers.items(), strict=False):
        assert first.complete(job)
        begun = waits(db, second, lambda verb=verb, job=job: ENDS[verb][0](second, job))
        first.conn.commit()
        assert begun.result() == answer
    for job, verb in zip(jobs[3:], answers, strict=True):
        assert first.complete(job)
        begun = waits(db, second, lambda verb=verb, job=job: ENDS[verb][0](second, job))
        first.conn.rollback()
        assert begun.result() in (True, "succeeded")
    assert {db.state(job) for job in enqueued} == {"succeeded"}
    check_books(db, enqueued)


def test_a_second_completion_waits_for_the_first(db: Database) -> None:
    """The same token twice, at the same time."""
    check_a_second_completion_waits_for_the_first(db)


@check
def check_great_payloads_arrive_whole(db: Database) -> None:
    """Many great payloads in one claim, among small ones and just around the size at which they are fetched apart."""
    # of chance, or they would be stored as small ones
    chance = Random(4711)
    # bytes; twice as many characters
    sizes = [100_000] * 20 + [100_000, 3] * 10 + list(range(960, 1000))
    payloads = [{"data": chance.randbytes(size).hex()} for size in sizes]
    enqueued = [db.enqueue("a", payload=payload).job_id for payload in payloads]
    stored = [row.size for row in db.rows("select pg_column_size(payload) as size from fairq.jobs order by job_id")]
    assert min(stored[:20]) > 100_000
    assert min(stored[40:]) < 2_000 < max(stored[40:])
    worker = db.session(user=db.login("fairq_worker"))
    got = [job for n in (20, 20, 40) for job in worker.claim(n)]
    assert ids(got) == enqueued
    assert [job.payload for job in got] == payloads
    try:
        db.execute("update fairq.jobs set payload = null where job_id = %s", enqueued[0])
    except psycopg.errors.NotNullViolation:
        pass
    else:
        msg = "a job has no payload, as if it were to be fetched"
        raise AssertionError(msg)
    check_books(db, enqueued)


def test_great_payloads_arrive_whole(db: Database) -> None:
    """Twenty of 200 kB in one claim, in order; and none is null, which stands for what is fetched apart."""
    check_great_payloads_arrive_whole(db)


@check
def check_only_the_token_ends_an_attempt(db: Database) -> None:
    """A wrong token ends nothing, alone or in a batch beside the right one."""
    (job,) = db.given_jobs("a", 1)
    (held,) = db.claim(1)
    forged = held._replace(lease_token=uuid4())
    for verb, lost in ENDS.values():
        assert verb(db, forged) == lost
    assert db.state(job) == "running"
    query = "select outcome from fairq.complete_jobs(%s, %s)"
    assert db.rows(query, [job, job], [forged.lease_token, held.lease_token]) == [("lost",), ("succeeded",)]
    assert db.rows(query, [job, job], [held.lease_token] * 2) == [("already_succeeded",)] * 2
    check_books(db, [job])


def test_only_the_token_ends_an_attempt(db: Database) -> None:
    """The token is the fence."""
    check_only_the_token_ends_an_attempt(db)


@check
def check_only_the_claimer_ends_an_attempt(db: Database) -> None:
    """A stolen token is worth nothing to another role."""
    db.given_jobs("a", 1)
    mine, other = (db.session(user=db.login("fairq_worker")) for _ in range(2))
    (held,) = mine.claim(1)
    for verb, lost in ENDS.values():
        assert verb(other, held) == lost
    assert mine.renew(held)
    assert mine.complete(held)


def test_only_the_claimer_ends_an_attempt(db: Database) -> None:
    """Token and caller both count."""
    check_only_the_claimer_ends_an_attempt(db)


@check
def check_a_dead_lease_completes_nothing(db: Database) -> None:
    """A lease that is over and that nobody has taken back yet is over, and still there to be taken back."""
    enqueued = db.given_jobs("a", len(ENDS))
    jobs = db.claim(len(ENDS))
    db.execute("update fairq.leases set started_at = '2001-01-01', lease_expires_at = '2001-01-02'")
    assert [verb(db, job) for job, (verb, _) in zip(jobs, ENDS.values(), strict=True)] == [
        lost for _, lost in ENDS.values()
    ]
    assert db.expire() == len(jobs)
    check_books(db, enqueued)


def test_a_dead_lease_completes_nothing(db: Database) -> None:
    """Every verb, after the end of the lease."""
    check_a_dead_lease_completes_nothing(db)


@check
def check_nothing_stays_of_half_a_completion(db: Database) -> None:
    """A job whose row is gone under its lease is not completed, and neither is one beside it."""
    db.given_jobs("a", 3)
    jobs = db.claim(3)
    db.execute("delete from fairq.jobs where job_id <> %s", jobs[2].job_id)
    for complete in (lambda: db.complete(jobs[0]), lambda: db.complete_all(jobs[1:])):
        try:
            outcome = complete()
        except psycopg.errors.SerializationFailure:
            continue
        msg = f"half a completion has ended as {outcome}"
        raise AssertionError(msg)
    assert db.value("select count(*) from fairq.leases") == 3
    assert db.rows("select from fairq.settlements") == []
    assert db.complete(jobs[2])


def test_nothing_stays_of_half_a_completion(db: Database) -> None:
    """40001, for one and for many."""
    check_nothing_stays_of_half_a_completion(db)


@check
def check_the_old_token_is_dead_after_a_reclaim(db: Database) -> None:
    """A slow worker cannot touch the second attempt of its job."""
    (job,) = db.given_jobs("a", 1)
    (old,) = db.claim(1, lease=timedelta(milliseconds=1))
    new: list[Any] = []
    wait_until(lambda: new.extend(db.claim(1)) or new, "a second attempt")
    for verb, lost in ENDS.values():
        assert verb(db, old) == lost
    assert new[0].attempt == 2
    assert db.complete(new[0])
    for verb, lost in ENDS.values():
        assert verb(db, old) == lost
    assert db.state(job) == "succeeded"
    check_books(db, [job])


def test_the_old_token_is_dead_after_a_reclaim(db: Database) -> None:
    """Claim, expire, claim again: the first token is dead, before and after the end."""
    check_the_old_token_is_dead_after_a_reclaim(db)


@check
def check_a_renewal_never_shortens(db: Database) -> None:
    """A renewal for less than is left leaves the lease as it is."""
    db.given_jobs("a", 1)
    (held,) = db.claim(1, lease=HOUR)
    assert db.renew(held, lease=timedelta(seconds=1))
    assert db.value("select lease_expires_at from fairq.leases") == held.lease_expires_at


def test_a_renewal_never_shortens(db: Database) -> None:
    """Renew with a shorter lease."""
    check_a_renewal_never_shortens(db)


@check
def check_a_cancel_that_waited_finds_the_lease(db: Database) -> None:
    """A cancellation or a new date that waited for a claim sees that the job runs, and lets go of its row."""
    jobs = db.given_jobs("a", 2)
    worker, user = db.session(autocommit=False), db.session(autocommit=False)
    held = worker.claim(2)
    begun = waits(db, user, lambda: (user.cancel(jobs[0]), user.reschedule(jobs[1], delay=HOUR)))
    worker.conn.commit()
    assert begun.result() == ("cancel_requested", "running")
    # the row of the second is free, though the user's transaction goes on
    impatient = db.session(lock_timeout="2s")
    assert impatient.complete(held[1])
    user.conn.commit()
    assert db.fail(held[0]) == "cancelled"
    check_books(db, jobs)


def test_a_cancel_that_waited_finds_the_lease(db: Database) -> None:
    """Cancel and reschedule against an open claim."""
    check_a_cancel_that_waited_finds_the_lease(db)


@check
def check_floors_stay_at_what_is_locked(db: Database) -> None:
    """A lease or a scheduled job that is passed by because its row is held is not forgotten."""
    (running, due) = db.given_jobs("a", 2)
    db.reschedule(due, delay=HOUR)
    db.claim(1)
    look(db)
    # time passes, and changes nothing else
    db.execute("update fairq.leases set lease_expires_at = clock_timestamp()")
    db.execute("update fairq.jobs set run_at = clock_timestamp() where job_id = %s", due)
    db.execute("update fairq.ticks set promote_floor = '-infinity', expire_floor = '-infinity'")
    holder = db.session(autocommit=False)
    holder.execute("select from fairq.leases for update")
    holder.execute("select from fairq.jobs where job_id = %s for update", due)
    impatient = db.session(lock_timeout="500ms")
    assert db.given_jobs("b", 1) == ids(impatient.claim(10))
    assert impatient.claim(10) == []
    assert impatient.promote() == impatient.expire() == 0
    holder.conn.rollback()
    assert sorted(ids(db.claim(10))) == [running, due]


def test_floors_stay_at_what_is_locked(db: Database) -> None:
    """Expired and due, but locked while a claim looks; the claim waits for neither."""
    check_floors_stay_at_what_is_locked(db)


@check
def check_what_runs_is_counted(db: Database) -> None:
    """The count of what runs goes up with claims and down with every end, and a cap set later is exact."""
    enqueued = db.given_jobs("a", 9)
    jobs = db.claim(8)
    assert db.value("select running from fairq.flows") == 8
    db.set_tenant("a", max_running=2)
    assert db.claim(10) == []
    db.complete(jobs[0])
    db.complete_all(jobs[1:3])
    db.fail(jobs[3])
    db.fail(jobs[4], retry=False)
    db.release(jobs[5], delay=HOUR)
    assert db.claim(10, tenant=NOBODY) == []
    assert db.value("select running from fairq.flows") == 2
    assert db.claim(10) == []
    db.complete(jobs[6])
    assert ids(db.claim(10)) == enqueued[8:]
    check_books(db, enqueued)


def test_what_runs_is_counted(db: Database) -> None:
    """Running counts, and the cap they serve."""
    check_what_runs_is_counted(db)


@check
def check_who_is_backlogged_is_counted(db: Database) -> None:
    """Tenants come, go, come back within one claim, and weigh what they weigh at the time, idle, held up or not."""
    look(db)
    db.set_tenant("*", weight=2)
    db.set_tenant("paused", paused=True)
    enqueued = [job for tenant in ("a", "b", "gone", "paused") for job in db.given_jobs(tenant, 3)]
    assert_agrees_after_look(db)
    db.set_tenant("a", weight=0.0015)
    db.set_tenant("idle", weight=7)
    assert_agrees_after_look(db)
    db.set_tenant("*", weight=5)
    assert_agrees_after_look(db)
    # a tenant whose jobs are gone is found empty; one whose last jobs are held is emptied and comes back in one claim
    for job in db.job_ids("gone"):
        db.cancel(job)
    holder = db.session(autocommit=False)
    holder.execute("select from fairq.jobs where tenant = 'b' for update")
    jobs = db.claim(10)
    assert {job.tenant for job in jobs} == {"a"}
    assert_agrees(db)
    holder.conn.rollback()
    db.complete_all(jobs + db.claim(10))
    assert_agrees_after_look(db)
    enqueued += db.given_jobs("a", 1) + db.given_jobs("idle", 1)
    db.set_tenant("a")
    db.set_tenant("idle", weight=3)
    db.set_queue(charge="jobs")
    assert_agrees_after_look(db)
    db.set_tenant("paused")
    assert len(db.claim(10)) == len(db.job_ids("paused")) + 2
    check_books(db, enqueued)
    assert db.value("select backlogged from fairq.ticks") == 0


def test_who_is_backlogged_is_counted(db: Database) -> None:
    """The number of backlogged tenants and the sum of their weights."""
    check_who_is_backlogged_is_counted(db)


@check
def check_a_returning_tenant_has_no_credit(db: Database) -> None:
    """Who was idle starts level with the others, not where it left off."""
    db.given_jobs("b", 1)
    db.given_jobs("a", 60)
    assert len(db.claim(40)) == 40
    db.given_jobs("b", 20)
    order = "".join(job.tenant for job in db.claim(8))
    assert order in {"babababa", "abababab"}


def test_a_returning_tenant_has_no_credit(db: Database) -> None:
    """R2: the lift at activation."""
    check_a_returning_tenant_has_no_credit(db)


@check
def check_virtual_time_never_falls(db: Database) -> None:
    """A tenant that R11 puts one job below the virtual time does not let a newcomer in at its level."""
    db.set_tenant("a", max_running=1)
    db.given_jobs("a", 3)
    (first,) = db.claim(1)
    db.given_jobs("b", 20)
    db.claim(10)
    db.complete(first)
    look(db)
    db.given_jobs("new", 3)
    assert [job.tenant for job in db.claim(2)] == ["a", "new"]


def test_virtual_time_never_falls(db: Database) -> None:
    """R11 and a newcomer."""
    check_virtual_time_never_falls(db)


@check
def check_an_empty_flow_does_not_bend_the_order(db: Database) -> None:
    """A batch of n is n single picks, also when one of the first n tenants turns out to have nothing."""
    jobs = {tenant: db.given_jobs(tenant, 3) for tenant in "abc"}
    assert [job.tenant for job in db.claim(3)] == ["a", "b", "c"]
    for job in jobs["a"][1:]:
        assert db.cancel(job) == "cancelled"
    assert [job.tenant for job in db.claim(2)] == ["b", "c"]


def test_an_empty_flow_does_not_bend_the_order(db: Database) -> None:
    """The first tenant in line has cancelled its jobs."""
    check_an_empty_flow_does_not_bend_the_order(db)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_claims_are_read_committed(db: Database, level: str) -> None:
    """Faults 3: a claim on an old snapshot is refused, and nothing is changed."""
    jobs = db.given_jobs("a", 1)
    session = db.session(autocommit=False)
    session.execute(f"set transaction isolation level {level}")
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        session.claim(1)
    session.conn.rollback()
    assert ids(db.claim(1)) == jobs
