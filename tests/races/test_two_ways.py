"""
Two ways into a queue, one for jobs that are plain and granted and one for all others, say the same and write the same.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support import Database, Edit, with_schema

from .helpers import check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support import Session
    from tests.support.databases import Databases

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
# For each argument what is good and what is not, at the edges.
VALUES: dict[str, list[Any]] = {
    "tenant": ["a", "é" * 100, "é" * 100 + "x", "*", "@own", "", " ", "\u00a0", " a", "x" * 201, None, 5, {"x": 1}],
    "task": ["t", "x" * 200, "x" * 201, "*", "@own", "", " ", "\t", None, True],
    "queue": ["q", "x" * 201, "*", "@own", "", " ", "\n", None],
    "payload": [{}, {"x": "y" * 40}, {"x": "y" * 200}, [], 1, "x", None],
    "priority": [0, 3, 4, -1, "2", 1.5, 10**12, None, "x"],
    "max_attempts": [1, 1000, 1001, 0, None, "7", 2.5],
    "cost": [1, 0.5, 12.25, 1000000, 1000000.5, 0, -1, 1e-9, 1e300, "NaN", "2", None],
    "traceparent": [TRACE, TRACE.upper(), "", None],
    "run_at": ["2030-01-01", "infinity", "x", None],
    "delay": ["1 hour", "-1 hour", None],
    "key": ["k", "", None],
    "key_ttl": ["1 day", "0", None],
    "strange": [1],
}
CASES = [{"tenant": "a", "task": "t"} | {name: value} for name, values in VALUES.items() for value in values] + [
    {"task": "t"},
    {"tenant": "a"},
    {"tenant": "b", "task": "t"},
    {"tenant": "a", "task": "t", "queue": "closed"},
    {"tenant": "*", "task": "", "priority": 9},
]
BATCHES = [
    None,
    {},
    [],
    [1],
    [None],
    [[]],
    "x",
    [{"tenant": "a", "task": "t", "queue": queue} for queue in ("q", "default", "q", "closed")],
    [{"tenant": "a", "task": f"t{number}", "queue": f"q{number % 3}"} for number in range(50)],
    [{"tenant": "a", "task": "t"}] * 3 + [{"tenant": "a", "task": "t", "cost": 0}],
    [{"tenant": "a", "task": "t"}] * 3 + [{"tenant": "a", "task": "t", "key": "k"}],
    [{"tenant": "a", "task": "t"}] * 10_001,
]
SINGLE = {
    "run_at": "timestamptz",
    "delay": "interval",
    "key_ttl": "interval",
    "payload": "jsonb",
    "priority": "integer",
    "max_attempts": "integer",
    "cost": "float8",
}
WRITTEN = """
    select j.queue, j.tenant, j.task, j.payload, j.priority, j.state, j.attempts, j.max_attempts, j.cost,
        j.operation_key, j.traceparent, j.run_at - j.created_at = '0' as is_due,
        j.job_id - min(j.job_id) over () as nth
    from fairq.jobs as j order by j.job_id
"""
CLOSED = (
    Edit("enqueue_job", "if v_is_plain then", "if false then"),
    Edit(
        "_enqueue_plain_jobs",
        "where not exists (\n            select from job",
        "where false and not exists (\n            select from job",
    ),
)


def one(session: Session, job: dict[str, Any]) -> list[Any]:
    """Enqueue by enqueue_job(), as far as its arguments have the types that it takes."""
    if "strange" in job:
        return []
    plain = {
        name: json.dumps(value) if name == "payload" and value is not None else value for name, value in job.items()
    }
    arguments = ", ".join(f"p_{name} => %s::{SINGLE.get(name, 'text')}" for name in plain)
    values = [json.dumps(v) if isinstance(v, dict) else str(v) if v is not None else None for v in plain.values()]
    return session.rows(f"select (e).created from (select fairq.enqueue_job({arguments}) as e) as s", *values)


def many(session: Session, jobs: Any) -> list[Any]:
    """Enqueue by enqueue_jobs()."""
    given = None if jobs is None else json.dumps(jobs)
    return session.rows("select e.ordinal, e.outcome from fairq.enqueue_jobs(%s::jsonb) as e", given)


def said(db: Database, call: Callable[[], list[Any]]) -> Any:
    """What a call answers and writes, or how it is refused; its rows are taken away again."""
    try:
        answer = [tuple(row) for row in call()]
    except psycopg.Error as error:
        return error.sqlstate, error.diag.message_primary, error.diag.message_hint
    written = [tuple(row) for row in db.rows(WRITTEN)]
    db.execute("delete from fairq.jobs")
    db.execute("delete from fairq.job_keys")
    return answer, written


def answers(db: Database, sessions: list[Session]) -> list[Any]:
    """What all the calls come to."""
    return [
        said(db, functools.partial(call, session, given))
        for session in sessions
        for call, givens in ((one, CASES), (many, [[job] for job in CASES] + BATCHES))
        for given in givens
    ]


@check
def check_both_ways_are_one(db: Database) -> None:
    """With the first way closed, all calls come to the same, of who may enqueue for one tenant and who may for all."""
    db.set_queue("*", payload_limit=100)
    db.set_queue("q", payload_limit=20, max_attempts=7)
    role = db.login("fairq_tenant")
    for queue in ("default", "q"):
        db.execute("insert into fairq.access_grants values (%s, 'enqueue', %s, 'a')", role, queue)
    sessions = [db.session(user=role), db.session(user=db.login("fairq_producer"))]
    quick = answers(db, sessions)
    for closed in CLOSED:
        closed(db)
    checked = answers(db, sessions)
    assert [pair for pair in zip(quick, checked, strict=True) if pair[0] != pair[1]] == []
    # and there were both kinds
    assert {type(answer[0]) for answer in quick} == {list, str}


def test_both_ways_are_one(db: Database) -> None:
    """Nobody can tell which way a job took."""
    check_both_ways_are_one(db)


@pytest.mark.once
@pytest.mark.parametrize(
    "mutation",
    [
        Edit("enqueue_job", "octet_length(p_payload::text) <= q.payload_limit", "true"),
        Edit("enqueue_job", "and p_cost > 0", ""),
        Edit("enqueue_job", "and p_key is null", ""),
        Edit("enqueue_job", "octet_length(p_task)) <= 200", "1) <= 200"),
        Edit("enqueue_job", "octet_length(p_queue), octet_length(p_tenant), ", "octet_length(p_queue), "),
        Edit("enqueue_job", "p_task not in ('*', '@own')", "p_task <> '*'"),
        Edit("enqueue_job", "least(p_queue collate \"C\", p_tenant, p_task) > '*'", "true"),
        Edit("enqueue_job", "and '@own' not in (p_queue, p_tenant, p_task)", ""),
        Edit("enqueue_job", "p_max_attempts is null and p_traceparent is null", "p_traceparent is null"),
        Edit("enqueue_job", "p_max_attempts is null and p_traceparent is null", "p_max_attempts is null"),
        Edit("enqueue_job", "and octet_length(p_tenant) <= 200", ""),
        Edit("enqueue_job", "p_tenant not in ('*', '@own')", "p_tenant <> '*'"),
        Edit("enqueue_job", "and p_task ~ '[^[:space:]]'", ""),
        Edit("enqueue_job", "exists (select from fairq.queues as qq where qq.queue = p_queue)", "false"),
        Edit("enqueue_job", "p_max_attempts, q.max_attempts", "null, q.max_attempts"),
        Edit("_enqueue_plain_jobs", "'^[1-9][0-9]{0,5}([.][0-9]{1,9})?$'", "'^[0-9.e]*$'"),
        Edit("_enqueue_plain_jobs", "jj.is_all", "true"),
        Edit("_enqueue_plain_jobs", "j.priority::smallint", "null"),
        Edit("_enqueue_plain_jobs", "and octet_length(jj.queue) <= 200", ""),
        Edit("_enqueue_plain_jobs", "order by j.ordinal", "order by -j.ordinal"),
        Edit("_enqueue_plain_jobs", "or jj.tenant ~ '[^[:space:]]'", "or true"),
    ],
    ids=str,
)
def test_a_way_that_says_something_else_is_noticed(assert_killed: Callable[..., None], mutation: Edit) -> None:
    """By one of the calls."""
    assert_killed(check_both_ways_are_one, mutation)


BLANK = ["\u2003", "\u3000\u2003", "\u2003 "]


def check_no_name_is_blank(db: Database) -> None:
    """Either way refuses a name that has nothing but space in it, as the locale of the database knows space."""
    for name in ("tenant", "task", "queue"):
        for blank in BLANK:
            job = {"tenant": "a", "task": "t", name: blank}
            for call in (one, lambda session, job: many(session, [job])):
                with pytest.raises(psycopg.errors.InvalidParameterValue):
                    call(db, job)
    assert db.rows("select from fairq.jobs") == []


@pytest.fixture
def elsewhere(databases: Databases) -> Iterator[Database]:
    """A database whose locale knows of more space than that of ASCII."""
    with databases.empty("C.UTF-8") as dsn:
        with_schema(dsn)
        with Database(dsn) as db:
            assert db.value("select %s !~ '[^[:space:]]'", BLANK[1])
            yield db


def test_no_name_is_blank(elsewhere: Database) -> None:
    """Of whatever space."""
    check_no_name_is_blank(elsewhere)


@pytest.mark.once
@pytest.mark.parametrize(
    "mutation",
    [
        Edit("enqueue_job", "greatest(p_queue collate \"C\", p_tenant, p_task) <= '~'", "true"),
        Edit("_enqueue_plain_jobs", "jj.tenant <= '~' collate \"C\"", "true"),
    ],
    ids=str,
)
def test_a_blank_name_that_is_let_in_is_noticed(elsewhere: Database, mutation: Edit) -> None:
    """By either way."""
    mutation(elsewhere)
    with pytest.raises(pytest.fail.Exception):
        check_no_name_is_blank(elsewhere)
