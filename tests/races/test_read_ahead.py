"""
Reading ahead: what a claim has picked for the claims that follow is taken once, by one of them, or waits again.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from tests.support import Worker, storm, wait_until

from . import test_storms as storms
from .helpers import (
    assert_agrees,
    assert_agrees_after_look,
    check,
    check_books,
    drain,
    gate_before,
    ids,
    look,
    on_another_cluster,
    paused_session,
    waits,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Database

HOUR = timedelta(hours=1)
MOMENT = timedelta(milliseconds=1)
AHEAD = 7


def ready(db: Database) -> list[int]:
    """The jobs that are ready, in the order of dispatch."""
    query = """
        select p.job_id from fairq.ready_picks as r cross join lateral unnest(r.jobs) as p order by r.dispatch, p.turn
    """
    return [row.job_id for row in db.rows(query)]


def just_picked(db: Database) -> None:
    """As if the last pick of each queue had been this moment: what is ready is so for a second, however slow we are."""
    db.execute("update fairq.ticks set ticked_at = clock_timestamp()")


def assert_charged_for_what_runs(db: Database) -> None:
    """A tenant that was never idle has the virtual time of the jobs that run or are ready, at the price of each."""
    assert db.value("select vtime = running * charge from fairq.flows")


@check
def check_what_is_ready_is_taken_in_order(db: Database) -> None:
    """A claim leaves picks behind, and the ones that follow take them in the order in which they were picked."""
    db.set_queue(read_ahead=5, charge="jobs")
    heavy, light = db.given_jobs("a", 6), db.given_jobs("b", 6)
    order = [job for pair in zip(heavy, light, strict=True) for job in pair]
    claimed = ids(db.claim(1))
    assert ready(db) == order[1:6]
    assert_agrees(db)
    while jobs := db.claim(1):
        claimed += ids(jobs)
        assert_agrees(db)
    assert claimed == order
    assert [row.job_id for row in db.rows("select job_id from fairq.leases order by dispatch")] == order


def test_what_is_ready_is_taken_in_order(db: Database) -> None:
    """Reading ahead changes when a job is picked, and not the order."""
    check_what_is_ready_is_taken_in_order(db)


@check
def check_a_take_in_flight_is_passed_by(db: Database) -> None:
    """While a claim that takes what is ready is not committed, others pick round it; rolled back, it left it ready."""
    db.set_queue(read_ahead=2)
    first, second, third, fourth = db.given_jobs("a", 4)
    assert ids(db.claim(1)) == [first]
    slow = db.session(autocommit=False)
    assert ids(slow.claim(1)) == [second]
    # an earlier job than all of them: the next pick begins before what is being taken
    early = db.enqueue("a", priority=0).job_id
    assert ids(db.claim(1)) == [third]
    assert ids(db.claim(10)) == [early, fourth]
    slow.conn.rollback()
    assert ids(db.claim(10)) == [second]
    assert db.claim(10) == []
    assert_agrees(db)


def test_a_take_in_flight_is_passed_by(db: Database) -> None:
    """Nobody waits for who takes what is ready, and nothing is handed out twice."""
    check_a_take_in_flight_is_passed_by(db)


@check
def check_a_ready_job_is_still_its_tenants(db: Database) -> None:
    """What waits may be cancelled, purged, put off and asked for by name while it is ready; the books stay right."""
    db.set_queue(read_ahead=20)
    running, cancelled, later, *rest = db.given_jobs("a", 5)
    purged = db.given_jobs("b", 3)
    named = db.given_jobs("c", 1)
    assert ids(db.claim(1)) == [running]
    assert set(ready(db)) == {cancelled, later, *rest, *purged, *named}
    assert db.value("select (fairq.explain_wait(%s)).reason", rest[0]) == "ready"
    assert db.cancel(cancelled) == "cancelled"
    assert db.reschedule(later, delay=HOUR) == "scheduled"
    assert db.value("select fairq.purge_tenant('default', 'b')") == len(purged)
    assert ids(db.claim(1, tenant="c")) == named
    assert ready(db) == []
    assert_agrees_after_look(db)
    assert db.value("select (fairq.explain_wait(%s)).reason", rest[0]) == "in_line"
    assert ids(db.claim(10)) == rest
    assert db.claim(1) == []
    assert_agrees(db)


def test_a_ready_job_is_still_its_tenants(db: Database) -> None:
    """Being picked ahead takes no right away."""
    check_a_ready_job_is_still_its_tenants(db)


@check
def check_what_has_gone_is_paid_back(db: Database) -> None:
    """Of picks that are taken one job is gone and one held: the first is refunded, the other had by who comes later."""
    db.set_queue(read_ahead=2)
    first, second, gone, held, *rest = db.given_jobs("a", 20)
    assert ids(db.claim(2)) == [first, second]
    assert ready(db) == [gone, held]
    assert db.cancel(gone) == "cancelled"
    rival = db.session(autocommit=False)
    rival.execute("select from fairq.jobs where job_id = %s for update", held)
    assert ids(db.claim(2)) == rest[:2]
    rival.conn.rollback()
    # what was ready is before it, in the order of dispatch
    assert ids(db.claim(3)) == [*rest[2:4], held]
    assert_agrees_after_look(db)
    assert db.value("select running from fairq.flows") == 7
    assert_charged_for_what_runs(db)


def test_what_has_gone_is_paid_back(db: Database) -> None:
    """A pick is a promise to the tenant, and no right to the job."""
    check_what_has_gone_is_paid_back(db)


@check
def check_a_pause_holds_what_is_ready(db: Database) -> None:
    """Of a tenant or a queue that was paused after the pick nothing starts; resumed, it starts once."""
    db.set_queue(read_ahead=20, charge="jobs")
    paused, others = db.given_jobs("a", 3), db.given_jobs("b", 3)
    assert ids(db.claim(1)) == paused[:1]
    db.set_tenant("a", paused=True)
    assert ids(db.claim(10)) == others
    assert db.claim(10) == []
    db.set_tenant("a")
    assert ids(db.claim(1)) == paused[1:2]
    assert ready(db) == paused[2:]
    db.set_queue(paused=True)
    assert db.claim(10) == []
    db.set_queue(paused=False)
    assert ids(db.claim(10)) == paused[2:]
    assert_agrees(db)


@check
def check_a_claim_whose_grant_goes_keeps_what_it_has(db: Database) -> None:
    """Revoked between two turns of one claim: it hands out all that it has leased."""
    db.set_queue(read_ahead=20, charge="jobs")
    jobs = db.given_jobs("a", 4)
    assert ids(db.claim(1)) == jobs[:1]
    login = db.login("fairq_worker")
    db.execute("update fairq.access_grants set role_name = %s where verb = 'claim'", login)
    worker = paused_session(db, user=login)
    with gate_before(db, "insert on fairq.leases") as gate:
        claim = gate.stop(worker, lambda: worker.claim(2))
        db.execute("delete from fairq.access_grants where verb = 'claim'")
        gate.open()
        handed_out = ids(claim.result())
    assert handed_out
    assert sorted(handed_out + jobs[:1]) == [
        row.job_id for row in db.rows("select job_id from fairq.leases order by 1")
    ]
    assert worker.claim(2) == []


def test_a_claim_whose_grant_goes_keeps_what_it_has(db: Database) -> None:
    """Else jobs would run for nobody until their leases are over."""
    check_a_claim_whose_grant_goes_keeps_what_it_has(db)


@check
def check_a_pause_of_all_holds_what_is_ready(db: Database) -> None:
    """Where * is paused, what is ready of a tenant with wishes of its own is taken, and nothing else."""
    db.set_queue(read_ahead=20, charge="jobs")
    first, others, excepted = db.given_jobs("a", 1), db.given_jobs("b", 2), db.given_jobs("c", 2)
    assert ids(db.claim(1)) == first
    assert sorted(ready(db)) == others + excepted
    db.set_tenant("c")
    db.set_tenant("*", paused=True)
    assert ids(db.claim(1)) == excepted[:1]
    assert sorted(ready(db)) == others + excepted[1:]
    db.set_tenant("*")
    assert sorted(ids(db.claim(10))) == others + excepted[1:]
    assert_agrees(db)


def test_a_pause_of_all_holds_what_is_ready(db: Database) -> None:
    """A tenant's own row is in force, else that of *."""
    check_a_pause_of_all_holds_what_is_ready(db)


def test_a_pause_holds_what_is_ready(db: Database) -> None:
    """A pause is in force for every claim that begins after it, whenever the job was picked."""
    check_a_pause_holds_what_is_ready(db)


@check
def check_a_pause_holds_what_is_left_of_a_take(db: Database) -> None:
    """Paused, and seen so by a look, while a claim is taking some of what is ready: what it leaves does not start."""
    db.set_queue(read_ahead=20, charge="jobs")
    paused = db.given_jobs("a", 6)
    worker = paused_session(db)
    assert ids(worker.claim(2)) == paused[:2]
    slow = db.session(autocommit=False)
    assert ids(slow.claim(1)) == paused[2:3]
    db.set_tenant("a", paused=True)
    assert worker.claim(1) == []
    slow.conn.commit()
    assert ready(db)
    assert worker.claim(10) == []
    db.set_tenant("a")
    assert ids(worker.claim(10)) == paused[3:]
    assert_agrees(db)


def test_a_pause_holds_what_is_left_of_a_take(db: Database) -> None:
    """A look of another claim does not make it forgotten."""
    check_a_pause_holds_what_is_left_of_a_take(db)


@check
def check_who_has_what_is_ready_does_not_wait(db: Database) -> None:
    """Its leases would be over before it has them: fewer than it wanted, while somebody else picks."""
    db.set_queue(read_ahead=3, charge="jobs")
    jobs = db.given_jobs("a", 20)
    assert ids(db.claim(1)) == jobs[:1]
    picking = db.session(autocommit=False)
    picking.execute("select from fairq.schedulers for update")
    assert ids(db.session(lock_timeout="1s").claim(10)) == jobs[1:4]
    picking.conn.rollback()
    assert ids(db.claim(10)) == jobs[4:14]
    assert_agrees(db)


def test_who_has_what_is_ready_does_not_wait(db: Database) -> None:
    """And hands out no job twice."""
    check_who_has_what_is_ready_does_not_wait(db)


@check
def check_a_claim_of_what_is_ready_may_not_idle_for_ever(db: Database) -> None:
    """It may hold the queue's lock, as every claim may."""
    db.set_queue(read_ahead=20, charge="jobs")
    db.given_jobs("a", 6)
    db.claim(1)
    session = db.session(autocommit=False)
    assert session.claim(1)
    assert session.value("select current_setting('idle_in_transaction_session_timeout')") == "10s"


def test_a_claim_of_what_is_ready_may_not_idle_for_ever(db: Database) -> None:
    """Ten seconds, unless it says less."""
    check_a_claim_of_what_is_ready_may_not_idle_for_ever(db)


@check
def check_what_is_ready_is_for_who_may_claim_for_all(db: Database) -> None:
    """Who may claim for one tenant, or wants the jobs of one, is not given what comes next of all."""
    db.set_queue(read_ahead=20, charge="jobs")
    mine, others = db.given_jobs("a", 5), db.given_jobs("b", 5)
    assert ids(db.claim(1)) == mine[:1]
    assert ready(db)[0] == others[0]
    assert ids(db.claim(1, tenant="a")) == mine[1:2]
    db.claim(1)
    assert ready(db)
    role = db.login("fairq_worker")
    db.execute("delete from fairq.access_grants where verb = 'claim'")
    db.execute("insert into fairq.access_grants values (%s, 'claim', 'default', 'a')", role)
    assert ids(db.session(user=role).claim(2)) == mine[2:4]
    assert_agrees_after_look(db)


def test_what_is_ready_is_for_who_may_claim_for_all(db: Database) -> None:
    """Isolation goes before reading ahead."""
    check_what_is_ready_is_for_who_may_claim_for_all(db)


@check
def check_a_newcomer_waits_for_what_is_ready_and_no_longer(db: Database) -> None:
    """Who arrives while the picks of another are ready has its first job right behind them."""
    db.set_queue(read_ahead=AHEAD, charge="jobs")
    db.given_jobs("a", 100)
    db.claim(1)
    (new,) = db.given_jobs("new", 1)
    before = 0
    while ids(db.claim(1)) != [new]:
        before += 1
    assert before in (AHEAD, AHEAD + 1)


def test_a_newcomer_waits_for_what_is_ready_and_no_longer(db: Database) -> None:
    """The price of reading ahead is as many jobs as it reads."""
    check_a_newcomer_waits_for_what_is_ready_and_no_longer(db)


@check
def check_reading_ahead_can_be_turned_off(db: Database) -> None:
    """What is ready when a queue no longer reads ahead waits again; the time prepaid for it is paid back."""
    db.set_queue(read_ahead=AHEAD)
    jobs = db.given_jobs("a", 20)
    assert ids(db.claim(1)) == jobs[:1]
    assert db.value("select running from fairq.flows") == 1 + AHEAD
    assert_charged_for_what_runs(db)
    db.set_queue(read_ahead=0)
    look(db)
    assert ready(db) == []
    assert db.value("select running from fairq.flows") == 1
    assert db.value("select started[1] + started[2] from fairq.flows") == 1
    assert db.value("select spent[1] + spent[2] = price from fairq.flows")
    assert_charged_for_what_runs(db)
    assert drain(db) == jobs[1:]
    assert_agrees_after_look(db)


def test_reading_ahead_can_be_turned_off(db: Database) -> None:
    """Nothing is left behind, and nothing is paid for it."""
    check_reading_ahead_can_be_turned_off(db)


@check
def check_what_is_too_much_stays_ready(db: Database) -> None:
    """Who asks for fewer than are in a row takes the first of them and leaves the others, in their order."""
    db.set_queue(read_ahead=5)
    jobs = db.given_jobs("a", 8)
    assert ids(db.claim(3)) == jobs[:3]
    assert ids(db.claim(1)) == jobs[3:4]
    assert ready(db) == jobs[4:]
    assert ids(db.claim(3)) == jobs[4:7]
    assert ids(db.claim(3)) == jobs[7:]
    assert [row.job_id for row in db.rows("select job_id from fairq.leases order by dispatch")] == jobs
    assert_agrees(db)


def test_what_is_too_much_stays_ready(db: Database) -> None:
    """A row of picks is shared by claims of any size."""
    check_what_is_too_much_stays_ready(db)


@check
def check_another_cluster_makes_it_ready_anew(db: Database) -> None:
    """On a server that is not the one they were made on, picks are worth nothing: their jobs are picked again, once."""
    db.set_queue(read_ahead=5)
    jobs = db.given_jobs("a", 8)
    assert ids(db.claim(1)) == jobs[:1]
    on_another_cluster(db)
    look(db)
    assert ready(db) == []
    assert_agrees(db)
    assert drain(db) == jobs[1:]


def test_another_cluster_makes_it_ready_anew(db: Database) -> None:
    """A dump may hold picks; after it is restored every job is still run once."""
    check_another_cluster_makes_it_ready_anew(db)


@check
def check_leases_of_what_was_ready_end(db: Database) -> None:
    """However short the lease that a claim gives to what was ready, and however late it commits, its end is seen."""
    db.set_queue(read_ahead=5)
    first, second, third, *rest = db.given_jobs("a", 8, max_attempts=9)
    assert ids(db.claim(1)) == [first]
    assert ids(db.claim(1, lease=MOMENT)) == [second]
    slow = db.session(autocommit=False)
    (taken,) = slow.claim(1, lease=MOMENT)
    assert taken.job_id == third
    wait_until(lambda: db.value("select clock_timestamp() > %s", taken.lease_expires_at), "a lease to be over")
    for _ in range(3):
        # each of them picks anew, round what is being taken
        assert set(ids(db.claim(5))) <= {second, *rest}
        look(db)
    slow.conn.commit()
    look(db)
    assert_agrees(db)
    assert db.job(third)["attempts"] == 1
    assert db.job(second)["attempts"] >= 1
    assert third in drain(db)


def test_leases_of_what_was_ready_end(db: Database) -> None:
    """No job is lost with a worker that took it from what was ready."""
    check_leases_of_what_was_ready_end(db)


def a_second_later(db: Database) -> None:
    """As if the last look of each queue had been two seconds ago."""
    db.execute("update fairq.ticks set ticked_at = ticked_at - interval '2 seconds'")


@check
def check_what_is_ready_is_so_for_a_second(db: Database) -> None:
    """A claim that comes later looks first: for a newcomer, for what is due, for leases that are over."""
    db.set_queue(read_ahead=50, charge="jobs")
    jobs = db.given_jobs("a", 100)
    assert ids(db.claim(1)) == jobs[:1]
    (new,) = db.given_jobs("new", 1)
    assert ids(db.claim(1)) == jobs[1:2]
    a_second_later(db)
    assert ids(db.claim(1)) == [new]
    assert_agrees(db)


def test_what_is_ready_is_so_for_a_second(db: Database) -> None:
    """However slow the workers, nobody waits for more than that because a queue reads ahead."""
    check_what_is_ready_is_so_for_a_second(db)


@check
def check_tokens_come_back_with_what_is_put_back(db: Database) -> None:
    """A tenant, and a queue, with a rate starts as many as its bucket holds, however often its picks are put back."""
    db.set_queue(read_ahead=50, rate=0.000001, burst=8)
    db.set_tenant("a", rate=0.000001, burst=5)
    limited, free = db.given_jobs("a", 10), db.given_jobs("b", 10)
    started = []
    while jobs := db.claim(1):
        started += ids(jobs)
        a_second_later(db)
    assert (len(started), len(set(started) & set(limited))) == (8, 4)
    assert set(started) <= {*limited, *free}
    assert_agrees(db)


def test_tokens_come_back_with_what_is_put_back(db: Database) -> None:
    """A rate holds exactly, in both directions."""
    check_tokens_come_back_with_what_is_put_back(db)


@check
def check_a_lease_that_ends_as_it_is_committed_is_seen(db: Database) -> None:
    """A claim passes by what is being taken; committed and over before that claim expires leases, it waits again."""
    db.set_queue(read_ahead=1)
    first, second, *rest = db.given_jobs("a", 4, max_attempts=9)
    assert ids(db.claim(1)) == [first]
    slow = db.session(autocommit=False)
    (taken,) = slow.claim(1, lease=MOMENT)
    assert taken.job_id == second
    wait_until(lambda: db.value("select clock_timestamp() > %s", taken.lease_expires_at), "a lease to be over")
    paused = paused_session(db)
    with gate_before(db, "delete on fairq.settlements") as gate:
        claim = gate.stop(paused, lambda: paused.claim(1))
        slow.conn.commit()
        gate.open()
        assert ids(claim.result()) == [second]
    assert drain(db) == rest
    assert_agrees_after_look(db)


def test_a_lease_that_ends_as_it_is_committed_is_seen(db: Database) -> None:
    """No job is lost between the claim that takes it and the one that looks meanwhile."""
    check_a_lease_that_ends_as_it_is_committed_is_seen(db)


@check
def check_what_is_put_back_keeps_its_turn(db: Database) -> None:
    """What is ready is put back as if it had not been picked, also where that was all the work of a tenant."""
    db.set_queue(read_ahead=50, charge="jobs")
    db.given_jobs("a", 10)
    db.given_jobs("b", 10)
    order = ""
    for _ in range(20):
        (job,) = db.claim(1)
        order += job.tenant
        assert abs(order.count("a") - order.count("b")) <= 1, order
        db.complete(job)
        db.given_jobs(job.tenant, 1)
        look(db)
    assert_agrees(db)


def test_what_is_put_back_keeps_its_turn(db: Database) -> None:
    """A tenant is not starved by claims that ask for others."""
    check_what_is_put_back_keeps_its_turn(db)


@check
def check_a_clock_set_back_loses_no_lease(db: Database) -> None:
    """What was made ready by a clock that was ahead is picked anew: leases of it would end before anybody looks."""
    db.set_queue(read_ahead=5)
    first, second, *rest = db.given_jobs("a", 8, max_attempts=9)
    ahead = "select job_id from unnest(fairq._dispatch('default', 'w', fairq._caller(), 1, '1 hour', '{*}', %s)) as c"
    assert db.value(ahead, datetime.now(timezone.utc) + HOUR) == first
    (taken,) = db.claim(1, lease=MOMENT)
    assert taken.job_id == second
    wait_until(lambda: db.value("select clock_timestamp() > %s", taken.lease_expires_at), "a lease to be over")
    assert sorted(drain(db)) == [second, *rest]
    assert_agrees_after_look(db)


def test_a_clock_set_back_loses_no_lease(db: Database) -> None:
    """A lease ends, whichever way the clock went since its job was picked."""
    check_a_clock_set_back_loses_no_lease(db)


@check
def check_a_clock_set_back_a_little_loses_no_lease(db: Database) -> None:
    """What was left by a clock that was ahead, but less than a second after the last pick, is taken: its leases end."""
    db.set_queue(read_ahead=8, charge="jobs")
    first, second, *rest = db.given_jobs("a", 12, max_attempts=9)
    assert ids(db.claim(1)) == [first]
    # as if half a second had gone by, what is ready had been split, and the clock been set back
    db.execute("update fairq.ready_picks set made_at = made_at + interval '0.5 seconds'")
    just_picked(db)
    slow = db.session(autocommit=False)
    (taken,) = slow.claim(1, lease=MOMENT)
    assert taken.job_id == second
    wait_until(lambda: db.value("select clock_timestamp() > %s", taken.lease_expires_at), "a lease to be over")
    assert ids(db.claim(9)) == rest[:9]
    slow.conn.commit()
    assert_agrees(db)
    wait_until(lambda: second in ids(db.claim(100)), "a job to be claimed again")
    assert_agrees_after_look(db)


def test_a_clock_set_back_a_little_loses_no_lease(db: Database) -> None:
    """Nor is it lost by a clock that goes back a little, and is ahead of the last pick still."""
    check_a_clock_set_back_a_little_loses_no_lease(db)


@check
def check_a_pick_is_given_up_under_the_lock_alone(db: Database) -> None:
    """A job that is gone when it is taken, and back when another claim looks and passes it by, is not forgotten."""
    db.set_queue(read_ahead=1)
    # revived, it is before the others again
    first, gone = db.given_jobs("a", 2, priority=0)
    rest = db.given_jobs("a", 4)
    holder, looker, taker = db.session(autocommit=False), paused_session(db), db.session()
    look(db)
    with gate_before(db, "delete on fairq.ready_picks") as gate:
        assert ids(holder.claim(1)) == [first]
        # it has seen nothing ready, and stops where it asks again, under the lock
        looking = waits(db, looker, lambda: looker.claim(1))
        gate.close()
        holder.conn.commit()
        at_gate = "select exists (select from pg_locks where locktype = 'advisory' and not granted)"
        wait_until(lambda: db.value(at_gate), "a claim to stand at the gate")
        assert db.cancel(gone) == "cancelled"
        taking = waits(db, taker, lambda: taker.claim(1))
        assert db.retry(gone) == "queued"
        gate.open()
        got = ids(looking.result()) + ids(taking.result())
    assert sorted(got + drain(db)) == [gone, *rest]
    assert_agrees_after_look(db)


def test_a_pick_is_given_up_under_the_lock_alone(db: Database) -> None:
    """No job is lost to a claim that found it gone."""
    check_a_pick_is_given_up_under_the_lock_alone(db)


@check
def check_more_is_picked_before_all_is_taken(db: Database) -> None:
    """Who leaves a quarter behind has as many picked as are missing, in their order, and nobody waits for it."""
    db.set_queue(read_ahead=8, charge="jobs")
    heavy, light = db.given_jobs("a", 20), db.given_jobs("b", 20)
    order = [job for pair in zip(heavy, light, strict=True) for job in pair]
    assert ids(db.claim(1)) == order[:1]
    just_picked(db)
    assert ids(db.claim(5)) == order[1:6]
    assert ready(db) == order[6:9]
    slow, others = db.session(autocommit=False), db.session(lock_timeout="1s")
    just_picked(db)
    assert ids(slow.claim(1)) == order[6:7]
    assert ids(others.claim(1)) == order[7:8]
    slow.conn.commit()
    assert ready(db) == order[8:15]
    assert db.value("select running from fairq.ticks") == 15
    assert_agrees(db)
    claimed = []
    while jobs := db.claim(1):
        claimed += ids(jobs)
        assert_agrees(db)
    assert claimed == order[8:]


def test_more_is_picked_before_all_is_taken(db: Database) -> None:
    """What is ready runs out when the work does, and not each time that it was taken."""
    check_more_is_picked_before_all_is_taken(db)


def test_more_is_picked_for_claims_of_any_size(db: Database) -> None:
    """Also for one that takes many rows or a part of one, and where each job has a cost of its own."""
    for charge in ("jobs", "cost", "time"):
        db.set_queue(queue=charge, read_ahead=16, charge=charge)
        jobs = db.given_jobs("a", 200, queue=charge)
        claimed = ids(db.claim(2, queue=charge))
        sizes = [3, 1, 2, 5] * 10
        for size in sizes:
            claimed += ids(db.claim(size, queue=charge))
            assert ready(db), charge
            assert_agrees(db)
        assert claimed == jobs[: 2 + sum(sizes)]
        assert_agrees_after_look(db)
        assert claimed + drain(db, charge) == jobs


@check
def check_more_is_picked_once_enough_is_missing(db: Database) -> None:
    """What others are just taking is not missing yet; once they have it, the next claim has more picked."""
    db.set_queue(read_ahead=8, charge="jobs")
    jobs = db.given_jobs("a", 40)
    assert ids(db.claim(1)) == jobs[:1]
    crowd = [db.session(autocommit=False) for _ in range(5)]
    just_picked(db)
    assert [ids(session.claim(1)) for session in crowd] == [[job] for job in jobs[1:6]]
    assert ids(db.claim(1)) == jobs[6:7]
    assert ready(db) == jobs[1:6] + jobs[7:9]
    for session in crowd:
        session.conn.commit()
    just_picked(db)
    assert ids(db.claim(1)) == jobs[7:8]
    assert ready(db) == jobs[8:16]
    assert_agrees(db)


def test_more_is_picked_once_enough_is_missing(db: Database) -> None:
    """A few at a time would cost as much as many."""
    check_more_is_picked_once_enough_is_missing(db)


@check
def check_a_capped_queue_picks_when_all_is_taken(db: Database) -> None:
    """Where a cap leaves fewer to be picked than a queue reads ahead, nobody tries to pick more before."""
    db.set_queue(read_ahead=16, charge="jobs", max_running=6)
    jobs = db.given_jobs("a", 40)
    done = db.claim(1)
    for turn in range(1, 6):
        just_picked(db)
        ticks = db.value("select tick_id from fairq.ticks")
        done += db.claim(1)
        assert db.value("select tick_id from fairq.ticks") == ticks, turn
        assert_agrees(db)
    assert ids(done) == jobs[:6]
    assert db.claim(1) == []
    db.complete_all(done)
    assert ids(db.claim(6)) == jobs[6:12]


def test_a_capped_queue_picks_when_all_is_taken(db: Database) -> None:
    """It would look for nothing."""
    check_a_capped_queue_picks_when_all_is_taken(db)


@check
def check_little_is_picked_when_all_is_taken(db: Database) -> None:
    """A queue that reads three ahead picks with each fourth claim."""
    db.set_queue(read_ahead=3, charge="jobs")
    db.given_jobs("a", 12)
    left = []
    for _ in range(8):
        just_picked(db)
        db.claim(1)
        left.append(len(ready(db)))
    assert left == [3, 2, 1, 0] * 2


def test_little_is_picked_when_all_is_taken(db: Database) -> None:
    """There is no quarter of it."""
    check_little_is_picked_when_all_is_taken(db)


@check
def check_who_gets_nothing_picks_nothing_more(db: Database) -> None:
    """A claim whose pick is held by somebody picks for itself, and not for others first."""
    db.set_queue(read_ahead=8, charge="jobs")
    jobs = db.given_jobs("a", 40)
    assert ids(db.claim(2)) == jobs[:2]
    just_picked(db)
    assert ids(db.claim(5)) == jobs[2:7]
    rival = db.session(autocommit=False)
    rival.execute("select from fairq.jobs where job_id = %s for update", jobs[8])
    just_picked(db)
    ticks = db.value("select tick_id from fairq.ticks")
    assert ids(db.claim(2)) == [jobs[7], jobs[9]]
    assert db.value("select tick_id from fairq.ticks") == ticks + 1
    rival.conn.rollback()
    assert sorted(drain(db)) == [jobs[8], *jobs[10:]]
    assert_agrees_after_look(db)


def test_who_gets_nothing_picks_nothing_more(db: Database) -> None:
    """It would be put back at once."""
    check_who_gets_nothing_picks_nothing_more(db)


@check
def check_who_picks_more_does_not_wait(db: Database) -> None:
    """While somebody has the queue's lock, what is ready is taken, and more is picked when it is used up."""
    db.set_queue(read_ahead=8, charge="jobs")
    jobs = db.given_jobs("a", 40)
    assert ids(db.claim(1)) == jobs[:1]
    holder = db.session(autocommit=False)
    holder.execute("select from fairq.schedulers for update")
    others = db.session(lock_timeout="10s")
    just_picked(db)
    assert [ids(others.claim(1)) for _ in range(8)] == [[job] for job in jobs[1:9]]
    holder.conn.rollback()
    assert ready(db) == []
    assert ids(db.claim(1)) == jobs[9:10]
    assert ready(db) == jobs[10:18]
    assert_agrees(db)


def test_who_picks_more_does_not_wait(db: Database) -> None:
    """Nobody is held up by what is done for those who come later."""
    check_who_picks_more_does_not_wait(db)


@check
def check_who_picks_more_forgets_no_idle_worker(db: Database) -> None:
    """A worker that found nothing is woken by the next job, also when what somebody gave back is taken meanwhile."""
    db.set_queue(read_ahead=8, charge="jobs")
    jobs = db.given_jobs("a", 9)
    assert ids(db.claim(1)) == jobs[:1]
    just_picked(db)
    assert ids(db.claim(5)) == jobs[1:6]
    holder, slow = db.session(autocommit=False), db.session(autocommit=False)
    holder.execute("select from fairq.schedulers for update")
    just_picked(db)
    assert ids(slow.claim(1)) == jobs[6:7]
    holder.conn.rollback()
    assert ids(db.claim(10)) == jobs[7:]
    slow.conn.rollback()
    just_picked(db)
    assert ids(db.claim(1)) == jobs[6:7]
    assert db.value("select found_empty from fairq.ticks")
    assert_agrees(db)


def test_who_picks_more_forgets_no_idle_worker(db: Database) -> None:
    """It asked for more than there was, and waits."""
    check_who_picks_more_forgets_no_idle_worker(db)


@check
def check_what_nobody_takes_is_put_back(db: Database) -> None:
    """Picks of a tenant that was paused are not left among those that are ready for as long as others have work."""
    db.set_queue(read_ahead=8, charge="jobs")
    paused, others = db.given_jobs("a", 2), db.given_jobs("b", 60)
    assert ids(db.claim(1)) == paused[:1]
    db.set_tenant("a", paused=True)
    for job in others[:30]:
        assert ids(db.claim(1)) == [job]
    assert_agrees(db)
    assert db.value("select running from fairq.flows where tenant = 'a'") == 1
    assert not set(ready(db)) & set(paused)


def test_what_nobody_takes_is_put_back(db: Database) -> None:
    """Else each claim would walk past them, and they would count as running."""
    check_what_nobody_takes_is_put_back(db)


@check
def check_floors_move_while_some_is_being_taken(db: Database) -> None:
    """Where each step finds a claim that is not committed, claims and steps still begin to read near the present."""
    started = db.value("select clock_timestamp()")
    db.set_queue(read_ahead=8, charge="jobs")
    db.given_jobs("a", 200)
    db.claim(1)
    slow, next_one = db.session(autocommit=False), db.session(autocommit=False)
    just_picked(db)
    assert slow.claim(1)
    floors = []
    for _ in range(5):
        # all but one that is being taken, and more than are ready: a step
        just_picked(db)
        db.execute("update fairq.ticks set expire_floor = expire_floor - interval '1 hour'")
        assert db.claim(10)
        floors += db.rows("select ready_floor, expire_floor from fairq.ticks")
        just_picked(db)
        assert next_one.claim(1)
        slow.conn.commit()
        slow, next_one = next_one, slow
    assert [row.ready_floor for row in floors] == sorted({row.ready_floor for row in floors})
    assert all(row.expire_floor > started - timedelta(seconds=3) for row in floors)
    slow.conn.commit()
    assert_agrees(db)


def test_floors_move_while_some_is_being_taken(db: Database) -> None:
    """Else they would walk all that ever was ready, and all leases that ever were, under a held snapshot."""
    check_floors_move_while_some_is_being_taken(db)


@check
def check_many_take_what_is_ready(db: Database) -> None:
    """Workers, cancellations and pauses at once: every job that is left is handed out once, whoever picked it."""
    db.set_queue(read_ahead=9)
    enqueued = [job for tenant in "abc" for job in db.given_jobs(tenant, 80)]
    gone: list[int] = []

    def work(worker: Worker) -> list[int]:
        with worker.conn.transaction(force_rollback=worker.random.random() < 0.2) as outer:
            jobs = worker.claim(worker.random.choice([1, 1, 2, 5]))
        if outer.force_rollback:
            return [0]
        if worker.random.random() < 0.1:
            job = worker.random.choice(enqueued)
            if worker.cancel(job) == "cancelled":
                gone.append(job)
        done = worker.complete_all(jobs) if jobs else {}
        assert set(done.values()) <= {"succeeded"}
        return list(done) or [0] * bool(worker.rows("select from fairq.jobs limit 1"))

    done = storm(db, workers=8, step=work)
    assert Counter(job for job in done if job) + Counter(gone) == Counter(enqueued)
    check_books(db, enqueued)


@pytest.mark.short
def test_many_take_what_is_ready(db: Database) -> None:
    """No job twice, none left, none of them lost on the way."""
    check_many_take_what_is_ready(db)


@pytest.mark.parametrize(
    "story", [storms.check_caps_hold, storms.check_the_cap_of_the_queue_holds, storms.check_everything_at_once]
)
def test_storms_while_reading_ahead(db: Database, story: Callable[[Database], None]) -> None:
    """The storms of queues that do not read ahead hold for those that do."""
    db.set_queue(read_ahead=6)
    story(db)
