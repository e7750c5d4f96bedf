"""
Locks: who waits for whom, and who never does.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from tests.support import Session, wait_until

from .helpers import check, check_books, gate_before, ids, look, paused_session, waits

if TYPE_CHECKING:
    from tests.support import Database

HOUR = timedelta(hours=1)


def held_up(session: Session, queue: str = "default") -> str:
    """A claim that is not patient: the detail of its error."""
    session.execute("set lock_timeout = '100ms'")
    try:
        claimed = session.claim(1, queue=queue)
    except psycopg.errors.LockNotAvailable as error:
        session.execute("reset lock_timeout")
        return str(error.diag.message_detail)
    msg = f"claimed {claimed} although the queue was locked"
    raise AssertionError(msg)


@check
def check_claims_take_turns(db: Database) -> None:
    """A second claim waits for the first one's transaction, or says for whom it cannot, and goes on from there."""
    jobs = db.given_jobs("a", 4)
    holder, rival = db.session(autocommit=False), db.session()
    held = ids(holder.claim(2))
    assert held_up(db.session()) == f"Held by process {holder.conn.info.backend_pid}."
    begun = waits(db, rival, lambda: rival.claim(2))
    holder.conn.commit()
    assert held + ids(begun.result()) == jobs
    check_books(db, jobs)


def test_claims_take_turns(db: Database) -> None:
    """The queue's lock is held to the end of the transaction, and an error names its holder."""
    check_claims_take_turns(db)


@check
def check_the_holder_is_named(db: Database) -> None:
    """The holder is named on a queue never claimed before, and when it had to wait for the lock itself."""
    db.given_jobs("a", 1, queue="new")
    first, second = db.session(autocommit=False), db.session(autocommit=False)
    first.claim(1, queue="new")
    assert held_up(db.session(), "new") == f"Held by process {first.conn.info.backend_pid}."
    begun = waits(db, second, lambda: second.claim(1, queue="new"))
    first.conn.commit()
    begun.result()
    assert held_up(db.session(), "new") == f"Held by process {second.conn.info.backend_pid}."
    assert second.value("select current_setting('lock_timeout')") == "0"
    second.conn.commit()


def test_the_holder_is_named(db: Database) -> None:
    """55P03 says which session to look at."""
    check_the_holder_is_named(db)


@check
def check_a_cancelled_claim_waits_no_longer(db: Database) -> None:
    """Who is cancelled while it waits for the queue's lock hears 57014."""
    # each time it begins to wait: on a slow machine one may come as late as the timeout, and is taken for it
    db.execute("""
        create function public.cancel_oneself() returns trigger language plpgsql security definer as $$
        begin
            perform pg_cancel_backend(pg_backend_pid());
            return null;
        end
        $$;
        create trigger cancel_oneself before insert on fairq.schedulers
            for each statement execute function public.cancel_oneself();
    """)
    db.given_jobs("a", 1)
    worker = db.session(lock_timeout="1s")
    try:
        claimed = worker.claim(1)
    except psycopg.errors.QueryCanceled:
        return
    msg = f"claimed {claimed} although it was cancelled"
    raise AssertionError(msg)


def test_a_cancelled_claim_waits_no_longer(db: Database) -> None:
    """A cancellation that comes before the timeout is due."""
    check_a_cancelled_claim_waits_no_longer(db)


@check
def check_a_timeout_reported_as_a_cancellation_is_none(db: Database) -> None:
    """A lock_timeout that strikes as the lock comes is reported as 57014; the claim goes on all the same."""
    # as PostgreSQL does in a moment that nobody can choose: no sooner than the timeout, and once
    db.execute("""
        create sequence public.waits;
        grant usage on sequence public.waits to public;
        create function public.report_a_timeout() returns trigger language plpgsql as $$
        declare
            v_until timestamptz := clock_timestamp() + current_setting('lock_timeout')::interval;
        begin
            if nextval('public.waits') = 1 then
                while clock_timestamp() < v_until loop end loop;
                raise exception 'canceling statement due to user request' using errcode = '57014';
            end if;
            return null;
        end
        $$;
        create trigger report_a_timeout before insert on fairq.schedulers
            for each statement execute function public.report_a_timeout();
    """)
    jobs = db.given_jobs("a", 1)
    assert ids(db.claim(1)) == jobs
    assert db.value("select last_value from public.waits") == 2
    assert db.value("select current_setting('lock_timeout')") == "0"


def test_a_timeout_reported_as_a_cancellation_is_none(db: Database) -> None:
    """57014 that nobody asked for."""
    check_a_timeout_reported_as_a_cancellation_is_none(db)


@check
def check_a_claim_rolled_back_to_a_savepoint_frees_the_queue(db: Database) -> None:
    """Who waits for a claim that is rolled back to a savepoint goes on at once, and its session can claim again."""
    jobs = db.given_jobs("a", 5)
    first, holder, rival = db.session(autocommit=False), db.session(autocommit=False), db.session()
    first.claim(1)
    holder.execute("savepoint s")
    begun = waits(db, holder, lambda: holder.claim(1))
    first.conn.commit()
    begun.result()
    begun = waits(db, rival, lambda: rival.claim(1))
    holder.execute("rollback to savepoint s")
    assert ids(begun.result()) == jobs[1:2]

    # it has the lock by a subtransaction of the savepoint's: who waits for that one waits for the whole transaction
    holder.execute("savepoint t")
    assert ids(holder.claim(1)) == jobs[2:3]
    holder.execute("release t")
    begun = waits(db, rival, lambda: rival.claim(1))
    holder.execute("rollback to savepoint s")
    assert ids(begun.result()) == jobs[2:3]
    assert ids(holder.claim(1)) == jobs[3:4]
    holder.conn.commit()
    assert ids(db.claim(10)) == jobs[4:]


def test_a_claim_rolled_back_to_a_savepoint_frees_the_queue(db: Database) -> None:
    """Savepoints and the queue's lock."""
    check_a_claim_rolled_back_to_a_savepoint_frees_the_queue(db)


@check
def check_an_open_claim_stops_nobody_else(db: Database) -> None:
    """While a claim's transaction is open: enqueue, renew, complete, fail, release, cancel and cron all go on."""
    enqueued = db.given_jobs("a", 12)
    running, idle = db.claim(5), enqueued[6:]
    holder = db.session(autocommit=False)
    (held,) = holder.claim(1)
    other = db.session(lock_timeout="500ms")
    enqueued += other.given_jobs("a", 1) + other.given_jobs("new", 1) + other.given_jobs("a", 1, key="k")
    assert other.renew(running[0])
    assert other.complete(running[0])
    assert other.complete_all(running[1:2]) == {running[1].job_id: "succeeded"}
    assert other.fail(running[2]) == "scheduled"
    assert other.release(running[3]) == "queued"
    assert other.cancel(running[4].job_id) == "cancel_requested"
    assert other.cancel(idle[0]) == "cancelled"
    assert other.retry(idle[0]) == "queued"
    assert other.reschedule(idle[1], delay=HOUR) == "scheduled"
    other.set_tenant("a", weight=2)
    assert other.promote() == other.expire() == 0
    holder.conn.commit()
    assert db.complete(held)
    check_books(db, enqueued)


def test_an_open_claim_stops_nobody_else(db: Database) -> None:
    """The queue's lock is the claimers' alone."""
    check_an_open_claim_stops_nobody_else(db)


@check
def check_a_purge_leaves_alone_what_is_claimed_meanwhile(db: Database) -> None:
    """A job that is claimed while a purge is under way can be completed, however long the purge stays open."""
    db.given_jobs("a", 3)
    look(db)
    purger = paused_session(db, autocommit=False)
    with gate_before(db, "insert on fairq.finished_jobs") as gate:
        purge = gate.stop(purger, lambda: purger.call("purge_tenant", p_queue="default", p_tenant="a"))
        # the purge has locked the first job, and has the others still in its list
        (claimed,) = db.claim(1)
        gate.open()
        purge.result()
        worker = db.session(lock_timeout="500ms")
        assert worker.complete(claimed)
        purger.conn.commit()
    assert db.rows("select from fairq.jobs") == []


def test_a_purge_leaves_alone_what_is_claimed_meanwhile(db: Database) -> None:
    """purge_tenant() and a claim, beside each other."""
    check_a_purge_leaves_alone_what_is_claimed_meanwhile(db)


@check
def check_a_cancellation_in_flight_is_passed_by(db: Database) -> None:
    """A claim neither takes nor waits for a job that is being cancelled or put off."""
    jobs = db.given_jobs("a", 5)
    user = db.session(autocommit=False)
    assert user.cancel(jobs[0]) == "cancelled"
    assert user.reschedule(jobs[1], delay=HOUR) == "scheduled"
    impatient = db.session(lock_timeout="500ms")
    assert ids(impatient.claim(1)) == jobs[2:3]
    assert ids(impatient.claim(3)) == jobs[3:]
    user.conn.commit()
    assert db.claim(3) == []
    check_books(db, jobs)


def test_a_cancellation_in_flight_is_passed_by(db: Database) -> None:
    """The claim locks the job, and skips what is locked."""
    check_a_cancellation_in_flight_is_passed_by(db)


@check
def check_a_claim_in_flight_is_respected(db: Database) -> None:
    """A job that an open claim has picked, by itself or among others, cannot be cancelled under it."""
    jobs = db.given_jobs("a", 3)
    worker, user = db.session(autocommit=False), db.session()
    for count in (1, 2):
        (first, *_) = ids(worker.claim(count))
        begun = waits(db, user, partial(user.cancel, first))
        worker.conn.commit()
        assert begun.result() == "cancel_requested"
    check_books(db, jobs)


def test_a_claim_in_flight_is_respected(db: Database) -> None:
    """Cancel waits for the claim, and finds its lease."""
    check_a_claim_in_flight_is_respected(db)


@check
def check_a_producer_waits_only_for_its_key(db: Database) -> None:
    """Faults 37: who uses a key in use waits for what becomes of it: rolled back, the job is made by the second."""
    first, second = db.session(autocommit=False), db.session()
    first.enqueue("a", key="k")
    other = db.session(lock_timeout="500ms")
    enqueued = [other.enqueue("a", key="l").job_id, other.enqueue("b", key="k").job_id]
    begun = waits(db, second, lambda: second.enqueue("a", key="k"))
    first.conn.rollback()
    job, created = begun.result()
    assert created
    enqueued.append(job)
    assert db.enqueue("a", key="k") == (job, False)
    check_books(db, enqueued)
    assert sorted(ids(db.claim(10))) == sorted(enqueued)


def test_a_producer_waits_only_for_its_key(db: Database) -> None:
    """Keys: wait, then know."""
    check_a_producer_waits_only_for_its_key(db)


@check
def check_batches_in_opposite_order(db: Database) -> None:
    """
    Batches of the same jobs, or the same keys, in opposite orders: no deadlock, and one of them has each.

    Somebody holds the one in the middle until both have come as far as they can.
    """
    enqueued = db.given_jobs("a", 28)
    one, two, holder = db.session(), db.session(), db.session(autocommit=False)
    for verb in (Session.complete_all, Session.renew_all, Session.fail_all, Session.release_all):
        batch = db.claim(7)
        holder.execute("select from fairq.leases where job_id = %s for update", batch[3].job_id)
        begun = [
            waits(db, one, partial(verb, one, batch)),
            waits(db, two, partial(verb, two, batch[::-1])),
        ]
        holder.conn.rollback()
        outcomes = [set(call.result().values()) for call in begun]
        assert all(len(each) == 1 for each in outcomes)

    keys = [{"tenant": "k", "task": "work", "key": f"{n}"} for n in range(7)]
    holder.enqueue("k", key="3")
    begun = [
        waits(db, one, partial(one.enqueue_jobs, keys)),
        waits(db, two, partial(two.enqueue_jobs, keys[::-1])),
    ]
    holder.conn.rollback()
    made = [row for call in begun for row in call.result()]
    assert Counter(row.outcome for row in made) == {"created": 7, "exists": 7}
    check_books(db, enqueued + [row.job_id for row in made if row.outcome == "created"])


def test_batches_in_opposite_order(db: Database) -> None:
    """complete, fail, release, renew and enqueue sort what they lock."""
    check_batches_in_opposite_order(db)


def test_a_wait_ends_with_its_holder(db: Database) -> None:
    """A session killed while it holds the queue's lock frees it at once, and its claim never was."""
    jobs = db.given_jobs("a", 2)
    holder, rival = db.session(autocommit=False), db.session()
    holder.claim(1)
    begun = waits(db, rival, lambda: rival.claim(2))
    db.execute("select pg_terminate_backend(%s)", holder.conn.info.backend_pid)
    assert ids(begun.result()) == jobs
    look(db)
    wait_until(
        lambda: not db.rows("select from pg_stat_activity where pid = %s", holder.conn.info.backend_pid), "it to go"
    )
