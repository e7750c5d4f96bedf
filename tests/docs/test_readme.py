"""What the README shows is what happens."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support import Database

ROOT = Path(__file__).parents[2]
RESULT = "-- => "


def blocks(text: str, language: str) -> list[str]:
    """Give the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def steps(block: str) -> Iterator[tuple[str, list[str]]]:
    """Cut a block into statements, each with the result lines that follow it."""
    lines = iter(block.splitlines())
    statement: list[str] = []
    results: list[str] = []
    for line in lines:
        if results and not line.startswith(RESULT):
            yield "\n".join(statement), results
            statement, results = [], []
        if line.startswith(RESULT):
            results.append(line.removeprefix(RESULT))
        else:
            statement.append(line)
    yield "\n".join(statement), results


def written(value: object) -> str:
    """Write a value as psql does."""
    if isinstance(value, bool):
        return "t" if value else "f"
    return json.dumps(value) if isinstance(value, dict) else str(value)


def test_the_sql_of_the_readme_returns_what_it_says(db: Database) -> None:
    """Each block runs as it stands, and every `-- =>` line is a row of the statement before it."""
    found = blocks((ROOT / "README.md").read_text(encoding="utf-8"), "sql")
    assert found
    for block in found:
        for statements, expected in steps(block):
            cursor = db.execute(statements)
            while cursor.nextset():
                pass
            if expected:
                assert [" | ".join(map(written, row)) for row in cursor] == expected, statements


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/fairness.md", "docs/rooms.md"])
def test_links_lead_to_files(page: str) -> None:
    """A relative link names a file of the repository."""
    path = ROOT / page
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
