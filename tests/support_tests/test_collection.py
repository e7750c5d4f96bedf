"""
pgTAP files and race specs: a bad one fails, and nothing is green by not running.
"""

from __future__ import annotations

import pytest

from tests.support.binaries import CHECKOUT
from tests.support.servers import Server

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestDeprecationWarning")

INNER_CONFTEST = """
import psycopg
import tests.support.fixtures as fixtures
from tests.support.pgtap import load_pgtap

pytest_plugins = ["tests.support.fixtures"]

def with_pgtap_alone(dsn):
    with psycopg.connect(dsn, autocommit=True) as conn:
        load_pgtap(conn)
        conn.execute("create table public.things (n integer primary key)")

fixtures.with_test_verbs = with_pgtap_alone
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

SPEC = """
# One waits for the other.
session one
setup      { begin; }
step take  { insert into public.things values (1); }
step keep  { commit; }
session two
step want  { insert into public.things values (1) on conflict do nothing; }
step count { select count(*) from public.things; }
permutation take want keep count
"""


@pytest.fixture
def inner(pytester: pytest.Pytester, server: Server, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """
    A project of its own whose tests run on our server, with pgTAP and a table.
    """
    monkeypatch.setenv("FAIRQ_TEST_DSN", server.maintenance_dsn)
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    monkeypatch.delenv("FAIRQ_SPEC_REWRITE", raising=False)
    pytester.makeconftest(INNER_CONFTEST)
    for folder in ("specs", "expected"):
        pytester.mkdir(folder)
    return pytester


def run(project: pytest.Pytester, *args: str) -> pytest.RunResult:
    """
    pytest in a process of its own.
    """
    return project.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist", *args)


@pytest.mark.short
def test_a_good_file_passes(inner: pytest.Pytester) -> None:
    """
    A file passes; its statements are committed one by one, and psql's own commands work.
    """
    inner.path.joinpath("good_test.sql").write_text(GOOD)
    result = run(inner)
    result.assert_outcomes(passed=1)
    assert result.ret == 0


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_file_fails(inner: pytest.Pytester, fault: str) -> None:
    """
    Every way of being bad is a failure, not a skip and not silence.
    """
    inner.path.joinpath("bad_test.sql").write_text(BAD[fault])
    result = run(inner)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.parseoutcomes().get("skipped", 0) == 0


def test_files_do_not_meet(inner: pytest.Pytester) -> None:
    """
    Each file has a database of its own: what one committed, the next does not find.
    """
    inner.path.joinpath("a_test.sql").write_text(GOOD)
    inner.path.joinpath("b_test.sql").write_text(GOOD)
    run(inner).assert_outcomes(passed=2)


def test_an_error_tells_its_line(inner: pytest.Pytester) -> None:
    """
    An SQL error is shown with file and line, and the assertions before it are kept.
    """
    inner.path.joinpath("bad_test.sql").write_text(BAD["an SQL error"])
    run(inner).stdout.fnmatch_lines(["*bad_test.sql:3: ERROR:*no_such_column*"])


@pytest.mark.parametrize("args", [[], ["--pg", "9"]])
def test_no_server_is_not_green(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, args: list[str]) -> None:
    """
    Without a server SQL tests fail; they are never skipped.
    """
    monkeypatch.setenv("FAIRQ_TEST_DSN", "host=/nowhere dbname=none")
    inner.path.joinpath("good_test.sql").write_text(GOOD)
    inner.path.joinpath("specs/wait.spec").write_text(SPEC)
    result = run(inner, *args)
    result.assert_outcomes(failed=2)


def test_a_misnamed_file_is_not_green(inner: pytest.Pytester) -> None:
    """
    `test_x.sql` would be run by the plugin in its own way: it is refused.
    """
    inner.path.joinpath("test_good.sql").write_text(GOOD)
    result = run(inner)
    result.stdout.fnmatch_lines(["*are named [*]_test.sql*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_spec_is_written_once_and_then_compared(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A missing story fails, a rewrite writes it, the same story passes, another one fails with the difference.
    """
    inner.path.joinpath("specs/wait.spec").write_text(SPEC)
    story = inner.path / "expected/wait.out"
    run(inner).assert_outcomes(failed=1)
    assert not story.exists()
    monkeypatch.setenv("FAIRQ_SPEC_REWRITE", "1")
    run(inner).assert_outcomes(passed=1)
    assert "<waiting ...>" in story.read_text()
    monkeypatch.delenv("FAIRQ_SPEC_REWRITE")
    run(inner).assert_outcomes(passed=1)
    story.write_text(story.read_text().replace("    1", "    2"))
    result = run(inner)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*wait.spec went another way*", "-*2", "+*1"])


def test_a_broken_spec_fails(inner: pytest.Pytester) -> None:
    """
    A spec that isolationtester cannot read is a failure.
    """
    inner.path.joinpath("specs/wait.spec").write_text("session one step what")
    run(inner).assert_outcomes(failed=1)
