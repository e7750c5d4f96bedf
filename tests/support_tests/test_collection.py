"""pgTAP files and race specs: a bad one fails, and nothing is green by not running."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.binaries import CHECKOUT

if TYPE_CHECKING:
    from tests.support.servers import Server

INNER_CONFTEST = """
import psycopg
import tests.support.collection as collection
from tests.support.pgtap import load_pgtap

pytest_plugins = ["tests.support.fixtures", "tests.support.collection"]

def with_pgtap_alone(dsn):
    with psycopg.connect(dsn, autocommit=True) as conn:
        load_pgtap(conn)
        conn.execute("create table public.things (n integer primary key)")

collection.with_test_verbs = with_pgtap_alone
"""

GOOD = """
select plan(2);
insert into public.things values (1);
select is((select xmin from public.things) = (select pg_current_xact_id()::xid), false, 'each statement is committed');
select n as thing from public.things \\gset
select is(:thing, 1, 'a value is kept');
select * from finish();
"""

BAD = {
    "a failing assertion": "select plan(1); select ok(false, 'wrong'); select * from finish();",
    "no plan": "select ok(true, 'no plan');",
    "a wrong plan": "select plan(2); select ok(true, 'one'); select * from finish();",
    "no finish": "select plan(1); select ok(true, 'one');",
    "an SQL error": "select plan(1);\nselect ok(true, 'one');\nselect no_such_column;\nselect * from finish();",
    "an empty file": "",
}

pytestmark = pytest.mark.once


@pytest.fixture
def inner(pytester: pytest.Pytester, server: Server, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of its own whose tests run on our server, with pgTAP and a table."""
    monkeypatch.setenv("FAIRQ_TEST_DSN", server.maintenance_dsn)
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    monkeypatch.delenv("FAIRQ_SPEC_REWRITE", raising=False)
    pytester.makeconftest(INNER_CONFTEST)
    for folder in ("specs", "expected"):
        pytester.mkdir(folder)
    return pytester


def run(project: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run pytest in a process of its own."""
    return project.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist", *args)


@pytest.mark.short
def test_good_files_pass(inner: pytest.Pytester) -> None:
    """
    A file's statements are committed one by one, psql's own commands work.

    Each file has a database of its own: what one committed, the next does not find.
    """
    inner.path.joinpath("a_test.sql").write_text(GOOD)
    inner.path.joinpath("b_test.sql").write_text(GOOD)
    result = run(inner)
    result.assert_outcomes(passed=2)
    assert result.ret == 0


def test_bad_files_fail(inner: pytest.Pytester) -> None:
    """Every way of being bad is a failure, not a skip and not silence; an SQL error tells its line."""
    for fault, text in BAD.items():
        inner.path.joinpath(f"{fault.replace(' ', '_')}_test.sql").write_text(text)
    inner.path.joinpath("specs/bad.spec").write_text("session one step what")
    result = run(inner, "-rf")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.parseoutcomes().get("skipped", 0) == 0
    for fault in BAD:
        result.stdout.fnmatch_lines_random([f"FAILED {fault.replace(' ', '_')}_test.sql*"])
    result.stdout.fnmatch_lines_random(["FAILED specs/bad.spec*"])
    result.stdout.fnmatch_lines(["*an_SQL_error_test.sql:3: ERROR:*no_such_column*"])


@pytest.mark.parametrize("args", [[], ["--pg", "9"]])
def test_no_server_is_not_green(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, args: list[str]) -> None:
    """Without a server SQL tests fail; they are never skipped."""
    monkeypatch.setenv("FAIRQ_TEST_DSN", "host=/nowhere dbname=none")
    inner.path.joinpath("good_test.sql").write_text(GOOD)
    inner.path.joinpath("specs/one.spec").write_text("session one step nothing { select 1; }")
    result = run(inner, *args)
    result.assert_outcomes(failed=2)


def test_a_misnamed_file_is_not_green(inner: pytest.Pytester) -> None:
    """`test_x.sql` would be run by the plugin in its own way: it is refused."""
    inner.path.joinpath("test_good.sql").write_text(GOOD)
    result = run(inner)
    result.stdout.fnmatch_lines(["*are named [*]_test.sql*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
