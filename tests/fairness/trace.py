"""
Random traces: what can happen to a queue, as data that any queue can replay.

An event is a name and a few small integers; `resolve` plays it on the exact model, which
turns "the third running job" into a job's number and says what every claim must return.
So hypothesis may drop or shrink any event and what is left is still a trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hypothesis import strategies as st

from .oracle import Oracle

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random
    from typing import Any

    from hypothesis.strategies import SearchStrategy

WEIGHTS = 1, 2, 3, 4, 10, 0.5, 7.3, 0.001
CAPS = None, None, 1, 2, 5
BATCHES = 1, 1, 2, 3, 7, 7, 100
ANY = range(1000)  # a place in a list of unknown length

# Event -> how often, and what its integers range over.
EVENTS: dict[str, tuple[int, tuple[range, ...]]] = {
    "enqueue": (8, (ANY, range(1, 7), range(4), range(3))),
    "claim": (8, (range(len(BATCHES)),)),
    "claim_tenant": (1, (range(len(BATCHES)), ANY)),
    "complete": (5, (ANY,)),
    "retry": (2, (ANY,)),
    "dead": (1, (ANY,)),
    "release": (1, (ANY,)),
    "expire": (1, (ANY,)),
    "cancel": (3, (ANY,)),
    "cancel_all": (2, (ANY,)),
    "set_tenant": (3, (ANY, range(len(WEIGHTS)), range(len(CAPS)), range(4))),
    "set_queue": (1, (range(3),)),
}
UNRESTRICTED = frozenset(EVENTS) - {"claim_tenant"}

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
    A call of a method of the queue; a claim's answer.
    """

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    answer: list[int] | None = None


def name(tenant: int) -> str:
    """
    A tenant's name; capitals, letters and signs sort differently by locale and by byte.
    """
    return f"{'aBz_é-'[tenant % 6]}{tenant}"


def random_trace(rng: Random, length: int, kinds: frozenset[str] = frozenset(EVENTS)) -> Trace:
    """
    A trace from a seeded generator; it begins with the wishes and some work of each tenant.
    """
    tenants = rng.randint(2, rng.choice((3, 6, 40)))
    words = [kind for kind in sorted(kinds) for _ in range(EVENTS[kind][0])]
    opening = ["set_tenant"] * rng.randint(0, tenants) + ["enqueue"] * tenants
    story = opening + rng.choices(words, k=length)
    return Trace(tenants, [(kind, *map(rng.choice, EVENTS[kind][1])) for kind in story])


def traces(kinds: frozenset[str] = frozenset(EVENTS), length: int = 60) -> SearchStrategy[Trace]:
    """
    The same traces for hypothesis, which makes a failing one short.
    """
    words = [kind for kind in sorted(kinds) for _ in range(EVENTS[kind][0])]
    events = st.sampled_from(words).flatmap(
        lambda kind: st.tuples(st.just(kind), *map(st.sampled_from, EVENTS[kind][1]))
    )
    return st.builds(Trace, st.integers(2, 40), st.lists(events, max_size=length))


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
        steps.append(Step(method, args, kwargs, answer if method == "claim" else None))
    return steps


def _call(queue: Oracle, tenants: int, kind: str, *numbers: int) -> Call | None:
    """
    Turn an event into a call; None when there is no such job to act on.
    """
    first, *rest = numbers
    if kind in ("complete", "retry", "dead", "release", "expire", "cancel"):
        jobs = [*queue.running] + (sorted(queue.queued) if kind == "cancel" else [])
        if not jobs:
            return None
        method = "fail" if kind in ("retry", "dead") else kind
        kwargs = {"retry": kind == "retry"} if method == "fail" else {}
        return method, (jobs[first % len(jobs)],), kwargs
    whose = name(numbers[-1 if kind == "claim_tenant" else 0] % tenants)
    calls: dict[str, Callable[[], Call]] = {
        "enqueue": lambda: ("enqueue", (whose, *rest), {}),
        "claim": lambda: ("claim", (BATCHES[first],), {}),
        "claim_tenant": lambda: ("claim", (BATCHES[first], whose), {}),
        "cancel_all": lambda: ("cancel_all", (whose,), {}),
        "set_tenant": lambda: ("set_tenant", (whose, WEIGHTS[rest[0]], CAPS[rest[1]]), {"paused": rest[2] == 0}),
        "set_queue": lambda: ("set_queue", (), {"paused": first == 0}),
    }
    return calls[kind]()


def replay(queue: Any, steps: list[Step]) -> None:
    """
    Replay on another queue; the first claim that differs ends it with the history so far.
    """
    for at, step in enumerate(steps):
        answer = getattr(queue, step.method)(*step.args, **step.kwargs)
        if step.method == "claim" and answer != step.answer:
            raise AssertionError(_story(steps[: at + 1], answer))


def _story(steps: list[Step], answer: list[int]) -> str:
    """
    The calls that led to a wrong answer.
    """
    lines = []
    for step in steps:
        said = [*map(repr, step.args), *(f"{k}={v!r}" for k, v in step.kwargs.items())]
        claimed = "" if step.answer is None else f"  -> {step.answer}"
        lines.append(f"  queue.{step.method}({', '.join(said)}){claimed}")
    return "\n".join(["the order differs:", *lines, f"  but it returned {answer}"])
