"""The pytest side: which servers are tested, and the fixtures."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.mutants import Check, Mutation, Survived, assert_fails_under
from tests.support.servers import LocalServer, Server, server_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.database import Database
    from tests.support.databases import Databases


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--pg 18,15`: the servers to test on."""
    parser.addoption("--pg", default=None, help="PostgreSQL majors, e.g. 18,15 (or: dsn, container); default 18")


def pytest_configure(config: pytest.Config) -> None:
    """The project's own marks."""
    config.addinivalue_line("markers", "short: also run in the short pass on the versions between")
    config.addinivalue_line("markers", "slow: left out of the quick run")
    config.addinivalue_line("markers", "demo: the tests of tests/demo, which have a server of their own")
    config.addinivalue_line("markers", "once: the same on every server, and left out of runs on further versions")


def pytest_report_header(config: pytest.Config) -> str:
    """Say which servers are tested."""
    return f"PostgreSQL: {', '.join(asked_servers(config))}"


def asked_servers(config: pytest.Config) -> list[str]:
    """What `--pg` says, else FAIRQ_TEST_DSN, FAIRQ_TEST_CONTAINER or FAIRQ_TEST_PG, else 18."""
    named = config.getoption("--pg")
    if not named and "FAIRQ_TEST_DSN" in os.environ:
        return ["dsn"]
    if not named and "FAIRQ_TEST_CONTAINER" in os.environ:
        return ["container"]
    return [word.strip() for word in (named or os.environ.get("FAIRQ_TEST_PG", "18")).split(",")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Whatever needs a server runs once on each of the asked ones."""
    if "pg" in metafunc.fixturenames:
        names = asked_servers(metafunc.config)
        metafunc.parametrize("pg", names, ids=[label(name) for name in names], indirect=True, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs no server need not be run again for another one."""
    for item in items:
        if not hasattr(item, "pg") and "pg" not in getattr(item, "fixturenames", ()):
            item.add_marker("once")


def label(name: str) -> str:
    """The server's name as it stands in the ids of tests."""
    return f"pg{name}" if name.isdigit() else name


class Servers:
    """The servers of this session, each started when first asked for."""

    def __init__(self) -> None:
        self._running: dict[str, Server] = {}
        self._failed: dict[str, BaseException] = {}

    def get(self, name: str) -> Server:
        """The server of that name; one that failed to start fails every test at once."""
        if name in self._failed:
            raise self._failed[name]
        if name not in self._running:
            try:
                self._running[name] = server_named(name)
            except Exception as error:
                self._failed[name] = error
                raise
        return self._running[name]

    def stop(self) -> None:
        """Stop them all."""
        with ExitStack() as stack:
            for server in self._running.values():
                stack.callback(server.stop)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """All servers of this session."""
    running = Servers()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def pg(request: pytest.FixtureRequest) -> str:
    """Which server a test runs on, as `--pg` names it."""
    return str(request.param)


@pytest.fixture(scope="session")
def server(servers: Servers, pg: str) -> Server:
    """The shared server; do not break it (see `private_server`)."""
    return servers.get(pg)


@pytest.fixture(scope="session")
def databases(server: Server) -> Databases:
    """The maker of databases on the shared server: `with databases.clone() as db`."""
    return server.databases


@pytest.fixture
def empty_db(databases: Databases) -> Iterator[str]:
    """The conninfo of an empty database."""
    with databases.empty() as dsn:
        yield dsn


@pytest.fixture
def db(databases: Databases) -> Iterator[Database]:
    """A fresh database with the schema, for this test alone."""
    with databases.clone() as fresh:
        yield fresh


@pytest.fixture(scope="module")
def module_db(databases: Databases) -> Iterator[Database]:
    """A fresh database with the schema, shared by the tests of one module."""
    with databases.clone() as fresh:
        yield fresh


@pytest.fixture
def start_server(pg: str) -> Iterator[Callable[..., LocalServer]]:
    """`start_server(durable=True, wal_level="logical")`: private servers with settings of one's own."""
    with ExitStack() as stack:

        def start(**settings: Any) -> LocalServer:
            if not pg.isdigit():
                pytest.fail(f"a private server needs a PostgreSQL of our own, not {pg}")
            private = LocalServer(pg, **settings)
            stack.callback(private.stop)
            return private

        yield start


@pytest.fixture
def private_server(start_server: Callable[..., LocalServer]) -> LocalServer:
    """A durable server for this test alone, to crash and restart: `kill9()`, `restart()`, `databases.clone()`."""
    return start_server(durable=True)


@pytest.fixture
def assert_killed(databases: Databases) -> Callable[..., None]:
    """
    `assert_killed(check_x, Edit("claim_jobs", "for update", ""))`: the check fails on a schema so broken.

    A check that meets the mutant by chance gets several `tries`, and has to fail in one of them.
    """

    def kill(check: Check, mutation: Mutation, tries: int = 1) -> None:
        for _ in range(tries - 1):
            with suppress(Survived), databases.clone() as fresh:
                assert_fails_under(check, mutation, fresh)
                return
        with databases.clone() as fresh:
            assert_fails_under(check, mutation, fresh)

    return kill
