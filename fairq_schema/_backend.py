"""
yoyo on one connection, with history and lock where a crash cannot hurt them; the only user of yoyo.

yoyo itself runs a migration on a second connection and records it on the first, keeps its lock as a row that outlives
its owner, and puts its tables wherever search_path happens to point. Its files and its tables stay as they are, so
`yoyo apply` with `schema=fairq_migrate` sees the same history.

Lock, statements and record are one transaction: whatever dies, there is nothing to clean up, and a pooler that hands
transactions around does no harm.
"""

from __future__ import annotations

import getpass
import hashlib
import re
import socket
import tempfile
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import yoyo
from psycopg.rows import tuple_row
from yoyo import internalmigrations
from yoyo.backends.base import SavepointTransactionManager
from yoyo.backends.core.postgresql import PostgresqlPsycopgBackend

from fairq_schema._rename import bookkeeping_schema, quoted, rename
from fairq_schema._session import Connection, change_settings, one_value, session_settings, settings_of
from fairq_schema.errors import NotPermittedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairq_schema._files import Migration
    from fairq_schema._roles import Roles

_HOME_COMMENT = "What migrations of fairq did here, kept by yoyo."


# The tables that are ours beside yoyo's.
_OURS = {
    "migration_files": "migration_id text primary key, sha256 text not null, breaking boolean not null",
    "installation_roles": "part text primary key, role_name text",
}
_DEPENDS = re.compile(r"^-- depends:.*$", re.MULTILINE)
_CONCURRENTLY = re.compile(r"create\s+(?:unique\s+)?index\s+concurrently\s+(?P<name>\w+)\s+on\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Entry:
    """
    One line of the history; sha256 and breaking are known where it was fairq that applied the file.
    """

    id: str
    applied_at: datetime
    sha256: str | None
    breaking: bool | None


class _Savepoint(SavepointTransactionManager):
    def _do_commit(self) -> None:
        # yoyo keeps them all open, because of databases other than PostgreSQL: 64 of them overflow a session's cache
        self.backend.savepoint_release(self.id)


class Backend(PostgresqlPsycopgBackend):
    """
    The history of one schema, and the running of migrations that it records.
    """

    def __init__(self, connection: Connection, schema: str) -> None:
        self.schema = None  # yoyo would put it into search_path, unquoted
        self._connection = connection
        self._home = bookkeeping_schema(schema)
        self._key = int.from_bytes(hashlib.sha256(self._home.encode()).digest()[:8], "big", signed=True)
        self._settings = settings_of(connection)
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
        if name in self._tables:
            return f"{super().quote_identifier(self._home)}.{quoted}"
        return quoted

    @property
    def _tables(self) -> tuple[str, ...]:
        return (*_OURS, self.migration_table, self.log_table, self.version_table, self.lock_table)

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
    def turn(self, *, read_only: bool = False, rehearsal: bool = False) -> Iterator[None]:
        """
        Make one transaction with the settings that migrations need; it leaves the session as it was.
        """
        level = "repeatable read, read only" if read_only else "read committed"
        with self.transaction(rollback_on_exit=rehearsal):
            # whatever the role's default: what is read under the lock must be what is there now
            self.execute(f"set transaction isolation level {level}")
            path = one_value(self._connection, "select current_setting('search_path')")
            change_settings(self._connection, self._settings, local=True)
            yield
            self._put_back("search_path", self._settings["search_path"], path)

    def try_lock(self) -> bool:
        """
        Be the only run in this schema until the transaction ends, unless there is one already.

        It is tried, not waited for: a session that waits inside pg_advisory_lock() holds a snapshot, for which
        CREATE INDEX CONCURRENTLY in the session that has the lock would wait, for ever.
        """
        return bool(one_value(self._connection, "select pg_try_advisory_xact_lock(%s)", self._key))

    @contextmanager
    def outside_transactions(self) -> Iterator[bool]:
        """
        Be the same for statements that no transaction may hold: yields whether the lock was got.

        It dies with the connection; whoever comes through a pooler has none of its own.
        """
        with session_settings(self._connection, self._settings | {"lock_timeout": "0"}):
            if not one_value(self._connection, "select pg_try_advisory_lock(%s)", self._key):
                yield False
                return
            try:
                yield True
            finally:
                if not self._connection.closed:
                    one_value(self._connection, "select pg_advisory_unlock(%s)", self._key)

    def holder(self) -> int | None:
        """
        Return the server process that has the lock.
        """
        query = """
            select pid from pg_locks
            where locktype = 'advisory' and granted and objsubid = 1
              and database = (select oid from pg_database where datname = current_database())
              and (classid::bigint << 32) | objid::bigint = %s
        """
        pid: int | None = one_value(self._connection, query, self._key)
        return pid

    def may_write(self) -> bool:
        """
        Tell whether this session can change anything: not on a standby, and not where it is read-only by default.
        """
        query = "select not pg_is_in_recovery() and current_setting('default_transaction_read_only') = 'off'"
        return bool(one_value(self._connection, query))

    def may_read(self) -> bool:
        """
        Tell whether this role may look into the history, if there is one; fairq's users need not.
        """
        query = """
            select coalesce(
                has_schema_privilege(to_regnamespace(%s)::oid, 'usage') and (
                    select bool_and(has_table_privilege(c.oid, 'select'))
                    from pg_class as c where c.relnamespace = to_regnamespace(%s) and c.relkind = 'r'
                ),
                true
            )
        """
        allowed = one_value(self._connection, query, quoted(self._home), quoted(self._home))
        return bool(allowed) and self._stranger() is None

    def prepare(self) -> None:
        """
        Make the schema and the tables of the history if they are missing; call it under the lock.
        """
        self._refuse_planted_home()
        home = quoted(self._home)
        try:
            with self.transaction():
                # IF NOT EXISTS asks for the right to create before it looks
                if not one_value(self._connection, "select to_regnamespace(%s)", home):
                    self.execute(f"create schema {home}")
                    self.execute(f"comment on schema {home} is '{_HOME_COMMENT}'")
                if internalmigrations.needs_upgrading(self):
                    internalmigrations.upgrade(self)
                for name in sorted(_OURS.keys() - self.list_tables()):
                    self.execute(f"create table {self.quote_identifier(name)} ({_OURS[name]})")
                self._internal_schema_updated = True
        except psycopg.errors.InsufficientPrivilege as error:
            user = one_value(self._connection, "select current_user")
            message = (
                f"role {user} may not keep the history of fairq in schema {home}: {error.diag.message_primary}; "
                f"run as the role that owns it, or ask for: create schema {home} authorization {user}"
            )
            raise NotPermittedError(message) from error

    def forget(self) -> None:
        """
        Leave nothing behind once nothing is applied; a schema that somebody else made for us stays, empty.
        """
        with self.transaction():
            for name in set(self.list_tables()) & set(self._tables):
                self.execute(f"drop table {self.quote_identifier(name)}")
            query = """
                select obj_description(n.oid, 'pg_namespace') = %s and n.nspowner = current_user::regrole
                    and not exists (select from pg_class as c where c.relnamespace = n.oid)
                from pg_namespace as n where n.nspname = %s
            """
            if one_value(self._connection, query, _HOME_COMMENT, self._home):
                self.execute(f"drop schema {quoted(self._home)}")
            self._internal_schema_updated = False

    def _refuse_planted_home(self) -> None:
        owner = self._stranger()
        if owner:
            message = f"schema {self._home} belongs to role {owner}: run as {owner}, or drop it if you do not know it"
            raise NotPermittedError(message)

    def _stranger(self) -> str | None:
        """
        Return who owns the history, if that is somebody whose triggers and policies must not run as us.
        """
        query = """
            select r.rolname
            from pg_namespace as n join pg_roles as r on r.oid = n.nspowner cross join pg_roles as me
            where n.nspname = %s and me.rolname = current_user
              and r.rolname <> current_user and not r.rolsuper
              and (me.rolsuper or not pg_has_role(r.oid, 'USAGE'))
              and r.oid <> (select datdba from pg_database where datname = current_database())
        """
        owner: str | None = one_value(self._connection, query, self._home)
        return owner

    def history(self) -> list[Entry]:
        """
        Return what was applied, oldest first; writes nothing.
        """
        self._refuse_planted_home()
        tables = self.list_tables()
        if self.migration_table not in tables:
            return []
        files = self.quote_identifier("migration_files") if "migration_files" in tables else "(select '', '', false)"
        query = f"""
            select m.migration_id, m.applied_at_utc, f.sha256, f.breaking
            from {self.migration_table_quoted} as m
            left join {files} as f (migration_id, sha256, breaking) using (migration_id)
            order by m.migration_id
        """  # noqa: S608  names only, quoted above
        rows = self.execute(query).fetchall()
        return [Entry(name, at.replace(tzinfo=timezone.utc), sha256, breaking) for name, at, sha256, breaking in rows]

    def roles(self) -> Roles | None:
        """
        Return the roles that were chosen when the schema was made, if it was fairq that made it.
        """
        self._refuse_planted_home()
        if "installation_roles" not in self.list_tables():
            return None
        table = self.quote_identifier("installation_roles")
        rows = self.execute(f"select part, role_name from {table}").fetchall()  # noqa: S608
        return dict(rows) or None

    def keep_roles(self, roles: Roles) -> None:
        """
        Remember the roles of this installation.
        """
        table = self.quote_identifier("installation_roles")
        for part, role in roles.items():
            statement = f"insert into {table} values (:part, :role) on conflict (part) do nothing"  # noqa: S608
            self.execute(statement, {"part": part, "role": role})

    def apply(self, migration: Migration, step: yoyo.migrations.Migration, *, make_roles: bool = True) -> None:
        """
        Run the forward file and remember it.
        """
        if not make_roles:
            change_settings(self._connection, {"fairq_install.make_roles": "no"}, local=True)
        step.process_steps(self, "apply")
        self.record(migration, step, "apply")

    def record(self, migration: Migration, step: yoyo.migrations.Migration, operation: str) -> None:
        """
        Remember a file, which is in the database already.
        """
        with self.transaction():
            self._return_role()
            self.log_migration(step, operation)
            self.mark_one(step, log=False)
            files = self.quote_identifier("migration_files")
            statement = f"""
                insert into {files} values (:id, :sha256, :breaking)
                on conflict (migration_id) do update set sha256 = excluded.sha256, breaking = excluded.breaking
            """  # noqa: S608  names only, quoted above
            self.execute(statement, {"id": migration.id, "sha256": migration.sha256, "breaking": migration.is_breaking})

    def run(self, text: str) -> None:
        """
        Run a file that is no version: nothing is remembered of it.
        """
        self.cursor().execute(text.encode())
        self._return_role()

    def undo(self, step: yoyo.migrations.Migration, *, lose_jobs: bool) -> None:
        """
        Run the rollback file and forget the migration.
        """
        said = "yes" if lose_jobs else "no"
        one_value(self._connection, "select pg_catalog.set_config('fairq_rollback.lose_jobs', %s, true)", said)
        step.process_steps(self, "rollback")
        with self.transaction():
            self._return_role()
            self.log_migration(step, "rollback")
            self.unmark_one(step, log=False)

    def drop_invalid_index(self, migration: Migration, schema: str) -> None:
        """
        Drop what a CREATE INDEX CONCURRENTLY left that failed: it would be in the way of the next one.
        """
        made = _CONCURRENTLY.search(migration.forward)
        query = """
            select true from pg_index as i join pg_class as c on c.oid = i.indexrelid
            where c.relname = %s and c.relnamespace = to_regnamespace(%s) and not i.indisvalid
        """
        if made and one_value(self._connection, query, made["name"], quoted(schema)):
            self.execute(f"drop index concurrently {quoted(schema)}.{quoted(made['name'])}")

    def _return_role(self) -> None:
        # a file ends with RESET ROLE, which means the login, and the history may belong to a role set by the caller
        self._put_back("role", self._role, self._role)

    def _put_back(self, name: str, expected: str, before: str) -> None:
        # nothing is said where nothing changed: behind a pooler it would stay in a session that others use
        if one_value(self._connection, "select current_setting(%s)", name) != expected:
            change_settings(self._connection, {name: before}, local=False)


def read_step(migration: Migration, schema: str, roles: Roles) -> yoyo.migrations.Migration:
    """
    Let yoyo split a file into statements, under the names of this installation.

    By way of a folder with the real name: the id comes from it, also where the package itself is inside a zip.
    """
    with tempfile.TemporaryDirectory(prefix="fairq_") as name:
        folder = Path(name)
        forward = _DEPENDS.sub("-- depends:", rename(migration.forward, schema, roles))  # on a file that is not there
        (folder / f"{migration.id}.sql").write_text(forward, "ascii")
        (folder / f"{migration.id}.rollback.sql").write_text(rename(migration.backward, schema, roles), "ascii")
        (step,) = yoyo.read_migrations(str(folder))
        step.load()
    return step


def _user_name() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name; KeyError before Python 3.13
        return None


def _utc_now() -> datetime:
    return datetime.now(timezone.utc).replace(tzinfo=None)
