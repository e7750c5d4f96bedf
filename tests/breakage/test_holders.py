"""Who holds something for long: a claimer, a producer, a worker that renews for ever."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.races.helpers import check, check_books, drain, ids, look
from tests.support import Edit, in_background, wait_until, wait_until_blocked

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Database


@check
def check_a_claimer_is_named_and_ended(db: Database) -> None:
    """
    Who claims in a transaction and forgets it: others wait no longer than they want, and are told who it is.

    Producers and completions do not wait at all; then the server ends the session, and its jobs wait as before.
    """
    done = db.given_jobs("a", 1)
    (held,) = db.claim(1)
    jobs = db.given_jobs("a", 3)
    claimer = db.session(autocommit=False)
    # what the claim sets is no more than what a session has: the test does not wait for ten seconds
    claimer.execute("set local idle_in_transaction_session_timeout = '6s'")
    mine = claimer.claim(2)
    pid = claimer.conn.info.backend_pid

    hurried = db.session(lock_timeout="50ms")
    with pytest.raises(psycopg.errors.LockNotAvailable) as refused:
        hurried.claim(1)
    assert refused.value.diag.message_detail == f"Held by process {pid}."
    in_time = db.session(lock_timeout="50ms")
    jobs += in_time.given_jobs("b", 1)
    assert in_time.complete(held)

    patient = db.session()
    waiting = in_background(lambda: patient.claim(10))
    wait_until_blocked(db, patient)
    # as soon as the server has ended the claimer, with no more claims to come
    assert sorted(ids(waiting.result())) == jobs
    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        claimer.execute("select 1")
    assert set(db.complete_all(mine).values()) == {"lost"}
    check_books(db, done + jobs)


def test_a_claimer_that_holds_its_transaction_open(db: Database) -> None:
    """The wait is bounded, 55P03 names the holder, and the server ends it."""
    check_a_claimer_is_named_and_ended(db)


@pytest.mark.once
def test_a_holder_that_is_not_named_is_noticed(assert_killed: Callable[..., None]) -> None:
    """The message is worth something only with the process in it."""
    mutation = Edit("_wait_for_queue", "coalesce(fairq._lock_holders(p_queue), 'unknown')", "'unknown'")
    assert_killed(check_a_claimer_is_named_and_ended, mutation)


@check
def check_nobody_waits_for_a_producer(db: Database) -> None:
    """
    A producer's transaction is open while others come and go: nobody waits for it, and no look skips it.

    Its jobs are seen when it commits, once.
    """
    early = db.given_jobs("a", 2)
    producer = db.session(autocommit=False)
    late = producer.given_jobs("a", 3) + producer.given_jobs("new", 2)
    others = db.session(lock_timeout="1s")
    claimed: list[int] = []
    enqueued: list[int] = []
    for _ in range(25):
        enqueued += others.given_jobs("a", 1) + others.given_jobs("b", 1)
        claimed += drain(others, batch=2)
    assert sorted(claimed) == sorted(early + enqueued)
    producer.conn.commit()
    assert sorted(drain(others)) == sorted(late)
    check_books(db, early + enqueued + late)


def test_a_producer_that_is_open_for_long(db: Database) -> None:
    """A late commit is found by the look that comes after it, whatever was looked at meanwhile."""
    check_nobody_waits_for_a_producer(db)


@pytest.mark.once
def test_a_late_commit_that_is_missed_is_noticed(assert_killed: Callable[..., None]) -> None:
    """A look that reads only what came after the last one."""
    mutation = Edit(
        "_look", "if pg_snapshot_xmin(p_tick.seen) < v_since or p_tick.own_xid < v_since then", "if false then"
    )
    assert_killed(check_nobody_waits_for_a_producer, mutation)


@check
def check_a_worker_that_renews_for_ever_can_be_stopped(db: Database) -> None:
    """
    A renewal reaches no further than the queue's longest lease: by then a worker that dies has lost its job.

    One that goes on is told to stop, and loses it when the lease is over if it does not. Its tenant pays all along.
    """
    db.set_queue(default_lease=timedelta(seconds=4), longest_lease=timedelta(seconds=4))
    (job,) = db.given_jobs("a", 1)
    (held,) = db.claim(1)
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        db.renew(held, timedelta(seconds=5))
    paid = "select vtime from fairq.flows where tenant = 'a'"
    before = db.value(paid)
    for _ in range(20):
        assert db.renew(held, timedelta(seconds=4))
    look(db)
    assert db.value(paid) > before
    assert db.claim(1) == []

    assert db.cancel(job) == "cancel_requested"
    assert not db.renew(held)
    wait_until(lambda: look(db) or db.state(job) == "cancelled", "the lease to end")
    assert not db.complete(held)
    check_books(db, [job])


def test_a_worker_that_renews_for_ever(db: Database) -> None:
    """cancel_job() ends what renewals would keep."""
    check_a_worker_that_renews_for_ever_can_be_stopped(db)


@pytest.mark.once
def test_a_renewal_after_a_cancellation_is_noticed(assert_killed: Callable[..., None]) -> None:
    """A lease that can be renewed although the job was cancelled."""
    mutation = Edit("_renew", "if v_lease.cancel_requested_at is not null then", "if false then")
    assert_killed(check_a_worker_that_renews_for_ever_can_be_stopped, mutation)
