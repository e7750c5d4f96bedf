"""The tests that are not Python: pgTAP files and race specs, one pytest item per file and server."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import pytest
from pytest_pgtap.plugin.core import FixtureItem, report_tap
from pytest_pgtap.plugin.sql_files import _parse_marks

from tests.support.databases import with_test_verbs
from tests.support.fixtures import Servers, asked_servers, label
from tests.support.pgtap import run_sql_test
from tests.support.specs import check_spec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def pgtap_connection() -> None:
    """The plugin's way of running files, which skips without a connection: here it is an error."""
    pytest.fail("pgTAP files are named *_test.sql and live in sql_tests/", pytrace=False)


def pytest_collect_file(parent: pytest.Collector, file_path: Path) -> pytest.Collector | None:
    """Collect `*_test.sql` and `specs/*.spec`."""
    if file_path.name.endswith("_test.sql"):
        return SqlTestFile.from_parent(parent, path=file_path)
    if file_path.suffix == ".spec" and file_path.parent.name == "specs":
        return SpecFile.from_parent(parent, path=file_path)
    return None


class DatabaseItem(FixtureItem):
    """A test that is not Python: it runs on one server, in a database of its own with the test verbs."""

    def __init__(self, *, pg: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.pg = pg
        self.add_marker("short")
        # pytest-pgtap makes its subtests without pytest's blessing.
        self.add_marker(pytest.mark.filterwarnings("ignore:A private pytest class:pytest.PytestDeprecationWarning"))

    def runtest(self) -> None:
        """Clone a database and run there."""
        running: Servers = self._request.getfixturevalue("servers")
        with running.get(self.pg).databases.clone(with_test_verbs) as db:
            self.run_in(db.dsn)

    def run_in(self, dsn: str) -> None:
        """The test itself."""
        raise NotImplementedError

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """A difference is told without a Python traceback, and any other error without pytest's own calls."""
        if excinfo.errisinstance(AssertionError):
            return str(excinfo.value)
        if excinfo.errisinstance(pytest.fail.Exception):
            return super().repr_failure(excinfo, style)
        return "".join(traceback.format_exception(excinfo.type, excinfo.value, excinfo.tb, limit=-4))

    def reportinfo(self) -> tuple[Path, int, str]:
        """The file is the test."""
        return self.path, 0, self.name


class SqlTestItem(DatabaseItem):
    """One pgTAP file; each of its assertions is a subtest."""

    def run_in(self, dsn: str) -> None:
        """Run the file and report its TAP."""
        report_tap(self, run_sql_test(self.path, dsn), self.path.name)


class SpecItem(DatabaseItem):
    """One race spec."""

    def run_in(self, dsn: str) -> None:
        """Play the spec and compare."""
        check_spec(self.path, dsn)


class SqlTestFile(pytest.File):
    """A pgTAP file: one test per server. Marks are comments: `-- pytest.mark.slow`."""

    def collect(self) -> Iterator[pytest.Item]:
        """One item per server."""
        for pg in asked_servers(self.config):
            item = SqlTestItem.from_parent(self, name=label(pg), pg=pg)
            for mark in _parse_marks(self.path.read_text(), self.path.name):
                item.add_marker(mark)
            yield item


class SpecFile(pytest.File):
    """A race spec: one test per server."""

    def collect(self) -> Iterator[pytest.Item]:
        """One item per server."""
        for pg in asked_servers(self.config):
            yield SpecItem.from_parent(self, name=label(pg), pg=pg)
