"""
The connection of one run: opened here or lent by the caller, who gets it back as it was.

Between two transactions nothing is kept in the session: a pooler may hand each transaction to another server process.
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
    from collections.abc import Iterator, Mapping

Connection: TypeAlias = psycopg.Connection[Any]  # whatever row factory the caller likes

_SETTINGS = {
    # The migrations qualify every name, so what resolves must not depend on who runs them.
    "search_path": "pg_catalog, pg_temp",
    "standard_conforming_strings": "on",
    # A server process notices that its client was killed, and lets go of its locks, while a statement still runs.
    "client_connection_check_interval": "500ms",
    # Migrations set their own; this is for the tables that remember them.
    "lock_timeout": "5s",
    # Limits for an application's queries are not meant for building an index.
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}


@contextmanager
def session(connection: str | Connection) -> Iterator[Connection]:
    """
    Yield a connection in autocommit mode, which prepares no statements.
    """
    if isinstance(connection, str):
        with _open(connection) as opened, _borrowed(opened):
            yield opened
    elif isinstance(connection, psycopg.Connection):
        with _borrowed(connection):
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


def settings_of(connection: Connection) -> dict[str, str]:
    """
    Return the settings that migrations need, as far as this server has them.
    """
    found = dict(_SETTINGS)
    name = "client_connection_check_interval"
    try:
        # local, and the statement is a transaction of its own: it leaves nothing
        one_value(connection, "select pg_catalog.set_config(%s, %s, true)", name, found[name])
    except psycopg.errors.InvalidParameterValue:  # some platforms cannot notice, and refuse it
        del found[name]
    return found


def change_settings(connection: Connection, settings: Mapping[str, str], *, local: bool) -> None:
    """
    Make settings, until the transaction ends or for good.
    """
    for name, value in settings.items():
        one_value(connection, "select pg_catalog.set_config(%s, %s, %s)", name, value, local)


@contextmanager
def session_settings(connection: Connection, settings: Mapping[str, str]) -> Iterator[None]:
    """
    Make settings for statements that run outside of a transaction, and put back what was there.
    """
    # Such a file may change the role too, and give it back by RESET ROLE, which forgets one that the caller had set.
    before = {name: one_value(connection, "select current_setting(%s)", name) for name in (*settings, "role")}
    try:
        change_settings(connection, settings, local=False)
        yield
    finally:
        if not connection.closed:
            change_settings(connection, before, local=False)


def is_pooled(connection: Connection) -> bool:
    """
    Tell whether a pooler stands between: the process number it made up is not that of the server process.
    """
    number: int = one_value(connection, "select pg_backend_pid()")
    return number != connection.info.backend_pid


def _open(conninfo: str) -> Connection:
    try:
        conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:
        # libpq's own message repeats pieces of the string, which may be the password
        message = "the connection string is neither a libpq conninfo nor a postgresql:// URI"
        raise BadConnectionError(message) from None
    # where text has no known encoding, psycopg hands out bytes
    return psycopg.connect(conninfo, autocommit=True, fallback_application_name="fairq migrate", client_encoding="utf8")


@contextmanager
def _borrowed(connection: Connection) -> Iterator[None]:
    status = connection.info.transaction_status
    if status is not TransactionStatus.IDLE:
        message = (
            f"the connection is not idle ({status.name}): every migration is a transaction of its own, "
            "so commit or roll back first, or give a connection string"
        )
        raise BadConnectionError(message)
    if connection.info.encoding == "ascii":
        message = "the connection's client_encoding is SQL_ASCII, in which text comes as bytes: set it to UTF8"
        raise BadConnectionError(message)
    before = connection.autocommit, connection.prepare_threshold
    connection.autocommit, connection.prepare_threshold = True, None
    try:
        yield
    finally:
        if not connection.closed:
            connection.autocommit, connection.prepare_threshold = before
