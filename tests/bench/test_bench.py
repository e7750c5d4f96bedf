"""The bench runs, whatever the engine has become; how fast is no matter here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
PAGE, PUBLISHED = ROOT / "docs" / "performance.md", ROOT / "docs" / "performance.json"
COMMAND = [sys.executable, "-m", "benchmark"]
LIMIT = 600  # some ten seconds on a machine that has nothing else to do

pytestmark = pytest.mark.slow


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    """Run the command as ci/bench does, in the environment of the tests."""
    return subprocess.run(
        [*COMMAND, *options], cwd=ROOT / "ci", capture_output=True, text=True, check=False, timeout=LIMIT
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run of the smallest size writes, with fairq and the floor alone."""
    folder = tmp_path_factory.mktemp("bench")
    done = bench("--size", "smoke", "--no-perf", "--out", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "performance.png").read_bytes().startswith(b"\x89PNG")
    found: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return found


def rows(results: Mapping[str, Any], workload: str) -> list[dict[str, Any]]:
    """The rows of a workload."""
    found: list[dict[str, Any]] = results["runs"][workload]["rows"]
    return found


def test_every_workload_has_its_block_in_the_page(results: dict[str, Any]) -> None:
    """Otherwise its results would be quoted nowhere."""
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in results["runs"] if text.count(f"<!-- bench: {name} -->") != 1] == []


@pytest.mark.parametrize("workload", ["claim", "sessions"])
def test_no_claim_is_empty_while_jobs_wait(results: dict[str, Any], workload: str) -> None:
    """That each job was claimed exactly once is checked by the bench itself, in every segment."""
    ours = [row for row in rows(results, workload) if row["queue"] == "fairq"]
    assert ours
    assert [row["empty"] for row in ours] == [0] * len(ours)


def test_small_groups_come_first_however_large_the_large_one(results: dict[str, Any]) -> None:
    """The large group of 200 jobs was enqueued before them, and gets one turn in a round like everybody."""
    for row in rows(results, "groups"):
        assert row["served"] == row["small"] == 20
        assert row["last_first"] <= 21


def test_buffers_and_wal_are_measured(results: dict[str, Any]) -> None:
    """A statement that is told apart by nothing, or a table that is not found, would count as free."""
    for row in rows(results, "claim"):
        assert row["claim_buffers"] > 1
        assert row["complete_buffers"] > 1
    for wal in rows(results, "wal"):
        assert 0 < wal["history_wal"] < wal["wal_bytes"]
        assert "leases " in wal["tables"]


# Instructions of the session per job, of each verb by queue and batch: a tenth above what was counted.
AT_MOST = {
    ("fairq", 1): {"enqueue": 440_000, "claim": 3_500_000, "complete": 470_000},
    ("fairq-ahead", 1): {"enqueue": 440_000, "claim": 860_000, "complete": 470_000},
    ("fairq", 10): {"enqueue": 182_000, "claim": 890_000, "complete": 182_000},
    ("fairq-ahead", 10): {"enqueue": 182_000, "claim": 125_000, "complete": 182_000},
}


def test_a_call_costs_no_more_than_it_did(results: dict[str, Any]) -> None:
    """Counted, not timed: the same on every machine."""
    counted = {(row["queue"], row["batch"]): row for row in rows(results, "instructions")}
    assert set(counted) == set(AT_MOST)
    dear = {
        (queue, batch, verb): counted[queue, batch][verb]
        for (queue, batch), verbs in AT_MOST.items()
        for verb, most in verbs.items()
        if not most / 2 < counted[queue, batch][verb] <= most
    }
    assert not dear


def test_each_stretch_under_a_held_snapshot_made_progress(results: dict[str, Any]) -> None:
    """Plain, and with retries, delays and expiring leases in the mix."""
    held = rows(results, "held")
    assert {row["queue"] for row in held} == {"fairq", "fairq-mixed"}
    assert all(row["jobs_s"] > 0 and row["claim_buffers"] > 1 for row in held)


def test_the_page_says_what_the_results_say() -> None:
    """No number in it is typed: ci/bench --publish writes them."""
    command = "import json, sys; from benchmark import report; print(report.render(*json.load(sys.stdin)), end='')"
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    text = PAGE.read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", command],
        cwd=ROOT / "ci",
        input=json.dumps([text, published]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == text, "docs/performance.md is not what performance.json says: run ci/bench --publish DIR"


BROKEN = """
import sys
from dataclasses import replace
from benchmark import throughput
from benchmark.errors import BenchError
from benchmark.queues import TOY
from benchmark.segments import SETTINGS, Bench
from benchmark.sizes import SMOKE
from fairq_schema.demo.server import temporary_server

claim, complete = sys.argv[1:]
queue = replace(TOY, claim=claim or TOY.claim, complete_one=complete, complete_many=complete)
with temporary_server(SETTINGS) as dsn:
    try:
        throughput.claim(Bench(dsn, {"toy": queue}, SMOKE, perf=False, say=print))
    except BenchError as error:
        print("refused:", error)
"""


@pytest.mark.parametrize(
    ("claim", "complete"),
    [
        pytest.param("", "select i from unnest(array[%(id)s::bigint]) as i", id="completed-and-still-there"),
        pytest.param(
            "",
            "with gone as (delete from toy.jobs where id = (select max(id) from toy.jobs)) "
            "delete from toy.jobs where id = %(id)s::bigint returning id",
            id="lost",
        ),
        pytest.param(
            "select id, null, payload from toy.jobs order by id limit %(limit)s::int",
            "select %(id)s::bigint",
            id="claimed-twice",
        ),
    ],
)
def test_a_queue_that_is_fast_and_wrong_has_no_result(claim: str, complete: str) -> None:
    """Each job is claimed once, and is completed or left."""
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, claim, complete],
        cwd=ROOT / "ci",
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT,
    )
    assert "refused: toy: of " in done.stdout, done.stdout + done.stderr


FAILING = """
from dataclasses import replace
from benchmark.counted import instructions
from benchmark.errors import BenchError
from benchmark.queues import TOY
from benchmark.segments import Bench
from benchmark.sizes import SMOKE

queue = replace(TOY, name="pgmq", enqueue_one="select 1 / 0", enqueue_many="select 1 / 0", claim="select 1, 2, 3")
queue = replace(queue, complete_one="select 1", complete_many="select 1")
try:
    instructions(Bench("", {"pgmq": queue}, SMOKE, perf=False, say=print))
except BenchError as error:
    print("refused:", error)
"""


def test_what_fails_has_no_count() -> None:
    """In single-user mode a statement that fails costs little, and nobody is told of it."""
    done = subprocess.run(
        [sys.executable, "-c", FAILING], cwd=ROOT / "ci", capture_output=True, text=True, check=True, timeout=LIMIT
    )
    assert "refused: pgmq under valgrind: ERROR:  division by zero" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only", "claim,sleep"], "what is sleep?"),
        (["--peers", "pgmq", "--pgmq-git", "/nowhere"], "no pgmq in /nowhere"),
    ],
)
def test_a_wrong_option_is_named(options: list[str], said: str) -> None:
    """Before a server is started."""
    done = bench(*options)
    assert done.returncode != 0
    assert said in done.stderr
