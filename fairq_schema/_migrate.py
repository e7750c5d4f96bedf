"""
apply(), status() and rollback(): what happens to a database, and in which order.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from fairq_schema._backend import Backend, read_step
from fairq_schema._files import Migration, find, load
from fairq_schema._history import Found, checked_history
from fairq_schema._rename import DEFAULT_SCHEMA, checked_name
from fairq_schema._roles import Roles, resolve
from fairq_schema._session import Connection, is_pooled, one_value, session
from fairq_schema._turns import IN_USE, InUseError, in_turn, rival, wait
from fairq_schema.errors import (
    BadRolesError,
    HistoryError,
    MigrationFailedError,
    NewerDatabaseWarning,
    PooledError,
    ReadOnlyError,
    WouldLoseJobsError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

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
    How far a database has come; `newer` are the ids that a newer package applied.
    """

    schema: str
    version: int
    migrations: tuple[MigrationStatus, ...]
    newer: tuple[str, ...] = ()

    @property
    def pending(self) -> tuple[str, ...]:
        """
        The ids that apply() would run.
        """
        return tuple(each.id for each in self.migrations if each.applied_at is None)


def apply(  # noqa: PLR0913  one way to migrate, and what there is to say about it
    connection: str | Connection = "",
    schema: str = DEFAULT_SCHEMA,
    to: int | str | None = None,
    *,
    roles: Mapping[str, str] | None = None,
    make_roles: bool = True,
    migrations: Path | None = None,
    lock_wait: float = 300,
) -> list[str]:
    """
    Bring a database to the newest version, or to the one named by `to`; safe to call from many processes at once.

    Args:
        connection: a libpq connection string ("" means the PG* environment variables), or an idle connection.
        schema: the name that fairq shall have here.
        to: the last migration to apply, by number or id.
        roles: which role plays which part (owner, api, worker, producer, tenant, operator), where it is not the
            usual one; chosen once, when the schema is made.
        make_roles: False: no role is made, and the parts that `roles` does not name are played by the role that
            installs, but the tenant's, which is played by nobody.
        migrations: a folder to read instead of the one that the package ships.
        lock_wait: how many seconds to go on trying: for another process that migrates, and for tables in use.

    Returns:
        The ids of the migrations that were applied now, oldest first.

    Raises:
        FairqError: nothing was changed beyond the migrations already committed; the subclass says why.
    """
    checked_name(schema)
    files = load(migrations)
    last = find(files, to) if to is not None else files[-1]
    with session(connection) as conn:
        run = _Run(conn, Backend(conn, schema), schema, files, lock_wait, make_roles)
        players = _players(conn, roles, make_roles=make_roles)
        with run.backend.turn(read_only=True):
            found = run.checked()
            refuse_other_roles(run.backend.roles(), players, chosen=bool(roles) or not make_roles)
        if found.newer:
            message = f"the database has {', '.join(found.newer)}, newer than {files[-1].id}: nothing was done"
            warnings.warn(message, NewerDatabaseWarning, stacklevel=2)
        applied: list[str] = []
        if len(found.done) < last.number:
            _refuse_reader(run.backend)
            name: str | None = ""
            while name is not None and name != last.id:
                name = _apply_next(run, last, players)
                applied.append(name or "")
    return [name for name in applied if name]


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
        with backend.turn(read_only=True):
            found = checked_history(conn, backend, files, schema)
    when = {entry.id: entry.applied_at for entry in found.done}
    rows = tuple(MigrationStatus(file.id, when.get(file.id)) for file in files)
    return Status(schema, len(found.done) + len(found.newer), rows, found.newer)


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
    undone: list[str] = []
    with session(connection) as conn:
        run = _Run(conn, Backend(conn, schema), schema, files, lock_wait)
        with run.backend.turn(read_only=True):
            found = run.checked()
        if found.newer:
            message = f"the database has {', '.join(found.newer)}, which only a newer fairq can undo: install that"
            raise HistoryError(message)
        stop = max(len(found.done) - steps, 0) if kept is None else kept
        if len(found.done) > stop:
            _refuse_reader(run.backend)
            try:
                while (not undone or undone[-1] != files[stop].id) and (
                    name := _undo_last(run, stop, lose_jobs=lose_data)
                ):
                    undone.append(name)
            except WouldLoseJobsError as error:
                if undone:
                    message = f"{error} (undone before: {', '.join(undone)})"
                    raise WouldLoseJobsError(message) from error
                raise
    return undone


@dataclass(frozen=True, slots=True)
class _Run:
    """
    What every step of one call needs.
    """

    connection: Connection
    backend: Backend
    schema: str
    files: Sequence[Migration]
    lock_wait: float
    make_roles: bool = True

    def checked(self) -> Found:
        return checked_history(self.connection, self.backend, self.files, self.schema)

    def in_turn(self, work: Callable[[], str | None]) -> str | None:
        return in_turn(self.backend, self.connection, self.schema, self.lock_wait, work)


def _apply_next(run: _Run, last: Migration, players: Roles) -> str | None:
    """
    Apply the oldest migration that is missing, and return its id; None when there is none up to `last`.

    It is empty where another process was quicker.
    """
    bare: list[Migration] = []

    def work() -> str | None:
        done = len(run.checked().done)
        if done >= last.number:
            return None
        file = run.files[done]
        run.backend.prepare()
        step = read_step(file, run.schema, run.backend.roles() or players)
        if not step.use_transactions:
            bare.append(file)
            return None
        with told_as(file.id):
            if done == 0:
                run.backend.keep_roles(players)
            run.backend.apply(file, step, make_roles=run.make_roles)
        return file.id

    applied = run.in_turn(work)
    return _apply_bare(run, bare[-1], players) if bare else applied


def _apply_bare(run: _Run, file: Migration, players: Roles) -> str:
    """
    Apply a file that no transaction can hold (CREATE INDEX CONCURRENTLY), and record it afterwards.

    A crash before the index is whole leaves an invalid one, which the next run drops.
    """
    if is_pooled(run.connection):
        message = f"{file.id} runs outside of a transaction, and a pooler is in between: connect to the server itself"
        raise PooledError(message)
    deadline = time.monotonic() + run.lock_wait
    while True:
        with run.backend.outside_transactions() as locked:
            if locked:
                if file.id in {entry.id for entry in run.backend.history()}:
                    return ""
                run.backend.drop_invalid_index(file, run.schema)
                with told_as(file.id):
                    run.backend.apply(file, read_step(file, run.schema, run.backend.roles() or players))
                return file.id
        wait(0.1, deadline, rival(run.backend, run.lock_wait))


def _undo_last(run: _Run, stop: int, *, lose_jobs: bool) -> str | None:
    """
    Undo the newest migration there is, and return its id; None when there are no more than `stop`.
    """

    def work() -> str | None:
        done = len(run.checked().done)
        if done <= stop:
            return None
        file = run.files[done - 1]
        step = read_step(file, run.schema, run.backend.roles() or resolve({}, installer=None))
        with told_as(file.id):
            run.backend.undo(step, lose_jobs=lose_jobs)
            if done == 1:
                run.backend.forget()
        return file.id

    return run.in_turn(work)


def _number(files: Sequence[Migration], target: int | str) -> int:
    nothing = str(target).isdecimal() and int(target) == 0
    return 0 if nothing else find(files, target).number


def _players(connection: Connection, roles: Mapping[str, str] | None, *, make_roles: bool) -> Roles:
    installer = None if make_roles else one_value(connection, "select current_user::text")
    return resolve(roles or {}, installer=installer)


def refuse_other_roles(kept: Roles | None, wanted: Roles, *, chosen: bool) -> None:
    """
    Refuse roles that are not those of a schema that is there.
    """
    if kept is None or not chosen or dict(kept) == dict(wanted):
        return
    part = next(part for part in wanted if wanted[part] != kept.get(part))
    message = (
        f"{part}={wanted[part]}, but this schema was made with {part}={kept.get(part)}: "
        "the roles of a schema are chosen when it is made; leave them out from then on"
    )
    raise BadRolesError(message)


def _refuse_reader(backend: Backend) -> None:
    if not backend.may_write():
        message = "this server is a standby, or the session read-only: connect to the primary, to a session that writes"
        raise ReadOnlyError(message)


class told_as:  # noqa: N801  reads as a statement
    """
    Say an error of the database with the name of the file that it comes from.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, psycopg.Error):
            return
        hint = f" ({error.diag.message_hint})" if error.diag.message_hint else ""
        reason = f"{self.name}: {error.diag.message_primary or error}{hint}"
        if isinstance(error, IN_USE):
            raise InUseError(reason) from error
        refused = WouldLoseJobsError if error.sqlstate == _LOSES_JOBS else MigrationFailedError
        raise refused(reason) from error
