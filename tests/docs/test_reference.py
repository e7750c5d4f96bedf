"""docs/reference.md is what ci/reference writes now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import make_conninfo

if TYPE_CHECKING:
    from tests.support.servers import Server

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference.md"


def written(server: Server, folder: Path) -> str:
    """The page as the script writes it on this server."""
    output = folder / "reference.md"
    dsn = make_conninfo(server.maintenance_dsn)
    subprocess.run([sys.executable, ROOT / "ci" / "reference", "--dsn", dsn, "--output", output], check=True)
    return output.read_text(encoding="utf-8")


def test_the_reference_is_up_to_date(server: Server, tmp_path: Path) -> None:
    """Otherwise: run ci/reference. Other versions write some types and rules in other words, so 18 decides."""
    text = written(server, tmp_path)
    if server.major == 18:
        assert PAGE.read_text(encoding="utf-8") == text, "docs/reference.md is stale: run ci/reference"


@pytest.mark.parametrize(
    "line",
    [
        "| `p_limit` | a number from 1 to 1000 | `claim_jobs`, `pauses`, `tenant_stats`, `dead_jobs` |",
        "| `p_limit` | a number from 1 to 100000 | `prune`, `maintain`, `reconcile`, `erase_tenant`, `purge_tenant` |",
        "| `p_jobs` | an array of 1 to 10000 elements | `enqueue_jobs` |",
        "| `p_default_lease` | an interval from 1 millisecond to the queue's `longest_lease` | `set_queue` |",
        (
            "| `p_lease` | an interval from 1 millisecond to the queue's `longest_lease` | `claim_jobs`,"
            " `renew_job_lease`, `renew_job_leases` |"
        ),
        "| `p_owner` | a name of 1 to 200 bytes, not blank, not `*` or `@own` | `claim_jobs` |",
        "| `claim_jobs` |  | yes |  |  |",
        "| `default_lease` | `interval` | `'00:00:30'` | The lease of a claim or renewal that names none. |",
    ],
)
def test_the_reference_has_what_people_look_for(line: str) -> None:
    """Limits are read from the source of the functions: a pattern that finds none would go unnoticed."""
    assert line in PAGE.read_text(encoding="utf-8").splitlines()
