"""
apply(), status() and rollback() on real servers, with crashes, rivals and neighbours.
"""

from __future__ import annotations

import asyncio
import getpass
import hashlib
import shutil
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

import fairq_schema
from fairq_schema import errors
from fairq_schema._backend import Backend
from tests.package.folders import INITIAL, WAIT_AT_BARRIER, ApplyProcess, Folder
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers import Server

Ask = Callable[..., Any]


# --- there and back ----------------------------------------------------------------------------------------


def test_apply_runs_every_migration_once(empty_db: str, folder: Folder, ask: Ask) -> None:
    """
    apply() runs the files in order and returns their ids; a second apply() finds nothing to do.
    """
    assert fairq_schema.apply(empty_db, migrations=folder.path) == folder.ids
    assert ask("select to_regclass('fairq.jobs_tenant_idx')::text") == "fairq.jobs_tenant_idx"
    assert fairq_schema.apply(empty_db, migrations=folder.path) == []


@pytest.mark.parametrize("target", [1, "1", "0001", "fairq_0001_initial"])
def test_apply_stops_at_the_target(empty_db: str, folder: Folder, target: int | str) -> None:
    """
    apply(to=...) takes a number or an id, and leaves what comes after it.
    """
    assert fairq_schema.apply(empty_db, to=target, migrations=folder.path) == folder.ids[:1]
    assert fairq_schema.apply(empty_db, migrations=folder.path) == folder.ids[1:]


def test_an_unknown_target_is_refused(empty_db: str, folder: Folder, ask: Ask) -> None:
    """
    A target that no file has is refused before anything is done.
    """
    with pytest.raises(errors.UnknownTargetError, match="no migration '7' here"):
        fairq_schema.apply(empty_db, to=7, migrations=folder.path)
    assert ask("select to_regnamespace('fairq_migrate')::text") is None


def test_status_tells_and_changes_nothing(empty_db: str, folder: Folder, ask: Ask) -> None:
    """
    status() of an empty database says that all is pending and creates nothing; later it says what was applied when.
    """
    assert fairq_schema.status(empty_db, migrations=folder.path).pending == tuple(folder.ids)
    assert ask("select to_regnamespace('fairq_migrate')::text") is None

    fairq_schema.apply(empty_db, to=1, migrations=folder.path)
    status = fairq_schema.status(empty_db, migrations=folder.path)

    assert (status.version, status.pending) == (1, tuple(folder.ids[1:]))
    applied_at = status.migrations[0].applied_at
    assert applied_at is not None
    assert ask("select now() - %s < interval '1 minute'", applied_at)


@pytest.mark.parametrize(
    ("wish", "undone"),
    [
        ({}, 1),
        ({"steps": 2}, 2),
        ({"steps": 9}, 2),
        ({"to": 1}, 1),
        ({"to": 0}, 2),
        ({"to": "0000"}, 2),
        ({"to": 2}, 0),
    ],
)
def test_rollback_undoes_what_was_asked(empty_db: str, folder: Folder, wish: dict[str, Any], undone: int) -> None:
    """
    rollback() undoes one migration, or `steps`, or all newer than `to`, newest first; apply() brings them back.
    """
    fairq_schema.apply(empty_db, migrations=folder.path)
    newest_first = folder.ids[::-1]
    assert fairq_schema.rollback(empty_db, migrations=folder.path, **wish) == newest_first[:undone]
    assert fairq_schema.apply(empty_db, migrations=folder.path) == newest_first[:undone][::-1]


def test_rollback_keeps_jobs(empty_db: str, folder: Folder, ask: Ask) -> None:
    """
    A rollback that would lose jobs is refused and changes nothing, until the caller says that they may be lost.
    """
    fairq_schema.apply(empty_db, to=1, migrations=folder.path)
    ask("insert into fairq.jobs values (1, 'a')")

    with pytest.raises(errors.WouldLoseJobsError, match="would lose 1 jobs"):
        fairq_schema.rollback(empty_db, migrations=folder.path)
    assert ask("select count(*) from fairq.jobs") == 1

    assert fairq_schema.rollback(empty_db, lose_data=True, migrations=folder.path) == folder.ids[:1]
    assert ask("select to_regclass('fairq.jobs')::text") is None


# --- files and database must belong together ---------------------------------------------------------------


def test_a_changed_file_is_refused(empty_db: str, folder: Folder) -> None:
    """
    A file that is not what was applied stops every command; the message names it, both hashes and the remedy.
    """
    fairq_schema.apply(empty_db, migrations=folder.path)
    path = folder.path / f"{folder.ids[0]}.sql"
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text(path.read_text() + "-- one more line\n")
    after = hashlib.sha256(path.read_bytes()).hexdigest()

    for command in (fairq_schema.apply, fairq_schema.status, fairq_schema.rollback):
        with pytest.raises(errors.ChangedFileError) as refusal:
            command(empty_db, migrations=folder.path)
        for part in (f"{folder.ids[0]}.sql", before, after, "restore the file"):
            assert part in str(refusal.value)


def test_line_endings_are_no_change(empty_db: str, folder: Folder) -> None:
    """
    A checkout with CRLF is the same migration.
    """
    fairq_schema.apply(empty_db, migrations=folder.path)
    for path in folder.path.iterdir():
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert fairq_schema.apply(empty_db, migrations=folder.path) == []


@pytest.fixture
def older(folder: Folder, tmp_path: Path) -> Path:
    """
    The folder as an older package ships it: without the second migration.
    """
    path = tmp_path / "older"
    shutil.copytree(folder.path, path, ignore=shutil.ignore_patterns("*0002*"))
    return path


def test_an_older_package_lives_with_a_newer_database(empty_db: str, folder: Folder, older: Path) -> None:
    """
    During a rolling upgrade apply() of the old package does nothing, and says why; it cannot roll back.
    """
    fairq_schema.apply(empty_db, migrations=folder.path)
    with pytest.warns(errors.NewerDatabaseWarning, match=f"{folder.ids[1]}, newer than {folder.ids[0]}"):
        assert fairq_schema.apply(empty_db, migrations=older) == []
    status = fairq_schema.status(empty_db, migrations=older)
    assert (status.version, status.newer, status.pending) == (2, (folder.ids[1],), ())
    with pytest.raises(errors.HistoryError, match="only a newer fairq can undo"):
        fairq_schema.rollback(empty_db, migrations=older)


def test_a_database_from_a_breaking_future_is_refused(empty_db: str, folder: Folder, older: Path) -> None:
    """
    An older package does not touch a database that has a migration said to be breaking, and says what to install.
    """
    newest = folder.path / f"{folder.ids[1]}.sql"
    newest.write_text(newest.read_text().replace("\n", "\n-- breaking: claims by the old names fail\n", 1))
    fairq_schema.apply(empty_db, migrations=folder.path)
    for command in (fairq_schema.apply, fairq_schema.status, fairq_schema.rollback):
        with pytest.raises(errors.HistoryError, match=f"{folder.ids[1]}, which .* cannot work with.*install a newer"):
            command(empty_db, migrations=older)


@pytest.mark.parametrize("name", ["fairq_0002_renamed", "0003_init", "fairq_0001_other"])
def test_an_unknown_migration_is_refused(empty_db: str, folder: Folder, ask: Ask, name: str) -> None:
    """
    An id that no file of this package ever had stops every command: a file was renamed, or the history is not ours.
    """
    fairq_schema.apply(empty_db, migrations=folder.path)
    ask("update fairq_migrate._yoyo_migration set migration_id = %s where migration_id = %s", name, folder.ids[1])
    for command in (fairq_schema.apply, fairq_schema.status, fairq_schema.rollback):
        with pytest.raises(errors.HistoryError, match=f"{name}, which was never one of these files"):
            command(empty_db, migrations=folder.path)


def test_a_schema_removed_by_another_tool_is_refused(empty_db: str, folder: Folder, ask: Ask) -> None:
    """
    Where the schema is gone and the history is not, nothing is said to be up to date; the remedy that is told helps.
    """
    fairq_schema.apply(empty_db, migrations=folder.path)
    ask("drop schema fairq cascade")
    for command in (fairq_schema.apply, fairq_schema.status, fairq_schema.rollback, fairq_schema.plan):
        with pytest.raises(errors.HistoryError, match=r"no schema fairq, but the history .* ends at 2") as refusal:
            command(empty_db, migrations=folder.path)
    remedy = str(refusal.value).split("run: ")[1].split(";")[0]
    ask(remedy)
    assert fairq_schema.apply(empty_db, migrations=folder.path) == folder.ids


def test_a_schema_installed_by_another_tool_is_refused(empty_db: str, folder: Folder, ask: Ask) -> None:
    """
    Where psql or a host's own tool has installed fairq, apply() says so instead of failing on the first table.
    """
    ask(INITIAL)
    ask("create function fairq.schema_version() returns integer language sql as 'select 1'")
    with pytest.raises(errors.HistoryError, match="has version 1, but the history of fairq apply ends at 0"):
        fairq_schema.apply(empty_db, migrations=folder.path)


# --- crashes -----------------------------------------------------------------------------------------------


def test_a_failing_file_leaves_nothing(empty_db: str, folder: Folder, ask: Ask) -> None:
    """
    A migration that fails half-way is undone as a whole, those before it stay, and the lock is free again.
    """
    broken = folder.add("broken", "create table fairq.half (id integer);\nselect 1/0;\n")

    with pytest.raises(errors.MigrationFailedError, match="fairq_0003_broken: division by zero"):
        fairq_schema.apply(empty_db, migrations=folder.path)
    assert ask("select to_regclass('fairq.half')::text") is None
    assert fairq_schema.status(empty_db, migrations=folder.path).pending == ("fairq_0003_broken",)

    broken.write_text(broken.read_text().replace("select 1/0;\n", ""))
    assert fairq_schema.apply(empty_db, migrations=folder.path) == ["fairq_0003_broken"]


@pytest.mark.parametrize("moment", ["log_migration", "mark_one"])
def test_statements_and_record_are_one(
    empty_db: str, folder: Folder, ask: Ask, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """
    A crash after the last statement and before the record leaves neither: the next run starts from the beginning.
    """

    def crash(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Backend, moment, crash)
        with pytest.raises(MemoryError):
            fairq_schema.apply(empty_db, migrations=folder.path)

    assert ask("select to_regclass('fairq.jobs')::text") is None
    assert fairq_schema.apply(empty_db, migrations=folder.path) == folder.ids


def test_a_killed_process_frees_the_lock(empty_db: str, folder: Folder, ask: Ask) -> None:
    """
    kill -9 in the middle of a long statement: the server notices, undoes it, and the next run needs no manual unlock.
    """
    slow = folder.add(
        "slow", "create table fairq.slow (id integer);\ndo $fn$ begin perform pg_sleep(3600); end $fn$;\n"
    )
    doomed = ApplyProcess(empty_db, folder)
    wait_until(lambda: migrating(ask, waiting_for="PgSleep") == 1, "the migration to run its long statement")

    doomed.kill()

    # nothing but the loss of its client can end this session
    wait_until(lambda: migrating(ask) == 0, "the server to give up on the killed process")
    slow.write_text(slow.read_text().replace("3600", "0"))
    assert fairq_schema.apply(empty_db, migrations=folder.path) == folder.ids[2:]


def test_a_terminated_session_frees_the_lock(
    empty_db: str, folder: Folder, ask: Ask, barrier: Callable[[], None]
) -> None:
    """
    An operator's pg_terminate_backend() is reported as what it is, and leaves nothing to clean up.
    """
    folder.add("slow", WAIT_AT_BARRIER)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            fairq_schema.apply(empty_db, migrations=folder.path)
        except errors.FairqError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: migrating(ask, waiting_for="advisory") == 1, "the migration to reach the barrier")
    ask("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'fairq migrate'")
    thread.join(timeout=120)

    assert "fairq_0003_slow: terminating connection due to administrator command" in str(failures)
    barrier()
    assert fairq_schema.apply(empty_db, migrations=folder.path) == folder.ids[2:]


@pytest.mark.parametrize("error", [KeyError("uid not found"), OSError("no username set")])
def test_a_user_without_a_name_can_migrate(
    empty_db: str, folder: Folder, ask: Ask, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """
    In a container whose user has no name, the migration is recorded, without the name.
    """

    def getuser() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", getuser)
    assert fairq_schema.apply(empty_db, migrations=folder.path) == folder.ids
    assert ask("select count(*) from fairq_migrate._yoyo_log where username is null") == 2


# --- rivals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [0, 1], ids=["empty", "old"])
def test_twenty_processes_migrate_once(
    empty_db: str, folder: Folder, ask: Ask, barrier: Callable[[], None], old: int
) -> None:
    """
    Twenty processes start at once, on an empty and on an old database: each file is applied by one, nobody fails.

    One file is a CREATE INDEX CONCURRENTLY, which would wait for ever for a rival that waits inside a statement.
    """
    if old:
        fairq_schema.apply(empty_db, to=old, migrations=folder.path)
    folder.add("gate", WAIT_AT_BARRIER)
    concurrently = "create index concurrently jobs_again_idx on fairq.jobs (tenant);\n"
    folder.add("again_index", concurrently, header="-- transactional: false\n")
    rivals = [ApplyProcess(empty_db, folder) for _ in range(20)]
    wait_until(lambda: migrating(ask) == 20 and migrating(ask, waiting_for="advisory") == 1, "all twenty to be there")

    barrier()

    assert sorted(name for rival in rivals for name in rival.applied()) == folder.ids[old:]
    assert ask("select indisvalid from pg_index where indexrelid = 'fairq.jobs_again_idx'::regclass")
    assert ask("select count(*) from pg_locks where locktype = 'advisory'") == 0


def test_an_invalid_index_is_made_again(empty_db: str, folder: Folder, ask: Ask) -> None:
    """
    What a CREATE INDEX CONCURRENTLY left that failed or was killed is dropped by the next run, which makes it whole.
    """
    fairq_schema.apply(empty_db, migrations=folder.path)
    ask("insert into fairq.jobs values (1, 'a'), (2, 'a')")
    unique = "create unique index concurrently jobs_one_idx on fairq.jobs (tenant);\n"
    folder.add("one_index", unique, header="-- transactional: false\n")

    with pytest.raises(errors.MigrationFailedError, match="fairq_0003_one_index: could not create unique index"):
        fairq_schema.apply(empty_db, migrations=folder.path)
    assert not ask("select indisvalid from pg_index where indexrelid = 'fairq.jobs_one_idx'::regclass")

    ask("delete from fairq.jobs where job_id = 2")
    assert fairq_schema.apply(empty_db, migrations=folder.path) == folder.ids[2:]
    assert ask("select indisvalid from pg_index where indexrelid = 'fairq.jobs_one_idx'::regclass")


def test_waiting_for_a_rival_ends(empty_db: str, folder: Folder) -> None:
    """
    Whoever waits longer than lock_wait for another run is told which server process holds the lock.
    """
    with psycopg.connect(empty_db, autocommit=True) as rival, (backend := Backend(rival, "fairq")).turn():
        assert backend.try_lock()
        with pytest.raises(errors.BusyError, match=f"server process {rival.info.backend_pid}"):
            fairq_schema.apply(empty_db, migrations=folder.path, lock_wait=0)
        # another schema has a lock of its own
        assert fairq_schema.apply(empty_db, "other", migrations=folder.path) == folder.ids


@pytest.fixture
def blocked(empty_db: str, folder: Folder) -> Iterator[psycopg.Connection[Any]]:
    """
    A transaction that holds fairq.jobs, and a migration that waits for it a moment only.
    """
    fairq_schema.apply(empty_db, migrations=folder.path)
    folder.add("column", "set local lock_timeout = '10ms';\nalter table fairq.jobs add column more integer;\n")
    with psycopg.connect(empty_db) as worker:
        worker.execute("select * from fairq.jobs")
        yield worker


def test_a_busy_table_is_tried_again(
    empty_db: str, folder: Folder, blocked: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A migration that does not get its lock in time steps back, lets the queue work, and tries again.
    """
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        blocked.commit()

    monkeypatch.setattr(time, "sleep", nap)
    assert fairq_schema.apply(empty_db, migrations=folder.path) == folder.ids[2:]
    assert len(naps) == 1


def test_a_table_that_stays_busy_is_an_error(empty_db: str, folder: Folder, blocked: psycopg.Connection[Any]) -> None:
    """
    After the last try the lock timeout is reported, with the name of the migration and of who is in its way.
    """
    pid = blocked.info.backend_pid
    told = rf"fairq_0003_column: canceling statement due to lock timeout.*server process {pid} \(idle in transaction"
    with pytest.raises(errors.MigrationFailedError, match=told):
        fairq_schema.apply(empty_db, migrations=folder.path, lock_wait=0)


# --- roles -------------------------------------------------------------------------------------------------


@pytest.fixture
def app(server: Server, empty_db: str, ask: Ask) -> Iterator[str]:
    """
    The conninfo of a login that owns nothing and may do nothing.
    """
    ask("create role fairq_test_app login")
    yield server.dsn(str(conninfo_to_dict(empty_db)["dbname"]), user="fairq_test_app")
    ask("drop owned by fairq_test_app cascade")
    ask("drop role fairq_test_app")


def test_two_schemas_of_ones_own_are_enough(app: str, folder: Folder, ask: Ask) -> None:
    """
    A role without any right on the database migrates inside the two schemas that a DBA made for it.
    """
    ask("create schema fairq authorization fairq_test_app")
    ask("create schema fairq_migrate authorization fairq_test_app")
    assert fairq_schema.apply(app, migrations=folder.path) == folder.ids
    assert fairq_schema.rollback(app, to=0, migrations=folder.path) == folder.ids[::-1]


def test_without_rights_the_remedy_is_told(app: str, folder: Folder) -> None:
    """
    A role that may not keep a history is told what to ask for.
    """
    with pytest.raises(errors.NotPermittedError, match='create schema "fairq_migrate" authorization fairq_test_app'):
        fairq_schema.apply(app, migrations=folder.path)


PLANTED = """
create schema fairq_migrate;
create function fairq_migrate.spring() returns boolean language plpgsql as $fn$
begin
    insert into fairq_migrate.sprung select session_user;
    return true;
end
$fn$;
create table fairq_migrate.sprung (who text);
create table fairq_migrate._yoyo_migration (migration_hash text, migration_id text, applied_at_utc timestamp);
alter table fairq_migrate._yoyo_migration enable row level security;
create policy spring on fairq_migrate._yoyo_migration using (fairq_migrate.spring());
grant usage on schema fairq_migrate to public;
grant all on all tables in schema fairq_migrate to public;
"""


@pytest.mark.parametrize("who", ["postgres", "fairq_test_victim"])
def test_a_planted_history_is_refused(
    server: Server, app: str, empty_db: str, folder: Folder, ask: Ask, who: str
) -> None:
    """
    Nobody reads or writes a history that a stranger prepared: what hangs on its tables would run as the victim.
    """
    name = str(conninfo_to_dict(empty_db)["dbname"])
    ask(f"grant create on database {name} to fairq_test_app")
    ask("create role fairq_test_victim login")
    try:
        with psycopg.connect(app) as attacker:
            attacker.execute(PLANTED.encode())
        victim = server.dsn(name, user=who)
        for command in (fairq_schema.apply, fairq_schema.status, fairq_schema.rollback):
            with pytest.raises(errors.NotPermittedError, match="belongs to role fairq_test_app"):
                command(victim, migrations=folder.path)
        with pytest.raises(errors.NotInstalledError):
            fairq_schema.check(victim, migrations=folder.path)
        assert ask("select count(*) from fairq_migrate.sprung") == 0
    finally:
        ask("drop role fairq_test_victim")


def test_migrations_run_as_the_role_that_was_set(app: str, empty_db: str, folder: Folder, ask: Ask) -> None:
    """
    A file's RESET ROLE gives back the role that the caller's session had set, not the role of its login.
    """
    folder.add("by_the_login", "reset role;\ncreate table public.made_by_login (id integer);\n")
    folder.add("by_the_role", "create table fairq.made_by_role (id integer);\n")
    ask("create schema fairq authorization fairq_test_app")
    ask("create schema fairq_migrate authorization fairq_test_app")
    with psycopg.connect(empty_db) as connection:
        connection.execute("set role fairq_test_app")
        connection.commit()
        assert fairq_schema.apply(connection, migrations=folder.path) == folder.ids
        assert connection.execute("select current_user").fetchone() == ("fairq_test_app",)
    assert (
        ask("select string_agg(distinct tableowner, ', ') from pg_tables where schemaname = 'fairq'")
        == "fairq_test_app"
    )
    assert fairq_schema.status(app, migrations=folder.path).pending == ()


# --- connections -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["other", "fairq, public", '"$user"', ""])
def test_search_path_does_not_matter(empty_db: str, folder: Folder, ask: Ask, path: str) -> None:
    """
    Whatever search_path a role or a database has, history and schema are in the same place.
    """
    ask("create schema other")
    odd = make_conninfo(empty_db, options=f"-csearch_path={path.replace(' ', chr(92) + ' ')}")
    assert fairq_schema.apply(odd, to=1, migrations=folder.path) == folder.ids[:1]
    assert fairq_schema.apply(empty_db, migrations=folder.path) == folder.ids[1:]
    assert fairq_schema.apply(odd, migrations=folder.path) == []
    astray = "select count(*) from pg_class where relnamespace in ('public'::regnamespace, 'other'::regnamespace)"
    assert ask(astray) == 0


def test_an_unqualified_name_is_refused(empty_db: str, folder: Folder, ask: Ask) -> None:
    """
    A file that forgets a schema fails, instead of making its table wherever search_path happens to point.
    """
    folder.add("stray", "create table stray (id integer);\n")
    with pytest.raises(errors.MigrationFailedError, match="fairq_0003_stray: permission denied"):
        fairq_schema.apply(empty_db, migrations=folder.path)
    assert ask("select count(*) from pg_class where relname = 'stray'") == 0


STATE = """
    select current_user, current_setting('search_path'), current_setting('lock_timeout'),
        current_setting('client_connection_check_interval')
"""


@pytest.mark.parametrize("last_file", ["select 1;\n", "select 1/0;\n"])
@pytest.mark.parametrize("autocommit", [False, True])
def test_a_lent_connection_comes_back_as_it_was(
    empty_db: str, folder: Folder, autocommit: bool, last_file: str
) -> None:
    """
    A live connection has afterwards the mode, settings and role it had before, also after a failure.
    """
    folder.add("last", "set search_path = public;\n" + last_file)
    with psycopg.connect(empty_db, autocommit=autocommit, row_factory=dict_row) as connection:
        connection.execute("set search_path = public, pg_temp")
        before = connection.execute(STATE).fetchone()
        if not autocommit:
            connection.commit()

        try:
            fairq_schema.apply(connection, migrations=folder.path)
        except errors.MigrationFailedError:
            assert "1/0" in last_file

        assert fairq_schema.apply(connection, to=2, migrations=folder.path) == []
        assert connection.info.transaction_status.name == "IDLE"
        assert connection.autocommit is autocommit
        assert connection.execute(STATE).fetchone() == before
        assert connection.execute("select count(*) as locks from pg_locks where locktype = 'advisory'").fetchone() == {
            "locks": 0
        }


def test_a_database_without_an_encoding(empty_db: str, folder: Folder) -> None:
    """
    Text of SQL_ASCII comes as bytes unless one asks for UTF8: fairq does, and whoever brings a connection is told to.
    """
    with psycopg.connect(empty_db, autocommit=True) as admin:
        admin.execute("create database no_encoding template template0 encoding 'SQL_ASCII' locale 'C'")
        try:
            conninfo = make_conninfo(empty_db, dbname="no_encoding")
            assert fairq_schema.apply(conninfo, migrations=folder.path)
            assert fairq_schema.status(conninfo, migrations=folder.path)
            with (
                psycopg.connect(conninfo) as connection,
                pytest.raises(errors.BadConnectionError, match="client_encoding is SQL_ASCII"),
            ):
                fairq_schema.status(connection, migrations=folder.path)
        finally:
            admin.execute("drop database no_encoding (force)")


@pytest.mark.parametrize("command", [fairq_schema.apply, fairq_schema.status, fairq_schema.rollback])
def test_a_connection_in_a_transaction_is_refused(
    empty_db: str, folder: Folder, command: Callable[..., object]
) -> None:
    """
    A connection inside a transaction is refused before anything runs, and its transaction goes on.
    """
    with psycopg.connect(empty_db) as connection:
        connection.execute("create table mine (id integer)")
        with pytest.raises(errors.BadConnectionError, match=r"not idle .INTRANS.*commit or roll back first"):
            command(connection, migrations=folder.path)
        assert connection.execute("select count(*) from mine").fetchone() == (0,)


def test_an_async_connection_is_refused(empty_db: str, folder: Folder) -> None:
    """
    What is neither a string nor a synchronous connection is refused by its type.
    """

    async def lend() -> None:
        async with await psycopg.AsyncConnection.connect(empty_db) as connection:
            fairq_schema.apply(connection, migrations=folder.path)  # type: ignore[arg-type]

    with pytest.raises(errors.BadConnectionError, match="not AsyncConnection"):
        asyncio.run(lend())


def test_a_bad_string_is_not_repeated(folder: Folder) -> None:
    """
    A connection string that cannot be read is refused without printing it: it may hold a password.
    """
    with pytest.raises(errors.BadConnectionError) as refusal:
        fairq_schema.apply("postgresql://me:se cret@host:port:1/x y", migrations=folder.path)
    assert "cret" not in str(refusal.value)
    assert refusal.value.__suppress_context__


def test_every_form_of_connection_works(empty_db: str, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A conninfo, a URI with everything in its query, and the PG* environment lead to the same database.
    """
    parts = conninfo_to_dict(empty_db)
    uri = "postgresql:///?" + "&".join(f"{name}={value}" for name, value in parts.items())
    assert fairq_schema.apply(empty_db, to=1, migrations=folder.path) == folder.ids[:1]
    assert fairq_schema.status(uri, migrations=folder.path).version == 1
    for name, value in parts.items():
        monkeypatch.setenv({"dbname": "PGDATABASE"}.get(name, f"PG{name.upper()}"), str(value))
    assert fairq_schema.apply(migrations=folder.path) == folder.ids[1:]


# --- neighbours --------------------------------------------------------------------------------------------


def yoyo_dsn(conninfo: str, **more: str) -> str:
    """
    The same database, as yoyo writes it.
    """
    parts = {name: str(value) for name, value in conninfo_to_dict(conninfo).items()} | more
    name = parts.pop("dbname")
    return f"postgresql+psycopg:///{name}?" + "&".join(f"{key}={value}" for key, value in parts.items())


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # yoyo leaves its connections to the garbage collector
def test_a_host_with_yoyo_of_its_own_is_left_alone(empty_db: str, folder: Folder, ask: Ask, tmp_path: Path) -> None:
    """
    An application that migrates the same database with yoyo keeps its own history, and neither sees the other's.
    """
    import yoyo

    host = tmp_path / "host"
    host.mkdir()
    (host / "0001_init.sql").write_text("create table public.host (id integer);\n")
    (host / "0002_more.sql").write_text("-- depends: 0001_init\ncreate table public.host_more (id integer);\n")

    def migrate_host() -> None:
        backend = yoyo.get_backend(yoyo_dsn(empty_db))
        backend.apply_migrations(backend.to_apply(yoyo.read_migrations(str(host))))
        backend.connection.close()

    fairq_schema.apply(empty_db, to=1, migrations=folder.path)
    migrate_host()
    assert fairq_schema.apply(empty_db, migrations=folder.path) == folder.ids[1:]
    migrate_host()

    assert ask("select count(*) from public._yoyo_migration") == 2
    assert ask("select to_regclass('public.host_more')::text") == "host_more"
    assert ask("select count(*) from fairq_migrate._yoyo_migration") == 2


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_plain_yoyo_shares_the_history(empty_db: str, folder: Folder, ask: Ask) -> None:
    """
    yoyo's own command with schema=fairq_migrate goes on where apply() stopped, and apply() where it stopped.
    """
    import yoyo

    fairq_schema.apply(empty_db, to=1, migrations=folder.path)
    backend = yoyo.get_backend(yoyo_dsn(empty_db, schema="fairq_migrate"))
    pending = backend.to_apply(yoyo.read_migrations(str(folder.path)))
    assert [each.id for each in pending] == folder.ids[1:]
    backend.apply_migrations(pending)
    backend.connection.close()

    assert fairq_schema.apply(empty_db, migrations=folder.path) == []
    assert fairq_schema.rollback(empty_db, migrations=folder.path) == folder.ids[:0:-1]
    assert ask("select to_regclass('fairq.jobs_tenant_idx')::text") is None


# --- other names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["other", "My-Queue 2", "select", "x" * 63])
def test_the_schema_may_have_another_name(empty_db: str, folder: Folder, ask: Ask, name: str) -> None:
    """
    Under another name fairq is the same schema, with its own history, beside the first one or without it.
    """
    assert fairq_schema.apply(empty_db, name, migrations=folder.path) == folder.ids
    assert ask("select to_regnamespace('fairq')::text") is None
    fairq_schema.apply(empty_db, migrations=folder.path)
    assert ask(sql.SQL("select {}.count_jobs()").format(sql.Identifier(name)).as_string()) == 0
    with psycopg.connect(empty_db) as connection:
        assert fairq_schema.fingerprint(connection, name).objects == (fairq_schema.fingerprint(connection).objects)
    assert fairq_schema.rollback(empty_db, name, to=0, migrations=folder.path) == folder.ids[::-1]
    assert fairq_schema.status(empty_db, migrations=folder.path).version == 2


@pytest.mark.parametrize(
    "name",
    ["", "public", "pg_queue", "information_schema", "a_migrate", 'a"b', "a'b", "a$b", "a;b", "x" * 64, "\u00fc"],
)
def test_some_names_are_refused(folder: Folder, name: str) -> None:
    """
    A name that could end the text it is put into, or whose schema rollback must not drop, is refused at once.
    """
    for command in (fairq_schema.apply, fairq_schema.status, fairq_schema.rollback):
        with pytest.raises(errors.BadSchemaNameError):
            command("", name, migrations=folder.path)


def migrating(ask: Callable[..., Any], *, waiting_for: str | None = None) -> int:
    """
    How many sessions of apply() there are in this database, or how many of them wait for something.
    """
    query = """
        select count(*) from pg_stat_activity
        where application_name = 'fairq migrate' and datname = current_database()
          and wait_event is not distinct from coalesce(%s, wait_event)
    """
    count: int = ask(query, waiting_for)
    return count
