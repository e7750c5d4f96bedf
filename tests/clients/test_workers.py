"""The workers of examples/ do what docs/clients.md says, beside a server and through pgbouncer in transaction mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import NeverHappened, wait_until

from . import story
from .programs import PROGRAMS
from .story import pooled_again, world

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support import Database

    from .programs import Program

# drivers and poolers do not differ with the server: on one version
pytestmark = pytest.mark.once

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


ASYNCPG = [program for program in PROGRAMS if program.folder == "asyncpg"]
BY_JOB = (("del running[token]", "del running[job]"), ("running[token] = ", "running[job] = "))


# the others renew until they have ended
@pytest.mark.parametrize("program", ASYNCPG, ids=str)
def test_a_worker_may_have_its_lost_job_again(db: Database, program: Program, tmp_path: Path) -> None:
    """It keeps its leases apart, not its jobs."""
    with world(db, program, tmp_path) as w:
        story.check_a_worker_may_have_its_lost_job_again(w)


@pytest.mark.parametrize("program", ASYNCPG, ids=str)
def test_a_worker_that_mixes_up_its_leases_is_noticed(db: Database, program: Program, tmp_path: Path) -> None:
    """The check fails when what runs is kept by job."""
    with world(db, program, tmp_path, *BY_JOB) as w, pytest.raises(AssertionError):
        story.check_a_worker_may_have_its_lost_job_again(w)


@pytest.mark.slow
@directly_and_pooled
@each_program
def test_a_killed_worker_leaves_no_trace(db: Database, program: Program, tmp_path: Path, pooler: bool) -> None:
    """SIGKILL between the effects and the commit."""
    with world(db, program, tmp_path, pooler=pooler) as w:
        story.check_a_killed_worker_leaves_no_trace(w, dies_with_it=program.folder != "postgrest")


@pytest.mark.slow
@pytest.mark.parametrize("program", [program for program in PROGRAMS if program.hourly], ids=str)
def test_a_notification_wakes_a_worker(db: Database, program: Program, tmp_path: Path) -> None:
    """One that polls once an hour is still at once there for a job."""
    with world(db, program, tmp_path, program.hourly) as w:
        story.check_a_notification_wakes(w)


def test_those_that_cannot_listen_say_so() -> None:
    """All others do."""
    for program in PROGRAMS:
        listens = "LISTEN_URL" in program.source.read_text(encoding="utf-8")
        assert listens is bool(program.hourly), program


@pytest.mark.slow
@each_program
def test_a_worker_that_does_not_undo_is_noticed(db: Database, program: Program, tmp_path: Path) -> None:
    """The check of the fence fails when a worker commits though complete said false."""
    with world(db, program, tmp_path, program.forgets_to_undo) as w, pytest.raises(AssertionError):
        story.check_what_is_not_completed_is_undone(w)


@pytest.mark.slow
@pytest.mark.parametrize(
    "edit",
    [
        ("while not done.wait(jobs[0].renew_every)", "while not done.wait(3600)"),
        ('conn.execute("select * from fairq.release_jobs(%s, %s)", leases)', "pass"),
    ],
    ids=["does not renew", "does not release"],
)
def test_a_worker_that_keeps_no_lease_or_gives_none_back_is_noticed(
    db: Database, tmp_path: Path, edit: tuple[str, str]
) -> None:
    """The first check fails for them."""
    program = next(program for program in PROGRAMS if program.source.parts[-2:] == ("psycopg", "worker.py"))
    with world(db, program, tmp_path, edit) as w, pytest.raises((AssertionError, NeverHappened)):
        story.check_leases_are_renewed_and_jobs_change_hands(w, patience=10)


@pytest.mark.parametrize(
    ("folder", "edit"),
    [
        ("asyncpg", (", statement_cache_size=0", "")),
        ("psycopg", ('"prepare_threshold": None', '"prepare_threshold": 0')),
    ],
)
def test_what_is_said_of_prepared_statements_is_so(
    db: Database, tmp_path: Path, folder: str, edit: tuple[str, str]
) -> None:
    """Without what the page says of pgbouncer a worker ends with an error; without pgbouncer it works."""
    program = next(program for program in PROGRAMS if program.folder == folder)
    with world(db, program, tmp_path, edit) as w, w.workers("direct") as (worker,):
        w.becomes(w.enqueue("amber", 1), "succeeded", worker)
    with pooled_again(w) as p, p.workers("pooled") as (worker,):
        wait_until(lambda: worker.process.poll() is not None, "the worker to end", timeout=120)
        assert "prepared statement" in worker.said()
