"""
Databases for a moment, for scripts that ask a real server.
"""

from __future__ import annotations

import sys
import uuid
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import make_conninfo

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fairq_schema
from fairq_schema.demo.server import temporary_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


def server(dsn: str | None) -> AbstractContextManager[str]:
    """
    Give the conninfo of the server that was named, or of one that is there for the moment.
    """
    return nullcontext(dsn) if dsn else temporary_server()


@contextmanager
def database(dsn: str) -> Iterator[str]:
    """
    Make a database for a moment.
    """
    name = f"fairq_ci_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create database {name} template template0".encode())
        try:
            yield make_conninfo(dsn, dbname=name)
        finally:
            connection.execute(f"drop database {name} with (force)".encode())


def fingerprint(conninfo: str) -> fairq_schema.Fingerprint:
    """
    Read the schema of one database.
    """
    with psycopg.connect(conninfo) as connection:
        return fairq_schema.fingerprint(connection)
