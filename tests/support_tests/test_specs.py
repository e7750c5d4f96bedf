"""Race specs: the story is written down once, and from then on it is the promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.specs import check_spec, expected_file

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support import Database

SPEC = """
# One waits for the other.
setup    { create table fairq.things (n integer primary key); }
teardown { drop table fairq.things; }
session one
setup      { begin; }
step take  { insert into fairq.things values (1); }
step keep  { commit; }
session two
step want  { insert into fairq.things values (1) on conflict do nothing; }
step count { select count(*) from fairq.things; }
permutation take want keep count
"""

pytestmark = pytest.mark.once


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec whose story nobody has written down."""
    monkeypatch.delenv("FAIRQ_SPEC_REWRITE", raising=False)
    for folder in ("specs", "expected"):
        tmp_path.joinpath(folder).mkdir()
    file = tmp_path / "specs/wait.spec"
    file.write_text(SPEC)
    return file


def test_a_missing_story_fails(toy: Database, spec: Path) -> None:
    """Without an expected file the spec fails, and writes nothing."""
    with pytest.raises(AssertionError, match=r"wait\.out is missing"):
        check_spec(spec, toy.dsn)
    assert not expected_file(spec).exists()


@pytest.mark.short
def test_a_story_is_written_once_and_then_compared(toy: Database, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewrite writes the story; the same one passes, another one fails with the difference."""
    monkeypatch.setenv("FAIRQ_SPEC_REWRITE", "1")
    check_spec(spec, toy.dsn)
    monkeypatch.delenv("FAIRQ_SPEC_REWRITE")
    check_spec(spec, toy.dsn)
    story = expected_file(spec)
    assert "<waiting ...>" in story.read_text()
    story.write_text(story.read_text().replace("    1", "    2"))
    with pytest.raises(AssertionError, match=r"(?s)went another way.*-    2\n\+    1"):
        check_spec(spec, toy.dsn)


def test_a_spec_that_cannot_be_read_fails(toy: Database, spec: Path) -> None:
    """A spec that isolationtester refuses is a failure that shows its words."""
    spec.write_text("session one step what")
    with pytest.raises(AssertionError, match=r"isolationtester gave up on wait\.spec"):
        check_spec(spec, toy.dsn)
