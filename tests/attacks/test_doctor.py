"""`fairq doctor`: a sound database has no error, and each hazard is found by a login that may do nothing."""

from __future__ import annotations

import subprocess
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import fairq_schema
from fairq_schema import cli
from tests.support.binaries import psql

from .cast import world

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.database import Database
    from tests.support.servers import LocalServer

pytestmark = pytest.mark.short

QUERY = Path(fairq_schema.__file__).parent / "doctor.sql"


def found(db: Database, schema: str = "fairq") -> set[tuple[str, str]]:
    """The hazards that a stranger is told of: (number, severity), without those of every test database."""
    dsn = make_conninfo(db.dsn, user=db.login())
    return {(each.hazard, each.severity) for each in fairq_schema.doctor(dsn, schema, "isolation")} - UNAVOIDABLE


# PUBLIC may make temporary objects by default, and test servers are what they are.
UNAVOIDABLE = {("H6", "info"), ("H15", "warning")}


def test_a_sound_database_has_no_hazard(db: Database) -> None:
    """Logins in the groups, as the documentation makes them, are none."""
    w = world(db)
    for _ in (w.tenant(), w.worker(), w.producer(), w.operator()):
        pass
    assert found(db) == set()


@pytest.mark.parametrize("provider", ["jwt", "role", "token"])
def test_nor_has_one_with_another_provider(db: Database, provider: str) -> None:
    """Their tables and functions keep the rules, too."""
    fairq_schema.set_tenant_provider(db.dsn, provider)
    assert found(db) == set()


@dataclass(frozen=True)
class Case:
    """A statement; `{login}` is a login of fairq_worker, `{tenant}` one of fairq_tenant, `{eve}` of nothing."""

    hazard: str
    severity: str
    statement: str


OTHER = "create schema other; create function other.f() returns trigger language plpgsql as 'begin return new; end'; "
MINE = (
    "create function fairq.mine() returns int language sql as 'select 1'; "
    "revoke all on function fairq.mine() from public; "
    "alter function fairq.mine() set search_path = pg_catalog, pg_temp"
)
CASES = [
    Case("H1", "error", "grant fairq_owner to {eve}"),
    Case("H1", "error", "grant fairq_api to {login}"),
    Case("H2", "error", "alter role fairq_api bypassrls"),
    Case("H2", "error", "alter role fairq_owner login"),
    Case("H2", "error", "alter role fairq_tenant bypassrls"),
    Case("H2", "warning", "alter role fairq_worker createdb"),
    Case("H3", "error", "alter role {tenant} bypassrls"),
    Case("H3", "warning", "alter role {login} bypassrls"),
    Case("H4", "warning", "grant pg_read_all_data to {tenant}"),
    Case("H4", "warning", "grant pg_monitor to {login}"),
    Case("H4", "info", "grant fairq_operator to {eve}; grant pg_monitor to {eve}"),
    Case("H7", "error", "grant create on schema fairq to public"),
    Case("H7", "warning", "grant create on schema public to public"),
    Case("H8", "error", "grant execute on function fairq.channel(text) to public"),
    Case("H8", "error", "grant select on fairq.queues to public"),
    Case("H8", "warning", "grant usage on type fairq.jobs to public"),
    Case("H9", "error", "alter function fairq.cancel_job(bigint) set search_path = ''"),
    Case("H9", "warning", "alter function fairq._caller() reset search_path"),
    Case("H10", "error", "alter table fairq.flows no force row level security"),
    Case("H10", "error", "drop policy tenant_fence on fairq.leases"),
    Case("H11", "error", "alter view fairq.all_jobs reset (security_invoker)"),
    Case("H11", "warning", "create view public.mine as select * from fairq.jobs"),
    Case("H11", "warning", "create materialized view public.mine as select * from fairq.jobs"),
    Case("H12", "error", "create table fairq.mine ()"),
    Case("H12", "error", MINE),
    Case("H13", "error", OTHER + "create trigger t before insert on fairq.jobs execute function other.f()"),
    Case("H13", "error", "create rule r as on delete to fairq.flows do also nothing"),
    Case("H14", "error", "alter table fairq.job_log enable trigger job_log_rows_stay"),
    Case("H14", "error", "drop trigger job_log_table_stays on fairq.job_log"),
    Case("H16", "warning", "create publication p for table fairq.jobs"),
    Case("H16", "warning", "create publication p for tables in schema fairq"),
    Case("H16", "warning", "alter role {login} replication"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.hazard} {case.statement[-60:]}")
def test_a_hazard_is_found(db: Database, case: Case) -> None:
    """In the transaction that makes it: what it changes may belong to the whole cluster."""
    names = {"login": db.login("fairq_worker"), "tenant": db.login("fairq_tenant"), "eve": db.login()}
    eve = names["eve"]
    db.execute("begin")
    db.execute(case.statement.format(**names))
    db.execute(f"set local session authorization {eve}")
    query = QUERY.read_text()
    rows = {(row.hazard, row.severity) for row in db.rows(query)} - UNAVOIDABLE
    db.conn.rollback()
    db.execute("rollback")
    assert (case.hazard, case.severity) in rows
    assert {hazard for hazard, _ in rows} <= {case.hazard, "H8", "H9", "H10", "H12"}


def test_createrole_before_16_is_a_hazard(db: Database) -> None:
    """And none from 16 on."""
    login = db.login()
    db.execute(f"alter role {login} createrole")
    assert (("H5", "warning") in found(db)) == (db.conn.info.server_version < 160000)


def test_an_installer_is_named_but_no_error(start_server: Callable[..., LocalServer]) -> None:
    """From 16 on who made the roles administers them: good to know."""
    cluster = start_server()
    with psycopg.connect(cluster.maintenance_dsn, autocommit=True) as superuser:
        superuser.execute("create role installer login createrole")
        superuser.execute("grant create on database postgres to installer")
    dsn = cluster.dsn("postgres", user="installer")
    fairq_schema.apply(dsn)
    hazards = fairq_schema.doctor(dsn, only="isolation")
    said = {each[:3] for each in map(astuple, hazards) if each[:2] not in UNAVOIDABLE}
    expected = ("H1", "info") if cluster.major >= 16 else ("H5", "warning")
    assert said == {(*expected, "installer")}


def test_the_command_says_what_and_what_to_do(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 without an error, 1 with one; the remedy is a statement that can be run."""
    dsn = make_conninfo(db.dsn, user=db.login())
    assert cli.main(["doctor", "--only", "isolation", "--dsn", dsn]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("0 errors, ")
    db.execute("alter function fairq.cancel_job(bigint) set search_path = ''")
    assert cli.main(["doctor", "--only", "isolation", "--dsn", dsn]) == 1
    first, remedy, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("error H9: fairq.cancel_job(bigint): ")
    db.execute(remedy)
    assert cli.main(["doctor", "--only", "isolation", "--dsn", dsn]) == 0
    assert cli.main(["doctor", "--only", "isolation", "--dsn", dsn, "--schema", "elsewhere"]) == 1


def test_the_query_is_for_psql_too(db: Database) -> None:
    """The file as it stands, by a login that may do nothing."""
    dsn = make_conninfo(db.dsn, user=db.login())
    command = [psql(), "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", dsn, "-f", QUERY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
