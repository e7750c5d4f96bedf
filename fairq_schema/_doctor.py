"""
What is wrong with the isolation of a database, told to any login.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

import psycopg
from psycopg.rows import class_row

from fairq_schema._rename import DEFAULT_SCHEMA, checked_name
from fairq_schema._session import Connection, one_value, session

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Hazard:
    """
    Something that weakens the isolation of tenants or workers, and what to do about it.
    """

    hazard: str  # H1 to H16, as in docs/security.md
    severity: str  # error, warning, info
    subject: str
    what: str
    remedy: str


def doctor(connection: str | Connection = "", schema: str = DEFAULT_SCHEMA) -> tuple[Hazard, ...]:
    """
    Look for the known hazards to the isolation of tenants and workers, the worst first; changes nothing.
    """
    checked_name(schema)
    query = (resources.files("fairq_schema") / "doctor.sql").read_text("ascii")
    with session(connection) as conn, conn.transaction():
        conn.execute("set local search_path = pg_catalog, pg_temp")
        one_value(conn, "select set_config('fairq_doctor.schema', %s, true)", schema)
        cursor = psycopg.Cursor(conn, row_factory=class_row(Hazard))
        return tuple(cursor.execute(query.encode()).fetchall())


def report(hazards: tuple[Hazard, ...]) -> Iterator[str]:
    """
    Say it to people, two lines for each.
    """
    for each in hazards:
        yield f"{each.severity} {each.hazard}: {each.subject}: {each.what}"
        yield f"    {each.remedy}"
    bad = sum(each.severity == "error" for each in hazards)
    yield f"{bad} errors, {len(hazards) - bad} other findings"
