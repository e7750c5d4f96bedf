"""Every verb once, so that each of its hot statements is planned and run."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.support import plans
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.database import Database, Session
    from tests.support.plans import Plan

LONG, SHORT, AT_ONCE = "1 hour", "1 millisecond", "1 microsecond"


def walk(db: Database, session: Session) -> list[tuple[str, Plan]]:
    """Use every verb in `session` and return what was planned for it: (statement, plan)."""
    with plans.overheard(session.conn) as heard:
        _enqueue(session)
        _wish(db)
        _crowd(session)
        _run(session)
        _carry(session)
        _come_back_late(session)
        _lose_leases(db, session)
        _cancel(session)
        _claim_around_a_held_job(db, session)
        _read_ahead(db, session)
        _purge(session)
        _prune(db, session)
    return [(" ".join(text.split()), plan) for text, plan in heard]


def _enqueue(session: Session) -> None:
    session.given_jobs("walker", 60)
    for _ in range(2):
        session.enqueue("walker", key="once")


def _wish(operator: Session) -> None:
    operator.set_queue(notify=True)
    operator.set_tenant("walker", weight=2)


def _crowd(session: Session) -> None:
    """Enough tenants enter at once, lighter than another, to be spread over a round; one of them has a rate."""
    session.enqueue_jobs([{"tenant": f"crowd {n}", "task": "work"} for n in range(40)])
    session.claim(1, lease=LONG)


def _run(session: Session) -> None:
    first, second, *others = session.claim(10, lease=LONG)
    session.renew(first)
    session.renew_all(others)
    session.complete(first)
    session.complete(first)
    session.complete_all([second, others.pop()])
    session.call("complete_job", p_job_id=others[-1].job_id, p_token=others.pop().lease_token, p_result="{}")
    session.release(others[0])
    session.release_all(others[1:3])
    session.fail(others[3], error="no", retry=False)
    session.fail_all(others[4:], retry_delay=LONG)
    session.retry(others[3].job_id)
    session.reschedule(others[3].job_id, delay=LONG)
    assert session.claim(10, tenant="walker", lease=LONG)


def _carry(session: Session) -> None:
    """Payloads that are fetched when they are sent; they say nothing twice, or they would be stored as small ones."""
    great = {"numbers": list(Random(4711).randbytes(4_000))}
    # of one that is claimed alone the payload is never left behind
    for _ in range(2):
        session.enqueue("walker", payload=great, priority=0)
    jobs = session.claim(2, tenant="walker", lease=LONG)
    assert [job.payload for job in jobs] == [great, great]
    session.complete_all(jobs)


def _come_back_late(session: Session) -> None:
    """Jobs that are due at once, promoted by the claim that follows and by promote_due_jobs()."""
    session.fail_all(session.claim(2, lease=LONG), retry_delay=AT_ONCE)
    session.claim(2, lease=LONG)
    session.fail_all(session.claim(2, lease=LONG), retry_delay=AT_ONCE)
    assert session.promote() == 2


def _lose_leases(db: Database, session: Session) -> None:
    """Leases that are over, taken back by the claim that follows and by release_expired_jobs()."""
    _lose(db, session)
    session.claim(2, lease=LONG)
    _lose(db, session)
    assert session.expire() == 2


def _lose(db: Database, session: Session) -> None:
    jobs = session.claim(2, lease=SHORT)
    end = max(job.lease_expires_at for job in jobs)
    wait_until(lambda: db.value("select clock_timestamp() > %s", end), "two leases to be over")


def _cancel(session: Session) -> None:
    job_id = session.enqueue("walker").job_id
    assert session.cancel(job_id) == "cancelled"
    assert session.cancel(session.claim(1, lease=LONG)[0].job_id) == "cancel_requested"


def _claim_around_a_held_job(db: Database, session: Session) -> None:
    """The first job in order is being taken away by somebody: the claim goes round it, and remembers it."""
    with db.connect(autocommit=False) as rival:
        (job,) = session.claim(1, tenant="walker", lease=LONG)
        session.release(job)
        rival.execute("select from fairq.jobs where job_id = %s for update", [job.job_id])
        assert session.claim(1, tenant="walker", lease=LONG)[0].job_id != job.job_id


def _read_ahead(db: Database, session: Session) -> None:
    """Picks for the claims that follow: taken, their job gone, and put back."""
    db.set_queue(queue="ahead", read_ahead=6)
    jobs = [row.job_id for row in session.enqueue_jobs([{"tenant": "a", "task": "work", "queue": "ahead"}] * 12)]
    assert len(session.claim(2, queue="ahead", lease=LONG)) == 2
    session.cancel(jobs[2])
    assert len(session.claim(2, queue="ahead", lease=LONG)) == 2
    assert len(session.claim(1, queue="ahead", tenant="a", lease=LONG)) == 1


def _purge(session: Session) -> None:
    """Jobs of one tenant, due or not, among those of others."""
    session.enqueue_jobs([{"tenant": f"sleeper {n % 10}", "task": "work", "delay": LONG} for n in range(100)])
    session.enqueue("sleeper 7")
    assert session.call("purge_tenant", p_queue="default", p_tenant="sleeper 7")[0].purge_tenant >= 10


def _prune(db: Database, session: Session) -> None:
    """Some jobs and keys whose time is over; as many again are left for the next walk."""
    db.execute("update fairq.finished_jobs as f set finished_at = f.finished_at - interval '8 days'")
    db.execute("update fairq.job_keys as k set expires_at = k.expires_at - interval '8 days'")
    db.execute("""
        update fairq.flows as f set minute = 0, vtime = 0
        where f.ctid in (
            select i.ctid from fairq.flows as i where not i.has_work and i.running = 0 and i.rate is null limit 3
        )
    """)
    assert session.call("prune", p_limit=3)[0].prune > 3
