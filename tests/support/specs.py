"""Race specs: isolationtester plays the sessions of a .spec step by step, and its story is compared with the .out."""

from __future__ import annotations

import difflib
import os
import subprocess
from typing import TYPE_CHECKING

from tests.support.binaries import isolationtester
from tests.support.database import STATEMENT_TIMEOUT

if TYPE_CHECKING:
    from pathlib import Path

SESSION = f"-c statement_timeout={STATEMENT_TIMEOUT} -c client_min_messages=warning -c lc_messages=C"


def expected_file(spec: Path) -> Path:
    """Where the story of `specs/x.spec` is written down: `expected/x.out`."""
    return spec.parents[1] / "expected" / f"{spec.stem}.out"


def play(spec: Path, dsn: str) -> str:
    """What isolationtester prints for a spec in one database."""
    environment = os.environ | {"PGOPTIONS": SESSION, "PG_TEST_TIMEOUT_DEFAULT": "120"}
    done = subprocess.run(
        [str(isolationtester()), dsn], input=spec.read_bytes(), capture_output=True, env=environment, check=False
    )
    output = (done.stdout + done.stderr).decode()
    if done.returncode != 0:
        msg = f"isolationtester gave up on {spec.name}:\n{output}"
        raise AssertionError(msg)
    return output


def check_spec(spec: Path, dsn: str) -> None:
    """Play a spec and compare; with FAIRQ_SPEC_REWRITE=1 write the story down instead, for a human to review."""
    story = play(spec, dsn)
    expected = expected_file(spec)
    if os.environ.get("FAIRQ_SPEC_REWRITE") == "1":
        expected.write_text(story)
        return
    if not expected.exists():
        msg = f"{expected.name} is missing; FAIRQ_SPEC_REWRITE=1 writes it. The story:\n{story}"
        raise AssertionError(msg)
    told = expected.read_text()
    if story != told:
        diff = difflib.unified_diff(told.splitlines(), story.splitlines(), "expected", "played", lineterm="")
        raise AssertionError(f"{spec.name} went another way:\n" + "\n".join(diff))
