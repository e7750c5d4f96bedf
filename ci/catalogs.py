"""
What each version is in a database and which locks the way to it takes, asked of a real server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import databases
import psycopg

import fairq_schema
from fairq_schema import _expected, _files, _plan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# It is of no version, and is not frozen with one.
VARIANTS = "variants.json"


def catalogs(dsn: str, folder: Path) -> dict[Path, str]:
    """
    Return, for each migration of a folder, the file that says what its version is, and its text.
    """
    found = {}
    with databases.database(dsn) as conninfo:
        for file in _files.load(folder):
            with psycopg.connect(conninfo, autocommit=True) as connection:
                locks = _plan.measured_locks(connection, file)
            fairq_schema.apply(conninfo, to=file.number, migrations=folder)
            objects = databases.fingerprint(conninfo).objects
            found[folder / "catalog" / f"{file.number:04}.json"] = _expected.as_data(objects, locks)
        found[folder / "catalog" / VARIANTS] = _expected.overlays_as_data(objects, _variants(conninfo, folder))
    return found


def _variants(conninfo: str, folder: Path) -> dict[str, Mapping[str, dict[str, Any]]]:
    """
    Ask what the newest version is after each of the files that replace a part of it.
    """
    found = {}
    with psycopg.connect(conninfo) as connection:
        for path in sorted((folder / "tenant").glob("*.sql")):
            connection.execute(path.read_bytes())
            found[path.stem] = fairq_schema.fingerprint(connection).objects
            connection.rollback()
    return found


def stale(dsn: str, folder: Path) -> list[str]:
    """
    Name the files that do not say what the migrations make.
    """
    return [
        f"catalog/{path.name} is not up to date: run ci/new_migration"
        for path, text in catalogs(dsn, folder).items()
        if not path.is_file() or path.read_text("ascii") != text
    ]
