"""
T6 and T7: how far apart the worker-time of two tenants with work can be, and a real run that keeps to it.
"""

from __future__ import annotations

import time
from itertools import combinations
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import storm

from .oracle import LEASE, SECOND, Flow, Oracle
from .sql_queue import SqlQueue
from .workers import Attempt, Shift, work

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Database, Databases, Worker

SPAN = 30 * SECOND
FLOOD = 2500  # more than any crew can do in that


class Crew(NamedTuple):
    """
    Some workers, and tenants that always have work: the weight of each and how long its jobs take.
    """

    size: int
    weights: dict[str, float]
    lengths: dict[str, list[int]]

    def longest(self, tenant: str) -> int:
        """
        The longest job of a tenant.
        """
        return max(self.lengths[tenant])


@st.composite
def crews(draw: st.DrawFn, *, same_length: bool) -> Crew:
    """
    A few tenants of any weight, with jobs of 100 ms to 8 s.
    """
    names = draw(st.sampled_from(["AB", "ABC", "ABCD"]))
    weights = {tenant: draw(st.sampled_from([0.5, 1, 2, 3, 7.3])) for tenant in names}
    length = st.integers(100, 8000).map(lambda ms: ms * 1000)
    lengths = {tenant: draw(st.lists(length, min_size=1, max_size=1 if same_length else 5)) for tenant in names}
    return Crew(draw(st.integers(1, 8)), weights, lengths)


def worked(queue: Any, crew: Crew, charge: str, lease: int = LEASE, renew: int = 0) -> Shift:
    """
    Let a crew work on a flood of each tenant.
    """
    queue.set_queue(charge=charge)
    for tenant, weight in crew.weights.items():
        queue.set_tenant(tenant, weight)
        queue.enqueue(tenant, FLOOD, cost=crew.longest(tenant) / SECOND)

    def takes(job: int) -> int:
        lengths = crew.lengths[queue.tenant_of(job)]
        return lengths[job % len(lengths)]

    return work(queue, crew.size, SPAN, takes, lease=lease, renew=renew)


def check_bound(shift: Shift, crew: Crew, bound: Callable[[str], float]) -> None:
    """
    Of any two tenants that had work all the time, worker-time per weight is within the sum of their bounds.
    """
    assert max(map(shift.started, crew.weights)) < FLOOD
    assert shift.idle == 0
    for i, j in combinations(crew.weights, 2):
        lag = shift.lag(i, j, crew.weights)
        assert lag <= bound(i) + bound(j) + 1, (crew, i, j, lag)


def check_known_costs(queue: Any, crew: Crew) -> None:
    """
    T6: where the costs are known, (D + 1)(c_i/w_i + c_j/w_j).
    """
    shift = worked(queue, crew, "cost")
    check_bound(shift, crew, lambda t: (crew.size + 1) * crew.longest(t) / crew.weights[t])


class Estimating(Oracle):
    """
    The model, which remembers the greatest estimate of each tenant.
    """

    def __init__(self) -> None:
        super().__init__()
        self.greatest: dict[str, int] = {}

    def _apply(self, flow: Flow, *, has_token: bool, enters: bool) -> None:
        super()._apply(flow, has_token=has_token, enters=enters)
        self.greatest[flow.tenant] = max(flow.price * 1000, self.greatest.get(flow.tenant, 0))


def check_unknown_costs(crew: Crew, renew: int) -> Shift:
    """
    T7: where they are not, e + D c + 3 D max(e, h) of each, over its weight.
    """
    queue = Estimating()
    shift = worked(queue, crew, "time", renew or LEASE, renew)

    def bound(tenant: str) -> float:
        estimate = queue.greatest[tenant]
        longest = crew.size * crew.longest(tenant) + 3 * crew.size * max(estimate, renew)
        return (estimate + longest) / crew.weights[tenant]

    check_bound(shift, crew, bound)
    return shift


@given(crews(same_length=True))
@settings(max_examples=40)
def test_worker_time_of_known_costs_is_fair(crew: Crew) -> None:
    """
    T6: with costs declared, two tenants' worker-seconds per weight differ by (D + 1)(c_i/w_i + c_j/w_j) at most.
    """
    check_known_costs(Oracle(), crew)


@given(crews(same_length=False), st.sampled_from([0, SECOND, 4 * SECOND]))
@settings(max_examples=40)
def test_worker_time_of_unknown_costs_is_fair(crew: Crew, renew: int) -> None:
    """
    T7: with costs unknown and prepaid, with and without renewals, by e + D c + 3 D max(e, h) of both over the weight.
    """
    check_unknown_costs(crew, renew)


@pytest.mark.parametrize("seed", range(3))
def test_the_sql_gives_the_models_worker_time(module_db: Database, seed: int) -> None:
    """
    T7 of the SQL: the same crew on the same jobs does the same, attempt for attempt.
    """
    rng = Random(seed)
    crew = Crew(
        rng.randint(1, 8),
        {tenant: rng.choice([0.5, 1, 2, 7.3]) for tenant in "ABC"},
        {tenant: [rng.randint(500, 8000) * 1000 for _ in range(3)] for tenant in "ABC"},
    )
    expected = check_unknown_costs(crew, 4 * SECOND)
    queue = SqlQueue(module_db.conn, simulated=True)
    assert worked(queue, crew, "time", lease=4 * SECOND, renew=4 * SECOND) == expected


def check_reading_ahead_is_as_more_workers(db: Database) -> None:
    """
    T7 of the SQL in a queue that reads K ahead: with D + K in place of D.
    """
    ahead = 3
    crew = Crew(2, {"A": 1, "B": 7.3}, {"A": [200_000], "B": [50_000]})
    queue = SqlQueue(db.conn, simulated=True)
    queue.set_queue(read_ahead=ahead)
    shift = worked(queue, crew, "time")
    hands = crew.size + ahead
    # the first estimate is a second, and the greatest
    check_bound(shift, crew, lambda t: (SECOND + hands * crew.longest(t) + 3 * hands * SECOND) / crew.weights[t])


def test_reading_ahead_is_as_more_workers(db: Database) -> None:
    """
    A job that is ready is charged as one that a worker holds.
    """
    check_reading_ahead_is_as_more_workers(db)


def check_real_workers_share_the_time(db: Database) -> float:
    """
    Real sessions: four workers, tenants whose jobs take 200 ms and 20 ms; how far apart they are, as part of the whole.
    """
    takes = {"long": 0.2, "short": 0.02}
    for tenant in takes:
        db.given_jobs(tenant, 1000)
    crew = 4

    def step(worker: Worker) -> bool:
        [job] = worker.claim(1)
        time.sleep(takes[job.tenant])  # the work
        assert worker.complete(job)
        return True

    def shift_of(rows: list[Any]) -> Shift:
        attempts = [Attempt(row.tenant, row.start, row.end) for row in rows]
        return Shift(max(a.end for a in attempts), attempts, 0)

    # the first estimate is a second: until both have been measured their charges say little
    storm(db, workers=crew, step=step, rounds=20)
    warm = db.value("select max(finished_at) from fairq.finished_jobs")
    estimates = dict(db.rows("select tenant, estimate * 1000 from fairq.flows"))
    storm(db, workers=crew, step=step, rounds=100)

    rows = db.rows(
        """
        select f.tenant, (extract(epoch from f.started_at - %s) * 1000000)::bigint as start,
            (extract(epoch from f.finished_at - %s) * 1000000)::bigint as "end"
        from fairq.finished_jobs as f where f.started_at > %s""",
        *[warm] * 3,
    )
    shift = shift_of(rows)
    longest = {tenant: max(a.end - a.start for a in shift.attempts if a.tenant == tenant) for tenant in takes}
    bound = sum(
        estimates[tenant] + crew * longest[tenant] + 3 * crew * max(estimates[tenant], longest[tenant])
        for tenant in takes
    )
    lag = shift.lag("long", "short", dict.fromkeys(takes, 1.0))
    assert lag <= bound
    long, short = (shift.used(tenant) for tenant in ("long", "short"))
    return abs(long - short) / (long + short)


def test_real_workers_share_the_time(databases: Databases) -> None:
    """
    T7 for real: sessions with sleeping workers of 200 ms and 20 ms give both tenants equal worker-seconds.

    The bound, which is wide for a short run, is kept in each. And all but a tenth is shared equally in the best of
    three: of some 17 worker-seconds the crew's last long jobs, 4 x 0.2 s, are 5 %; a busy machine makes sleeps longer.
    """
    apart = []
    for _ in range(3):
        with databases.clone() as db:
            apart.append(check_real_workers_share_the_time(db))
        if apart[-1] <= 0.1:
            return
    pytest.fail(f"the parts that were not shared equally: {apart}")
