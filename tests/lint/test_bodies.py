"""
plpgsql_check reads the bodies of all functions, which the server itself looks into only when they run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

if TYPE_CHECKING:
    from tests.support import Database

# A trigger's function is checked on each table that has it. Left out is what we mean: casts on assignment (42804),
# functions that end by raising in a helper (2F005), and performance, which is measured elsewhere. Of v_is_good and
# v_is_done only the assignment is wanted: it costs less than PERFORM. And version 1, in a call that began before the
# upgrade, still calls _make_ready with its p_by_time (functions/version_1.sql).
FINDINGS = """
    with functions as (
        select p.oid, t.tgrelid::regclass as on_table
        from pg_proc as p
        join pg_language as l on l.oid = p.prolang
        left join pg_trigger as t on t.tgfoid = p.oid
        where p.pronamespace = 'fairq'::regnamespace and l.lanname = 'plpgsql'
    )
    select f.oid::regprocedure::text as function, c.lineno, c.level, c.message, c.detail
    from functions as f
    cross join lateral plpgsql_check_function_tb(
        f.oid, coalesce(f.on_table, 0), fatal_errors => false, security_warnings => true, extra_warnings => true
    ) as c
    where c.sqlstate not in ('42804', '2F005')
      and c.message not in ('never read variable "v_is_good"', 'never read variable "v_is_done"')
      and not (f.oid::regprocedure::text like 'fairq._make_ready(%' and c.message = 'unused parameter "p_by_time"')
"""


@pytest.fixture
def checked(db: Database) -> Database:
    """
    The schema, with plpgsql_check.
    """
    try:
        db.execute("create extension plpgsql_check")
    except psycopg.errors.FeatureNotSupported as error:
        pytest.fail(f"{error}: `ci/fetch 15` brings it", pytrace=False)
    return db


def findings(db: Database) -> list[Any]:
    """
    All that is wrong with a body.
    """
    return db.rows(FINDINGS)


def test_every_body_is_sound(checked: Database) -> None:
    """
    No body names what is not there, keeps what it does not use, or builds statements from what it is given.
    """
    count = "select count(*) from pg_proc where pronamespace = 'fairq'::regnamespace"
    assert checked.value(count) > 50
    assert findings(checked) == []


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("begin return (select j.nothing from fairq.jobs as j); end", "column j.nothing does not exist"),
        ("declare v_idle text; begin return p_job_id; end", 'unused variable "v_idle"'),
        ("begin execute 'select ' || p_text; return 1; end", "text type variable is not sanitized"),
    ],
)
def test_an_unsound_body_is_found(checked: Database, body: str, complaint: str) -> None:
    """
    A missing column, a variable of no use, and a statement made of text are each found.
    """
    head = "create function fairq.unsound(p_job_id bigint, p_text text) returns bigint language plpgsql"
    checked.execute(f"{head} as $fn$ {body} $fn$")
    assert [row for row in findings(checked) if row.function.startswith("fairq.unsound") and complaint in row.message]
