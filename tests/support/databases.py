"""Fresh databases: each test gets a clone of a template that is built once per session."""

from __future__ import annotations

import itertools
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from tests.support.binaries import CHECKOUT
from tests.support.database import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.servers import Server

VERBS = CHECKOUT / "sql_tests/support/verbs.sql"
_numbers = itertools.count(1)


def apply_migrations(dsn: str) -> None:
    """Bring an empty database to the newest schema, as a user would."""
    try:
        from fairq_schema import apply
    except ImportError:
        with psycopg.connect(dsn, autocommit=True) as conn:
            for file in forward_migrations():
                conn.execute(file.read_bytes())
        return
    apply(dsn)


def forward_migrations() -> list[Path]:
    """The migration files of the checkout, oldest first."""
    files = sorted((CHECKOUT / "migrations").glob("fairq_*.sql"))
    return [file for file in files if not file.name.endswith(".rollback.sql")]


def with_schema(dsn: str) -> None:
    """Template `schema`: all migrations and nothing else."""
    apply_migrations(dsn)


def with_test_verbs(dsn: str) -> None:
    """Template `sql_tests`: the schema, pgTAP in `tap`, and the verbs of `fairq_test`."""
    from tests.support.pgtap import load_pgtap

    apply_migrations(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        load_pgtap(conn)
        conn.execute(VERBS.read_bytes())


class Databases:
    """Makes databases on one server and drops them again."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._templates: dict[Callable[[str], None], str] = {}
        self._living: set[str] = set()

    @contextmanager
    def clone(self, template: Callable[[str], None] = with_schema) -> Iterator[Database]:
        """A database of its own for one test, made from the template that `template` builds."""
        name = self._create(from_template=self._template(template))
        try:
            with Database(self.server.dsn(name)) as db:
                yield db
        finally:
            self._drop(name)

    def keep(self, template: Callable[[str], None] = with_schema) -> Database:
        """A clone that goes when its server does, which may be dead by then."""
        name = self._create(from_template=self._template(template))
        self._living.discard(name)
        return Database(self.server.dsn(name))

    @contextmanager
    def empty(self, locale: str = "C") -> Iterator[str]:
        """The conninfo of a database without anything in it."""
        name = self._create(from_template="template0", locale=locale)
        try:
            yield self.server.dsn(name)
        finally:
            self._drop(name)

    def drop_all(self) -> None:
        """Drop every database made here, the templates too."""
        for name in sorted(self._living):
            self._drop(name)
        self._templates.clear()

    def _template(self, build: Callable[[str], None]) -> str:
        if build not in self._templates:
            name = self._create(from_template="template0")
            build(self.server.dsn(name))
            self._templates[build] = name
        return self._templates[build]

    def _create(self, from_template: str, locale: str = "C") -> str:
        name = f"fairq_t{os.getpid()}_{next(_numbers)}"
        command = sql.SQL("create database {} template {} strategy file_copy locale {}")
        self._admin(command.format(sql.Identifier(name), sql.Identifier(from_template), sql.Literal(locale)))
        self._living.add(name)
        return name

    def _drop(self, name: str) -> None:
        self._admin(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
        self._living.discard(name)

    def _admin(self, command: sql.Composed) -> None:
        with psycopg.connect(self.server.maintenance_dsn, autocommit=True) as conn:
            conn.execute(command)
