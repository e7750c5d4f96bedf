"""
check() and adopt(): every way in which a database may have drifted is named, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import fairq_schema
from fairq_schema import _files, errors
from fairq_schema._backend import Backend
from fairq_schema._check import Given, report_on
from fairq_schema._rename import rename
from fairq_schema._roles import resolve
from fairq_schema._tenant import PROVIDERS
from fairq_schema.cli import main

if TYPE_CHECKING:
    from tests.support import Database

Ask = Callable[..., Any]

pytestmark = pytest.mark.short

NEWEST = _files.load()[-1].number
OVERLOAD = (
    f"function fairq.cancel_job(bigint,integer) is no part of version {NEWEST}: an overload, by which calls of "
    "fairq.cancel_job(bigint) may go astray"
)
# What somebody did to the database -> what check must say of it, word for word where it is not a version's own text.
DRIFT = [
    ("alter table fairq.jobs add column more integer", "column fairq.jobs.more is no part of version"),
    ("alter table fairq.jobs drop column operation_key cascade", "column fairq.jobs.operation_key is missing"),
    (
        "alter table fairq.jobs alter column last_error set default '{}'",
        "column fairq.jobs.last_error: default is '{}'::jsonb, expected nothing",
    ),
    (
        "alter table fairq.jobs alter column task drop not null",
        "column fairq.jobs.task: not null is off, expected on",
    ),
    (
        "alter table fairq.tenants alter column weight type numeric",
        "column fairq.tenants.weight: type is numeric, expected double precision",
    ),
    (
        "grant select (payload) on fairq.jobs to public",
        "column fairq.jobs.payload: PUBLIC has SELECT, expected no right",
    ),
    ("comment on column fairq.jobs.task is 'x'", "column fairq.jobs.task: comment is x, expected "),
    ("alter table fairq.queues drop constraint {constraint}", "constraint fairq.queues.{constraint} is missing"),
    (
        "alter table fairq.jobs add constraint mine check (priority > 0) not valid",
        "constraint fairq.jobs.mine is no part of version",
    ),
    ("drop index fairq.{index}", "index fairq.{index} is missing"),
    (
        "update pg_index set indisvalid = false where indexrelid = 'fairq.{index}'::regclass",
        "index fairq.{index}: valid is off, expected on",
    ),
    ("create index mine on fairq.jobs (task)", "index fairq.mine is no part of version"),
    ("drop table fairq.access_grants cascade", "relation fairq.access_grants is missing"),
    ("create table fairq.mine (id integer)", "relation fairq.mine is no part of version"),
    ("alter table fairq.jobs disable row level security", "relation fairq.jobs: row security is off, expected on"),
    (
        "alter table fairq.jobs no force row level security",
        "relation fairq.jobs: row security for the owner is off, expected on",
    ),
    ("alter table fairq.queues set unlogged", "relation fairq.queues: logged is off, expected on"),
    ("alter table fairq.jobs owner to pg_monitor", "relation fairq.jobs: owner is pg_monitor, expected fairq_owner"),
    ("grant select on fairq.jobs to public", "relation fairq.jobs: PUBLIC has SELECT, expected no right"),
    (
        "revoke insert on fairq.jobs from fairq_api",
        "relation fairq.jobs: fairq_api has DELETE+SELECT, expected DELETE+INSERT+SELECT",
    ),
    ("alter table fairq.jobs replica identity full", "relation fairq.jobs: replica identity is f, expected nothing"),
    ("alter table fairq.queues set (fillfactor = 51)", "relation fairq.queues: options is fillfactor=51, expected"),
    ("drop policy tenant_fence on fairq.jobs", "policy fairq.jobs.tenant_fence is missing"),
    (
        "alter policy tenant_fence on fairq.jobs using (true)",
        "policy fairq.jobs.tenant_fence: using is true, expected ",
    ),
    (
        "alter policy tenant_fence on fairq.jobs to public",
        "policy fairq.jobs.tenant_fence: roles is PUBLIC, expected fairq_tenant",
    ),
    ("create policy mine on fairq.jobs using (true)", "policy fairq.jobs.mine is no part of version"),
    (
        "alter function fairq.cancel_job(bigint) owner to fairq_owner",
        "function fairq.cancel_job(bigint): owner is fairq_owner, expected fairq_api",
    ),
    (
        "grant execute on function fairq.cancel_job(bigint) to public",
        "function fairq.cancel_job(bigint): PUBLIC has EXECUTE, expected no right",
    ),
    (
        "revoke execute on function fairq.cancel_job(bigint) from fairq_operator",
        "function fairq.cancel_job(bigint): fairq_operator has no right, expected EXECUTE",
    ),
    (
        "alter function fairq.cancel_job(bigint) security invoker",
        "function fairq.cancel_job(bigint): security definer is off, expected on",
    ),
    (
        "alter function fairq.channel(text) set search_path = public",
        "function fairq.channel(text): settings is search_path=public, expected search_path=pg_catalog, pg_temp",
    ),
    (
        "alter function fairq.cancel_job(bigint) stable",
        "function fairq.cancel_job(bigint): volatility is s, expected v",
    ),
    (
        "update pg_proc set prosrc = prosrc || ' ' where oid = 'fairq.cancel_job(bigint)'::regprocedure",
        "function fairq.cancel_job(bigint): its body is not that of version",
    ),
    ("drop function fairq.cancel_job(bigint)", "function fairq.cancel_job(bigint) is missing"),
    (
        "create function fairq.cancel_job(p_job_id bigint, p_why int default 1) returns int language sql as 'select 1'",
        OVERLOAD,
    ),
    ("create function fairq.mine() returns int language sql as 'select 1'", "function fairq.mine() is no part of"),
    ("drop function fairq.schema_version()", "function fairq.schema_version() is missing"),
    ("drop trigger {trigger} on fairq.job_log", "trigger fairq.job_log.{trigger} is missing"),
    (
        "alter table fairq.job_log disable trigger {trigger}",
        "trigger fairq.job_log.{trigger}: enabled is D, expected A",
    ),
    (
        "create rule mine as on insert to fairq.job_log do also nothing",
        "rule fairq.job_log.mine is no part of version",
    ),
    ("drop view fairq.job_events", "relation fairq.job_events is missing"),
    # partitions are tables of their own
    (
        "alter table fairq.job_log_2 disable row level security",
        "relation fairq.job_log_2: row security is off, expected on",
    ),
    (
        "grant select on fairq.finished_jobs_1 to fairq_tenant",
        "relation fairq.finished_jobs_1: fairq_tenant has SELECT, expected no right",
    ),
    (
        "alter table fairq.finished_jobs detach partition fairq.finished_jobs_2",
        "relation fairq.finished_jobs_2: partition of is nothing, expected fairq.finished_jobs",
    ),
    (
        "alter view fairq.all_jobs reset (security_invoker)",
        "relation fairq.all_jobs: options is , expected security_invoker=true",
    ),
    ("grant usage on type fairq.claimed_job to public", "type fairq.claimed_job: PUBLIC has USAGE, expected no right"),
    ("alter type fairq.place owner to fairq_api", "type fairq.place: owner is fairq_api, expected fairq_owner"),
    ("grant create on schema fairq to public", "schema fairq: PUBLIC has CREATE, expected no right"),
    ("alter sequence fairq.dispatch_seq increment 2", "sequence fairq.dispatch_seq: definition is bigint start 1 incr"),
    ("grant select on sequence fairq.dispatch_seq to public", "sequence fairq.dispatch_seq: PUBLIC has SELECT, exp"),
]


@pytest.fixture
def names(module_db: Database) -> dict[str, str]:
    """
    Objects whose names may change: one of each kind.
    """
    query = """
        select
            (select conname from pg_constraint
             where conrelid = 'fairq.queues'::regclass and contype = 'c' order by 1 limit 1) as constraint,
            (select indexrelid::regclass::text from pg_index as i
             where indrelid = 'fairq.jobs'::regclass
               and not exists (select from pg_constraint as c where c.conindid = i.indexrelid)
             order by 1 limit 1) as index,
            (select tgname from pg_trigger where tgrelid = 'fairq.job_log'::regclass order by 1 limit 1) as trigger
    """
    (row,) = module_db.rows(query)
    return {name: value.removeprefix("fairq.") for name, value in row._asdict().items()}


@pytest.mark.parametrize(("change", "told"), DRIFT, ids=[f"{n:02}" for n in range(len(DRIFT))])
def test_each_drift_is_named(module_db: Database, names: dict[str, str], change: str, told: str) -> None:
    """
    Whatever was changed, check() says which object is different, in what, and from what.
    """
    for name, value in names.items():
        change, told = change.replace(f"{{{name}}}", value), told.replace(f"{{{name}}}", value)
    with module_db.connect(autocommit=False) as connection:
        connection.execute(change.encode())
        found = report_of(connection).differences
        connection.rollback()
    assert [line for line in found if line.startswith(told)] != [], found


def test_a_fresh_install_has_no_drift(module_db: Database) -> None:
    """
    What apply() made is what the version should be; rows, statistics and sequences that moved on are no drift.
    """
    module_db.given_jobs("a", 3)
    module_db.claim(2)
    module_db.execute("analyze")
    assert fairq_schema.check(module_db.dsn).differences == ()


def report_of(connection: psycopg.Connection[Any]) -> fairq_schema.Report:
    """
    What check() finds inside a transaction: it asks for an idle connection, so that its inside is called.
    """
    connection.execute("set local search_path = pg_catalog, pg_temp")
    return report_on(connection, Backend(connection, "fairq"), "fairq", Given(None, make_roles=True, migrations=None))


# --- however it came there ---------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", ["fairq", "other", "My-Queue 2", "select", "jobs", "j"])
def test_files_of_another_tool_are_checked_and_adopted(empty_db: str, ask: Ask, schema: str) -> None:
    """
    Files run by psql have no history here: check() judges the schema, adopt() records it, and apply() goes on.
    """
    run_files(ask, schema)
    assert fairq_schema.check(empty_db, schema).differences == ()
    with pytest.raises(errors.HistoryError, match="fairq adopt"):
        fairq_schema.apply(empty_db, schema)

    ids = [file.id for file in _files.load()]
    assert fairq_schema.adopt(empty_db, schema) == ids
    assert fairq_schema.adopt(empty_db, schema) == []
    assert fairq_schema.apply(empty_db, schema) == []
    assert fairq_schema.check(empty_db, schema).differences == ()
    assert fairq_schema.rollback(empty_db, schema, to=0) == ids[::-1]


def test_a_name_put_in_by_hand_is_no_drift(empty_db: str, ask: Ask) -> None:
    """
    Whoever replaced `fairq.` in the files with an editor, without quotes, has the same schema.
    """
    for file in _files.load():
        text = file.forward.replace("fairq.", "acme.").replace("schema fairq", "schema acme")
        ask(f"begin; {text.replace(chr(39) + 'fairq' + chr(39), chr(39) + 'acme' + chr(39))}; commit")
    assert fairq_schema.check(empty_db, "acme").differences == ()


def test_roles_of_another_tool_are_said(empty_db: str, ask: Ask) -> None:
    """
    Where the files were run for other roles, check() and adopt() are told so once, and remember.
    """
    run_files(ask, "fairq", {"worker": "fairq_test_w"})
    try:
        assert fairq_schema.check(empty_db).differences != ()
        assert fairq_schema.check(empty_db, roles={"worker": "fairq_test_w"}).differences == ()
        fairq_schema.adopt(empty_db, roles={"worker": "fairq_test_w"})
        assert fairq_schema.check(empty_db).differences == ()
    finally:
        ask("drop owned by fairq_test_w")
        ask("drop role fairq_test_w")


def test_a_single_login_has_no_drift(empty_db: str, ask: Ask) -> None:
    """
    Without roles, the expected rights are those of the one login, and nothing is expected for tenants.
    """
    fairq_schema.apply(empty_db, make_roles=False)
    assert fairq_schema.check(empty_db).differences == ()
    assert fairq_schema.check(empty_db, make_roles=False).differences == ()
    ask("create policy mine on fairq.jobs using (true)")
    assert fairq_schema.check(empty_db).differences == (f"policy fairq.jobs.mine is no part of version {NEWEST}",)


@pytest.mark.parametrize("make_roles", [True, False])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_each_way_to_know_the_tenant_is_no_drift(empty_db: str, provider: str, make_roles: bool) -> None:
    """
    Whatever provider was chosen, with roles or without, the schema is what it should be.
    """
    fairq_schema.apply(empty_db, make_roles=make_roles)
    fairq_schema.set_tenant_provider(empty_db, provider)
    assert fairq_schema.check(empty_db).differences == ()


def test_what_drifted_is_not_adopted(empty_db: str, ask: Ask) -> None:
    """
    adopt() records nothing as long as one object is not what the version should be, and says which.
    """
    run_files(ask, "fairq")
    ask("grant select on fairq.jobs to public")
    with pytest.raises(errors.DriftError, match=rf"is not version {NEWEST}: relation fairq.jobs: PUBLIC has SELECT"):
        fairq_schema.adopt(empty_db)
    assert ask("select to_regnamespace('fairq_migrate')") is None


def test_several_installs_are_checked_one_by_one(empty_db: str, ask: Ask) -> None:
    """
    Beside each other, drift in one is drift of that one alone.
    """
    fairq_schema.apply(empty_db)
    fairq_schema.apply(empty_db, "My-Queue")
    ask('alter table "My-Queue".jobs disable row level security')
    assert fairq_schema.check(empty_db).differences == ()
    assert fairq_schema.check(empty_db, "My-Queue").differences == (
        'relation "My-Queue".jobs: row security is off, expected on',
    )


def test_any_login_may_check(empty_db: str) -> None:
    """
    Looking needs no right on the schema.
    """
    fairq_schema.apply(empty_db)
    with psycopg.connect(empty_db, autocommit=True) as connection:
        connection.execute("set role pg_monitor")
        assert fairq_schema.check(connection).differences == ()


# --- the command -------------------------------------------------------------------------------------------


def test_the_exit_code_is_that_of_diff(empty_db: str, ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    """
    0: no difference, 1: some, one line each, 2: it could not be checked.
    """
    assert main(["check", "--dsn", empty_db]) == 2
    assert "there is no fairq in schema fairq" in capsys.readouterr().err
    fairq_schema.apply(empty_db)
    assert main(["check", "--dsn", empty_db]) == 0
    assert capsys.readouterr().out == f"schema fairq is version {NEWEST}\n"
    ask("alter table fairq.jobs disable row level security")
    assert main(["check", "--dsn", empty_db]) == 1
    assert capsys.readouterr().out == (
        "relation fairq.jobs: row security is off, expected on\n"
        f"schema fairq differs in 1 place from version {NEWEST}\n"
    )


def run_files(ask: Ask, schema: str, roles: dict[str, str] | None = None) -> None:
    """
    Run the files that we ship as another tool does: each in one transaction, and without a word to our history.
    """
    for file in _files.load():
        ask(f"begin; {rename(file.forward, schema, resolve(roles or {}, installer=None))}; commit")


def test_every_version_has_its_catalog() -> None:
    """
    For each migration there is a file that says what it makes, and no other.
    """
    folder = Path(__file__).resolve().parents[2] / "migrations"
    numbers = [f"{file.number:04}.json" for file in _files.load(folder)]
    assert sorted(path.name for path in (folder / "catalog").iterdir()) == [*numbers, "variants.json"]
