"""
The migrations of fairq in the hands of other tools: what each makes is what `fairq apply` makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.vendoring import page
from tests.vendoring.conftest import made
from tests.vendoring.projects import GOES_ON, ONE_DOWN, OPTIONS, SET_UP, lose_jobs
from tests.vendoring.versions import COUNT, EXTRA, ORIGINALS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fairq_schema import Fingerprint
    from tests.vendoring.projects import Project

pytestmark = pytest.mark.slow
TOOLS = list(SET_UP)
FORWARD_ONLY = {"Supabase"}


@pytest.mark.parametrize("tool", TOOLS)
def test_the_page_is_right(
    tool: str,
    start: Callable[..., Project],
    release: Callable[..., Path],
    applied: Callable[..., Fingerprint],
) -> None:
    """
    The commands of docs/vendoring.md install fairq, bring it a version further, back again, and out.
    """
    commands = page.commands(tool)
    project = start(tool, release(shipped=1))

    project.run(commands[page.INSTALL])
    assert made(project.dsn).differences(applied(shipped=1)) == []

    if tool in GOES_ON:
        GOES_ON[tool](project)
    project.fairq = release(*EXTRA, shipped=COUNT)
    project.run(commands[page.LATER])
    assert made(project.dsn).differences(applied(*EXTRA, shipped=COUNT)) == []
    if not EXTRA:  # of a version that is made up nobody knows what it should be
        assert "is version 2" in project.run("fairq check")

    if tool in FORWARD_ONLY:
        assert commands.keys() == {page.INSTALL, page.LATER}
        return
    project.run(commands[page.BACK])
    assert made(project.dsn).differences(applied(shipped=1)) == []
    assert "is version 1" in project.run("fairq check")

    ask(project, "select fairq.enqueue_job('a', 'mail')")
    assert project.try_to(commands[page.REMOVE]).returncode != 0, "jobs are not lost without a word"
    assert ask(project, "select count(*) from fairq.jobs") == 1
    project.run(commands[page.REMOVE], **lose_jobs(project))
    assert made(project.dsn).objects == {}


@pytest.mark.parametrize("tool", TOOLS)
def test_what_export_says_is_enough(
    tool: str,
    start: Callable[..., Project],
    release: Callable[..., Path],
    applied: Callable[..., Fingerprint],
) -> None:
    """
    The commands that export prints run every version at once, under another name, inside and outside a transaction.
    """
    project = start(tool, release("torture", "alone"))
    target = tool.lower()

    said = project.run(f"fairq export --target {target} --schema My-Queue {OPTIONS.get(tool, '')}")
    project.run("\n".join(line.removeprefix("next: ") for line in said.splitlines() if line.startswith("next: ")))
    assert made(project.dsn, "My-Queue").differences(applied("torture", "alone")) == []
    assert ask(project, """select "My-Queue".schema_version()""") == len(ORIGINALS) + 1

    for expected in () if tool in FORWARD_ONLY else (applied("torture"), applied()):
        project.run(ONE_DOWN[tool])
        assert made(project.dsn, "My-Queue").differences(expected) == []


def ask(project: Project, query: str) -> object:
    """
    The first value.
    """
    with psycopg.connect(project.dsn, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        assert row
        return row[0]
