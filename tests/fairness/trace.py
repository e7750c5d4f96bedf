"""
Random traces: what can happen to a queue, as data that any queue can replay.

An event is a name and a few small integers; `resolve` plays it on the exact model, which
turns "the third running job" into a job's number and says what every claim must return.
So hypothesis may drop or shrink any event and what is left is still a trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hypothesis import strategies as st

from .oracle import LEASE, SECOND, Oracle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random
    from typing import Any

    from hypothesis.strategies import SearchStrategy

WEIGHTS = 1, 2, 3, 4, 10, 0.5, 7.3, 0.001
CAPS = None, None, 1, 2, 5
RATES = None, None, None, 0.3, 1, 3, 7.5
BURSTS = 1, 1, 2, 5
BATCHES = 1, 1, 2, 3, 7, 7, 100
COSTS = 1, 1, 0.25, 3, 0.0001, 17.7
LEASES = LEASE, LEASE, 30 * SECOND, 2 * SECOND, SECOND // 4
CHARGES = "time", "time", "jobs", "cost"
# Binary fractions of a second, and of the queue's rates, so that its bucket is exact however often it is looked into;
# a tenant's bucket is written with every look at it, and may round.
WAITS = SECOND // 64, SECOND // 16, SECOND // 2, SECOND, SECOND * 5 // 2, 10 * SECOND, 61 * SECOND
DELAYS = 0, 0, 0, SECOND, 10 * SECOND
QUEUE_CAPS = None, None, 1, 3, 10
QUEUE_RATES = None, None, 0.5, 2, 16
ANY = range(1000)  # a place in a list of unknown length
MOST_RUNNING = 100  # one look ends no more expired leases than that


def among(values: Sequence[object]) -> range:
    """
    The places of a list.
    """
    return range(len(values))


WISH = among(WEIGHTS), among(CAPS), range(4), among(RATES), among(BURSTS)

# Event -> how often, and what its integers range over.
EVENTS: dict[str, tuple[int, tuple[range, ...]]] = {
    "enqueue": (8, (ANY, range(1, 7), range(4), range(3), among(COSTS))),
    "claim": (8, (among(BATCHES), among(LEASES))),
    "claim_tenant": (1, (among(BATCHES), among(LEASES), ANY)),
    "wait": (8, (among(WAITS),)),
    "complete": (5, (ANY,)),
    "renew": (2, (ANY, among(LEASES))),
    "retry": (2, (ANY, among(DELAYS))),
    "dead": (1, (ANY,)),
    "release": (1, (ANY, among(DELAYS))),
    "expire": (1, (ANY,)),
    "cancel": (3, (ANY,)),
    "cancel_all": (2, (ANY,)),
    "set_tenant": (3, (ANY, *WISH)),
    "set_default": (1, WISH),
    "pause_queue": (1, (range(3),)),
    "cap_queue": (1, (among(QUEUE_CAPS),)),
    "limit_queue": (1, (among(QUEUE_RATES), among(BURSTS))),
    "set_charge": (1, (among(CHARGES),)),
}
EVERYTHING = frozenset(EVENTS)
JOBS = EVERYTHING - {"set_charge"}  # every job costs the same
UNRESTRICTED = JOBS - {"claim_tenant"}

Call = tuple[str, "tuple[Any, ...]", "dict[str, Any]"]  # a method and its arguments
Event = tuple["str | int", ...]  # a name and its integers


class Trace(NamedTuple):
    """
    How many tenants there are, and what happens.
    """

    tenants: int
    events: list[Event]


class Step(NamedTuple):
    """
    A call of a method of the queue; a claim's answer, and what the scheduler knows after it.
    """

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    answer: list[int] | None = None
    books: dict[str, tuple[float, ...]] | None = None


def name(tenant: int) -> str:
    """
    A tenant's name; capitals, letters and signs sort differently by locale and by byte.
    """
    return "aBz_\u00e9-"[tenant % 6] + str(tenant)


def random_trace(rng: Random, length: int, kinds: frozenset[str] = EVERYTHING) -> Trace:
    """
    A trace from a seeded generator; it begins with the wishes and some work of each tenant.
    """
    tenants = rng.randint(2, rng.choice((3, 6, 50)))
    words = [kind for kind in sorted(kinds) for _ in range(EVENTS[kind][0])]
    settings = sorted({"set_charge", "limit_queue", "set_default"} & kinds)
    opening = rng.choices(settings, k=rng.randint(0, 3)) + ["set_tenant"] * rng.randint(0, tenants)
    story = [*opening, *["enqueue"] * tenants, *rng.choices(words, k=length)]
    return Trace(tenants, [(kind, *map(rng.choice, EVENTS[kind][1])) for kind in story])


def traces(kinds: frozenset[str] = EVERYTHING, length: int = 60) -> SearchStrategy[Trace]:
    """
    The same traces for hypothesis, which makes a failing one short. Some begin with a crowd.
    """
    words = [kind for kind in sorted(kinds) for _ in range(EVENTS[kind][0])]
    events = st.sampled_from(words).flatmap(
        lambda kind: st.tuples(st.just(kind), *map(st.sampled_from, EVENTS[kind][1]))
    )
    crowd: list[Event] = [("enqueue", tenant, 1, 0, 0, 0) for tenant in range(40)]
    openings: SearchStrategy[list[Event]] = st.sampled_from([[], [], [], crowd])
    stories = st.builds(list.__add__, openings, st.lists(events, max_size=length))
    return st.builds(Trace, st.integers(2, 50), stories)


def resolve(trace: Trace, queue: Oracle | None = None) -> list[Step]:
    """
    Play a trace on the model: the calls that any other queue must answer alike.
    """
    queue = queue or Oracle()
    steps = []
    for kind, *numbers in trace.events:
        call = _call(queue, trace.tenants, str(kind), *map(int, numbers))
        if call is None:
            continue
        method, args, kwargs = call
        answer = getattr(queue, method)(*args, **kwargs)
        is_claim = method == "claim"
        steps.append(Step(method, args, kwargs, answer if is_claim else None, queue.books() if is_claim else None))
    return steps


def _call(queue: Oracle, tenants: int, kind: str, *numbers: int) -> Call | None:
    """
    Turn an event into a call; None when there is no such job to act on.
    """
    if kind in ("complete", "renew", "retry", "dead", "release", "expire", "cancel"):
        return _call_on_job(queue, kind, *numbers)
    if kind in ("claim", "claim_tenant"):
        size, lease, *whose = numbers
        n = min(BATCHES[size], MOST_RUNNING - len(queue.running))
        return ("claim", (n, *(name(w % tenants) for w in whose)), {"lease": LEASES[lease]}) if n > 0 else None
    if kind == "limit_queue" and queue.now:
        return None  # a new rate counts from the last tick that was written down, which the model does not know
    first, *rest = numbers
    calls: dict[str, Callable[[], Call]] = {
        "enqueue": lambda: ("enqueue", (name(first % tenants), *rest[:3], COSTS[rest[3]]), {}),
        "wait": lambda: ("wait", (WAITS[first],), {}),
        "cancel_all": lambda: ("cancel_all", (name(first % tenants),), {}),
        "set_tenant": lambda: _wish(name(first % tenants), *rest),
        "set_default": lambda: _wish("*", *numbers),
        "pause_queue": lambda: ("set_queue", (), {"paused": first == 0}),
        "cap_queue": lambda: ("set_queue", (), {"cap": QUEUE_CAPS[first]}),
        "limit_queue": lambda: ("set_queue", (), {"rate": QUEUE_RATES[first], "burst": BURSTS[rest[0]]}),
        "set_charge": lambda: ("set_queue", (), {"charge": CHARGES[first]}),
    }
    return calls[kind]()


def _call_on_job(queue: Oracle, kind: str, place: int, *rest: int) -> Call | None:
    jobs = [job for job, lease in queue.running.items() if lease.ends > queue.now]
    if kind in ("expire", "cancel"):
        jobs = [*queue.running]
    if kind == "cancel":
        jobs += sorted((*queue.queued, *queue.scheduled))
    if not jobs:
        return None
    job = jobs[place % len(jobs)]
    calls: dict[str, Callable[[], Call]] = {
        "renew": lambda: ("renew", (job, LEASES[rest[0]]), {}),
        "retry": lambda: ("fail", (job,), {"delay": DELAYS[rest[0]]}),
        "dead": lambda: ("fail", (job,), {"retry": False}),
        "release": lambda: ("release", (job, DELAYS[rest[0]]), {}),
    }
    return calls[kind]() if kind in calls else (kind, (job,), {})


def _wish(tenant: str, weight: int, cap: int, paused: int, rate: int, burst: int) -> Call:
    wish = {"paused": paused == 0, "rate": RATES[rate], "burst": BURSTS[burst]}
    return "set_tenant", (tenant, WEIGHTS[weight], CAPS[cap]), wish


def replay(queue: Any, steps: list[Step]) -> None:
    """
    Replay on another queue; the first claim that differs, or leaves other books, ends it with the history so far.
    """
    for at, step in enumerate(steps):
        answer = getattr(queue, step.method)(*step.args, **step.kwargs)
        if step.method == "claim" and answer != step.answer:
            raise AssertionError(_story(steps[: at + 1], f"the order differs: it returned {answer}"))
        if step.books is not None and (books := queue.books()) != step.books:
            differ = {t: (books.get(t), step.books.get(t)) for t in {*books, *step.books}}
            wrong = {tenant: pair for tenant, pair in differ.items() if pair[0] != pair[1]}
            raise AssertionError(_story(steps[: at + 1], f"S, lifts, running, estimate differ: {wrong}"))


def _story(steps: list[Step], verdict: str) -> str:
    """
    The calls that led to a wrong answer.
    """
    lines = []
    for step in steps:
        said = [*map(repr, step.args), *(f"{k}={v!r}" for k, v in step.kwargs.items())]
        claimed = "" if step.answer is None else f"  -> {step.answer}"
        lines.append(f"  queue.{step.method}({', '.join(said)}){claimed}")
    return "\n".join([*lines, verdict])
