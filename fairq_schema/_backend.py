"""
yoyo on one connection, with history and lock where a crash cannot hurt them; the only user of yoyo.

yoyo itself runs a migration on a second connection and records it on the first, keeps its lock as a row that outlives
its owner, and puts its tables wherever search_path happens to point. Its files and its tables stay as they are, so
`yoyo apply` with `schema=fairq_migrate` sees the same history.
"""

from __future__ import annotations

import getpass
import hashlib
import socket
import tempfile
import time
import uuid
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import yoyo
from psycopg.rows import tuple_row
from yoyo import internalmigrations
from yoyo.backends.base import SavepointTransactionManager
from yoyo.backends.core.postgresql import PostgresqlPsycopgBackend

from fairq_schema._rename import bookkeeping_schema, rename
from fairq_schema._session import Connection, one_value
from fairq_schema.errors import BusyError, NotPermittedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairq_schema._files import Migration

_POLL_SECONDS = 0.1


class _Savepoint(SavepointTransactionManager):
    def _do_commit(self) -> None:
        # yoyo keeps them all open, because of databases other than PostgreSQL: 64 of them overflow a session's cache
        self.backend.savepoint_release(self.id)


class Backend(PostgresqlPsycopgBackend):
    """
    The history of one schema, and the running of migrations that it records.
    """

    def __init__(self, connection: Connection, schema: str) -> None:
        self._is_locked = False
        self.schema = None  # yoyo would put it into search_path, unquoted
        self._connection = connection
        self._home = bookkeeping_schema(schema)
        self._role = one_value(connection, "select current_setting('role')")
        super().__init__(None, "_yoyo_migration")

    def connect(self, _uri: None) -> Connection:
        """
        Return the one connection.
        """
        return self._connection

    def cursor(self) -> psycopg.Cursor[Any]:
        """
        Return a plain cursor: yoyo reads rows as tuples, the caller may have asked for dictionaries.
        """
        return psycopg.Cursor(self._connection, row_factory=tuple_row)

    def transaction(self, rollback_on_exit: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002  yoyo's signature
        """
        Begin a transaction, or a savepoint inside one.
        """
        if self._in_transaction:
            return _Savepoint(self, rollback_on_exit=rollback_on_exit)
        return super().transaction(rollback_on_exit)

    @contextmanager
    def disable_transactions(self) -> Iterator[None]:
        """
        Run statements one by one: the connection is in autocommit mode already.
        """
        yield

    def rollback(self) -> None:
        """
        Undo the transaction; where the connection is gone the server has done it, and its error is to be seen.
        """
        if not self._connection.closed:
            super().rollback()

    def savepoint_rollback(self, id: str) -> None:  # noqa: A002  yoyo's name
        """
        Undo the savepoint, likewise.
        """
        if not self._connection.closed:
            super().savepoint_rollback(id)

    def quote_identifier(self, name: str) -> str:
        """
        Quote a name, and put the tables of the history into their own schema.
        """
        quoted: str = super().quote_identifier(name)
        if name in (self.migration_table, self.log_table, self.version_table, "migration_files"):
            return f"{super().quote_identifier(self._home)}.{quoted}"
        return quoted

    def list_tables(self, **_: object) -> list[str]:
        """
        Return the names of the tables of the history.
        """
        query = "select tablename from pg_tables where schemaname = :home"
        return [name for (name,) in self.execute(query, {"home": self._home})]

    def get_log_data(self, migration: Any = None, operation: str = "apply") -> dict[str, object]:  # noqa: ANN401
        """
        Return one row of yoyo's log; unlike yoyo's own, it cannot fail where nobody has a name.
        """
        return {
            "id": str(uuid.uuid4()),
            "migration_id": migration.id if migration else None,
            "migration_hash": migration.hash if migration else None,
            "username": _user_name(),
            "hostname": socket.gethostname(),
            "created_at_utc": _utc_now(),
            "operation": operation,
        }

    @contextmanager
    def lock(self, timeout: float = 300) -> Iterator[None]:
        """
        Let one run at a time into this schema; the lock dies with the connection that holds it.
        """
        if self._is_locked:
            yield
            return
        key = int.from_bytes(hashlib.sha256(self._home.encode()).digest()[:8], "big", signed=True)
        deadline = time.monotonic() + timeout
        # Polled: a session that waits inside pg_advisory_lock() holds a snapshot, for which CREATE INDEX CONCURRENTLY
        # in the session that has the lock would wait, for ever.
        while not one_value(self._connection, "select pg_try_advisory_lock(%s)", key):
            if time.monotonic() > deadline:
                message = f"another migration runs since {timeout:g} s, in server process {self._holder(key)}"
                raise BusyError(message)
            time.sleep(_POLL_SECONDS)
        self._is_locked = True
        try:
            yield
        finally:
            self._is_locked = False
            if not self._connection.closed:
                one_value(self._connection, "select pg_advisory_unlock(%s)", key)

    def _holder(self, key: int) -> int | None:
        query = """
            select pid from pg_locks
            where locktype = 'advisory' and granted and objsubid = 1
              and database = (select oid from pg_database where datname = current_database())
              and (classid::bigint << 32) | objid::bigint = %s
        """
        pid: int | None = one_value(self._connection, query, key)
        return pid

    def prepare(self) -> None:
        """
        Make the schema and the tables of the history if they are missing; call it under the lock.
        """
        self._refuse_planted_home()
        home = super().quote_identifier(self._home)
        try:
            with self.transaction():
                # IF NOT EXISTS asks for the right to create before it looks
                if not one_value(self._connection, "select to_regnamespace(%s)", home):
                    self.execute(f"create schema {home}")
                    self.execute(f"comment on schema {home} is 'What migrations of fairq did here, kept by yoyo.'")
                if internalmigrations.needs_upgrading(self):
                    internalmigrations.upgrade(self)
                files = self.quote_identifier("migration_files")
                if "migration_files" not in self.list_tables():
                    self.execute(f"create table {files} (migration_id text primary key, sha256 text not null)")
                self._internal_schema_updated = True
        except psycopg.errors.InsufficientPrivilege as error:
            user = one_value(self._connection, "select current_user")
            message = (
                f"role {user} may not keep the history of fairq in schema {home}: {error.diag.message_primary}; "
                f"run as the role that owns it, or ask for: create schema {home} authorization {user}"
            )
            raise NotPermittedError(message) from error

    def _refuse_planted_home(self) -> None:
        # Whoever owns the history can put triggers on it, which would then run as us.
        query = """
            select r.rolname
            from pg_namespace as n join pg_roles as r on r.oid = n.nspowner cross join pg_roles as me
            where n.nspname = %s and me.rolname = current_user
              and r.rolname <> current_user and not r.rolsuper
              and (me.rolsuper or not pg_has_role(r.oid, 'USAGE'))
              and r.oid <> (select datdba from pg_database where datname = current_database())
        """
        owner = one_value(self._connection, query, self._home)
        if owner:
            message = f"schema {self._home} belongs to role {owner}: run as {owner}, or drop it if you do not know it"
            raise NotPermittedError(message)

    def history(self) -> dict[str, tuple[datetime, str | None]]:
        """
        Return id -> (time, sha256 if it was fairq that applied it), oldest first; writes nothing.
        """
        tables = self.list_tables()
        if self.migration_table not in tables:
            return {}
        files = self.quote_identifier("migration_files") if "migration_files" in tables else "(select '', '')"
        query = f"""
            select m.migration_id, m.applied_at_utc, f.sha256
            from {self.migration_table_quoted} as m
            left join {files} as f (migration_id, sha256) using (migration_id)
            order by m.migration_id
        """  # noqa: S608  names only, quoted above
        return {name: (at.replace(tzinfo=timezone.utc), sha256) for name, at, sha256 in self.execute(query)}

    def apply(self, migration: Migration, step: yoyo.migrations.Migration) -> None:
        """
        Run the forward file and remember it.
        """
        with self._whole(step):
            step.process_steps(self, "apply")
            self._return_role()
            with self.transaction():
                self.log_migration(step, "apply")
                self.mark_one(step, log=False)
                files = self.quote_identifier("migration_files")
                statement = f"""
                    insert into {files} values (:id, :sha256)
                    on conflict (migration_id) do update set sha256 = excluded.sha256
                """  # noqa: S608  names only, quoted above
                self.execute(statement, {"id": migration.id, "sha256": migration.sha256})

    def undo(self, step: yoyo.migrations.Migration, *, lose_jobs: bool) -> None:
        """
        Run the rollback file and forget the migration.
        """
        with self._whole(step):
            said = "yes" if lose_jobs else "no"
            one_value(self._connection, "select pg_catalog.set_config('fairq_rollback.lose_jobs', %s, true)", said)
            step.process_steps(self, "rollback")
            self._return_role()
            with self.transaction():
                self.log_migration(step, "rollback")
                self.unmark_one(step, log=False)

    @contextmanager
    def _whole(self, step: yoyo.migrations.Migration) -> Iterator[None]:
        # A file that says `transactional: false` (CREATE INDEX CONCURRENTLY) cannot be one transaction with its record.
        if step.use_transactions:
            with self.transaction():
                yield
        else:
            yield

    def _return_role(self) -> None:
        # a file ends with RESET ROLE, which means the login, and the history may belong to a role set by the caller
        one_value(self._connection, "select pg_catalog.set_config('role', %s, false)", self._role)


def read_steps(migrations: Sequence[Migration], schema: str) -> dict[str, yoyo.migrations.Migration]:
    """
    Let yoyo split the files into statements, under the schema's name; return them by id.

    By way of a folder with the real names: the ids come from them, also where the package itself is inside a zip.
    """
    with tempfile.TemporaryDirectory(prefix="fairq_") as name:
        folder = Path(name)
        for migration in migrations:
            (folder / f"{migration.id}.sql").write_text(rename(migration.forward, schema), "ascii")
            (folder / f"{migration.id}.rollback.sql").write_text(rename(migration.backward, schema), "ascii")
        loaded = {each.id: each for each in yoyo.read_migrations(str(folder))}
        for each in loaded.values():
            each.load()
    return loaded


def _user_name() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name; KeyError before Python 3.13
        return None


def _utc_now() -> datetime:
    return datetime.now(timezone.utc).replace(tzinfo=None)
