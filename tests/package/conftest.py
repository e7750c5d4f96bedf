"""
What the tests of the package share: a folder of two migrations, and questions to a database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.package.folders import BARRIER, two_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.package.folders import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """
    Migrations 0001 and 0002.
    """
    return two_versions(tmp_path / "migrations")


@pytest.fixture
def ask(empty_db: str) -> Iterator[Callable[..., Any]]:
    """
    `ask(query, *args)`: the first value, by a connection that commits each statement; None without a row.
    """
    with psycopg.connect(empty_db, autocommit=True) as connection:

        def value(query: str, *args: object) -> Any:
            cursor = connection.execute(query.encode(), args or None)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

        yield value


@pytest.fixture
def barrier(ask: Callable[..., Any]) -> Callable[[], None]:
    """
    Closed at first: a migration that says WAIT_AT_BARRIER stops there. Call it to open it.
    """
    ask("select pg_advisory_lock(%s)", BARRIER)
    return lambda: ask("select pg_advisory_unlock(%s)", BARRIER)
