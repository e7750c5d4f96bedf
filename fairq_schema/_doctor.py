"""
What is wrong with the isolation of a database, told to any login; and with its operation, told to operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Literal

import psycopg
from psycopg.rows import class_row, tuple_row

from fairq_schema._plain import plain
from fairq_schema._rename import DEFAULT_SCHEMA, checked_name
from fairq_schema._session import Connection, one_value, session
from fairq_schema._statements import statements

if TYPE_CHECKING:
    from collections.abc import Iterator

SUBJECTS = ("isolation", "operation")
_SEVERITIES = ("error", "warning", "info")
_LONGEST = "5s"


@dataclass(frozen=True, slots=True)
class Hazard:
    """
    Something that weakens the isolation of tenants or workers, or hurts operation, and what to do about it.
    """

    hazard: str  # H1 to H16, as in docs/security.md; O1 to O16, as in docs/observability.md
    severity: str  # error, warning, info
    subject: str
    what: str
    remedy: str


def doctor(
    connection: str | Connection = "",
    schema: str = DEFAULT_SCHEMA,
    only: Literal["isolation", "operation"] | None = None,
) -> tuple[Hazard, ...]:
    """
    Look for the known hazards to isolation and to operation, the worst first; changes nothing.
    """
    checked_name(schema)
    with session(connection) as conn, conn.transaction():
        conn.execute("set transaction isolation level read committed, read only")
        conn.execute("set local search_path = pg_catalog, pg_temp")
        conn.execute(f"set local statement_timeout = '{_LONGEST}'".encode())
        conn.execute("set local lock_timeout = '500ms'")
        found = _isolation(conn, schema)
        is_there = all(each.hazard != "H0" for each in found)
        if only == "operation" and is_there:
            found = []
        if only != "isolation" and is_there:
            found.extend(_operation(conn, schema))
    return tuple(sorted(found, key=lambda each: _SEVERITIES.index(each.severity)))


def report(hazards: tuple[Hazard, ...]) -> Iterator[str]:
    """
    Say it to people, two lines for each.
    """
    for each in hazards:
        yield plain(f"{each.severity} {each.hazard}: {each.subject}: {each.what}")
        yield plain(f"    {each.remedy}")
    bad = sum(each.severity == "error" for each in hazards)
    yield f"{bad} errors, {len(hazards) - bad} other findings"


def _isolation(conn: Connection, schema: str) -> list[Hazard]:
    one_value(conn, "select set_config('fairq_doctor.schema', %s, true)", schema)
    query = (resources.files("fairq_schema") / "doctor.sql").read_text("ascii")
    cursor = psycopg.Cursor(conn, row_factory=class_row(Hazard))
    return cursor.execute(query.encode()).fetchall()


def _operation(conn: Connection, schema: str) -> Iterator[Hazard]:
    hidden = []
    for name, query in statements("doctor_operation.sql", schema).items():
        hazard = name.split()[0]
        try:
            with conn.transaction():
                rows = psycopg.Cursor(conn, row_factory=tuple_row).execute(query.encode()).fetchall()
        except psycopg.errors.InsufficientPrivilege:
            hidden.append(hazard)
        except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable) as error:
            why = f"{name} could not be looked at within {_LONGEST}: {error.diag.message_primary}"
            yield Hazard(hazard, "warning", name, why, "try again; if it stays so, look who holds a table: fairq top")
        else:
            yield from (Hazard(hazard, *row) for row in rows)
    if hidden:
        who = conn.info.user
        what = f"this login is no operator, and has not looked at {', '.join(hidden)}"
        yield Hazard("O15", "info", who, what, f'grant fairq_operator to "{who}";')
