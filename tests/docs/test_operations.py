"""docs/operations.md: every command and statement runs, and every line of its table is a test."""

from __future__ import annotations

import re
import shlex
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from fairq_schema.cli import main
from tests.breakage.page import PAGE, blocks

if TYPE_CHECKING:
    from tests.support import Database

BREAKAGE = Path(__file__).parents[1] / "breakage"
TEXT = PAGE.read_text(encoding="utf-8")
# these move a queue from server to server: tests/breakage/test_moves.py
MOVES = ("publication", "subscription", "truncate")
NEEDS_SUPERUSER = ("alter role", "do $$", "pg_terminate_backend")


@pytest.fixture
def busy(db: Database) -> Database:
    """A queue in which everything of the page is to be found; job 42 among its jobs."""
    db.execute("alter sequence fairq.jobs_job_id_seq restart with 40")
    db.given_jobs("amber", 6, queue="mail")
    db.given_jobs("birch", 2, queue="mail", delay=timedelta(hours=1))
    dead, kept = db.claim(2, queue="mail")
    db.fail(dead, error="mailbox full", retry=False)
    assert db.renew(kept)
    return db


def statements() -> list[str]:
    """The blocks of SQL that need no second server."""
    return [text for text in blocks("sql") if not any(word in text for word in MOVES)]


def test_the_statements_run(busy: Database) -> None:
    """As an operator who sees other sessions; what is more than that says so on the page, or is about logins."""
    operator = busy.session(user=busy.login("fairq_operator", "pg_monitor"))
    admin = busy.session(autocommit=False)
    for login in ("mail_worker", "mail_producer"):
        admin.execute(f"create role {login} login")
    ran = 0
    for text in statements():
        who = admin if any(word in text for word in NEEDS_SUPERUSER) else operator
        # without arguments a block of several statements is sent as it stands
        who.execute(text)
        ran += 1
    admin.conn.rollback()
    assert ran > 15
    # what the page puts right is right
    assert busy.state(42) in {"queued", "running", "cancelled"}


def test_what_stands_in_the_text_runs(busy: Database) -> None:
    """Calls between backticks, whole statements and calls with arguments alike."""
    quoted = re.findall(r"`(select [^`]+|reindex [^`]+|\w+\((?:p_\w+ => [^`]+)?\))`", TEXT)
    public = {
        row.proname
        for row in busy.rows(
            "select proname from pg_proc where pronamespace = 'fairq'::regnamespace and proname !~ '^_'"
        )
    }
    ran = 0
    for text in quoted:
        name = text.split("(")[0]
        if text.startswith(("select ", "reindex ")):
            busy.execute(text)
        elif name == "set_queue":
            busy.execute(f"select fairq.set_queue(p_queue => 'mail', {text.split('(', 1)[1]}")
        elif name == "claim_jobs":
            busy.execute(f"select * from fairq.{text[:-1]}, p_owner => 'w')")
        else:
            assert name in public or name == "pg_drop_replication_slot", text
        ran += 1
    assert ran > 5


def test_the_commands_run(busy: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command of the page; the doctor may find something, and says what to do."""
    for name, value in conninfo_to_dict(busy.dsn).items():
        monkeypatch.setenv({"dbname": "PGDATABASE"}.get(name, f"PG{name.upper()}"), str(value))
    commands = [shlex.split(line) for text in blocks("sh") for line in text.splitlines()]
    assert len(commands) > 8
    for _, *arguments in commands:
        code = main(arguments)
        assert code == 0 or arguments[0] == "doctor", arguments
        assert capsys.readouterr().out


def test_every_line_of_the_table_is_a_test() -> None:
    """And every test of tests/breakage but those of the crew itself has a line."""
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    sources = [path.read_text(encoding="utf-8") for path in BREAKAGE.glob("test_*.py") if path.name != "test_crew.py"]
    there = set(re.findall(r"^def (test_\w+)", "\n".join(sources), re.MULTILINE))
    assert {name for name in there if not name.endswith("_is_noticed")} == named


def test_what_is_named_is_there() -> None:
    """Metrics, findings of the doctor and places on the page."""
    exporter = (Path(__file__).parents[2] / "fairq_schema/metrics/postgres_exporter.yaml").read_text(encoding="utf-8")
    for metric in re.findall(r"`(fairq_[a-z]+_[a-z_]+)`", TEXT):
        if metric in {"fairq_move", "fairq_operator"}:
            continue
        _, table, column = metric.split("_", 2)
        assert re.search(rf"^fairq_{table}:.*?^    - {column}:", exporter, re.MULTILINE | re.DOTALL), metric
    doctor = (Path(__file__).parents[2] / "fairq_schema/doctor_operation.sql").read_text(encoding="utf-8")
    for finding in re.findall(r"\bO\d+\b", TEXT):
        assert f"-- name: {finding} " in doctor, finding
    headings = {
        re.sub(r"[^a-z0-9 ]", "", line.lower()).replace(" ", "-")
        for line in re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= headings


def test_a_statement_that_is_wrong_is_noticed(busy: Database) -> None:
    """The test of the statements runs them, and does not only read them."""
    with pytest.raises(psycopg.Error):
        busy.execute(statements()[0].replace("maintain", "mainatin"))
