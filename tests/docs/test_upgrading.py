"""docs/upgrading.md: its commands run as they stand, its refusals are said in these words, its examples are found."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg.conninfo import conninfo_to_dict

from fairq_schema.cli import main

if TYPE_CHECKING:
    import pytest

    from tests.support import Database

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = (CHECKOUT / "docs/upgrading.md").read_text()


def test_the_commands_run(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of the page does what it says, one after the other, in a database with fairq in it."""
    for name, value in conninfo_to_dict(db.dsn).items():
        monkeypatch.setenv({"dbname": "PGDATABASE"}.get(name, f"PG{name.upper()}"), str(value))
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    commands = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    assert len(commands) > 5
    try:
        for _, *arguments in commands:
            assert main(arguments) == 0, arguments
            if arguments[0] == "rollback":  # and on with the page
                assert main(["apply"]) == 0
    finally:
        for role in ("worker", "producer", "tenant", "operator"):
            db.execute(f"drop owned by partner_{role}")
            db.execute(f"drop role partner_{role}")


def test_refusals_are_said_in_these_words() -> None:
    """What the table quotes stands in the program, or in a migration."""
    rows = re.findall(r"^\| `(.*?)`(?:, `(.*?)`)? \|", PAGE, re.MULTILINE)
    sources = [*(CHECKOUT / "fairq_schema").glob("*.py"), CHECKOUT / "migrations/schema/roles.sql"]
    text = re.sub(r'"\s*f?"', "", " ".join(path.read_text() for path in sources))
    quoted = [word.strip(" .") for row in rows for word in row if word and not word.startswith("--")]
    assert len(quoted) > 9
    assert [words for words in quoted if words not in text] == []


def test_the_examples_are_found(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """What the page shows of `fairq check` is what it prints."""
    expected = PAGE.split("what was expected:\n\n```\n")[1].split("```")[0].splitlines()
    db.execute(
        """
        alter table fairq.jobs disable row level security;
        update pg_index set indisvalid = false where indexrelid = 'fairq.jobs_look_idx'::regclass;
        grant execute on function fairq.cancel_job(bigint) to public;
        create function fairq.cancel_job(p_job_id bigint, p_more integer default 1) returns integer
        language sql as 'select 1';
        """
    )
    assert main(["check", "--dsn", db.dsn]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert sorted(printed[:-1]) == sorted(expected)
