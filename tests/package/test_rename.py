"""
The schema's name in the text: put in where it names the schema, and nowhere else.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairq_schema._rename import bookkeeping_schema, rename

RENAMED = [
    ("select j.job_id from fairq.jobs as j", 'select j.job_id from "x".jobs as j'),
    ("grant usage on schema fairq to fairq_worker", 'grant usage on schema "x" to fairq_worker'),
    ("CREATE SCHEMA Fairq", 'CREATE SCHEMA "x"'),
    ("'fairq'::regnamespace", "'\"x\"'::regnamespace"),
    ("'fairq.jobs' :: regclass", "'\"x\".jobs' :: regclass"),
    ("to_regnamespace('fairq') is null; fairq.a", 'to_regnamespace(\'"x"\') is null; "x".a'),
    ("to_regprocedure('fairq.f(text)'), 'fairq.a'", "to_regprocedure('\"x\".f(text)'), 'fairq.a'"),
    ("nextval('fairq.jobs_job_id_seq')", "nextval('\"x\".jobs_job_id_seq')"),
    ("$fn$ select fairq.f() $fn$", '$fn$ select "x".f() $fn$'),
]
KEPT = [
    "current_setting('fairq.tenant', true)",
    "set local role fairq_owner",
    "-- it's about fairq.jobs",
    "'it''s fairq.jobs'",
    '"fairq".jobs',
    "myfairq.jobs",
    "other.fairq.jobs",
    "select fairq from t",
]


@pytest.mark.parametrize(("before", "after"), RENAMED)
def test_names_of_the_schema_are_renamed(before: str, after: str) -> None:
    """
    As code, and in literals that PostgreSQL reads as names, also inside a body.
    """
    assert rename(before, "x") == after


@pytest.mark.parametrize("text", KEPT)
def test_everything_else_is_kept(text: str) -> None:
    """
    Comments, settings, roles, other literals, quoted identifiers and longer words stay as they are.
    """
    assert rename(text, "x") == text


@given(st.lists(st.sampled_from([*KEPT, *(before for before, _ in RENAMED)])), st.sampled_from(["x", "My-Queue 2"]))
def test_pieces_do_not_disturb_each_other(parts: list[str], name: str) -> None:
    """
    A text renamed line by line is the text renamed as a whole.
    """
    assert rename("\n".join(parts), name) == "\n".join(rename(part, name) for part in parts)


@given(st.text())
def test_the_default_name_changes_nothing(text: str) -> None:
    """
    Under its own name the SQL is what the file says, byte for byte.
    """
    assert rename(text, "fairq") == text


@given(st.from_regex(re.compile(r"[a-z0-9_-]{1,63}"), fullmatch=True))
def test_the_history_has_a_schema_of_its_own(name: str) -> None:
    """
    Every schema has one history, whose name PostgreSQL does not cut, and which no schema of fairq can have.
    """
    home = bookkeeping_schema(name)
    assert len(home) <= 63
    assert home.endswith("_migrate")
    assert home != bookkeeping_schema(name[:-1] + ("b" if name.endswith("a") else "a"))
