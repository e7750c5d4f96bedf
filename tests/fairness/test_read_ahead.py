"""
Reading ahead against the exact model: the jobs come in the order of a claim of so many at once.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from .oracle import Oracle
from .sql_queue import SqlQueue

if TYPE_CHECKING:
    from tests.support import Database

AHEAD = 6


class Ahead(Oracle):
    """
    The model, whose claims of one job take from what a claim of 1 + AHEAD has picked.
    """

    def __init__(self) -> None:
        """
        Begin with nothing ready.
        """
        super().__init__()
        # each with how many were to be picked behind it
        self.ready: list[tuple[int, int]] = []

    def pick(self, count: int) -> None:
        """
        Make the next so many ready, or as many as there are.
        """
        self.ready += [(job, count - turn) for turn, job in enumerate(self.claim(count), start=1)]

    def take(self) -> list[int]:
        """
        Claim one job, and pick AHEAD more when none is ready; what is missing when a quarter or less is left.
        """
        if not self.ready:
            self.pick(1 + AHEAD)
        if not self.ready:
            return []
        job, behind = self.ready.pop(0)
        missing = AHEAD - len(self.ready)
        if behind <= AHEAD // 4 < missing:
            self.pick(missing)
        return [job]


@pytest.mark.parametrize("seed", range(40))
def test_any_trace_is_the_order_of_a_great_claim(module_db: Database, seed: int) -> None:
    """
    Whoever enqueues, completes and changes weights meanwhile: the SQL hands out what the model does, one by one.
    """
    rng = Random(seed)
    model, queue = Ahead(), SqlQueue(module_db.conn, simulated=True)
    queue.set_queue(read_ahead=AHEAD)
    model.set_queue(charge="jobs")
    running: list[int] = []
    for _ in range(60):
        match rng.choice(["enqueue", "claim", "claim", "claim", "complete", "weight"]):
            case "enqueue":
                tenant, count, priority = rng.choice("abcd"), rng.randint(1, 9), rng.randint(0, 3)
                assert queue.enqueue(tenant, count, priority) == model.enqueue(tenant, count, priority)
            case "claim":
                jobs = queue.claim(1)
                assert jobs == model.take()
                running += jobs
            case "complete" if running:
                job = running.pop(rng.randrange(len(running)))
                queue.complete(job)
                model.complete(job)
            case "weight":
                tenant, weight = rng.choice("abcd"), rng.choice([1, 2, 5])
                queue.set_tenant(tenant, weight)
                model.set_tenant(tenant, weight)
    assert running


def check_what_is_put_back_is_taken_off_the_minute_it_was_counted_in(db: Database) -> None:
    """
    Though its tenant has been heard of since, in the next minute, by a claim that picked of others.
    """
    queue = SqlQueue(db.conn, simulated=True)
    queue.set_queue(read_ahead=20)
    queue.wait(59_500_000)
    queue.enqueue("A", 12)
    first, _ = queue.claim(2)
    queue.wait(600_000)
    queue.complete(first)
    queue.enqueue("B", 50)
    more = "select fairq._dispatch(%s, 'worker', fairq._caller(), -2, '10 minutes', '{*}', %s)"
    db.execute(more, queue.name, queue.now)
    assert db.value("select count(*) from fairq.flows where tenant = 'B' and started[1] > 0") == 1
    assert db.value("select count(distinct minute) from fairq.flows") == 2
    queue.wait(2_000_000)
    # of A alone: so what is ready is put back
    assert len(queue.claim(1, tenant="A")) == 1
    assert db.value("select started[1] + started[2] from fairq.flows where tenant = 'A'") == 3
    assert db.value("select (spent[1] + spent[2]) / price from fairq.flows where tenant = 'A'") == 3


def test_what_is_put_back_is_taken_off_the_minute_it_was_counted_in(db: Database) -> None:
    """
    Two of A that ran, and one that runs now.
    """
    check_what_is_put_back_is_taken_off_the_minute_it_was_counted_in(db)
