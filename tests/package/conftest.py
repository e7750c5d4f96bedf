"""
What the tests of the package share: a folder of two migrations, questions to a database, roles for a moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.package.folders import BARRIER, two_versions
from tests.package.upgrades import MADE_UP, OURS, SHIPPED, Way, make_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.package.folders import Folder
    from tests.support.databases import Databases
    from tests.support.servers import Server


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


@pytest.fixture
def make_role(ask: Callable[..., Any]) -> Iterator[Callable[..., str]]:
    """
    `make_role("Service role", "login")`: a role that is gone after the test.
    """
    made: list[sql.Identifier] = []

    def make(name: str, options: str = "") -> str:
        role = sql.Identifier(name)
        ask(sql.SQL("create role {} {}").format(role, sql.SQL(options)).as_string())
        made.append(role)
        return name

    yield make
    for role in reversed(made):
        ask(sql.SQL("drop owned by {} cascade").format(role).as_string())
    for role in reversed(made):
        ask(sql.SQL("drop role {}").format(role).as_string())


@pytest.fixture
def connect(server: Server, empty_db: str) -> Callable[[str], psycopg.Connection[Any]]:
    """
    `connect("app")`: a connection to this test's database as another login.
    """
    name = str(conninfo_to_dict(empty_db)["dbname"])
    return lambda user: psycopg.connect(server.dsn(name, user=user), autocommit=True)


@pytest.fixture(scope="session")
def one_more(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    Our migrations as if they were released, and one more, in which everything that can change does.
    """
    with databases.empty() as dsn:
        return make_up(tmp_path_factory.mktemp("versions") / "migrations", dsn)


@pytest.fixture(scope="session")
def find_way(one_more: Path) -> Callable[[str], Way]:
    """
    `find_way("1 to 2")`, or the way to the version that is made up: see WAYS.
    """

    def find(name: str) -> Way:
        if name == MADE_UP:
            return Way(one_more, SHIPPED[-1], SHIPPED[-1] + 1)
        old, _, new = name.split()
        return Way(OURS, int(old), int(new))

    return find
