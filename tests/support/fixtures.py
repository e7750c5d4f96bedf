"""
The pytest side: options, fixtures, and the collection of pgTAP files and race specs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pytest_pgtap.plugin.core import FixtureItem, report_tap
from pytest_pgtap.plugin.sql_files import _parse_marks

from tests.support.database import Database
from tests.support.databases import Databases, with_test_verbs
from tests.support.mutants import Check, Mutation, assert_fails_under
from tests.support.pgtap import run_sql_test
from tests.support.servers import LocalServer, Server, server_named
from tests.support.specs import check_spec


def pytest_addoption(parser: pytest.Parser) -> None:
    """
    `--pg 18,15`: the servers to test on.
    """
    parser.addoption("--pg", default=None, help="PostgreSQL majors, e.g. 18,15 (or: dsn, container); default 18")


def pytest_configure(config: pytest.Config) -> None:
    """
    The project's own marks.
    """
    config.addinivalue_line("markers", "short: also run in the short pass on the versions between")
    config.addinivalue_line("markers", "slow: left out of the quick run")


def pytest_report_header(config: pytest.Config) -> str:
    """
    Say which servers are tested.
    """
    return f"PostgreSQL: {', '.join(asked_servers(config))}"


def asked_servers(config: pytest.Config) -> list[str]:
    """
    What `--pg` says, else FAIRQ_TEST_DSN, FAIRQ_TEST_CONTAINER or FAIRQ_TEST_PG, else 18.
    """
    named = config.getoption("--pg")
    if not named and "FAIRQ_TEST_DSN" in os.environ:
        return ["dsn"]
    if not named and "FAIRQ_TEST_CONTAINER" in os.environ:
        return ["container"]
    return [word.strip() for word in (named or os.environ.get("FAIRQ_TEST_PG", "18")).split(",")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """
    Whatever needs a server runs once on each of the asked ones.
    """
    if "pg" in metafunc.fixturenames:
        names = asked_servers(metafunc.config)
        metafunc.parametrize("pg", names, ids=[_label(name) for name in names], indirect=True, scope="session")


class Servers:
    """
    The servers of this session, each started when first asked for.
    """

    def __init__(self) -> None:
        self._running: dict[str, Server] = {}
        self._failed: dict[str, BaseException] = {}

    def get(self, name: str) -> Server:
        """
        The server of that name; one that failed to start fails every test at once.
        """
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
        """
        Stop them all.
        """
        with ExitStack() as stack:
            for server in self._running.values():
                stack.callback(server.stop)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """
    All servers of this session.
    """
    running = Servers()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def pg(request: pytest.FixtureRequest) -> str:
    """
    Which server a test runs on, as `--pg` names it.
    """
    return str(request.param)


@pytest.fixture(scope="session")
def server(servers: Servers, pg: str) -> Server:
    """
    The shared server; do not break it (see `private_server`).
    """
    return servers.get(pg)


@pytest.fixture(scope="session")
def databases(server: Server) -> Databases:
    """
    The maker of databases on the shared server: `with databases.clone() as db`.
    """
    return server.databases


@pytest.fixture
def empty_db(databases: Databases) -> Iterator[str]:
    """
    The conninfo of an empty database.
    """
    with databases.empty() as dsn:
        yield dsn


@pytest.fixture
def db(databases: Databases) -> Iterator[Database]:
    """
    A fresh database with the schema, for this test alone.
    """
    with databases.clone() as fresh:
        yield fresh


@pytest.fixture(scope="module")
def module_db(databases: Databases) -> Iterator[Database]:
    """
    A fresh database with the schema, shared by the tests of one module.
    """
    with databases.clone() as fresh:
        yield fresh


@pytest.fixture
def start_server(pg: str) -> Iterator[Callable[..., LocalServer]]:
    """
    `start_server(durable=True, wal_level="logical")`: private servers with settings of one's own.
    """
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
    """
    A durable server for this test alone, to crash and restart: `kill9()`, `restart()`, `databases.clone()`.
    """
    return start_server(durable=True)


@pytest.fixture
def assert_killed(databases: Databases) -> Callable[[Check, Mutation], None]:
    """
    `assert_killed(check_x, Edit("claim_jobs", "for update", ""))`: the check fails on a schema so broken.
    """

    def kill(check: Check, mutation: Mutation) -> None:
        with databases.clone() as fresh:
            assert_fails_under(check, mutation, fresh)

    return kill


@pytest.fixture(scope="session")
def pgtap_connection() -> None:
    """
    The plugin's way of running files, which skips without a connection: here it is an error.
    """
    pytest.fail("pgTAP files are named *_test.sql and live in sql_tests/", pytrace=False)


def pytest_collect_file(parent: pytest.Collector, file_path: Path) -> pytest.Collector | None:
    """
    Collect `*_test.sql` and `specs/*.spec`.
    """
    if file_path.name.endswith("_test.sql"):
        return SqlTestFile.from_parent(parent, path=file_path)
    if file_path.suffix == ".spec" and file_path.parent.name == "specs":
        return SpecFile.from_parent(parent, path=file_path)
    return None


class DatabaseItem(FixtureItem):
    """
    A test that is not Python: it runs on one server, in a database of its own with the test verbs.
    """

    def __init__(self, *, pg: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.pg = pg
        self.add_marker("short")

    def runtest(self) -> None:
        """
        Clone a database and run there.
        """
        running: Servers = self._request.getfixturevalue("servers")
        with running.get(self.pg).databases.clone(with_test_verbs) as db:
            self.run_in(db.dsn)

    def run_in(self, dsn: str) -> None:
        """
        The test itself.
        """
        raise NotImplementedError

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """
        A difference is told without a Python traceback.
        """
        return str(excinfo.value) if excinfo.errisinstance(AssertionError) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """
        The file is the test.
        """
        return self.path, 0, self.name


class SqlTestItem(DatabaseItem):
    """
    One pgTAP file; each of its assertions is a subtest.
    """

    def run_in(self, dsn: str) -> None:
        """
        Run the file and report its TAP.
        """
        report_tap(self, run_sql_test(self.path, dsn), self.path.name)


class SpecItem(DatabaseItem):
    """
    One race spec.
    """

    def run_in(self, dsn: str) -> None:
        """
        Play the spec and compare.
        """
        check_spec(self.path, dsn)


class SqlTestFile(pytest.File):
    """
    A pgTAP file: one test per server. Marks are comments: `-- pytest.mark.slow`.
    """

    def collect(self) -> Iterator[pytest.Item]:
        """
        One item per server.
        """
        for pg in asked_servers(self.config):
            item = SqlTestItem.from_parent(self, name=_label(pg), pg=pg)
            for mark in _parse_marks(self.path.read_text(), self.path.name):
                item.add_marker(mark)
            yield item


class SpecFile(pytest.File):
    """
    A race spec: one test per server.
    """

    def collect(self) -> Iterator[pytest.Item]:
        """
        One item per server.
        """
        for pg in asked_servers(self.config):
            yield SpecItem.from_parent(self, name=_label(pg), pg=pg)


def _label(name: str) -> str:
    return f"pg{name}" if name.isdigit() else name
