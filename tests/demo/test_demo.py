"""The demo runs by itself, keeps the promise it shows, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import fairq_schema
from fairq_schema.demo.database import TABLES
from fairq_schema.demo.server import temporary_server

if TYPE_CHECKING:
    from collections.abc import Iterator

DEMO = [sys.executable, "-m", "fairq_schema.demo", "--plain", "--workers", "2", "--flood", "5000"]
LIMIT = 180


@contextlib.contextmanager
def running(*options: str) -> Iterator[subprocess.Popen[str]]:
    """Start the demo, and see to it that a failing test ends it as well."""
    demo = subprocess.Popen(
        [*DEMO, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield demo
    finally:
        demo.terminate()
        demo.communicate(timeout=LIMIT)


def read_until(demo: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Read the demo's lines up to one that matches."""
    assert demo.stdout
    for line in demo.stdout:
        if found := re.search(pattern, line):
            return found
    assert demo.stderr
    pytest.fail(f"no line matches {pattern!r}: {demo.stderr.read()}")


def family(demo: subprocess.Popen[str]) -> list[psutil.Process]:
    """Give the server, its backends and the workers."""
    return list(psutil.Process(demo.pid).children(recursive=True))


def assert_nothing_left(home: Path, processes: list[psutil.Process]) -> None:
    """No process of the run lives, and its directory is gone."""
    _, alive = psutil.wait_procs(processes, timeout=LIMIT)
    assert not alive
    assert not home.exists()


def test_a_short_run_keeps_the_promise_and_leaves_nothing() -> None:
    """Five seconds, charged by jobs: exit 0, a lag ratio of at most 1 for nearly all starts, nothing left."""
    with running("--seconds", "5") as demo:
        home = Path(read_until(demo, r"^PostgreSQL 18\S* at (\S+); .*charged by jobs")[1])
        read_until(demo, r"^ +\d+\.\d s  ")
        processes = family(demo)
        assert home.is_dir()
        assert len(processes) > 2

        ratio = float(read_until(demo, r"^lag ratio: (\d+\.\d+),")[1])
        judged, started = (
            int(number.replace(",", ""))
            for number in read_until(demo, r"^judged: ([\d,]+) of ([\d,]+) starts").groups()
        )

        assert demo.wait(LIMIT) == 0
        assert ratio <= 1
        assert started > 100
        assert judged > started / 2
        assert_nothing_left(home, processes)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_a_run_leaves_nothing(signum: signal.Signals) -> None:
    """Ctrl-C and a service manager's stop: the status tells the signal; no process and no directory stay."""
    with running("--seconds", "600") as demo:
        home = Path(read_until(demo, r"^PostgreSQL 18\S* at (\S+);")[1])
        read_until(demo, r"^ +\d+\.\d s  ")
        processes = family(demo)

        demo.send_signal(signum)

        assert demo.wait(LIMIT) == 128 + signum
        assert_nothing_left(home, processes)


def test_a_run_in_a_given_database_takes_its_rows_away_again() -> None:
    """Nothing of the queue `demo` stays, so a second run finds the queue free; the schema stays."""
    with temporary_server() as dsn:
        for _ in range(2):
            assert run_in(dsn).returncode == 0
        with psycopg.connect(dsn) as connection:
            for table in TABLES:
                assert connection.execute(f"select from fairq.{table} where queue = 'demo'").fetchone() is None, table


def test_a_scheduler_that_forgets_the_weights_is_found_out() -> None:
    """The measurement can fail: with one charge for all, the ratio is above 1, and the demo says so and exits 1."""
    with temporary_server() as dsn:
        fairq_schema.apply(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            [text] = connection.execute(
                "select pg_get_functiondef(p.oid) from pg_proc as p"
                " where p.pronamespace = 'fairq'::regnamespace and p.proname = '_charge'"
            ).fetchone() or [""]
            assert "(s.flow).vtime + s.charge" in text
            connection.execute(text.replace("(s.flow).vtime + s.charge", "(s.flow).vtime + s.took * 2520000"))

        # on a slow machine too few jobs start in two seconds to tell
        done = run_in(dsn, "--seconds", "6")

        found = re.search(r"^lag ratio: (\d+\.\d+),", done.stdout, flags=re.MULTILINE)
        assert found, done.stderr
        assert float(found[1]) > 1
        assert done.returncode == 1


def test_the_plot_is_a_picture_of_a_run_within_its_bound(tmp_path: Path) -> None:
    """Six seconds, fairq and a plain table: exit 0, a PNG, and two drifts, of which fairq's is the lesser by far."""
    picture = tmp_path / "fair.png"
    with running("--seconds", "6", "--plot", str(picture)) as demo:
        home = Path(read_until(demo, r"^PostgreSQL 18\S* at (\S+); .*charged by time")[1])
        processes = family(demo)
        drift, bound, other = map(
            float, read_until(demo, r"at most (\S+) s \(bound T7: (\S+) s\); first in, first out: (\S+) s").groups()
        )

        assert demo.wait(LIMIT) == 0
        assert drift <= bound
        assert other > 3 * drift
        assert picture.read_bytes().startswith(b"\x89PNG\r\n")
        assert_nothing_left(home, processes)


def test_a_comparison_in_a_given_database_takes_its_table_away_again(tmp_path: Path) -> None:
    """Neither the rows of the queue nor the plain table stay."""
    with temporary_server() as dsn:
        done = run_in(dsn, "--plot", str(tmp_path / "fair.png"))
        assert "the picture: " in done.stdout, done.stderr
        with psycopg.connect(dsn) as connection:
            for table in TABLES:
                assert connection.execute(f"select from fairq.{table} where queue = 'demo'").fetchone() is None, table
            assert connection.execute("select to_regnamespace('fairq_demo')").fetchone() == (None,)


def test_a_queue_in_use_and_a_role_without_the_rights_are_refused() -> None:
    """The demo never removes what it did not make, and never judges by part of the order."""
    with temporary_server() as dsn:
        fairq_schema.apply(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("create role other login in role fairq_worker")
            connection.execute("select fairq.enqueue_job(p_tenant => 'a', p_task => 't', p_queue => 'demo')")

        assert "is in use" in run_in(dsn).stderr
        assert "connect as a superuser" in run_in(make_conninfo(dsn, user="other")).stderr


def run_in(dsn: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the demo for two seconds in a given database."""
    command = [*DEMO, "--seconds", "2", "--dsn", dsn, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)


def test_a_database_that_cannot_be_reached_is_one_clear_line() -> None:
    """No traceback for a wrong --dsn."""
    done = subprocess.run(
        [*DEMO, "--dsn", "host=/nonexistent dbname=none"], capture_output=True, text=True, check=False, timeout=LIMIT
    )

    assert done.returncode == 1
    assert done.stderr.startswith("fairq demo: no connection: ")
    assert "Traceback" not in done.stderr
