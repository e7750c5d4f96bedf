"""
A server that is reached as tools reach theirs, and what fairq itself makes there.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import fairq_schema
from tests.support.servers import LocalServer
from tests.vendoring.projects import SET_UP, TOOLS, Project
from tests.vendoring.versions import migrations, package

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fairq_schema import Fingerprint


@pytest.fixture(scope="session")
def tcp(pg: str) -> Iterator[Callable[[], str]]:
    """
    `tcp()`: the conninfo of an empty database, by host and port; JDBC knows no sockets.
    """
    if not pg.isdigit():
        pytest.fail(f"the tests of other tools need a PostgreSQL of our own, not {pg}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    server = LocalServer(pg, listen_addresses="127.0.0.1", port=port)
    with ExitStack() as stack:
        stack.callback(server.stop)

        def empty() -> str:
            dsn = stack.enter_context(server.databases.empty())
            name = str(conninfo_to_dict(dsn)["dbname"])
            return make_conninfo(host="127.0.0.1", port=port, user="postgres", dbname=name)

        yield empty


@pytest.fixture(scope="session")
def applied(tcp: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Fingerprint]:
    """
    `applied("torture", shipped=1)`: what `fairq apply` makes of these versions.
    """

    @cache
    def fingerprint(*extra: str, shipped: int | None = None) -> Fingerprint:
        folder = migrations(tmp_path_factory.mktemp("applied") / "migrations", *extra, shipped=shipped)
        dsn = tcp()
        fairq_schema.apply(dsn, migrations=folder)
        return made(dsn)

    return fingerprint


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """
    `release("torture", shipped=1)`: the folder with the command of a fairq that ships these versions.
    """

    @cache
    def made_once(*extra: str, shipped: int | None = None) -> Path:
        return package(tmp_path_factory.mktemp("release"), *extra, shipped=shipped)

    return made_once


@pytest.fixture
def start(tcp: Callable[[], str], tmp_path: Path) -> Callable[..., Project]:
    """
    `start("Alembic", fairq)`: a project that uses a tool, with an empty database and this release of fairq.
    """

    def new(tool: str, fairq: Path, set_up: Callable[[Project], None] | None = None) -> Project:
        if not TOOLS.is_dir():
            pytest.fail("the tools are not here: ci/fetch tools")
        folder = tmp_path / "project"
        folder.mkdir()
        project = Project(folder, tcp(), fairq)
        (set_up or SET_UP[tool])(project)
        return project

    return new


def made(dsn: str, schema: str = "fairq") -> Fingerprint:
    """
    Return what is in a database.
    """
    with psycopg.connect(dsn) as connection:
        return fairq_schema.fingerprint(connection, schema)
