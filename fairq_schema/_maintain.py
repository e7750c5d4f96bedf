"""
maintain(): upkeep without a daemon, slice by slice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psycopg
from psycopg.rows import class_row

from fairq_schema._rename import DEFAULT_SCHEMA, checked_name, quoted
from fairq_schema._session import Connection, session

if TYPE_CHECKING:
    from collections.abc import Iterator

_MORE = "call again"
_FIRST_PAUSE = 0.1  # seconds; what is in the way of a partition is often over soon


@dataclass(frozen=True, slots=True)
class Upkeep:
    """
    What was done of one task, and, if something is left that is due, why.
    """

    task: str
    done: int
    lags: bool
    why: str | None


def maintain(
    connection: str | Connection = "", schema: str = DEFAULT_SCHEMA, *, limit: int = 10_000, seconds: float = 60
) -> tuple[Upkeep, ...]:
    """
    Do upkeep slice by slice, each in a transaction of its own, until nothing lags or the time is up.

    Args:
        connection: a libpq connection string ("" means the PG* environment variables), or an idle connection, of a
            login that has fairq_operator.
        schema: the name that fairq has here.
        limit: how many rows a slice takes of each task, 1 to 100,000.
        seconds: when to begin no further slice; there is always one.

    Returns:
        Each task with all that was done of it, and with what lags after the last slice.
    """
    checked_name(schema)
    query = f"select task, done, lags, why from {quoted(schema)}.maintain(p_limit => %s)"  # noqa: S608  a checked name
    end = time.monotonic() + seconds
    pause = _FIRST_PAUSE
    found: dict[str, Upkeep] = {}
    with session(connection) as conn:
        cursor = psycopg.Cursor(conn, row_factory=class_row(Upkeep))
        while True:
            found = dict(_added(found, cursor.execute(query.encode(), [limit]).fetchall()))
            lagging = [each for each in found.values() if each.lags]
            wait = 0 if any(each.why == _MORE for each in lagging) else pause
            if not lagging or time.monotonic() + wait >= end:
                return tuple(found.values())
            if wait:
                time.sleep(wait)
                pause *= 2


def _added(before: dict[str, Upkeep], rows: list[Upkeep]) -> Iterator[tuple[str, Upkeep]]:
    for each in rows:
        known = before.get(each.task)
        yield each.task, replace(each, done=each.done + known.done) if known else each
