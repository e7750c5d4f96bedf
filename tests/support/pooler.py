"""
pgbouncer in transaction mode, in front of one server: `with pooled(dsn) as dsn_through_it`.

With `user=login` everybody is that login to the server; with `one_session=login` there is one session of that login,
which goes from client to client.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.binaries import CACHE, MissingServer, readable, run_as
from tests.support.servers import temporary_folder
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETTINGS = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = {folder}
logfile = {folder}/log
auth_type = any
pool_mode = transaction
server_lifetime = 86400
"""
# Each transaction goes to the server connection that has waited longest: whatever a session keeps is found missing.
ROUND_ROBIN = """
server_round_robin = 1
min_pool_size = 3
default_pool_size = 10
"""
# Each goes to the only one: whatever a session keeps is found by the next client.
ONE_SESSION = """
default_pool_size = 1
"""


@contextmanager
def pooled(dsn: str, *, user: str | None = None, one_session: str | None = None) -> Iterator[str]:
    """The same database by way of a pooler."""
    program = _program()
    parts = conninfo_to_dict(dsn)
    folder = temporary_folder()
    try:
        # the pooler cannot ask who it is: everybody comes as the superuser, or as the one login
        login = one_session or user or parts["user"]
        names = {"host": parts["host"], "port": parts.get("port", 5432), "user": login}
        settings = SETTINGS.format(folder=folder, **names) + (ONE_SESSION if one_session else ROUND_ROBIN)
        (folder / "pgbouncer.ini").write_text(settings)
        libraries = next(program.parents[1].glob("lib/*-linux-gnu"))
        process = subprocess.Popen(
            [program, "-q", folder / "pgbouncer.ini"],
            env=os.environ | {"LD_LIBRARY_PATH": str(libraries)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **run_as(),
        )
        through = make_conninfo(dsn, host=str(folder), port=6432, user=names["user"])
        try:
            wait_until(lambda: _lets_in(process, through, folder), "the pooler to start")
            yield through
        finally:
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program() -> Path:
    found = CACHE / "pgbouncer/usr/sbin/pgbouncer"
    if not found.exists():
        msg = "no pgbouncer here: `ci/fetch pgbouncer` brings it"
        raise MissingServer(msg)
    return readable(found, CACHE / "pgbouncer")


def _lets_in(process: subprocess.Popen[bytes], dsn: str, folder: Path) -> bool:
    if process.poll() is not None:
        log = folder / "log"
        msg = f"the pooler did not start: {log.read_text() if log.exists() else process.returncode}"
        raise RuntimeError(msg)
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True
