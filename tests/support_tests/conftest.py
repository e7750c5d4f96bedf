"""A stand-in schema: the tests of the test support must not depend on the schema that it serves to test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support import Database, Databases

STAND_IN = """
create schema fairq;
create table fairq.jobs (job_id bigint generated always as identity primary key, owner text);
create function fairq.take(p_owner text) returns bigint language sql as $fn$
    with candidate as (
        select j.job_id from fairq.jobs as j where j.owner is null order by j.job_id limit 1 for update skip locked
    )
    update fairq.jobs as j set owner = p_owner from candidate as c where j.job_id = c.job_id returning j.job_id
$fn$;
revoke execute on function fairq.take(text) from public;
grant execute on function fairq.take(text) to pg_monitor;
alter function fairq.take(text) owner to pg_database_owner;
"""


def with_stand_in(dsn: str) -> None:
    """A template with one table and one function that claims."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("alter default privileges grant all on tables to pg_database_owner")
        conn.execute(STAND_IN)
        conn.execute("grant usage on schema fairq to public")


@pytest.fixture
def toy(databases: Databases) -> Iterator[Database]:
    """A fresh database of the stand-in schema."""
    with databases.clone(with_stand_in) as fresh:
        yield fresh
