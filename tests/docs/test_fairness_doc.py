"""
The examples of docs/fairness.md are what happens.

An `example` block is a queue: how it charges, its tenants, its workers; and what comes of it.
A `bound` block is a formula with numbers put in, and its value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from tests.support.database import Database

PAGE = Path(__file__).parents[2] / "docs" / "fairness.md"
SETTINGS = {"charge", "workers", "claims of", "seconds", "queue's cap"}
RESULTS = {"order", "slots", "starts per second"}
WISHES = {"weight": "weight", "cap": "max_running", "rate": "rate", "burst": "burst"}
DISPATCH = """
    select d.job_id, d.tenant, d.lease_token from unnest(fairq._dispatch(
        p_queue => 'q', p_owner => 'w', p_caller => session_user::text, p_limit => %s, p_lease => '10 minutes',
        p_tenants => '{*}', p_now => %s
    )) as d
"""
COMPLETE = """
    select fairq._complete(p_job_ids => array[%s::bigint], p_tokens => array[%s::uuid], p_results => null, p_now => %s)
"""
# As claim_jobs() sets it for the steps that it calls.
PLANS = "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set enable_bitmapscan = off"
# Shares are of the second half: by then the scheduler knows how long the jobs take.
FIRST = 0.5


@dataclass
class Example:
    """A block of the page, read."""

    settings: dict[str, str] = field(default_factory=dict)
    tenants: dict[str, dict[str, float]] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def examples() -> Iterator[Example]:
    """Every example of the page."""
    for block in blocks("example"):
        example = Example()
        for line in block.splitlines():
            name, _, value = line.partition(": ")
            if name in SETTINGS:
                example.settings[name] = value
            elif name in RESULTS:
                example.results[name] = value
            else:
                example.tenants[name] = dict(attribute(part) for part in value.split(", "))
        assert example.tenants, block
        assert example.results, block
        yield example


def attribute(text: str) -> tuple[str, float]:
    """`weight 3`, `jobs of 10 s`."""
    said = re.fullmatch(r"(weight|cap|rate|burst|cost|jobs of) ([\d.]+)( s)?", text)
    assert said, text
    return said[1], float(said[2])


@pytest.mark.parametrize("example", examples(), ids=lambda example: " ".join(example.tenants))
def test_an_example_comes_out_as_the_page_says(db: Database, example: Example) -> None:
    """In a queue of its own, on a clock of its own."""
    db.set_queue("q", charge=example.settings["charge"], max_running=int(example.settings.get("queue's cap", -1)))
    for tenant, said in example.tenants.items():
        wish = {WISHES[name]: value for name, value in said.items() if name in WISHES}
        for name in {"max_running", "burst"} & set(wish):
            wish[name] = int(wish[name])
        if wish:
            db.set_tenant(tenant, queue="q", **wish)
    for result, expected in example.results.items():
        assert OUTCOMES[result](db, example) == expected


def order(db: Database, example: Example) -> str:
    """Whose jobs are started one after the other."""
    length = len(example.results["order"].replace("|", "").split())
    given(db, example, length)
    started: list[str] = []
    while len(started) < length:
        claimed = db.claim(min(int(example.settings["claims of"]), length - len(started)), queue="q")
        assert claimed
        started += [job.tenant for job in claimed]
    # set out as on the page
    words = iter(started)
    return " ".join(word if word == "|" else next(words) for word in example.results["order"].split())


def given(db: Database, example: Example, count: int) -> None:
    """A backlog that lasts."""
    for tenant, said in example.tenants.items():
        for _ in range(0 if tenant == "*" else -(-count // 500)):
            db.given_jobs(tenant, 500, queue="q", cost=said.get("cost", 1))


def simulate(db: Database, example: Example) -> dict[str, list[tuple[float, float]]]:
    """Workers that claim, do one job after the other and complete each; the times of each tenant's jobs."""
    workers, seconds = int(example.settings["workers"]), float(example.settings["seconds"])
    batch = int(example.settings.get("claims of", 1))
    shortest = min(said.get("jobs of", 1.0) for said in example.tenants.values())
    given(db, example, round(seconds * workers / shortest) + workers * batch)
    db.execute(PLANS)
    zero: datetime = db.value("select clock_timestamp()")
    done: dict[str, list[tuple[float, float]]] = {tenant: [] for tenant in example.tenants}
    events: list[tuple[float, int, Any]] = [(0.0, worker, None) for worker in range(workers)]
    hands: dict[int, list[Any]] = {worker: [] for worker in range(workers)}
    while events:
        now, worker, finished = heappop(events)
        clock = zero + timedelta(seconds=now)
        if finished is not None:
            assert db.value(COMPLETE, finished.job_id, finished.lease_token, clock) == [1]
        if now >= seconds:
            continue
        if not hands[worker]:
            hands[worker] = db.rows(DISPATCH, batch, clock)
        if not hands[worker]:
            heappush(events, (now + 0.05, worker, None))
            continue
        job = hands[worker].pop(0)
        end = now + example.tenants[job.tenant].get("jobs of", 1.0)
        done.setdefault(job.tenant, []).append((now, end))
        heappush(events, (end, worker, job))
    return done


def slots(db: Database, example: Example) -> str:
    """How many workers a tenant has on average."""
    seconds = float(example.settings["seconds"])
    first = seconds * FIRST
    held = {
        tenant: sum(max(0.0, min(end, seconds) - max(begin, first)) for begin, end in times) / (seconds - first)
        for tenant, times in simulate(db, example).items()
    }
    return written(held)


def starts(db: Database, example: Example) -> str:
    """How many jobs of a tenant are started in a second."""
    seconds = float(example.settings["seconds"])
    first = seconds * FIRST
    counts = {
        tenant: sum(begin >= first for begin, _ in times) / (seconds - first)
        for tenant, times in simulate(db, example).items()
    }
    return written(counts)


def written(numbers: dict[str, float]) -> str:
    """One digit after the point."""
    return ", ".join(f"{tenant} {number:.1f}" for tenant, number in numbers.items() if tenant != "*")


OUTCOMES = {"order": order, "slots": slots, "starts per second": starts}


@pytest.mark.parametrize("line", [line for block in blocks("bound") for line in block.splitlines()])
def test_a_bound_has_the_value_that_the_page_says(line: str) -> None:
    """`formula, with a = 1, b = 2: value unit`."""
    said = re.fullmatch(r"(?:\w+: )?(?P<formula>[^,]+), with (?P<numbers>[^:]+): (?P<value>[\d.]+) .*", line)
    assert said, line
    numbers = {name: float(value) for name, value in re.findall(r"(\w+) = ([\d.]+)", said["numbers"])}
    formula = re.sub(r"\bmax\b", "MAX", said["formula"])
    assert re.fullmatch(r"(?:MAX|[a-zA-Z]\w*|[\d.]+|[-+*/(); ])+", formula), formula
    value = eval(formula.replace(";", ","), {"MAX": max}, numbers)  # noqa: S307 (our own page, names and numbers only)
    assert round(value, 2) == float(said["value"])


def test_the_page_has_examples_and_bounds() -> None:
    """Not an empty list of tests."""
    assert len(list(examples())) >= 8
    assert len(blocks("bound")) >= 1
