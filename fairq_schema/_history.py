"""
Whether these files and this database belong together; what is refused, and what to do about it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairq_schema._rename import bookkeeping_schema, quoted
from fairq_schema._session import Connection, one_value
from fairq_schema.errors import ChangedFileError, HistoryError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairq_schema._backend import Backend, Entry
    from fairq_schema._files import Migration

_NUMBER = re.compile(r"fairq_(\d{4})_")


@dataclass(frozen=True, slots=True)
class Found:
    """
    What was applied: entries that the package has files for, and those of a newer package that is no danger to it.
    """

    done: tuple[Entry, ...]
    newer: tuple[str, ...]


def checked_history(connection: Connection, backend: Backend, files: Sequence[Migration], schema: str) -> Found:
    """
    Return what was applied, once it is sure that these files and this database belong together.
    """
    found = known_history(backend, files)
    version = installed_version(connection, schema)
    expected = len(found.done) + len(found.newer)
    if expected and not one_value(connection, "select to_regnamespace(%s)::text", quoted(schema)):
        message = (
            f"there is no schema {schema}, but the history of fairq apply ends at {expected}: another tool removed it; "
            f"to begin anew, run: drop schema {quoted(bookkeeping_schema(schema))} cascade; and then `fairq apply`"
        )
        raise HistoryError(message)
    if version is not None and version != expected:
        message = (
            f"schema {schema} has version {version}, but the history of fairq apply ends at {expected}: another tool "
            "(psql, say) migrated it; go on with that one, or let `fairq adopt` record what it did"
        )
        raise HistoryError(message)
    return found


def known_history(backend: Backend, files: Sequence[Migration]) -> Found:
    """
    Return the history alone: files that were changed, renamed or left out are refused.
    """
    history = backend.history()
    by_id = {file.id: file for file in files}
    newer = [entry for entry in history if entry.id not in by_id]
    for entry in newer:
        _refuse_unknown(entry, files[-1])
    done = [entry for entry in history if entry.id in by_id]
    for entry in done:
        _refuse_changed(entry, by_id[entry.id])
    if [entry.id for entry in done] != [file.id for file in files[: len(done)]]:
        message = f"the history of the database has gaps: {', '.join(entry.id for entry in history)}"
        raise HistoryError(message)
    return Found(tuple(done), tuple(entry.id for entry in newer))


def installed_version(connection: Connection, schema: str) -> int | None:
    """
    Return the version that the schema says it has, None where there is none.

    The function is read, not called: whoever installs fairq need not be one of its users.
    """
    query = "select prosrc from pg_proc where pronamespace = to_regnamespace(%s) and proname = 'schema_version'"
    number = re.search(r"\bselect\s+(\d+)", one_value(connection, query, f'"{schema}"') or "", re.IGNORECASE)
    return int(number[1]) if number else None


def _refuse_unknown(entry: Entry, newest: Migration) -> None:
    """
    Let pass what comes after our files and is known to leave them working.
    """
    number = _NUMBER.match(entry.id)
    if not number or int(number[1]) <= newest.number:
        message = f"the database has {entry.id}, which was never one of these files: was a file renamed?"
        raise HistoryError(message)
    if entry.breaking is not False:
        why = "which this version cannot work with" if entry.breaking else "of which this version knows nothing"
        message = f"the database has {entry.id}, {why}; the newest here is {newest.id}: install a newer fairq"
        raise HistoryError(message)


def _refuse_changed(entry: Entry, file: Migration) -> None:
    if entry.sha256 and entry.sha256 != file.sha256:
        message = (
            f"{entry.id}.sql was changed after it had been applied: sha256 {entry.sha256} in the database, "
            f"{file.sha256} in the file; restore the file and put the change into a new migration"
        )
        raise ChangedFileError(message)
