"""
The schema that we ship, in and out of a database.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlparse
from psycopg.conninfo import conninfo_to_dict

import fairq_schema
from fairq_schema import _files, errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.servers import LocalServer, Server

# a version between may read our statements in its own way
pytestmark = pytest.mark.short

CI = Path(__file__).resolve().parents[2] / "ci"


@pytest.fixture(params=["superuser", "installer"])
def dsn(request: pytest.FixtureRequest, server: Server, empty_db: str, ask: Callable[..., Any]) -> Iterator[str]:
    """
    An empty database, reached as a superuser, and as a login that may create roles and schemas and nothing else.
    """
    if request.param == "superuser":
        yield empty_db
        return
    name = conninfo_to_dict(empty_db)["dbname"]
    ask("create role fairq_test_installer login createrole")
    ask(f"grant create on database {name} to fairq_test_installer")
    members = "select count(*) from pg_roles where rolname in ('fairq_owner', 'fairq_api')"
    if ask("select current_setting('server_version_num')::integer >= 160000") and ask(members) == 2:
        # roles of the cluster that another test left: their administrator is somebody else
        ask("grant fairq_owner, fairq_api to fairq_test_installer with admin option, inherit false, set true")
    yield server.dsn(str(name), user="fairq_test_installer")
    ask("drop owned by fairq_test_installer cascade")
    ask("drop role fairq_test_installer")


def test_migrations_and_sources_agree(empty_db: str) -> None:
    """
    The compiled migrations are up to date, make the schema that install.sql makes, and can be undone and redone.
    """
    done = subprocess.run(
        [sys.executable, CI / "check_schema", "--dsn", empty_db], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "migrations and schema agree\n"), done.stdout + done.stderr


def test_rollback_asks_before_it_loses_jobs(dsn: str, ask: Callable[..., Any]) -> None:
    """
    Row-level security hides no job from the count: with one job left the rollback is refused, as superuser or not.
    """
    ids = fairq_schema.apply(dsn)
    ask("select fairq.enqueue_job('a', 'mail')")

    # what loses none is undone before, and it says so
    newer = ", ".join(ids[:0:-1])
    with pytest.raises(errors.WouldLoseJobsError, match=rf"would lose 1 job .*\(undone before: {newer}\)"):
        fairq_schema.rollback(dsn, to=0)
    assert ask("select relforcerowsecurity from pg_class where oid = 'fairq.jobs'::regclass")

    assert fairq_schema.rollback(dsn, to=0, lose_data=True) == ids[:1]
    assert ask("select to_regnamespace('fairq')::text") is None


def test_rollback_without_jobs_just_works(dsn: str, ask: Callable[..., Any]) -> None:
    """
    Where there is no job nothing has to be confirmed, and the installer is left with no power that it took.
    """
    ids = fairq_schema.apply(dsn)
    before = ask("select count(*) from pg_auth_members")
    assert fairq_schema.rollback(dsn, to=0) == ids[::-1]
    assert ask("select count(*) from pg_auth_members") == before


def test_the_shipped_schema_may_have_another_name(dsn: str, ask: Callable[..., Any]) -> None:
    """
    Under another name it is the same schema, object by object, and works.
    """
    assert fairq_schema.apply(dsn, "My-Queue 2") == fairq_schema.apply(dsn)
    with psycopg.connect(dsn) as connection:
        ours, other = fairq_schema.fingerprint(connection), fairq_schema.fingerprint(connection, "My-Queue 2")
    assert ours.differences(other) == []
    ask("""select "My-Queue 2".enqueue_job('a', 'mail')""")
    claimed = ask("""select job_id from "My-Queue 2".claim_jobs(p_owner => 'w')""")
    assert claimed is not None
    assert ask("select count(*) from fairq.jobs") == 0


def test_an_installer_makes_its_own_roles(start_server: Callable[..., LocalServer]) -> None:
    """
    In a new cluster a login with CREATEROLE and CREATE on one database needs no superuser, in or out.

    The power over the schema is taken for each transaction and given back: SET on no role is left.
    """
    cluster = start_server()
    with psycopg.connect(cluster.maintenance_dsn, autocommit=True) as superuser:
        superuser.execute("create role installer login createrole")
        superuser.execute("grant create on database postgres to installer")
    dsn = cluster.dsn("postgres", user="installer")
    option = "set_option" if cluster.major >= 16 else "true"

    def powers() -> list[Any]:
        with psycopg.connect(dsn) as connection:
            query = f"""
                select roleid::regrole::text from pg_auth_members
                where member = current_user::regrole and {option} and roleid::regrole::text like 'fairq%'
            """
            return connection.execute(query.encode()).fetchall()

    for _ in range(2):
        assert fairq_schema.apply(dsn) != []
        assert powers() == []
        assert fairq_schema.rollback(dsn, to=0) != []
        assert powers() == []


def test_the_search_path_is_given_back(empty_db: str) -> None:
    """
    A tool that records the migration in the same transaction finds its own tables: the path is what it was.
    """
    file = _files.load()[0]
    with psycopg.connect(empty_db) as connection:
        connection.execute("create table public.tools_own (id integer)")
        for text in (file.forward, file.backward):
            connection.execute(text.encode())
            connection.execute("insert into tools_own values (1)")
            assert connection.execute("show search_path").fetchone() == ('"$user", public',)


def test_yoyo_applies_the_folder_and_shares_the_history(empty_db: str, ask: Callable[..., Any]) -> None:
    """
    `yoyo apply` on the folder as we ship it makes the schema that we make, and neither tool does its work again.
    """
    parts = {name: str(value) for name, value in conninfo_to_dict(empty_db).items()}
    name = parts.pop("dbname")
    dsn = f"postgresql+psycopg:///{name}?" + "&".join(f"{key}={value}" for key, value in parts.items())

    def yoyo(command: str) -> str:
        main = "from yoyo.scripts.main import main; raise SystemExit(main())"
        options = ["--batch", "--no-config-file", "-d", f"{dsn}&schema=fairq_migrate", str(CI.parent / "migrations")]
        program = [sys.executable, "-c", main, command, *options]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    ask("create schema fairq_migrate")
    yoyo("apply")
    assert fairq_schema.apply(empty_db) == []
    assert fairq_schema.status(empty_db).pending == ()
    assert fairq_schema.check(empty_db).differences == ()
    fairq_schema.rollback(empty_db, to=0)
    ids = fairq_schema.apply(empty_db)
    assert [line.split()[:2] for line in yoyo("list").splitlines() if "fairq_0" in line] == [
        ["A", name] for name in ids
    ]
    yoyo("apply")
    assert [each.id for each in fairq_schema.status(empty_db).migrations] == ids
    yoyo("rollback")
    assert fairq_schema.status(empty_db).pending == tuple(ids[-1:])


@pytest.mark.parametrize("name", ["fairq_0001_initial.sql", "fairq_0001_initial.rollback.sql"])
def test_nothing_is_done_outside_a_transaction(empty_db: str, name: str) -> None:
    """
    Run statement by statement, as psql does without -1, a migration changes nothing.
    """
    text = (CI.parent / "migrations" / name).read_text("ascii")

    def run_one_by_one(connection: psycopg.Connection[Any]) -> None:
        for statement in sqlparse.split(text):
            connection.execute(statement)

    with psycopg.connect(empty_db, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.NoActiveSqlTransaction, match="must run in one transaction"):
            run_one_by_one(connection)
        assert connection.execute("select to_regnamespace('fairq')").fetchone() == (None,)
