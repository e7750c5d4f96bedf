"""
docs/vendoring.md names every tool, and every command in it is one that a test runs, or is said to be run by none.
"""

from __future__ import annotations

import re

import pytest

from fairq_schema.export import TARGETS
from tests.vendoring import page
from tests.vendoring.projects import SET_UP
from tests.vendoring.test_tools import FORWARD_ONLY
from tests.vendoring.test_unrun import UNRUN


def test_every_target_has_a_section() -> None:
    """
    Each tool has one section, and is either run by the tests or compared with examples.
    """
    tools = [heading for heading in page.sections() if not heading.startswith("What ")]
    assert sorted(heading.lower() for heading in tools) == sorted(TARGETS)
    assert sorted([*map(str.lower, SET_UP), *UNRUN]) == sorted(TARGETS)
    listed = re.search(r"^\| `--target` \| (.*) \|$", page.PAGE.read_text("utf-8"), re.MULTILINE)
    assert listed
    assert set(re.findall(r"`([a-z-]+)`", listed[1])) == set(TARGETS)


@pytest.mark.parametrize("tool", SET_UP)
def test_no_command_is_left_out(tool: str) -> None:
    """
    A section of a tool that is run has no block of commands but those that the test runs.
    """
    expected = [page.INSTALL, page.LATER] + ([] if tool in FORWARD_ONLY else [page.BACK, page.REMOVE])
    assert list(page.commands(tool)) == expected
    fences = re.findall(r"^```(\w*)$", page.sections()[tool], re.MULTILINE)
    assert fences.count("sh") == len(expected)
    assert set(fences) <= {"sh", "", "yaml"}
    assert "No test runs" not in page.sections()[tool]


@pytest.mark.parametrize("tool", UNRUN)
def test_what_is_not_run_is_said(tool: str) -> None:
    """
    A section of a tool that no test runs begins with saying so.
    """
    (text,) = (text for heading, text in page.sections().items() if heading.lower() == tool)
    assert text.lstrip().startswith("No test runs ")
    assert not page.commands(next(heading for heading in page.sections() if heading.lower() == tool))
