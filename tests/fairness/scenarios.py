"""
The scenarios with known answers that one session can play, in jobs mode.

Each is a plain function of `open_queue`, which gives a fresh queue: the exact model or the
SQL. So the same text judges both, and judges mutants of either.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Queue(Protocol):
    """
    What a scenario needs of a queue; jobs are numbers in the order of enqueueing.
    """

    def enqueue(self, tenant: str, count: int = 1, priority: int = 2) -> Sequence[int]:
        """
        Enqueue equal jobs.
        """
        ...

    def claim(self, n: int) -> list[int]:
        """
        Claim up to n jobs, in pick order.
        """
        ...

    def cancel_all(self, tenant: str) -> None:
        """
        Cancel all that waits of a tenant.
        """
        ...

    def set_tenant(self, tenant: str, weight: float = 1, *, paused: bool = False) -> None:
        """
        State the operator's wish for a tenant.
        """
        ...

    def tenant_of(self, job: int) -> str:
        """
        Whose job it is.
        """
        ...


OpenQueue = "Callable[[], Queue]"


def served(queue: Queue, n: int, batch: int = 1) -> list[str]:
    """
    The tenants of the next n dispatches, claimed in batches.
    """
    tenants: list[str] = []
    while len(tenants) < n:
        jobs = queue.claim(min(batch, n - len(tenants)))
        assert jobs, f"a claim found nothing after {len(tenants)} of {n} dispatches"
        tenants += map(queue.tenant_of, jobs)
    return tenants


def order(queue: Queue, n: int, batch: int = 1) -> str:
    """
    The next n dispatches as a word, for tenants of one letter.
    """
    return "".join(served(queue, n, batch))


def longest_run(tenants: Sequence[str], tenant: str) -> int:
    """
    The most dispatches one tenant gets in a row.
    """
    return max((len(list(run)) for name, run in groupby(tenants) if name == tenant), default=0)


def flooded(open_queue: OpenQueue, weights: dict[str, float], count: int = 300) -> Queue:
    """
    A queue in which every tenant has many jobs.
    """
    queue = open_queue()
    for tenant, weight in weights.items():
        queue.set_tenant(tenant, weight)
        queue.enqueue(tenant, count)
    return queue


def check_01_equal_weights_alternate(open_queue: OpenQueue) -> None:
    """
    Scenario 1: two equal tenants take turns.
    """
    assert order(flooded(open_queue, {"A": 1, "B": 1}), 10) == "ABABABABAB"


def check_02_one_to_three(open_queue: OpenQueue) -> None:
    """
    Scenario 2: weight 3 gets three of every aligned four, evenly spread.
    """
    assert order(flooded(open_queue, {"A": 1, "B": 3}), 16) == "BABB" * 4


def check_03_one_two_four(open_queue: OpenQueue) -> None:
    """
    Scenario 3: weights 1, 2, 4 repeat one sequence of seven.
    """
    assert order(flooded(open_queue, {"A": 1, "B": 2, "C": 4}), 70) == "CBACCBC" * 10


def check_04_two_to_three(open_queue: OpenQueue) -> None:
    """
    Scenario 4: weights that do not divide each other are exact too.
    """
    assert order(flooded(open_queue, {"A": 2, "B": 3}), 15) == "BABABBABABBABAB"


def check_05_one_to_ten(open_queue: OpenQueue) -> None:
    """
    Scenario 5: weight 1 against 10 is served once in every aligned eleven.
    """
    word = order(flooded(open_queue, {"A": 1, "B": 10}), 110)
    assert [word[i : i + 11].count("A") for i in range(0, 110, 11)] == [1] * 10


def check_06_a_thousand_tenants(open_queue: OpenQueue) -> None:
    """
    Scenario 6: three jobs of each of 1,000 tenants go in three whole rounds.
    """
    queue = open_queue()
    names = [f"t{i:04}" for i in range(1000)]
    for name in names:
        queue.enqueue(name, 3)
    tenants = served(queue, 3000, batch=100)
    assert [sorted(tenants[i : i + 1000]) == names for i in (0, 1000, 2000)] == [True] * 3
    assert queue.claim(1) == []


def check_07_a_short_backlog_ends(open_queue: OpenQueue) -> None:
    """
    Scenario 7: who has no work left leaves its turns to the others.
    """
    queue = open_queue()
    queue.enqueue("A", 2)
    queue.enqueue("B", 100)
    assert order(queue, 8) == "ABABBBBB"


def check_08_batches_change_nothing(open_queue: OpenQueue) -> None:
    """
    Scenario 8: the sequence is the same whatever the batch size.
    """
    for weights, word in ({"A": 1, "B": 3}, "BABB"), ({"A": 1, "B": 2, "C": 4}, "CBACCBC"):
        for batch in 1, 7, 100:
            assert order(flooded(open_queue, weights), 140, batch) == word * (140 // len(word))


def check_09_idling_earns_nothing(open_queue: OpenQueue) -> None:
    """
    Scenario 9: who comes back after 10,000 dispatches of another takes turns with it.
    """
    queue = open_queue()
    queue.enqueue("B")
    assert order(queue, 1) == "B"
    queue.enqueue("A", 10200)
    served(queue, 10000, batch=1000)
    queue.enqueue("B", 30000)
    tenants = served(queue, 200, batch=1) + served(queue, 100, batch=100)
    assert longest_run(tenants, "B") == 1
    assert longest_run(tenants, "A") == 1


def check_10_debt_is_kept(open_queue: OpenQueue) -> None:
    """
    Scenario 10: going idle after every job does not shake off what it cost.
    """
    queue = open_queue()
    queue.set_tenant("A", 10)
    queue.enqueue("A", 600)
    queue.enqueue("B")
    shares = {"A": 0, "B": 0}
    for _ in range(550):
        tenant = order(queue, 1)
        shares[tenant] += 1
        if tenant == "B":
            queue.enqueue("B")
    assert shares == {"A": 500, "B": 50}


def check_11_a_weight_acts_at_once(open_queue: OpenQueue) -> None:
    """
    Scenario 11: a new weight acts on the very next pick.
    """
    queue = flooded(open_queue, {"A": 1, "B": 1})
    assert order(queue, 6) == "ABABAB"
    queue.set_tenant("B", 3)
    assert order(queue, 12) == "BABBBABBBABB"


def check_12_cancelled_work_counts_for_nothing(open_queue: OpenQueue) -> None:
    """
    Scenario 12: a cancelled flood of 100,000 neither delays nor advances the next job.
    """
    queue = open_queue()
    queue.enqueue("A", 100_000)
    queue.enqueue("B", 300)
    assert order(queue, 4) == "ABAB"
    queue.cancel_all("A")
    queue.enqueue("A")
    word = order(queue, 200)
    assert word[:2].count("A") == 1
    assert word.count("A") == 1


def check_12_cancelled_tenants_hide_nobody(open_queue: OpenQueue) -> None:
    """
    Scenario 12, turned round: tenants all of whose jobs were cancelled fill no batch for others.
    """
    queue = open_queue()
    for tenant in "ABCDE":
        queue.enqueue(tenant, 20)
    assert order(queue, 1) == "A"
    queue.cancel_all("B")
    queue.cancel_all("C")
    assert order(queue, 3, batch=3) == "DEA"
    assert order(queue, 9, batch=9) == "DEADEADEA"
    assert order(queue, 1) == "D"
    queue.cancel_all("A")
    assert order(queue, 2, batch=2) == "ED"


def check_15_urgency_stays_at_home(open_queue: OpenQueue) -> None:
    """
    Scenario 15: an urgent job is its tenant's next, and no other tenant notices.
    """
    queue = open_queue()
    queue.enqueue("A", 10_000)
    queue.enqueue("B", 300)
    assert order(queue, 20) == "AB" * 10
    [urgent] = queue.enqueue("A", 1, 0)
    jobs = queue.claim(1) + queue.claim(1)
    assert jobs[0] == urgent
    assert "".join(map(queue.tenant_of, jobs)) + order(queue, 20) == "AB" * 11


def check_r2_nobody_enters_below(open_queue: OpenQueue) -> None:
    """
    R2: a newcomer is let in at V, not at the level of a flow that R11 put one job below it.
    """
    queue = flooded(open_queue, dict.fromkeys("ABCD", 2))
    for tenant in "CD":
        queue.set_tenant(tenant, 2, paused=True)
    assert order(queue, 10) == "ABABABABAB"
    for tenant in "CD":
        queue.set_tenant(tenant, 2)
    assert order(queue, 1) == "C"
    queue.enqueue("N", 10)
    assert order(queue, 10) == "DABCDNABCD"


def check_r11_one_job_of_precedence(open_queue: OpenQueue) -> None:
    """
    R11: a tenant that was held up goes first once, and catches up no more than that.
    """
    queue = flooded(open_queue, {"A": 1, "B": 1, "C": 1})
    queue.set_tenant("C", 1, paused=True)
    assert order(queue, 20) == "AB" * 10
    queue.set_tenant("C", 1)
    assert order(queue, 10) == "CABCABCABC"


CHECKS: dict[str, Callable[[OpenQueue], None]] = {
    name.removeprefix("check_"): check for name, check in sorted(globals().items()) if name.startswith("check_")
}
