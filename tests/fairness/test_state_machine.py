"""
Every public verb, one at a time in any order: no job is lost or doubled, counts agree, caps hold, turns are fair.

One session: what many do at once is the matter of tests/races.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from .history import lag_ratio

if TYPE_CHECKING:
    from tests.support import Database

TENANT = st.sampled_from("ABCDE")
PLACE = st.integers(0, 99)
PRIORITY = st.integers(0, 3)
SPAN = st.sampled_from([timedelta(0), timedelta(hours=1)])
INSTANT = timedelta(milliseconds=1)

_names = count(1)

ENDED = {"succeeded", "dead", "cancelled"}
WAITING = {"queued", "scheduled"}

# Every job of the queue, once for each place it is in.
PLACES = """
    select j.job_id, case when l.job_id is null then j.state else 'running' end as state
    from fairq.jobs as j left join fairq.leases as l using (job_id)
    where j.queue = %(queue)s
    union all
    select f.job_id, f.state from fairq.finished_jobs as f where f.queue = %(queue)s
    union all
    select l.job_id, 'a lease without a job' from fairq.leases as l
    where l.queue = %(queue)s and not exists (select from fairq.jobs as j where j.job_id = l.job_id)"""

WAITING_BY_TENANT = """
    select j.tenant, count(*) from fairq.jobs as j
    where j.queue = %s and j.state = 'queued' and not exists (select from fairq.leases as l where l.job_id = j.job_id)
    group by j.tenant"""

# What the scheduler believes, and what is so: flows, leases, and what operators wish.
BELIEFS = """
    select f.tenant, f.running, f.has_work, f.weight, w.max_running as cap, w.paused,
        (select count(*) from fairq.leases as l where l.queue = f.queue and l.tenant = f.tenant) as leases
    from fairq.flows as f cross join lateral fairq._wish(f.queue, f.tenant) as w where f.queue = %s"""


class AnyOrder(RuleBasedStateMachine):
    """
    One queue, and what is known of each of its jobs: the states it may be in.
    """

    db: Database

    @initialize(charge=st.sampled_from(["jobs", "jobs", "time", "cost"]))
    def open_queue(self, charge: str) -> None:
        """
        A queue of its own.
        """
        self.queue = f"machine-{next(_names)}"
        self.charge = charge
        self.db.set_queue(self.queue, charge=charge, max_attempts=3)
        self.states: dict[int, set[str]] = {}
        self.held: dict[int, Any] = {}  # claimed, as far as we know
        self.keys: dict[tuple[str, str], tuple[int, int]] = {}  # tenant, key -> job, payload

    # producers

    @rule(tenant=TENANT, priority=PRIORITY, delay=SPAN, cost=st.sampled_from([0.1, 1, 5]))
    def enqueue(self, tenant: str, priority: int, delay: timedelta, cost: float) -> None:
        """
        One job.
        """
        row = self.db.enqueue(tenant, queue=self.queue, priority=priority, delay=delay, cost=cost)
        assert row.created
        self._new(row.job_id, "scheduled" if delay else "queued")

    @rule(tenant=TENANT, n=st.integers(1, 20), priority=PRIORITY)
    def enqueue_batch(self, tenant: str, n: int, priority: int) -> None:
        """
        A batch.
        """
        for job_id in self.db.given_jobs(tenant, n, self.queue, priority=priority):
            self._new(job_id, "queued")

    @rule(tenant=TENANT, key=st.sampled_from("xyz"), payload=st.integers(1, 2))
    def enqueue_with_a_key(self, tenant: str, key: str, payload: int) -> None:
        """
        The same key and payload is the same job; another payload is refused.
        """
        name = f"{self.queue}-{key}"
        known, said = self.keys.get((tenant, key), (None, payload))
        if said != payload:
            with pytest.raises(psycopg.Error) as error:
                self.db.enqueue(tenant, payload={"n": payload}, queue=self.queue, key=name)
            assert error.value.sqlstate == "QF002"
            return
        row = self.db.enqueue(tenant, payload={"n": payload}, queue=self.queue, key=name)
        assert row.created == (known is None)
        if known is None:
            self._new(row.job_id, "queued")
            self.keys[tenant, key] = row.job_id, payload
        assert row.job_id == self.keys[tenant, key][0]

    @rule(
        elements=st.lists(
            st.tuples(TENANT, st.sampled_from([None, *"xyz"]), st.integers(1, 2), SPAN), min_size=1, max_size=6
        )
    )
    def enqueue_mixed_batch(self, elements: list[tuple[str, str | None, int, timedelta]]) -> None:
        """
        A batch of all sorts: each element is what it would have been by itself.
        """
        rows = self.db.enqueue_jobs(
            [
                {
                    "tenant": tenant,
                    "task": "work",
                    "queue": self.queue,
                    "payload": {"n": payload},
                    "delay": f"{delay.total_seconds()} seconds",
                    **({} if key is None else {"key": f"{self.queue}-{key}"}),
                }
                for tenant, key, payload, delay in elements
            ]
        )
        assert [row.ordinal for row in rows] == [*range(1, len(elements) + 1)]
        for (tenant, key, payload, delay), row in zip(elements, rows, strict=True):
            known = None if key is None else self.keys.get((tenant, key))
            if known:
                assert row.outcome == ("exists" if known[1] == payload else "conflict")
                assert row.job_id == known[0]
                continue
            assert row.outcome == "created"
            self._new(row.job_id, "scheduled" if delay else "queued")
            if key is not None:
                self.keys[tenant, key] = row.job_id, payload

    # workers

    @rule(n=st.integers(1, 12), tenant=st.one_of(st.none(), TENANT))
    def claim(self, n: int, tenant: str | None) -> None:
        """
        Whoever is claimed was waiting, and is claimed once.
        """
        self._claim(n, **({} if tenant is None else {"tenant": tenant}))

    @rule(tenant=TENANT, cap=st.integers(0, 3), n=st.integers(4, 12))
    def claim_beyond_a_cap(self, tenant: str, cap: int, n: int) -> None:
        """
        A tenant has more work than its cap lets start, whatever runs of it.
        """
        self.db.set_tenant(tenant, self.queue, max_running=cap)
        for job_id in self.db.given_jobs(tenant, cap + 2, self.queue):
            self._new(job_id, "queued")
        self._claim(n, tenant=tenant)

    @rule(n=st.integers(1, 3))
    def claim_for_an_instant(self, n: int) -> None:
        """
        Leases that are over before anything is done; then anybody may take the jobs back.
        """
        for job in self._claim(n, lease=INSTANT):
            self.states[job.job_id] |= {"queued", "dead", "cancelled"}

    @precondition(lambda self: self.held)
    @rule(place=PLACE, many=st.booleans())
    def renew(self, place: int, many: bool) -> None:
        """
        Running stays running.
        """
        jobs = [*self.held.values()][-3:] if many else [self._some(self.held, place)]
        outcomes: dict[int, str | None] = {}
        if many:
            outcomes.update(self.db.renew_all(jobs, timedelta(hours=1)))
        else:
            outcomes[jobs[0].job_id] = "renewed" if self.db.renew(jobs[0], timedelta(hours=1)) else None
        for job in jobs:
            if outcomes[job.job_id] == "renewed":
                self.states[job.job_id] = {"running"}
            elif outcomes[job.job_id] == "lost":
                assert self.states[job.job_id] != {"running"}, "a lease that was alive is called lost"
            else:
                assert outcomes[job.job_id] == ("cancel_requested" if many else None)

    @precondition(lambda self: self.held)
    @rule(place=PLACE, many=st.booleans())
    def complete(self, place: int, many: bool) -> None:
        """
        Those whose lease was alive have succeeded; for the others nothing is changed.
        """
        jobs = [*self.held.values()][-3:] if many else [self._some(self.held, place)]
        outcomes = self.db.complete_all(jobs) if many else {j.job_id: self.db.complete(j) and "succeeded" for j in jobs}
        for job in jobs:
            self._ended(job, outcomes[job.job_id])

    @precondition(lambda self: self.held)
    @rule(place=PLACE, delay=SPAN, retry=st.booleans(), many=st.booleans())
    def fail(self, place: int, delay: timedelta, retry: bool, many: bool) -> None:
        """
        Back in line, later, or dead, as the function says.
        """
        jobs = [*self.held.values()][:3] if many else [self._some(self.held, place)]
        outcomes: dict[int, str | None] = {}
        if many:
            outcomes.update(self.db.fail_all(jobs, retry_delay=delay, retry=retry))
        else:
            outcomes[jobs[0].job_id] = self.db.fail(jobs[0], retry_delay=delay, retry=retry)
        for job in jobs:
            self._ended(job, outcomes[job.job_id])

    @precondition(lambda self: self.held)
    @rule(place=PLACE, delay=SPAN, many=st.booleans())
    def release(self, place: int, delay: timedelta, many: bool) -> None:
        """
        Back in line or later.
        """
        jobs = [*self.held.values()][:3] if many else [self._some(self.held, place)]
        outcomes = self.db.release_all(jobs, delay) if many else {jobs[0].job_id: self.db.release(jobs[0], delay)}
        for job in jobs:
            self._ended(job, outcomes[job.job_id])

    @rule()
    def expire(self) -> None:
        """
        Leases that are over are taken back.
        """
        self.db.expire(self.queue)

    @rule()
    def promote(self) -> None:
        """
        Nothing is due before its time.
        """
        assert self.db.promote(self.queue) == 0

    # operators

    @precondition(lambda self: self.states)
    @rule(place=PLACE)
    def cancel(self, place: int) -> None:
        """
        What waits is cancelled, what runs is asked to stop.
        """
        job_id = self._some(dict.fromkeys(self.states), place, key=True)
        match self.db.cancel(job_id):
            case "cancelled":
                assert self.states[job_id] & WAITING
                self.states[job_id] = {"cancelled"}
            case "cancel_requested":
                assert "running" in self.states[job_id]
            case outcome:
                assert outcome == "finished"
                assert self.states[job_id] & ENDED

    @precondition(lambda self: self.states)
    @rule(place=PLACE)
    def retry(self, place: int) -> None:
        """
        Dead and cancelled come back to life, nothing else does.
        """
        job_id = self._some(dict.fromkeys(self.states), place, key=True)
        if self.db.retry(job_id) == "queued":
            assert self.states[job_id] & {"dead", "cancelled"}
            self.states[job_id] = {"queued"}

    @precondition(lambda self: self.states)
    @rule(place=PLACE, delay=SPAN, priority=PRIORITY)
    def reschedule(self, place: int, delay: timedelta, priority: int) -> None:
        """
        What waits may wait longer, or less.
        """
        job_id = self._some(dict.fromkeys(self.states), place, key=True)
        outcome = self.db.reschedule(job_id, delay=delay, priority=priority)
        if outcome in WAITING:
            assert self.states[job_id] & WAITING
            self.states[job_id] = {outcome}

    @rule(
        tenant=st.sampled_from("ABCDE*"),
        weight=st.sampled_from([0.5, 1, 2, 10]),
        cap=st.sampled_from([None, None, 0, 1, 3]),
        paused=st.sampled_from([False, False, True]),
        rate=st.sampled_from([None, None, 0.001, 1000]),
    )
    def set_tenant(self, tenant: str, weight: float, cap: int | None, paused: bool, rate: float | None) -> None:
        """
        Any wish.
        """
        self.db.set_tenant(tenant, self.queue, weight=weight, max_running=cap, paused=paused, rate=rate, burst=3)

    @rule(tenant=TENANT)
    def pause(self, tenant: str) -> None:
        """
        A tenant rests.
        """
        self.db.call("pause_tenant", p_queue=self.queue, p_tenant=tenant)

    @rule(tenant=TENANT)
    def resume(self, tenant: str) -> None:
        """
        And goes on.
        """
        self.db.call("resume_tenant", p_queue=self.queue, p_tenant=tenant)

    @rule(tenant=TENANT, limit=st.integers(1, 10))
    def purge(self, tenant: str, limit: int) -> None:
        """
        Of one tenant some of what waits is cancelled.
        """
        before = self._places()
        gone = self.db.call_one("purge_tenant", p_queue=self.queue, p_tenant=tenant, p_limit=limit)
        changed = [job_id for job_id, state in self._places().items() if state != before[job_id]]
        assert len(changed) == gone <= limit
        for job_id in changed:
            assert before[job_id] in WAITING
            self.states[job_id] = {"cancelled"}

    @rule(
        paused=st.sampled_from([False, False, True]),
        cap=st.sampled_from([-1, -1, 2, 8]),
        charge=st.sampled_from(["jobs", "jobs", "time", "cost"]),
        rate=st.sampled_from([0, 0, 0.001, 1000]),
    )
    def set_queue(self, paused: bool, cap: int, charge: str, rate: float) -> None:
        """
        Any settings.
        """
        self.charge = charge
        self.db.set_queue(self.queue, paused=paused, max_running=cap, charge=charge, rate=rate, burst=8)

    @rule()
    def prune(self) -> None:
        """
        What has ended may go, and only that.
        """
        self.db.set_queue(self.queue, retention=timedelta(0))
        self.db.call("prune")
        self.db.set_queue(self.queue, retention=timedelta(days=1))
        gone = self.states.keys() - self._places().keys()
        for job_id in gone:
            assert self.states.pop(job_id) & ENDED
            self.held.pop(job_id, None)

    # everyone

    @rule()
    def read_stats(self) -> None:
        """
        The counts for operators are those of the jobs.
        """
        places = Counter(self._places().values())
        for row in self.db.call("queue_stats", p_queue=self.queue):
            assert (row.queued, row.scheduled, row.running) == tuple(
                places[state] for state in ("queued", "scheduled", "running")
            )
        waiting = dict(self.db.rows(WAITING_BY_TENANT, self.queue))
        leases = {flow.tenant: flow.leases for flow in self.db.rows(BELIEFS, self.queue)}
        for row in self.db.call("tenant_stats", p_queue=self.queue):
            assert (row.queued, row.running) == (waiting.get(row.tenant, 0), leases[row.tenant])

    @precondition(lambda self: self.states)
    @rule(place=PLACE)
    def explain(self, place: int) -> None:
        """
        Where a job is said to be it is, and it is said why.
        """
        job_id = self._some(dict.fromkeys(self.states), place, key=True)
        state = self._places()[job_id]
        [why] = self.db.call("explain_wait", p_job_id=job_id)
        assert why.state == state
        assert why.sentence
        if state in ENDED:
            assert why.reason == "finished"
        elif state == "running":
            assert why.reason in {"running", "lease_expired"}
        elif state == "scheduled":
            assert why.reason == "not_due"
        else:
            assert why.ahead < self._count(state)

    @rule(n=st.integers(5, 15))
    def take_turns(self, n: int) -> None:
        """
        T2: with nothing else going on, no two tenants differ by more than one job of each (rho <= 1).

        Between those that could be served from the first to the last pick, and began within a job of V.
        """
        if self.charge != "jobs":
            return
        self._claim(1)
        before = self._places_in_line()
        tenants = [job.tenant for _ in range(n) for job in self._claim(1)]
        after = self._places_in_line()
        charges = {
            tenant: charge
            for tenant, (charge, epoch, in_band) in before.items()
            if in_band and after.get(tenant, ())[:2] == (charge, epoch)
        }
        if len(charges) > 1:
            assert lag_ratio(tenants, charges) <= 1, (tenants, charges)

    # what must hold

    @invariant()
    def every_job_is_in_one_place(self) -> None:
        """
        No job is lost or doubled, and each is in a state that it may be in.
        """
        if not hasattr(self, "states"):
            return
        places = self._places()
        assert places.keys() == self.states.keys()
        for job_id, state in places.items():
            assert state in self.states[job_id], (job_id, state, self.states[job_id])
            if state != "running":
                self.held.pop(job_id, None)
                self.states[job_id] = {state}

    # small words

    def _new(self, job_id: int, state: str) -> None:
        assert job_id not in self.states
        self.states[job_id] = {state}

    def _some(self, among: dict[int, Any], place: int, *, key: bool = False) -> Any:
        job_id = [*among][place % len(among)]
        return job_id if key else among[job_id]

    def _count(self, state: str) -> int:
        return Counter(self._places().values())[state]

    def _places(self) -> dict[int, str]:
        with self.db.conn.cursor() as cursor:
            rows = cursor.execute(PLACES, {"queue": self.queue}).fetchall()
        assert len({job_id for job_id, _ in rows}) == len(rows), "a job is in two places"
        return dict(rows)

    def _places_in_line(self) -> dict[str, tuple[Any, ...]]:
        """
        The flows that can be served, and whether they are between V and one job above it.
        """
        rows = self.db.rows(
            """
            select f.tenant, f.charge, f.epoch, f.vtime - greatest(t.virtual_time, min(f.vtime) over ()) as lag
            from fairq.flows as f join fairq.ticks as t using (queue)
            where f.queue = %s and f.eligible and exists (
                select from fairq.jobs as j
                where j.queue = f.queue and j.tenant = f.tenant and j.state = 'queued'
                  and not exists (select from fairq.leases as l where l.job_id = j.job_id)
            )""",
            self.queue,
        )
        return {row.tenant: (row.charge, row.epoch, 0 <= row.lag <= row.charge) for row in rows}

    def _claim(self, n: int, **options: Any) -> list[Any]:
        jobs = self.db.claim(n, self.queue, **{"lease": timedelta(hours=1), **options})
        for job in jobs:
            assert self.states[job.job_id] & WAITING, (job.job_id, self.states[job.job_id])
            self.states[job.job_id] = {"running"}
            self.held[job.job_id] = job
        self._check_beliefs(jobs)
        return jobs

    def _check_beliefs(self, started: list[Any]) -> None:
        """
        After a claim the scheduler knows what runs and who has work, and no cap is exceeded by what it started.

        What runs already may exceed a cap that was lowered since; then nothing is started.
        """
        flows = self.db.rows(BELIEFS, self.queue)
        assert [flow for flow in flows if flow.running != flow.leases] == []
        [tick] = self.db.rows("select * from fairq.ticks where queue = %s", self.queue)
        working = [flow for flow in flows if flow.has_work]
        assert tick.running == sum(flow.leases for flow in flows)
        assert tick.backlogged == len(working)
        assert tick.milliweight == sum(round(flow.weight * 1000) for flow in working)
        if started:
            [queue] = self.db.rows("select paused, max_running from fairq.queues where queue = %s", self.queue)
            assert not queue.paused
            assert queue.max_running is None or tick.running <= queue.max_running
        tenants = {job.tenant for job in started}
        for flow in flows:
            if flow.tenant in tenants:
                assert not flow.paused
                assert flow.cap is None or flow.leases <= flow.cap, flow

    def _ended(self, job: Any, outcome: Any) -> None:
        if outcome in (None, False, "lost"):
            assert self.states[job.job_id] != {"running"}, "a lease that was alive is called lost"
            return
        self.held.pop(job.job_id)
        self.states[job.job_id] = {outcome}


def check_any_order(db: Database, examples: int = 150, *, explain: bool = False) -> None:
    """
    Run the machine on a database; an error of the database is a failure, too.
    """
    machine = type("AnyOrderHere", (AnyOrder,), {"db": db})
    how = settings(
        max_examples=examples,
        stateful_step_count=40,
        # a mutant is to be noticed, by the same stories every time, not explained
        derandomize=not explain,
        phases=[Phase.explicit, Phase.generate, *([Phase.reuse, Phase.shrink] if explain else [])],
        report_multiple_bugs=False,
    )
    try:
        run_state_machine_as_test(machine, settings=how)
    except (psycopg.IntegrityError, psycopg.OperationalError) as error:
        msg = f"the database refused what it was to do itself: {error}"
        raise AssertionError(msg) from error


def test_any_order_of_all_functions_keeps_the_books(db: Database) -> None:
    """
    Whatever one session calls in whatever order: each job is in one place, what runs is counted, caps hold, rho <= 1.
    """
    check_any_order(db, 60, explain=True)
