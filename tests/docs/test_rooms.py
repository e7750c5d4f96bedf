"""The matrix of docs/rooms.md is what the functions do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID, uuid4

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from tests.support import Database

PAGE = Path(__file__).parents[2] / "docs" / "rooms.md"
CELL = re.compile(r"(?P<state>-|\w+)(?P<condition>, [a-z ]+)?(?: (?P<answer>`\w+`|null))?")
UNSAID = object()
ANSWERS = {None: UNSAID, "null": None, "`t`": True, "`f`": False}

CALLS = {
    "promote": "select fairq.promote_due_jobs(p_queue => %(queue)s)",
    "claim": "select c.job_id from fairq.claim_jobs(p_queue => %(queue)s, p_owner => 'test', p_limit => 1) as c",
    "renew": "select fairq.renew_job_lease(p_job_id => %(job)s, p_token => %(token)s)",
    "complete": "select fairq.complete_job(p_job_id => %(job)s, p_token => %(token)s)",
    "fail": "select fairq.fail_job(p_job_id => %(job)s, p_token => %(token)s)",
    "release": "select fairq.release_job(p_job_id => %(job)s, p_token => %(token)s)",
    "expire": "select fairq.release_expired_jobs(p_queue => %(queue)s)",
    "cancel": "select fairq.cancel_job(p_job_id => %(job)s)",
    "reschedule": "select fairq.reschedule_job(p_job_id => %(job)s, p_delay => '1 hour')",
    "retry": "select fairq.retry_job(p_job_id => %(job)s)",
}
CONDITIONS = {
    # the scheduler has looked ahead: it must look again
    ", when due": """
        with again as (update fairq.ticks set promote_floor = '-infinity')
        update fairq.jobs set run_at = clock_timestamp() - interval '1 second' where job_id = %(job)s
    """,
    ", once the lease is over": """
        with again as (update fairq.ticks set expire_floor = '-infinity')
        update fairq.leases
        set started_at = started_at - interval '1 hour', lease_expires_at = clock_timestamp() - interval '1 second'
        where job_id = %(job)s
    """,
}


class Cell(NamedTuple):
    """What the page says of one verb in one state."""

    verb: str
    state: str
    becomes: str
    condition: str | None
    answer: object


def cells() -> Iterator[Cell]:
    """Read the matrix."""
    section = PAGE.read_text(encoding="utf-8").split("## States and verbs")[1].split("\n## ")[0]
    head, _, *lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")
    ]
    for verb, *row in lines:
        for state, cell in zip(head[1:], row, strict=True):
            said = CELL.fullmatch(cell)
            assert said, cell
            answer = ANSWERS.get(said["answer"], (said["answer"] or "").strip("`"))
            becomes = state if said["state"] == "-" else said["state"]
            yield Cell(verb, state, becomes, said["condition"], answer)


def one(connection: psycopg.Connection[Any], query: str, values: dict[str, object]) -> object:
    """Give the first column of the first row, if there is one."""
    row = connection.execute(query, values).fetchone()
    return row[0] if row else None


def given_job(connection: psycopg.Connection[Any], queue: str, state: str) -> tuple[object, UUID]:
    """Bring a job of a queue of its own into a state, and give its id and the token of its latest lease, if any."""
    here: dict[str, object] = {"queue": queue, "delay": "1 hour" if state == "scheduled" else None}
    job = one(
        connection,
        "select job_id from fairq.enqueue_job("
        "p_tenant => 'a', p_task => 't', p_queue => %(queue)s, p_delay => %(delay)s::interval)",
        here,
    )
    here |= {"job": job, "token": uuid4()}
    if state in {"running", "succeeded", "dead"}:
        claim = CALLS["claim"].replace("c.job_id", "c.lease_token")
        here["token"] = one(connection, claim, here)
    if state == "succeeded":
        connection.execute(CALLS["complete"], here)
    if state == "dead":
        connection.execute(CALLS["fail"].replace("%(token)s", "%(token)s, p_retry => false"), here)
    if state == "cancelled":
        connection.execute(CALLS["cancel"], here)
    assert isinstance(here["token"], UUID)
    return job, here["token"]


def state_of(connection: psycopg.Connection[Any], job: object) -> object:
    """Give a job's state as users see it."""
    return one(connection, "select j.state from fairq.all_jobs as j where j.job_id = %(job)s", {"job": job})


@pytest.mark.parametrize("cell", cells(), ids=lambda cell: f"{cell.verb}-{cell.state}")
def test_a_verb_does_to_a_state_what_the_matrix_says(module_db: Database, cell: Cell) -> None:
    """The state afterwards and the answer are those of the cell."""
    connection = module_db.conn
    queue = f"{cell.verb} {cell.state}"
    job, token = given_job(connection, queue, cell.state)
    values = {"queue": queue, "job": job, "token": token}
    assert state_of(connection, job) == cell.state

    if cell.condition:
        connection.execute(CONDITIONS[cell.condition], values)
    answer = one(connection, CALLS[cell.verb], values)

    assert state_of(connection, job) == cell.becomes
    if cell.answer is not UNSAID:
        assert answer == cell.answer


def test_every_verb_of_the_matrix_is_tried_in_every_state() -> None:
    """Ten verbs, six states."""
    assert len(list(cells())) == len(CALLS) * 6


def test_the_statements_of_the_page_run(module_db: Database) -> None:
    """Each block of SQL, as an operator."""
    blocks = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    operator = module_db.session(user=module_db.login("fairq_operator"))
    for block in blocks:
        operator.execute(block)
