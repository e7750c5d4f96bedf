"""
The SQL against the exact model: on any trace the same jobs in the same order.
"""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from .sql_queue import SqlQueue
from .trace import EVERYTHING, JOBS, Trace, random_trace, replay, resolve, traces

if TYPE_CHECKING:
    from tests.support import Database

TRACES = int(os.environ.get("FAIRQ_TRACES", "1000"))
SEED = int(os.environ.get("FAIRQ_SEED", "1"))


def check_same_order(db: Database, trace: Trace) -> None:
    """
    Play a trace on the model and on a new queue of the database.
    """
    replay(SqlQueue(db.conn, simulated=True), resolve(trace))


def check_seeded_traces(db: Database, count: int = 100, first: int = 1) -> None:
    """
    Play random traces by their seeds: what a mutant of the scheduler has to survive.
    """
    for seed in range(first, first + count):
        rng = Random(seed)
        try:
            check_same_order(db, random_trace(rng, rng.randint(5, 80), JOBS if seed % 4 == 0 else EVERYTHING))
        except BaseException as error:
            error.add_note(f"FAIRQ_SEED={seed} FAIRQ_TRACES=1 plays this trace alone")
            raise


@given(trace=traces())
@settings(max_examples=200)
def test_any_trace_is_dispatched_in_the_models_order(module_db: Database, trace: Trace) -> None:
    """
    Whatever happens, in batches of any size, for all or for one tenant: the SQL picks what the model picks.

    A failure is shrunk to the shortest such story.
    """
    check_same_order(module_db, trace)


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(0, marks=pytest.mark.short),
        *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2)),
        *(pytest.param(part, marks=[pytest.mark.slow, pytest.mark.once]) for part in range(3, 10)),
    ],
)
def test_a_thousand_seeded_traces_are_dispatched_in_the_models_order(module_db: Database, part: int) -> None:
    """
    The same for 1,000 longer traces that are the same every time; FAIRQ_SEED and FAIRQ_TRACES choose others.
    """
    size = -(-TRACES // 10)
    check_seeded_traces(module_db, min(size, TRACES - part * size), SEED + part * size)
