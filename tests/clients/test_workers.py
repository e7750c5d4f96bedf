"""The workers of examples/ do what docs/clients.md says, beside a server and through pgbouncer in transaction mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from . import story
from .programs import PROGRAMS
from .story import world

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support import Database

    from .programs import Program

LONGEST = 60

each_program = pytest.mark.parametrize("program", PROGRAMS, ids=str)
directly_and_pooled = pytest.mark.parametrize("pooler", [False, True], ids=["direct", "pooler"])


@each_program
def test_a_worker_is_short(program: Program) -> None:
    """So that it can be read, and taken, whole."""
    assert len(program.source.read_text(encoding="utf-8").splitlines()) <= LONGEST


@pytest.mark.slow
@directly_and_pooled
@each_program
def test_leases_are_renewed_and_jobs_change_hands(db: Database, program: Program, tmp_path: Path, pooler: bool) -> None:
    """Renewals, failures, several tenants, and a worker that leaves in the middle of a job."""
    with world(db, program, tmp_path, pooler=pooler) as w:
        story.check_leases_are_renewed_and_jobs_change_hands(w)


@pytest.mark.slow
@directly_and_pooled
@each_program
def test_what_is_not_completed_is_undone(db: Database, program: Program, tmp_path: Path, pooler: bool) -> None:
    """The fence: the effects of an attempt whose lease was lost are gone."""
    with world(db, program, tmp_path, pooler=pooler) as w:
        story.check_what_is_not_completed_is_undone(w)


@pytest.mark.slow
@directly_and_pooled
@each_program
def test_a_killed_worker_leaves_no_trace(db: Database, program: Program, tmp_path: Path, pooler: bool) -> None:
    """SIGKILL between the effects and the commit."""
    with world(db, program, tmp_path, pooler=pooler) as w:
        story.check_a_killed_worker_leaves_no_trace(w, dies_with_it=program.folder != "postgrest")
