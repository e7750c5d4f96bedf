"""
The connection of one run: opened here or lent by the caller, who gets it back as it was.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from fairq_schema.errors import BadConnectionError

if TYPE_CHECKING:
    from collections.abc import Iterator

Connection: TypeAlias = psycopg.Connection[Any]  # whatever row factory the caller likes

_SETTINGS = {
    # The migrations qualify every name, so what resolves must not depend on who runs them.
    "search_path": "pg_catalog, pg_temp",
    "standard_conforming_strings": "on",
    # A server process notices that its client was killed, and lets go of the lock, while a statement still runs.
    "client_connection_check_interval": "500ms",
    # Migrations set their own; this is for the tables that remember them.
    "lock_timeout": "5s",
}
# Migrations change the role and give it back by RESET ROLE, which forgets a role that the caller had set.
_KEPT = (*_SETTINGS, "role")


@contextmanager
def session(connection: str | Connection) -> Iterator[Connection]:
    """
    Yield a connection in autocommit mode, prepared for migrations.
    """
    if isinstance(connection, str):
        with _open(connection) as opened, _prepared(opened):
            yield opened
    elif isinstance(connection, psycopg.Connection):
        with _borrowed(connection), _prepared(connection):
            yield connection
    else:
        message = f"expected a connection string or a psycopg.Connection, not {type(connection).__name__}"
        raise BadConnectionError(message)


def one_value(connection: Connection, query: str, *parameters: object) -> Any:  # noqa: ANN401  a column may be anything
    """
    Return the first column of the first row, whatever factories the caller's connection has.
    """
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    row = cursor.execute(query.encode(), parameters or None).fetchone()
    return row[0] if row else None


def _open(conninfo: str) -> Connection:
    try:
        conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:
        # libpq's own message repeats pieces of the string, which may be the password
        message = "the connection string is neither a libpq conninfo nor a postgresql:// URI"
        raise BadConnectionError(message) from None
    return psycopg.connect(conninfo, autocommit=True, fallback_application_name="fairq migrate")


@contextmanager
def _borrowed(connection: Connection) -> Iterator[None]:
    status = connection.info.transaction_status
    if status is not TransactionStatus.IDLE:
        message = (
            f"the connection is not idle ({status.name}): every migration is a transaction of its own, "
            "so commit or roll back first, or give a connection string"
        )
        raise BadConnectionError(message)
    before = connection.autocommit
    connection.autocommit = True
    try:
        yield
    finally:
        if not connection.closed:
            connection.autocommit = before


@contextmanager
def _prepared(connection: Connection) -> Iterator[None]:
    before = {name: one_value(connection, "select current_setting(%s)", name) for name in _KEPT}
    try:
        for name, value in _SETTINGS.items():
            _set(connection, name, value)
        yield
    finally:
        if not connection.closed:
            for name, value in before.items():
                _set(connection, name, value)


def _set(connection: Connection, name: str, value: str) -> None:
    try:
        one_value(connection, "select pg_catalog.set_config(%s, %s, false)", name, value)
    except psycopg.errors.InvalidParameterValue:
        if name != "client_connection_check_interval":  # some platforms cannot notice, and refuse it
            raise
