"""
The scenarios with known answers that one session can play, in jobs mode unless they say otherwise.

Each is a plain function of `open_queue`, which gives a fresh queue: the exact model or the
SQL. So the same text judges both, and judges mutants of either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from .oracle import JOB, SECOND
from .workers import work

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Queue(Protocol):
    """
    What a scenario needs of a queue; jobs are numbers in the order of enqueueing, times are in microseconds.
    """

    @property
    def enqueue(self) -> Callable[..., list[int]]:
        """
        Jobs of a tenant, so many: their numbers.
        """

    @property
    def claim(self) -> Callable[..., list[int]]:
        """
        Up to so many jobs, in the order of dispatch.
        """

    @property
    def renew(self) -> Callable[[int, int], None]:
        """
        A job is held so much longer.
        """

    @property
    def complete(self) -> Callable[[int], None]:
        """
        A job is done.
        """

    @property
    def fail(self) -> Callable[..., None]:
        """
        An attempt has failed.
        """

    @property
    def expire(self) -> Callable[[int], None]:
        """
        The lease of a job is over.
        """

    @property
    def cancel_all(self) -> Callable[[str], None]:
        """
        Every waiting job of a tenant goes.
        """

    @property
    def set_tenant(self) -> Callable[..., None]:
        """
        What an operator wishes for a tenant.
        """

    @property
    def set_queue(self) -> Callable[..., None]:
        """
        What an operator wishes for the queue.
        """

    @property
    def wait(self) -> Callable[[int], None]:
        """
        Time passes.
        """

    @property
    def tenant_of(self) -> Callable[[int], str]:
        """
        Whose job it is.
        """

    @property
    def vtime(self) -> Callable[[str], int]:
        """
        The virtual time of a tenant.
        """


OpenQueue = Callable[[], Queue]


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


def flooded(open_queue: OpenQueue, weights: Mapping[str, float], count: int = 300) -> Queue:
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
    queue.cancel_all("E")
    assert order(queue, 1) == "D"


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


def check_08_a_heavy_tenant_fills_a_batch(open_queue: OpenQueue) -> None:
    """
    Scenario 8, where one of many gets most of a batch, more of its jobs than a pass reads at once.
    """
    weights = {**dict.fromkeys("ABCDE", 1), "F": 20}
    single, batched = (flooded(open_queue, weights) for _ in range(2))
    assert order(batched, 200, batch=100) == order(single, 200)


def timed(open_queue: OpenQueue, weights: dict[str, float], count: int = 0) -> Queue:
    """
    A flooded queue that charges worker-time.
    """
    queue = flooded(open_queue, weights, count)
    queue.set_queue(charge="time")
    return queue


def check_08_batches_change_no_tie(open_queue: OpenQueue) -> None:
    """
    Scenario 8, where a short lease makes two of one charge pay unlike steps: ties in a batch go as in single claims.
    """
    short = SECOND // 2
    words = []
    for batch in 1, 10:
        queue = timed(open_queue, {"B": 2})
        queue.enqueue("A", 60)
        assert queue.vtime("A") == 0  # opened with the first estimate, a second
        queue.enqueue("X")
        [job] = queue.claim(1, "X")
        queue.wait(2 * SECOND)
        queue.complete(job)
        assert queue.vtime("X") == 2 * JOB
        queue.enqueue("B", 60)
        assert queue.vtime("B") == 0  # opened with two seconds, and weight 2
        queue.claim(3, "B", lease=short)
        jobs = [job for _ in range(10 // batch) for job in queue.claim(batch, lease=short)]
        words.append("".join(map(queue.tenant_of, jobs)))
    assert words == ["AABABBABBA"] * 2


def check_20_slots_are_shared_not_jobs(open_queue: OpenQueue) -> None:
    """
    Scenario 20: A's jobs take 10 s and B's 1 s; of ten workers each has five, over 1,000 s.
    """
    queue = timed(open_queue, {"A": 1, "B": 1}, 6000)
    shift = work(queue, 10, 1000 * SECOND, lambda job: {"A": 10, "B": 1}[queue.tenant_of(job)] * SECOND)
    slots = [round(shift.used(tenant) / shift.span, 1) for tenant in "AB"]
    assert slots == [5.0, 5.0]
    assert shift.idle == 0


def check_21_idle_workers_are_shared(open_queue: OpenQueue) -> None:
    """
    Scenario 21: B has used a second; then 64 idle workers meet two floods: each gets 32, or by weight 48 and 16.
    """
    for weight, slots in (1, [32, 32]), (3, [48, 16]):
        queue = timed(open_queue, {"A": weight, "B": 1})
        queue.enqueue("B")
        [job] = queue.claim(1)
        queue.wait(SECOND)
        queue.complete(job)
        for tenant in "AB":
            queue.enqueue(tenant, 200)
        word = order(queue, 64)
        assert [word.count(tenant) for tenant in "AB"] == slots


def check_22_an_over_estimate_is_corrected(open_queue: OpenQueue) -> None:
    """
    Scenario 22: 1,000 s were asked for and 1 s was used: S is S0 + 1/w in the end.
    """
    queue = timed(open_queue, {"A": 2}, 2)
    before = queue.vtime("A")
    [job] = queue.claim(1)
    queue.renew(job, 1000 * SECOND)
    assert queue.vtime("A") == before + 1000 * JOB // 2
    queue.wait(SECOND)
    queue.complete(job)
    assert queue.vtime("A") == before + JOB // 2


def check_22_a_late_refund_is_void(open_queue: OpenQueue) -> None:
    """
    Scenario 22: 999 s come back to a tenant that was idle and lifted: it takes turns all the same.
    """
    queue = timed(open_queue, {"A": 1, "B": 1})
    queue.enqueue("B")
    [job] = queue.claim(1)
    queue.renew(job, 1000 * SECOND)
    assert queue.vtime("B") == 1000 * JOB
    queue.enqueue("A", 1500)
    served(queue, 10)
    queue.enqueue("B", 1500)
    served(queue, 2)
    queue.wait(SECOND)
    queue.complete(job)
    assert longest_run(served(queue, 1000, batch=100), "B") == 1


def check_22_a_late_refund_is_void_beside_one_in_time(open_queue: OpenQueue) -> None:
    """
    Scenario 22, where a job begun before the lift and one begun after it end together: one of them is paid back.
    """
    queue = timed(open_queue, {"A": 1, "B": 1})
    queue.enqueue("B")
    [early] = queue.claim(1)
    queue.renew(early, 1000 * SECOND)
    queue.enqueue("A", 1500)
    served(queue, 1010, batch=100)
    queue.enqueue("B", 2)
    [late] = queue.claim(1, "B")
    before = queue.vtime("B")
    queue.renew(late, 500 * SECOND)
    queue.wait(SECOND)
    for job in early, late:
        queue.complete(job)
    assert queue.vtime("B") == before


def check_22_a_late_refund_is_void_when_it_comes_alone(open_queue: OpenQueue) -> None:
    """
    Scenario 22, where nothing else is new: as above.
    """
    queue = timed(open_queue, {"A": 1, "B": 1})
    queue.enqueue("B")
    [job] = queue.claim(1)
    queue.renew(job, 1000 * SECOND)
    queue.enqueue("A", 1500)
    served(queue, 1010, batch=100)
    queue.enqueue("B", 2)
    # no floor is due when its end is heard of: else there would be other news, if only none
    queue.wait(SECOND)
    before = queue.vtime("B")
    queue.complete(job)
    assert queue.vtime("B") == before


def check_22_a_change_of_weight_leaves_alone_what_runs(open_queue: OpenQueue) -> None:
    """
    Scenario 22, with a weight that changes meanwhile: an attempt is settled by the one it was charged by.
    """
    for renewed in (1, 1000):
        queue = timed(open_queue, {"A": 4})
        queue.enqueue("A", 2)
        even, odd = queue.claim(2)
        before = queue.vtime("A")
        queue.set_tenant("A", 100)
        for job in even, odd:
            queue.renew(job, renewed * SECOND)
        assert queue.vtime("A") == before + 2 * (renewed - 1) * JOB // 4
        queue.wait(2 * SECOND)
        for job in even, odd:
            queue.complete(job)
        assert queue.vtime("A") == before + 2 * JOB // 4


def check_23_a_rate_stops_nobody_else(open_queue: OpenQueue) -> None:
    """
    Scenario 23: A limited to 2/s, B and C free, ten workers, half a second a job: 2, 9, 9 jobs per second.
    """
    queue = timed(open_queue, dict.fromkeys("ABC", 1), 1500)
    queue.set_tenant("A", 1, rate=2)
    shift = work(queue, 10, 100 * SECOND, lambda _: SECOND // 2)
    assert [shift.started(tenant) for tenant in "ABC"] == [200, 900, 900]
    assert shift.idle == 0


def check_23_a_limited_tenant_comes_back(open_queue: OpenQueue) -> None:
    """
    Scenario 23, with nobody else there: its next job is claimed at its next token, at a claim and without a cron.
    """
    queue = open_queue()
    queue.set_tenant("A", 1, rate=4, burst=2)
    queue.enqueue("A", 10)
    assert len(queue.claim(10)) == 2
    for _ in range(3):
        queue.wait(SECOND // 4 - 1)
        assert queue.claim(10) == []
        queue.wait(1)
        assert len(queue.claim(10)) == 1
    queue.wait(60 * SECOND)
    assert len(queue.claim(10)) == 2


def check_23_tokens_come_while_there_is_no_work(open_queue: OpenQueue) -> None:
    """
    Scenario 23: a bucket that is looked at while its tenant has nothing to do fills up as if it had not been.
    """
    queue = open_queue()
    queue.set_tenant("A", 1, rate=1, burst=5)
    queue.enqueue("A", 5)
    for job in queue.claim(5)[:2]:
        queue.wait(SECOND)
        queue.complete(job)
        assert queue.claim(1) == []
    queue.wait(2 * SECOND)
    queue.enqueue("A", 10)
    assert len(queue.claim(10)) == 4


def check_23_a_token_is_whole_when_it_is_due(open_queue: OpenQueue) -> None:
    """
    Scenario 23: a token due at a time that no clock can name comes at the nearest one it can.
    """
    queue = open_queue()
    queue.set_tenant("A", 1, rate=3)
    queue.enqueue("A", 10)
    assert order(queue, 1) == "A"
    queue.wait(SECOND // 3)
    assert order(queue, 1) == "A"


def check_23_a_limited_tenant_hides_nobody(open_queue: OpenQueue) -> None:
    """
    Scenario 23, where all claim one job: a tenant without tokens is not in anybody's way.
    """
    queue = flooded(open_queue, {"A": 1, "B": 1})
    queue.set_tenant("A", 1, rate=1, burst=2)
    assert order(queue, 8) == "ABABBBBB"


def check_24_failures_are_paid_for(open_queue: OpenQueue) -> None:
    """
    Scenario 24: A's jobs fail and are tried twice more, B's succeed: worker-seconds are one to one.
    """
    queue = timed(open_queue, {"A": 1, "B": 1}, 1000)
    tries: Counter[int] = Counter()

    def end(job: int) -> None:
        if queue.tenant_of(job) == "B":
            queue.complete(job)
        else:
            tries[job] += 1
            queue.fail(job, retry=tries[job] < 3)

    shift = work(queue, 4, 500 * SECOND, lambda _: SECOND, end=end)
    assert [shift.used(tenant) for tenant in "AB"] == [1000 * SECOND, 1000 * SECOND]
    assert max(tries.values()) == 3


def check_a_lost_lease_is_paid_for(open_queue: OpenQueue) -> None:
    """
    Charging: a job that kills its worker has its prepaid charge kept, however soon it did.
    """
    queue = timed(open_queue, {"A": 1}, 5)
    before = queue.vtime("A")
    [job] = queue.claim(1)
    queue.wait(SECOND // 100)
    queue.expire(job)
    assert queue.vtime("A") == before + JOB


def check_a_claim_prepays_no_more_than_its_lease(open_queue: OpenQueue) -> None:
    """
    Charging: an estimate of a second is clamped to a lease of a tenth.
    """
    queue = timed(open_queue, {"A": 1}, 5)
    before = queue.vtime("A")
    queue.claim(1, lease=SECOND // 10)
    assert queue.vtime("A") == before + JOB // 10


def check_r9_the_queue_has_a_cap(open_queue: OpenQueue) -> None:
    """
    R9: no more than the queue's cap run of all tenants together, and one comes for one that ends.
    """
    queue = flooded(open_queue, dict.fromkeys("ABC", 1))
    queue.set_queue(cap=5)
    jobs = queue.claim(4) + queue.claim(4)
    assert "".join(map(queue.tenant_of, jobs)) == "ABCAB"
    queue.complete(jobs[0])
    assert order(queue, 1) == "C"
    assert queue.claim(4) == []


def check_r10_the_queue_has_a_rate(open_queue: OpenQueue) -> None:
    """
    R10: the queue's own bucket holds all tenants together.
    """
    queue = flooded(open_queue, dict.fromkeys("AB", 1))
    queue.set_queue(rate=2, burst=3)
    assert order(queue, 3, batch=3) == "ABA"
    assert queue.claim(9) == []
    queue.wait(SECOND)
    assert "".join(map(queue.tenant_of, queue.claim(9))) == "BA"


def check_tenants_without_a_row_have_the_defaults(open_queue: OpenQueue) -> None:
    """
    Defaults: what is said of * holds for all tenants that have no row, from the next pick on.
    """
    queue = open_queue()
    for tenant in "ABC":
        queue.enqueue(tenant, 300)
    queue.set_tenant("C", 1)
    assert order(queue, 6) == "ABCABC"
    queue.set_tenant("*", 3)
    word = order(queue, 70)
    assert [word.count(tenant) for tenant in "ABC"] == [30, 30, 10]


def check_cost_mode_charges_what_is_declared(open_queue: OpenQueue) -> None:
    """
    Charging: where jobs declare their cost, a tenant of jobs of 3 is served once for three times of one of 1.
    """
    queue = open_queue()
    queue.set_queue(charge="cost")
    queue.enqueue("A", 300, cost=3)
    queue.enqueue("B", 300, cost=1)
    assert order(queue, 41, batch=7) == "A" + "BBBA" * 10


def check_a_new_way_of_charging_acts_at_once(open_queue: OpenQueue) -> None:
    """
    Charging: when a queue goes from time to jobs, also a tenant with no news is charged a job for its next.
    """
    queue = timed(open_queue, {"A": 1}, 5)
    [job] = queue.claim(1)
    queue.wait(9 * SECOND)
    queue.complete(job)
    assert queue.vtime("A") == 9 * JOB
    queue.set_queue(charge="jobs")
    queue.claim(1)
    assert queue.vtime("A") == 10 * JOB


def heavy_gap(queue: Queue, crowd: Sequence[str], weight: int, n: int) -> int:
    """
    R3: the most dispatches without one of the heavy tenant, whose jobs arrive between two crowds.
    """
    middle = len(crowd) // 2
    queue.set_tenant("heavy", weight)
    for tenant in crowd[:middle]:
        queue.enqueue(tenant, 2)
    queue.enqueue("heavy", n)
    served(queue, 10)
    for tenant in crowd[middle:]:
        queue.enqueue(tenant, 2)
    tenants = served(queue, n, batch=100)
    return longest_other(tenants, "heavy")


def longest_other(tenants: Sequence[str], tenant: str) -> int:
    """
    The most dispatches in a row that a tenant does not get, and one: the gap from one of its own to the next.
    """
    return max(len(list(run)) for is_its, run in groupby(tenants, tenant.__eq__) if not is_its) + 1


def check_25_a_crowd_hides_nobody(open_queue: OpenQueue) -> None:
    """
    Scenario 25 in small: weight 10 among 200 tenants of weight 1 waits at most twice its turn.
    """
    crowd = [f"t{i:03}" for i in range(200)]
    assert heavy_gap(open_queue(), crowd, 10, 400) <= 2 * (210 // 10) + 2


CHECKS: dict[str, Callable[[OpenQueue], None]] = {
    name.removeprefix("check_"): check for name, check in sorted(globals().items()) if name.startswith("check_")
}
