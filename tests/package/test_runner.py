"""
apply() where it is hard: through a pooler, killed at any moment, beside a long reader, on a standby; and when idle.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import fairq_schema
from fairq_schema import errors
from tests.package.folders import ApplyProcess, Folder
from tests.support import wait_until
from tests.support.pooler import pooled

if TYPE_CHECKING:
    from tests.support.servers import LocalServer

Ask = Callable[..., Any]


# --- a pooler ----------------------------------------------------------------------------------------------


def test_through_a_pooler_each_file_is_applied_once(empty_db: str, folder: Folder, ask: Ask) -> None:
    """
    Eight processes come through pgbouncer in transaction mode: nobody fails, and its sessions are as they were.
    """
    with pooled(empty_db) as through:
        rivals = [ApplyProcess(through, folder) for _ in range(8)]
        assert sorted(name for rival in rivals for name in rival.applied()) == folder.ids

        left = "select string_agg(distinct current_setting('search_path') || current_setting('role'), '; ')"
        with psycopg.connect(through, autocommit=True, prepare_threshold=None) as connection:
            for _ in range(12):
                assert connection.execute(left).fetchone() == ('"$user", publicnone',)
        assert ask("select count(*) from pg_locks where locktype = 'advisory'") == 0
        assert fairq_schema.status(through, migrations=folder.path).pending == ()
        assert fairq_schema.rollback(through, to=0, migrations=folder.path) == folder.ids[::-1]


def test_the_shipped_schema_goes_through_a_pooler(empty_db: str) -> None:
    """
    Up and down through pgbouncer, the files that we ship are the schema that they are without it.
    """
    with pooled(empty_db) as through:
        ids = fairq_schema.apply(through)
        with psycopg.connect(empty_db) as connection:
            assert fairq_schema.fingerprint(connection).objects
        assert fairq_schema.rollback(through, to=0) == ids[::-1]


def test_what_needs_a_session_is_refused_through_a_pooler(empty_db: str, folder: Folder) -> None:
    """
    A file outside of transactions needs a lock that lasts; through a pooler there is none, and it is said so.
    """
    concurrently = "create index concurrently jobs_again_idx on fairq.jobs (tenant);\n"
    folder.add("again_index", concurrently, header="-- transactional: false\n")
    with (
        pooled(empty_db) as through,
        pytest.raises(errors.PooledError, match=r"fairq_0003_again_index .*connect to the server itself"),
    ):
        fairq_schema.apply(through, migrations=folder.path)
    assert fairq_schema.apply(empty_db, migrations=folder.path) == folder.ids[2:]


# --- death -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_killed_at_any_moment_nothing_is_half_done(empty_db: str, folder: Folder, ask: Ask, seed: int) -> None:
    """
    kill -9 at a random moment: each version is there with its record or not at all, and the next run just works.
    """
    many = [f"fairq.many_{n}" for n in range(300)]
    folder.add(
        "many",
        "".join(f"create table {name} (id integer);\n" for name in many),
        "".join(f"drop table {name};\n" for name in many),
    )
    look = (
        "select query from pg_stat_activity where datname = current_database() and application_name = 'fairq migrate'"
    )

    def is_killed(doomed: ApplyProcess, enough: int) -> bool:
        seen: set[str] = set()

        def has_come_far_enough() -> bool:
            # a moment of the run, not of the clock: so many different statements of it were seen
            seen.add(ask(look) or "")
            return len(seen) > enough or doomed.process.poll() is not None

        wait_until(has_come_far_enough, "the moment to kill")
        was_running = doomed.process.poll() is None
        doomed.kill()
        return was_running

    enough = random.Random(seed).randrange(1, 60)
    while not is_killed(ApplyProcess(empty_db, folder), enough):
        # over already: a busy machine looks too seldom to see so many
        fairq_schema.rollback(empty_db, to=0, migrations=folder.path)
        enough //= 2

    wait_until(lambda: ask(look) is None, "the server to give up on the killed process")
    version = fairq_schema.status(empty_db, migrations=folder.path).version
    there = [ask("select to_regclass(%s)", name) is not None for name in ("fairq.jobs", "fairq.jobs_tenant_idx")]
    assert there == [version >= 1, version >= 2]
    assert ask("select count(*) from pg_class where relname like 'many%%'") == (300 if version == 3 else 0)
    assert fairq_schema.apply(empty_db, migrations=folder.path, lock_wait=0) == folder.ids[version:]


# --- the queue goes on working -----------------------------------------------------------------------------


def test_a_migration_never_queues_behind_a_long_reader(
    empty_db: str, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    While a report reads a table for long, others use it too: nobody waits longer for the migration than its timeout.
    """
    fairq_schema.apply(empty_db, migrations=folder.path)
    folder.add("column", "set local lock_timeout = '20ms';\nalter table fairq.jobs add column more integer;\n")
    naps = threading.Semaphore(0)
    sleep = time.sleep

    def nap(_: float) -> None:
        naps.release()
        sleep(0.001)

    monkeypatch.setattr(time, "sleep", nap)
    applied: list[str] = []
    with psycopg.connect(empty_db) as reader, psycopg.connect(empty_db, autocommit=True) as worker:
        reader.execute("select count(*) from fairq.jobs")
        migration = threading.Thread(
            target=lambda: applied.extend(fairq_schema.apply(empty_db, migrations=folder.path))
        )
        migration.start()
        worker.execute("set statement_timeout = '5s'")
        tries = 0
        while tries < 20:  # each time the migration has stepped back; what waits with it gets through
            worker.execute("insert into fairq.jobs select coalesce(max(job_id), 0) + 1, 'a' from fairq.jobs")
            tries += naps.acquire(timeout=30)
        assert applied == []
        reader.rollback()
        migration.join(timeout=30)
    assert applied == folder.ids[2:]


# --- nothing to do -----------------------------------------------------------------------------------------

NO_DDL = """
create function public.refuse_ddl() returns event_trigger language plpgsql as $fn$
begin
    raise exception 'DDL: %', tg_tag;
end
$fn$;
create event trigger refuse_ddl on ddl_command_start execute function public.refuse_ddl();
"""


def test_up_to_date_means_nothing_is_written(empty_db: str, folder: Folder, ask: Ask) -> None:
    """
    Where nothing is to be done apply() makes no object, changes no row, and needs no lock.
    """
    fairq_schema.apply(empty_db, migrations=folder.path)
    ask(NO_DDL)
    with psycopg.connect(empty_db, autocommit=True) as rival:
        rival.execute("begin; lock table fairq_migrate._yoyo_migration in exclusive mode")
        before = ask("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        assert fairq_schema.apply(empty_db, migrations=folder.path, lock_wait=0) == []
        assert fairq_schema.status(empty_db, migrations=folder.path).pending == ()
        assert ask("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint") == before
    # and the test can fail: with something to do, the trigger is met
    with pytest.raises(errors.MigrationFailedError, match="DDL: DROP INDEX"):
        fairq_schema.rollback(empty_db, migrations=folder.path)


def test_a_rollback_of_everything_leaves_nothing(empty_db: str, folder: Folder, ask: Ask) -> None:
    """
    Once nothing is applied there is no schema for the history either, unless somebody else made it or lives in it.
    """
    fairq_schema.apply(empty_db, migrations=folder.path)
    fairq_schema.rollback(empty_db, to=0, migrations=folder.path)
    assert ask("select to_regnamespace('fairq_migrate')") is None

    ask("create schema fairq_migrate")
    fairq_schema.apply(empty_db, migrations=folder.path)
    fairq_schema.rollback(empty_db, to=0, migrations=folder.path)
    assert ask("select to_regnamespace('fairq_migrate')") is not None
    assert ask("select count(*) from pg_class where relnamespace = 'fairq_migrate'::regnamespace") == 0


# --- refusals ----------------------------------------------------------------------------------------------


def test_a_standby_is_refused(start_server: Callable[..., LocalServer], folder: Folder) -> None:
    """
    On a standby there is nothing that apply() could do: it says where to go; what is up to date is no error.
    """
    server = start_server()
    fairq_schema.apply(server.maintenance_dsn, to=1, migrations=folder.path)
    server.stand_by()

    with pytest.raises(errors.ReadOnlyError, match="connect to the primary"):
        fairq_schema.apply(server.maintenance_dsn, migrations=folder.path)
    with pytest.raises(errors.ReadOnlyError, match="connect to the primary"):
        fairq_schema.rollback(server.maintenance_dsn, migrations=folder.path)
    assert fairq_schema.apply(server.maintenance_dsn, to=1, migrations=folder.path) == []
    assert fairq_schema.status(server.maintenance_dsn, migrations=folder.path).version == 1


def test_a_read_only_session_is_refused(empty_db: str, folder: Folder, ask: Ask) -> None:
    """
    Where an operator has made a database read-only, that is respected and said.
    """
    ask(f"alter database {conninfo_to_dict(empty_db)['dbname']} set default_transaction_read_only = on")
    with pytest.raises(errors.ReadOnlyError, match="session read-only"):
        fairq_schema.apply(empty_db, migrations=folder.path)


def test_the_isolation_of_a_role_does_not_matter(empty_db: str, folder: Folder, ask: Ask) -> None:
    """
    Where transactions are serializable by default, rivals still see what was done while they waited for the lock.
    """
    ask(f"alter database {conninfo_to_dict(empty_db)['dbname']} set default_transaction_isolation = 'serializable'")
    rivals = [ApplyProcess(empty_db, folder) for _ in range(4)]
    assert sorted(name for rival in rivals for name in rival.applied()) == folder.ids
