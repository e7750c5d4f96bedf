"""
plan(): what apply() would do, and whom it would make wait.

A migration's locks are measured when it is compiled, on a real server, and shipped with it. To measure them where a
queue is at work would mean to take them there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairq_schema._backend import Backend, read_step
from fairq_schema._expected import load_expected
from fairq_schema._files import Migration, find, load
from fairq_schema._history import checked_history
from fairq_schema._rename import DEFAULT_SCHEMA, checked_name
from fairq_schema._roles import DEFAULT_ROLES
from fairq_schema._session import Connection, session

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Weakest first; the first of these is what every query takes, and is in nobody's way.
_MODES = {
    "AccessShareLock": "",
    "RowShareLock": "",
    "RowExclusiveLock": "",
    "ShareUpdateExclusiveLock": "reading and writing go on",
    "ShareLock": "reading goes on, writing waits",
    "ShareRowExclusiveLock": "reading goes on, writing waits",
    "ExclusiveLock": "reading goes on, writing waits",
    "AccessExclusiveLock": "nobody reads or writes it meanwhile",
}


@dataclass(frozen=True, slots=True)
class PlannedMigration:
    """
    A migration that is to come, and the strongest lock it takes on each table that is there before it.

    `locks` is None for a file that runs outside of a transaction, statement by statement.
    """

    id: str
    locks: Mapping[str, str] | None

    def lines(self) -> list[str]:
        """
        Say it in sentences.
        """
        if self.locks is None:
            return ["runs outside of a transaction: reading and writing go on"]
        said = [f"{mode} on {table}: {_MODES[mode]}" for table, mode in sorted(self.locks.items()) if _MODES[mode]]
        return said or ["takes no lock on a table that others could wait for"]


def plan(
    connection: str | Connection = "",
    schema: str = DEFAULT_SCHEMA,
    to: int | str | None = None,
    *,
    migrations: Path | None = None,
) -> list[PlannedMigration]:
    """
    Say what apply() would do, and refuse what it would refuse; changes nothing and locks nothing.
    """
    checked_name(schema)
    files = load(migrations)
    last = find(files, to) if to is not None else files[-1]
    with session(connection) as conn:
        backend = Backend(conn, schema)
        with backend.turn(read_only=True):
            done = len(checked_history(conn, backend, files, schema).done)
    return [
        PlannedMigration(file.id, load_expected(file.number, migrations).locks) for file in files[done : last.number]
    ]


def measured_locks(connection: Connection, file: Migration) -> dict[str, str] | None:
    """
    Run a migration in a transaction that is rolled back, and return the locks it took on tables that were there.
    """
    step = read_step(file, DEFAULT_SCHEMA, DEFAULT_ROLES)
    if not step.use_transactions:
        return None
    backend = Backend(connection, DEFAULT_SCHEMA)
    # all that a transaction has locked, it holds to its end
    query = """
        select c.relname, l.mode from pg_locks as l join pg_class as c on c.oid = l.relation
        where l.pid = pg_backend_pid() and c.relnamespace = to_regnamespace('fairq') and c.relkind in ('r', 'p')
          and c.oid = any (:tables)
    """
    tables = "select coalesce(array_agg(oid), '{}') from pg_class where relnamespace = to_regnamespace('fairq')"
    with backend.turn(rehearsal=True):
        before = backend.execute(tables).fetchone()[0]
        step.process_steps(backend, "apply")
        found = backend.execute(query, {"tables": before}).fetchall()
    order = list(_MODES)
    strongest = {table: max((mode for name, mode in found if name == table), key=order.index) for table, _ in found}
    return {table: mode for table, mode in strongest.items() if mode != "AccessShareLock"}
