"""
The look: every change is read exactly once, whenever it is committed.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support import wait_until

from .helpers import (
    assert_agrees,
    assert_agrees_after_look,
    check,
    check_books,
    drain,
    gate_before,
    gate_inside,
    ids,
    look,
    on_another_cluster,
    paused_session,
    waits,
)

if TYPE_CHECKING:
    from tests.support import Database

HOUR = timedelta(hours=1)
NOW = timedelta(0)


@check
def check_a_late_commit_is_found(db: Database) -> None:
    """Jobs committed two looks after they were enqueued are found, once; what is older is never hidden by them."""
    slow = db.session(autocommit=False)
    early = db.given_jobs("a", 2)
    late = slow.given_jobs("a", 2) + slow.given_jobs("new", 1)
    assert ids(db.claim(1)) == early[:1]
    between = db.given_jobs("b", 1)
    look(db)
    assert sorted(ids(db.claim(10))) == early[1:] + between
    slow.conn.commit()
    assert sorted(ids(db.claim(10))) == late
    assert db.claim(10) == []
    assert_agrees(db)


def test_a_late_commit_is_found(db: Database) -> None:
    """A producer that commits after two looks is read by the third."""
    check_a_late_commit_is_found(db)


@check
def check_children_are_found_once_committed(db: Database) -> None:
    """What a transaction enqueues around its own claims is not claimable in it, and all of it afterwards."""
    parents = db.given_jobs("a", 3)
    worker = db.session(autocommit=False)
    children = worker.given_jobs("child", 1) + worker.given_jobs("a", 1)
    # a younger transaction is done before the claim looks
    parents += db.given_jobs("b", 1)
    assert set(ids(worker.claim(2))) <= set(parents)
    children += worker.given_jobs("child", 2)
    claimed = ids(worker.claim(10))
    assert set(claimed) <= set(parents)
    assert len(claimed) == 2
    children += worker.given_jobs("child", 1) + worker.given_jobs("newer", 1)
    worker.conn.commit()
    assert sorted(ids(db.claim(10))) == sorted(children)
    # a single job is picked otherwise than many
    alone = worker.given_jobs("alone", 1)
    parents += db.given_jobs("b", 1)
    assert ids(worker.claim(1)) == parents[-1:]
    worker.conn.commit()
    assert ids(db.claim(1)) == alone
    check_books(db, parents + children + alone)


def test_children_are_found_once_committed(db: Database) -> None:
    """Claim and enqueue in one transaction: its own jobs come once it is committed."""
    check_children_are_found_once_committed(db)


@check
def check_savepoints_leave_nothing_behind(db: Database) -> None:
    """A claim and children rolled back to a savepoint never were; those around them are."""
    jobs = db.given_jobs("a", 2)
    worker = db.session(autocommit=False)
    jobs += worker.given_jobs("a", 1)
    worker.execute("savepoint s")
    assert len(worker.claim(10)) == 2
    worker.given_jobs("undone", 3)
    worker.execute("rollback to savepoint s")
    jobs += db.given_jobs("b", 1)
    assert len(worker.claim(1)) == 1
    jobs += worker.given_jobs("b", 1) + worker.given_jobs("new", 1)
    worker.execute("savepoint s")
    worker.claim(1)
    worker.execute("rollback to savepoint s")
    worker.conn.commit()
    assert len(db.claim(10)) == len(jobs) - 1
    check_books(db, jobs)


def test_savepoints_leave_nothing_behind(db: Database) -> None:
    """Savepoints around claims and children."""
    check_savepoints_leave_nothing_behind(db)


@check
def check_a_job_put_back_is_found(db: Database) -> None:
    """Released, failed, expired, snoozed, revived: each is found again, though its tenant has nothing else."""
    (job,) = db.given_jobs("a", 1)
    for put_back in (
        db.release,
        lambda held: db.fail(held, retry_delay=NOW),
        lambda held: db.fail(held, retry=False) and db.retry(job),
        lambda held: db.release(held, delay=HOUR) and db.reschedule(job, delay=NOW),
        lambda held: db.release(held) and db.cancel(job) and db.retry(job),
    ):
        (held,) = db.claim(10)
        look(db)
        put_back(held)
        assert_agrees_after_look(db)
    db.claim(1, lease=timedelta(milliseconds=1))
    assert wait_until(db.expire, "the lease to be over") == 1
    assert ids(db.claim(1)) == [job]
    check_books(db, [job])


def test_a_job_put_back_is_found(db: Database) -> None:
    """Every way back into the queue is read by the next look."""
    check_a_job_put_back_is_found(db)


@check
def check_a_running_job_is_passed_by(db: Database) -> None:
    """A job that runs behind one that was put back is not picked again, however many are claimed at once."""
    for batch in (1, 2):
        jobs = db.given_jobs("a", 4)
        held = [*db.claim(1), *db.claim(1)]
        assert db.release(held[0]) == "queued"
        order = [job for _ in range(0, 4, batch) for job in ids(db.claim(batch))]
        assert order == [jobs[0], *jobs[2:]]
        db.complete_all(db.rows("select job_id, lease_token from fairq.leases"))
    check_books(db, db.job_ids("a"))


def test_a_running_job_is_passed_by(db: Database) -> None:
    """The head goes back to a job that was released, and over the one that still runs."""
    check_a_running_job_is_passed_by(db)


@check
def check_the_news_of_all_is_written(db: Database) -> None:
    """News of several tenants at once: of the one that is picked, of those that are not, of all when none is."""
    first = db.given_jobs("a", 3) + db.given_jobs("b", 3)
    assert ids(db.claim(1)) == first[:1]
    # the news of b has been read, and would not be read again
    assert_agrees(db)
    assert ids(db.claim(1)) == first[3:4]
    # what is in the table says that they may be picked, each for a claim of its own kind
    for limit, tenant in ((1, ...), (5, ...), (5, "a")):
        db.set_tenant("a", paused=True)
        assert {job.tenant for job in db.claim(limit, tenant=tenant)} <= {"b"}
        db.set_tenant("a")
        look(db)
        assert_agrees(db)
    assert sorted(ids(db.claim(10))) == first[1:3]
    check_books(db, first)


def test_the_news_of_all_is_written(db: Database) -> None:
    """Flows are held in memory while a claim goes on, and written once."""
    check_the_news_of_all_is_written(db)


@check
def check_a_promoted_job_is_found(db: Database) -> None:
    """A job that cron has promoted, before or after a look at it as scheduled, is found."""
    for first_look in (True, False):
        (job,) = db.given_jobs("a", 1, delay=HOUR)
        if first_look:
            look(db)
        # time passes, and changes nothing else
        db.execute("update fairq.jobs set run_at = clock_timestamp() where job_id = %s", job)
        db.execute("update fairq.ticks set promote_floor = '-infinity'")
        assert db.promote() == 1
        look(db)
        assert ids(db.claim(10)) == [job]
        check_books(db, db.job_ids("a"))


def test_a_promoted_job_is_found(db: Database) -> None:
    """promote_due_jobs() by somebody's cron."""
    check_a_promoted_job_is_found(db)


GATES = [
    "delete on fairq.settlements",
    "insert or update on fairq.flows",
    "insert on fairq.leases",
    "delete or insert on fairq.ticks",
]


@check
def check_commits_inside_a_claim(db: Database, event: str = "insert or update on fairq.flows") -> None:
    """While a claim stands between two of its steps, everything else is done and committed: nothing is lost."""
    db.set_tenant("capped", max_running=1)
    jobs = db.given_jobs("capped", 4) + db.given_jobs("a", 8)
    running = db.claim(6)
    scheduled = db.given_jobs("a", 2, delay=HOUR)
    look(db)
    jobs += scheduled + db.given_jobs("a", 1) + db.given_jobs("b", 3)
    db.execute("set lock_timeout = '3s'")
    # at its cap: no claim holds these, so that nobody waits for one
    waiting = jobs[1:4]
    # one attempt has ended before, so that the look has something to settle
    db.complete(running[0])

    worker = paused_session(db)
    slow = db.session(autocommit=False)
    jobs += slow.given_jobs("a", 1) + slow.given_jobs("slow", 1)
    with gate_before(db, event) as gate:
        claim = gate.stop(worker, lambda: worker.claim(4))
        slow.conn.commit()
        jobs += db.given_jobs("a", 1, priority=0) + db.given_jobs("newcomer", 2)
        db.complete(running[1])
        db.release(running[2])
        db.fail(running[3], retry_delay=NOW)
        db.fail(running[4], retry=False)
        db.retry(running[4].job_id)
        db.cancel(waiting[0])
        db.reschedule(waiting[1], delay=HOUR)
        db.reschedule(waiting[2], priority=0)
        db.reschedule(scheduled[0], delay=NOW)
        db.set_tenant("b", max_running=1)
        gate.open()
        claimed = claim.result()
    assert len(claimed) == 4
    check_books(db, jobs)

    db.set_tenant("b")
    db.complete_all([*claimed, running[5]])
    for job in (waiting[1], scheduled[1]):
        db.reschedule(job, delay=NOW)
    drain(db)
    states = {row.state for row in db.rows("select state from fairq.all_jobs")}
    assert states <= {"succeeded", "cancelled"}
    check_books(db, jobs)


@pytest.mark.parametrize("event", GATES)
def test_commits_inside_a_claim(db: Database, event: str) -> None:
    """Commits that fall between the look, the pick, the lease and the tick of one claim are not lost."""
    check_commits_inside_a_claim(db, event)


@check
def check_a_wish_inside_a_claim_is_weighed_once(db: Database) -> None:
    """A weight that is committed while a claim opens flows for its entrants is counted as the one their flows have."""
    worker = paused_session(db)
    for tenants in ("ab", "cd"):
        for tenant in tenants:
            db.given_jobs(tenant, 2)
        with gate_before(db, "insert on fairq.flows") as gate:
            claim = gate.stop(worker, lambda: worker.claim(1))
            db.set_tenant(tenants[1], weight=3)
            gate.open()
            assert len(claim.result()) == 1
        assert_agrees_after_look(db)
        db.set_tenant(tenants[1])
        assert_agrees_after_look(db)
        drain(db)
        db.complete_all(db.rows("select job_id, lease_token from fairq.leases"))
        assert_agrees_after_look(db)


def test_a_wish_inside_a_claim_is_weighed_once(db: Database) -> None:
    """set_tenant() while the flows of the entrants are opened."""
    check_a_wish_inside_a_claim_is_weighed_once(db)


@check
def check_a_wish_for_all_reaches_who_was_idle(db: Database) -> None:
    """A tenant that had nothing when the wishes for * changed, once or twice, has them in force with its next job."""
    db.given_jobs("a", 1)
    drain(db)
    look(db)
    for weight in (3, 2):
        db.set_tenant("*", weight=weight, max_running=1)
        assert_agrees_after_look(db)
    db.given_jobs("a", 2)
    assert_agrees_after_look(db)
    assert db.value("select weight from fairq.flows") == 2
    assert len(db.claim(2)) == 1


def test_a_wish_for_all_reaches_who_was_idle(db: Database) -> None:
    """set_tenant() for *, and a flow without work."""
    check_a_wish_for_all_reaches_who_was_idle(db)


@check
def check_a_job_put_off_is_not_leased(db: Database) -> None:
    """A job that is put off or cancelled between its pick and its lock stays so, and the claim hands out others."""
    worker = paused_session(db)
    jobs = []
    for count, old, new in (
        (1, "where j.", "where public.at_gate() and j."),
        (2, "where jj.", "where public.at_gate() and jj."),
    ):
        off, *second = db.given_jobs("a", 1 + count)
        gone, *last = db.given_jobs("a", 1 + count)
        with gate_inside(db, "_lease", old, new) as gate:
            claim = gate.stop(worker, partial(worker.claim, count))
            assert db.reschedule(off, delay=HOUR) == "scheduled"
            gate.open()
            assert ids(claim.result()) == second
            claim = gate.stop(worker, partial(worker.claim, count))
            assert db.cancel(gone) == "cancelled"
            gate.open()
            assert ids(claim.result()) == last
        assert db.state(off) == "scheduled"
        assert db.state(gone) == "cancelled"
        jobs += [off, *second, gone, *last]
    check_books(db, jobs)


def test_a_job_put_off_is_not_leased(db: Database) -> None:
    """Rescheduled or cancelled after the lease's statement has begun, before it has locked the row."""
    check_a_job_put_off_is_not_leased(db)


@check
def check_however_many_end_between_two_looks(db: Database) -> None:
    """A step that hears of thousands of ends learns from them what one of a hundred would."""
    db.given_jobs("a", 6_010)
    crew = [db.claim(1_000, lease=timedelta(hours=1)) for _ in range(6)]
    for jobs in crew:
        db.execute("update fairq.leases set started_at = started_at - interval '10 minutes'")
        db.complete_all(jobs)
    try:
        assert len(db.claim(1)) == 1
    except psycopg.errors.DataException as error:
        msg = f"the queue has stopped: {error}"
        raise AssertionError(msg) from error
    # from one to six times ten minutes
    assert db.value("select f.estimate / 60000 between 30 and 40 from fairq.flows as f")
    assert db.value("select t.mean / 60000 between 30 and 40 from fairq.ticks as t")
    assert_agrees_after_look(db)


def test_however_many_end_between_two_looks(db: Database) -> None:
    """More than there are powers of 7/8."""
    check_however_many_end_between_two_looks(db)


@check
def check_attempts_that_end_during_a_rebuild_are_counted(db: Database) -> None:
    """The memory is rebuilt on another cluster; attempts that end meanwhile are neither lost nor counted twice."""
    jobs = db.given_jobs("a", 6)
    held = db.claim(5)
    look(db)
    db.complete(held[0])
    worker, other = paused_session(db), db.session()

    on_another_cluster(db)
    with gate_before(db, "update on fairq.jobs") as gate:
        rebuild = gate.stop(worker, lambda: look(worker))
        assert db.complete(held[1])
        gate.open()
        rebuild.result()
    assert_agrees_after_look(db)

    for complete, answer in (
        (lambda session: session.complete(held[2]), True),
        (lambda session: session.complete_all(held[3:]), {job.job_id: "succeeded" for job in held[3:]}),
    ):
        on_another_cluster(db)
        with gate_before(db, "delete on fairq.settlements") as gate:
            rebuild = gate.stop(worker, lambda: look(worker))
            # it has its lease, and waits for the job's row, which the rebuild has changed
            end = waits(db, other, lambda complete=complete: complete(other))
            gate.open()
            rebuild.result()
            assert end.result() == answer
        assert_agrees_after_look(db)
    assert {db.state(job.job_id) for job in held} == {"succeeded"}
    assert ids(db.claim(10)) == jobs[5:]
    check_books(db, jobs)


def test_attempts_that_end_during_a_rebuild_are_counted(db: Database) -> None:
    """Complete between the steps of a rebuild."""
    check_attempts_that_end_during_a_rebuild_are_counted(db)


@check
def check_the_memory_of_another_cluster_is_not_trusted(db: Database) -> None:
    """Transaction ids that mean nothing here, too high or too low, hide no job; what runs is counted anew, once."""
    # too high; as low as can be; and too low for what was seen
    for seen, far in ((10**12, 10**12), (3, 3), (5, 3)):
        jobs = db.given_jobs("a", 4) + db.given_jobs("virgin", 2, queue=f"virgin-{seen}")
        held = db.claim(3)
        db.complete(held[0])
        late = db.given_jobs("late", 1)
        # as a dump brings them: all of one cluster, none of this one
        db.execute("set session_replication_role = replica")
        db.execute("update fairq.jobs set changed_xid = %s::text::xid8", far)
        db.execute("update fairq.tenants set changed_xid = %s::text::xid8", far)
        db.execute("update fairq.settlements set ended_xid = %s::text::xid8", far)
        db.execute(
            "update fairq.ticks set seen = %s::text::pg_snapshot, own_xid = %s::text::xid8", f"{seen}:{seen}:", seen
        )
        db.execute("reset session_replication_role")
        on_another_cluster(db)
        assert_agrees_after_look(db)
        assert sorted(ids(db.claim(10))) == [jobs[3], *late]
        assert sorted(ids(db.claim(10, queue=f"virgin-{seen}"))) == jobs[4:]
        assert db.claim(10) == []
        running = db.rows("select job_id, lease_token from fairq.leases")
        assert set(db.complete_all(running).values()) == {"succeeded"}
        assert_agrees_after_look(db)


def test_the_memory_of_another_cluster_is_not_trusted(db: Database) -> None:
    """A restore, played by hand: see test_crash.py for real ones."""
    check_the_memory_of_another_cluster_is_not_trusted(db)


@check
def check_a_skipped_job_is_found_later(db: Database) -> None:
    """A head does not move past a job that somebody held, when the tenant's later jobs are claimed."""
    first, *others = db.given_jobs("a", 3)
    holder = db.session(autocommit=False)
    holder.execute("select from fairq.jobs where job_id = %s for update", first)
    impatient = db.session(lock_timeout="1s")
    assert ids(impatient.claim(1)) == others[:1]
    assert ids(impatient.claim(10)) == others[1:]
    assert impatient.claim(10) == []
    holder.conn.rollback()
    assert ids(db.claim(10)) == [first]
    check_books(db, [first, *others])


def test_a_skipped_job_is_found_later(db: Database) -> None:
    """Jobs skipped because they were locked come when they are free."""
    check_a_skipped_job_is_found_later(db)


@check
def check_a_clock_set_back_hides_nothing(db: Database) -> None:
    """A clock that is set back (a failover) hides neither leases nor scheduled jobs for ever."""
    db.given_jobs("a", 2)
    dispatch = """
        select job_id
        from unnest(fairq._dispatch('default', 'w', 'w', 1, interval '1 minute', '{*}', now() + %s::interval))
    """
    first = db.rows(dispatch, "2 hours")
    second = db.rows(dispatch, "0")
    assert first != second
    assert db.rows(dispatch, "2 minutes") == second


def test_a_clock_set_back_hides_nothing(db: Database) -> None:
    """The floors follow a clock that is set back."""
    check_a_clock_set_back_hides_nothing(db)


@check
def check_what_comes_up_within_a_second_is_found(db: Database) -> None:
    """A look asks a second ahead: what comes up in that second is found in time, known to the look or new since."""
    start = db.value("select now() + interval '1 hour'")
    dispatch = "select job_id from unnest(fairq._dispatch(%s, 'w', 'w', %s, %s, '{*}', %s))"

    def after(milliseconds: int) -> datetime:
        at: datetime = start + timedelta(milliseconds=milliseconds)
        return at

    def claim(at: int, queue: str, limit: int = 9, lease: timedelta = HOUR) -> list[int]:
        return [row.job_id for row in db.rows(dispatch, queue, limit, lease, after(at))]

    leased = db.given_jobs("a", 3, queue="lease")
    assert claim(0, "lease", 1, timedelta(milliseconds=100)) == leased[:1]
    assert claim(50, "lease", 1, timedelta(milliseconds=400)) == leased[1:2]
    assert claim(100, "lease", 1) == leased[:1]
    assert claim(449, "lease") == leased[2:]
    assert claim(450, "lease") == leased[1:2]

    due = {at: db.enqueue("a", queue="due", run_at=after(at)).job_id for at in (100, 400)}
    assert claim(0, "due") == []
    assert claim(100, "due") == [due[100]]
    due[200] = db.enqueue("a", queue="due", run_at=after(200)).job_id
    assert claim(150, "due") == []
    assert claim(200, "due") == [due[200]]
    assert claim(400, "due") == [due[400]]

    # a second token after 100 and 400 milliseconds, of which the first has no use for it
    db.set_tenant("a", queue="rate", rate=10)
    db.set_tenant("b", queue="rate", rate=2.5)
    limited = db.given_jobs("a", 1, queue="rate") + db.given_jobs("b", 2, queue="rate")
    assert sorted(claim(0, "rate")) == limited[:2]
    assert claim(100, "rate") == []
    assert claim(400, "rate") == limited[2:]

    db.set_tenant("a", queue="wish", rate=0.001)
    limited = db.given_jobs("a", 2, queue="wish")
    assert claim(0, "wish") == limited[:1]
    db.set_tenant("a", queue="wish", rate=4)
    assert claim(100, "wish") == []
    assert claim(350, "wish") == limited[1:]


def test_what_comes_up_within_a_second_is_found(db: Database) -> None:
    """The floors of leases, scheduled jobs and tokens, of which most claims see that there is nothing to ask for."""
    check_what_comes_up_within_a_second_is_found(db)


@check
def check_tokens_beyond_the_limit_of_a_look_come_with_the_next(db: Database) -> None:
    """More tokens are due than one look gives out: the others are not put off until it looks a second further."""
    start = db.value("select now()")
    dispatch = "select job_id from unnest(fairq._dispatch('default', 'w', 'w', %s, '1 hour', '{*}', %s))"
    db.set_tenant("*", rate=1)
    for tenant in range(120):
        db.given_jobs(f"{tenant}", 2)
    assert len(db.rows(dispatch, 1000, start)) == 120
    # a claim of one gives tokens to a hundred
    assert len(db.rows(dispatch, 1, start + timedelta(seconds=1))) == 1
    assert len(db.rows(dispatch, 1000, start + timedelta(seconds=1))) == 119


def test_tokens_beyond_the_limit_of_a_look_come_with_the_next(db: Database) -> None:
    """The floor of tokens, where a look is full."""
    check_tokens_beyond_the_limit_of_a_look_come_with_the_next(db)


@check
def check_no_token_within_a_second_is_lost_behind_a_full_look(db: Database) -> None:
    """Of 150 limited tenants 60 are due and 90 within the second, and a look reads 100: each comes when it is due."""
    start = db.value("select now() + interval '1 hour'")
    second = timedelta(seconds=1)

    def claim(limit: int, at: timedelta) -> list[str]:
        dispatch = "select tenant from unnest(fairq._dispatch('default', 'w', 'w', %s, '1 hour', '{*}', %s))"
        return [row.tenant for row in db.rows(dispatch, limit, start + at)]

    db.set_tenant("*", rate=1)
    tenants = {f"{n:03}" for n in range(150)}
    db.enqueue_jobs([{"tenant": tenant, "task": "work"} for tenant in tenants for _ in range(2)])
    early = claim(60, timedelta(0))
    late = {at: claim(1, at) for at in (n * timedelta(milliseconds=10) for n in range(1, 91))}
    assert {*early, *(tenant for got in late.values() for tenant in got)} == tenants

    due = claim(1, second) + claim(100, second)
    assert sorted(due) == sorted(early)
    assert {at: claim(1, second + at) for at in late} == late
    assert_agrees(db)


def test_no_token_within_a_second_is_lost_behind_a_full_look(db: Database) -> None:
    """The floor of tokens, where a look is full of those that are due and those that are next."""
    check_no_token_within_a_second_is_lost_behind_a_full_look(db)
