"""The demo's queue in the database: prepared before, counted at the end, removed afterwards."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg

import fairq_schema
from fairq_schema.demo.errors import DemoError
from fairq_schema.demo.options import WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Iterator

# What holds rows of the queue. The log gives up only rows of jobs that are gone; the lock itself goes last.
TABLES = (
    "jobs",
    "leases",
    "finished_jobs",
    "job_log",
    "flows",
    "settlements",
    "tenants",
    "queues",
    "ticks",
    "schedulers",
)
# Any of several privileges satisfies has_table_privilege, so each is asked for by itself.
MAY_READ_ALL = """
select pg_catalog.has_parameter_privilege('session_replication_role', 'set') and pg_catalog.bool_and(
    pg_catalog.has_table_privilege(c.oid, 'select')
    and pg_catalog.has_table_privilege(c.oid, 'delete')
    and not pg_catalog.row_security_active(c.oid)
)
from pg_catalog.pg_class as c
where c.relnamespace = 'fairq'::regnamespace
  and c.relname = any (%s)
"""
# Leases and finished jobs: every start the database knows of.
COUNT_STARTED = """
select (select count(*) from fairq.leases as l where l.queue = %(queue)s)
     + (select count(*) from fairq.finished_jobs as f where f.queue = %(queue)s)
"""


@contextlib.contextmanager
def demo_queue(dsn: str, queue: str, *, remove: bool) -> Iterator[psycopg.Connection[Any]]:
    """Install the schema if need be, set what is shared and the weights, and remove the queue's rows if so wished."""
    try:
        connection = psycopg.connect(dsn, autocommit=True, application_name="fairq demo")
    except psycopg.OperationalError as error:
        message = f"no connection: {str(error).strip()}"
        raise DemoError(message) from error
    with connection:
        _apply_if_missing(connection, dsn)
        _check(connection, queue)
        try:
            # what the demo counts is starts
            connection.execute("select fairq.set_queue(p_queue => %s, p_charge => 'jobs')", (queue,))
            for tenant, weight in WEIGHTS.items():
                connection.execute(
                    "select fairq.set_tenant(p_queue => %s, p_tenant => %s, p_weight => %s)", (queue, tenant, weight)
                )
            yield connection
        finally:
            if remove:
                _remove(connection, queue)


def count_started(connection: psycopg.Connection[Any], queue: str) -> int:
    """Tell how many starts the database knows of."""
    [count] = connection.execute(COUNT_STARTED, {"queue": queue}).fetchone() or (0,)
    return int(count)


def _apply_if_missing(connection: psycopg.Connection[Any], dsn: str) -> None:
    """Install into a database that has no fairq; one that has it is not migrated by a mere demo."""
    [there] = connection.execute("select pg_catalog.to_regproc('fairq.claim_jobs') is not null").fetchone() or (False,)
    if there:
        return
    try:
        fairq_schema.apply(dsn)
    except (fairq_schema.FairqError, psycopg.Error) as error:
        message = f"the schema could not be applied: {str(error).strip()}"
        raise DemoError(message) from error


def _check(connection: psycopg.Connection[Any], queue: str) -> None:
    """Refuse a role that would see only part of the order, and a queue that someone uses."""
    [may] = connection.execute(MAY_READ_ALL, (list(TABLES),)).fetchone() or (False,)
    if not may:
        message = (
            f"role {connection.info.user} may not read and remove the rows of every tenant; "
            "connect as a superuser (the order of starts is read from fairq.leases)"
        )
        raise DemoError(message)
    for table in TABLES:
        if (
            connection.execute(f"select from fairq.{table} as t where t.queue = %s limit 1", (queue,)).fetchone()
            is not None
        ):
            message = (
                f"queue {queue!r} is in use (rows in fairq.{table}); the demo removes it, so it wants it to itself"
            )
            raise DemoError(message)


def _remove(connection: psycopg.Connection[Any], queue: str) -> None:
    if connection.closed:
        return
    with connection.transaction():
        connection.execute("select from fairq.schedulers as s where s.queue = %s for update", (queue,))
        # A tenant's deleted row leaves one of defaults for the scheduler to see; here the scheduler's rows go as well.
        connection.execute("set local session_replication_role = replica")
        for table in TABLES:
            connection.execute(f"delete from fairq.{table} as t where t.queue = %s", (queue,))  # noqa: S608 (our own names)
