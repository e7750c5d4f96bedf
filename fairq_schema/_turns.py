"""
Waiting without being in the way: one transaction at a time, which gives up early and is tried again later.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

import psycopg

from fairq_schema._rename import quoted
from fairq_schema._session import Connection, one_value
from fairq_schema.errors import BusyError, FairqError, MigrationFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairq_schema._backend import Backend

T = TypeVar("T")

_FOR_A_RIVAL = 0.1
# For tables that are in use: the queue goes on working in between, and the longer it is needed, the longer it gets.
_FOR_TABLES = (0.25, 0.5, 1, 2, 4, 8)


def in_turn(backend: Backend, connection: Connection, schema: str, lock_wait: float, work: Callable[[], T]) -> T:
    """
    Run `work` in a transaction that no other run of this schema is beside, again and again if locks are not to be had.
    """
    deadline = time.monotonic() + lock_wait
    tries = 0
    while True:
        try:
            with backend.turn():
                if backend.try_lock():
                    return work()
                reason: FairqError = _rival(backend, lock_wait)
            pause = _FOR_A_RIVAL
        except InUseError as error:
            reason = MigrationFailedError(f"{error}{_holders(connection, schema)}")
            reason.__cause__ = error.__cause__
            pause = _FOR_TABLES[min(tries, len(_FOR_TABLES) - 1)] * random.uniform(0.8, 1.2)  # noqa: S311  no secret
            tries += 1
        wait(pause, deadline, reason)


def wait(pause: float, deadline: float, reason: FairqError) -> None:
    """
    Sleep, or say why there is no more time for it.
    """
    if time.monotonic() + pause > deadline:
        raise reason
    time.sleep(pause)


def rival(backend: Backend, lock_wait: float) -> BusyError:
    """
    Say who migrates.
    """
    return _rival(backend, lock_wait)


class InUseError(Exception):
    """
    A lock was not got in time, or deadly embraced: nothing was changed, and another try may well succeed.
    """


IN_USE = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)


def _rival(backend: Backend, lock_wait: float) -> BusyError:
    message = f"another migration has been running for {lock_wait:g} s, in server process {backend.holder()}"
    return BusyError(message)


def _holders(connection: Connection, schema: str) -> str:
    """
    Name the sessions that use the tables; those of other users show no more than their number to an ordinary role.
    """
    if connection.closed:
        return ""
    query = """
        select string_agg(
            -- concat_ws leaves out what an ordinary role does not see
            format('%%s (%%s)', a.pid, concat_ws(
                ' since ', coalesce(a.state, 'in use'), date_trunc('second', a.xact_start)
            )),
            ', ' order by a.xact_start
        )
        from pg_stat_activity as a
        where a.pid <> pg_backend_pid()
          and a.pid in (
              select l.pid from pg_locks as l join pg_class as c on c.oid = l.relation
              where l.granted and c.relnamespace = to_regnamespace(%s)
                and l.database = (select oid from pg_database where datname = current_database())
          )
    """
    holders = one_value(connection, query, quoted(schema))
    return f"; its tables are in use by server process {holders}: end or wait for those transactions" if holders else ""
