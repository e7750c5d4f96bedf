"""pgTAP without an extension folder: its script is loaded as it is, and each test file is run by psql."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.binaries import CACHE, MissingServer, psql
from tests.support.database import STATEMENT_TIMEOUT

if TYPE_CHECKING:
    import psycopg

SESSION = f"-c search_path=tap,public -c statement_timeout={STATEMENT_TIMEOUT} -c client_min_messages=warning"


def pgtap_script() -> str:
    """The text of pgTAP, from FAIRQ_PGTAP_SQL, what `ci/fetch pgtap` brought, or an installed extension."""
    named = [Path(path) for path in [os.environ.get("FAIRQ_PGTAP_SQL")] if path]
    found = named or [*CACHE.glob("pgtap--*.sql"), *_installed()]
    if not found:
        msg = "no pgTAP here: `ci/fetch pgtap` brings it, FAIRQ_PGTAP_SQL names a file"
        raise MissingServer(msg)
    # A line starting with \echo stops psql users who meant `create extension`.
    return re.sub(r"^\\echo.*$", "", found[0].read_text(), flags=re.MULTILINE)


def load_pgtap(conn: psycopg.Connection[Any]) -> None:
    """Load pgTAP into the schema `tap`, for everybody."""
    with conn.transaction():
        conn.execute("create schema tap")
        conn.execute("set local search_path = tap, public")
        conn.execute(pgtap_script().encode())
        conn.execute("grant usage on schema tap to public")


def run_sql_test(file: Path, dsn: str) -> list[str]:
    """
    Run a pgTAP file by psql, each statement committed, and return its lines of TAP.

    The plugin's own runner puts the whole file into one transaction, where no job is claimable: a job may be
    claimed only once its enqueue is committed. And an SQL error must not hide the assertions before it:
    an error, or a missing finish(), is one failed assertion more.
    """
    command = [str(psql()), "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", dsn, "-f", str(file)]
    environment = os.environ | {"PGOPTIONS": SESSION, "PGCLIENTENCODING": "UTF8"}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False
    )
    lines = done.stdout.splitlines()
    if done.returncode != 0:
        lines += _failure(lines, "the file runs without an SQL error", done.stderr)
    elif not re.search(r"\bfinish\s*\(", file.read_text()):
        lines += _failure(lines, "the file calls finish()", "")
    return lines


def _failure(lines: list[str], promise: str, details: str) -> list[str]:
    number = sum(line.startswith(("ok ", "not ok ")) for line in lines) + 1
    return [f"not ok {number} - {promise}", *(f"# {line}" for line in details.splitlines())]


def _installed() -> list[Path]:
    return sorted(Path("/usr/share/postgresql").glob("*/extension/pgtap--[0-9].[0-9].[0-9].sql"))
