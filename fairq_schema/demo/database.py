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
# A job queue as it is often written: one table, the oldest job first.
FIFO = """
create schema fairq_demo;
create table fairq_demo.fifo (
    job_id bigint generated always as identity primary key, tenant text not null,
    created_at timestamptz not null default clock_timestamp(), claimed_at timestamptz
);
create index on fairq_demo.fifo (job_id) where claimed_at is null
"""
# Leases and finished jobs: every start the database knows of.
COUNT_STARTED = """
select (select count(*) from fairq.leases as l where l.queue = %(queue)s)
     + (select count(*) from fairq.finished_jobs as f where f.queue = %(queue)s)
"""


@contextlib.contextmanager
def demo_queue(dsn: str, queue: str, charge: str, *, remove: bool) -> Iterator[psycopg.Connection[Any]]:
    """Install the schema if need be, set mode and weights, and at the end remove the queue's rows if so wished."""
    try:
        connection = psycopg.connect(dsn, autocommit=True, application_name="fairq demo")
    except psycopg.OperationalError as error:
        message = f"no connection: {str(error).strip()}"
        raise DemoError(message) from error
    with connection:
        _apply_if_missing(connection, dsn)
        _check(connection, queue)
        try:
            connection.execute("select fairq.set_queue(p_queue => %s, p_charge => %s)", (queue, charge))
            for tenant, weight in WEIGHTS.items():
                connection.execute(
                    "select fairq.set_tenant(p_queue => %s, p_tenant => %s, p_weight => %s)", (queue, tenant, weight)
                )
            yield connection
        finally:
            if remove:
                _remove(connection, queue)


@contextlib.contextmanager
def fifo_table(connection: psycopg.Connection[Any], *, remove: bool) -> Iterator[None]:
    """Make the table that stands beside fairq in the comparison, and remove it if so wished."""
    try:
        connection.execute(FIFO)
    except psycopg.errors.DuplicateSchema as error:
        message = "schema fairq_demo is there already; the demo removes it, so it wants to make it"
        raise DemoError(message) from error
    try:
        yield
    finally:
        if remove and not connection.closed:
            connection.execute("drop schema fairq_demo cascade")


def clock(connection: psycopg.Connection[Any]) -> int:
    """Tell the time, in microseconds of the server's clock."""
    [now] = connection.execute("select (extract(epoch from clock_timestamp()) * 1000000)::bigint").fetchone() or (0,)
    return int(now)


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
