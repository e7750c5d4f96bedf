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
