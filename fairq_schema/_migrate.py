"""
apply(), status() and rollback(): what happens to a database, in which order, and what is refused.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from fairq_schema._backend import Backend, read_steps
from fairq_schema._files import Migration, find, load
from fairq_schema._rename import DEFAULT_SCHEMA, checked_name
from fairq_schema._session import Connection, one_value, session
from fairq_schema.errors import ChangedFileError, HistoryError, MigrationFailedError, WouldLoseJobsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from pathlib import Path

_RETRY_SECONDS = (0.5, 1, 2, 4)  # after a lock timeout or a deadlock; until then the queue goes on working
_LOSES_JOBS = "QF003"


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """
    One migration as the package ships it, and when the database got it.
    """

    id: str
    applied_at: datetime | None


@dataclass(frozen=True, slots=True)
class Status:
    """
    How far a database has come.
    """

    schema: str
    version: int
    migrations: tuple[MigrationStatus, ...]

    @property
    def pending(self) -> tuple[str, ...]:
        """
        The ids that apply() would run.
        """
        return tuple(each.id for each in self.migrations if each.applied_at is None)


def apply(
    connection: str | Connection = "",
    schema: str = DEFAULT_SCHEMA,
    to: int | str | None = None,
    *,
    migrations: Path | None = None,
    lock_wait: float = 300,
) -> list[str]:
    """
    Bring a database to the newest version, or to the one named by `to`; safe to call from many processes at once.

    Args:
        connection: a libpq connection string ("" means the PG* environment variables), or an idle connection.
        schema: the name that fairq shall have here.
        to: the last migration to apply, by number or id.
        migrations: a folder to read instead of the one that the package ships.
        lock_wait: how many seconds to wait for another process that migrates.

    Returns:
        The ids of the migrations that were applied now, oldest first.

    Raises:
        FairqError: nothing was changed beyond the migrations already committed; the subclass says why.
    """
    checked_name(schema)
    files = load(migrations)
    last = find(files, to) if to is not None else files[-1]
    ready = read_steps(files, schema)
    applied = []
    with session(connection) as conn:
        backend = Backend(conn, schema)
        with backend.lock(lock_wait):
            backend.prepare()
            done = _checked_history(conn, backend, files, schema)
            for file in files[len(done) : last.number]:
                step = ready[file.id]
                _attempt(file, partial(backend.apply, file, step), retry=step.use_transactions)
                applied.append(file.id)
    return applied


def status(
    connection: str | Connection = "", schema: str = DEFAULT_SCHEMA, *, migrations: Path | None = None
) -> Status:
    """
    Say which migrations a database has; changes nothing, and refuses what apply() would refuse.
    """
    checked_name(schema)
    files = load(migrations)
    with session(connection) as conn:
        backend = Backend(conn, schema)
        done = _checked_history(conn, backend, files, schema)
    rows = tuple(MigrationStatus(file.id, done.get(file.id)) for file in files)
    return Status(schema, len(done), rows)


def rollback(  # noqa: PLR0913  one way to undo, four things to say about it
    connection: str | Connection = "",
    schema: str = DEFAULT_SCHEMA,
    to: int | str | None = None,
    *,
    steps: int = 1,
    lose_data: bool = False,
    migrations: Path | None = None,
    lock_wait: float = 300,
) -> list[str]:
    """
    Undo the newest migration, the newest `steps`, or all that are newer than `to` (0 undoes everything).

    Returns:
        The ids of the migrations that were undone, newest first.

    Raises:
        WouldLoseJobsError: there are jobs that the older version has no place for, and lose_data was not given.
    """
    checked_name(schema)
    files = load(migrations)
    kept = _number(files, to) if to is not None else None
    ready = read_steps(files, schema)
    undone = []
    with session(connection) as conn:
        backend = Backend(conn, schema)
        with backend.lock(lock_wait):
            done = len(_checked_history(conn, backend, files, schema))
            stop = max(done - steps, 0) if kept is None else kept
            for file in reversed(files[stop:done]):
                step = ready[file.id]
                undo = partial(backend.undo, step, lose_jobs=lose_data)
                _attempt(file, undo, retry=step.use_transactions)
                undone.append(file.id)
    return undone


def _checked_history(
    connection: Connection, backend: Backend, files: Sequence[Migration], schema: str
) -> dict[str, datetime]:
    """
    Return what was applied, once it is sure that these files and this database belong together.
    """
    history = backend.history()
    known = {file.id: file for file in files}
    for name, (_, sha256) in history.items():
        if name not in known:
            message = f"the database has {name}, the newest migration here is {files[-1].id}: install a newer fairq"
            raise HistoryError(message)
        if sha256 and sha256 != known[name].sha256:
            message = (
                f"{name}.sql was changed after it had been applied: sha256 {sha256} in the database, "
                f"{known[name].sha256} in the file; restore the file and put the change into a new migration"
            )
            raise ChangedFileError(message)
    if list(history) != [file.id for file in files[: len(history)]]:
        message = f"the history of the database has gaps: {', '.join(history)}"
        raise HistoryError(message)
    _check_version(connection, schema, len(history))
    return {name: at for name, (at, _) in history.items()}


def _check_version(connection: Connection, schema: str, expected: int) -> None:
    """
    Compare the history with what the schema says of itself; psql and other tools leave no history here.
    """
    function = "select true from pg_proc where pronamespace = to_regnamespace(%s) and proname = 'schema_version'"
    if not one_value(connection, function, f'"{schema}"'):
        return
    try:
        version = one_value(connection, f'select "{schema}".schema_version()')
    except psycopg.errors.InsufficientPrivilege:  # whoever installed fairq need not be one of its users
        version = expected or "installed"
    if version != expected:
        message = (
            f"schema {schema} has version {version}, but the history of fairq apply ends at {expected}: "
            "another tool (psql, say) migrated it; go on with that one"
        )
        raise HistoryError(message)


def _number(files: Sequence[Migration], target: int | str) -> int:
    nothing = str(target).isdecimal() and int(target) == 0
    return 0 if nothing else find(files, target).number


def _attempt(file: Migration, run: Callable[[], None], *, retry: bool) -> None:
    """
    Run one file, again and again if it only could not get its locks in time.
    """
    waits = iter(_RETRY_SECONDS if retry else ())
    while True:
        try:
            run()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            wait = next(waits, None)
            if wait is None:
                raise MigrationFailedError(_reason(file, error)) from error
            time.sleep(wait)
        except psycopg.Error as error:
            refused = WouldLoseJobsError if error.sqlstate == _LOSES_JOBS else MigrationFailedError
            raise refused(_reason(file, error)) from error
        else:
            return


def _reason(file: Migration, error: psycopg.Error) -> str:
    hint = f" ({error.diag.message_hint})" if error.diag.message_hint else ""
    return f"{file.id}: {error.diag.message_primary or error}{hint}"
