"""pgbouncer in transaction mode, in front of one server: `with pooled(dsn) as dsn_through_it`."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.binaries import MissingServer, run_as
from tests.support.servers import temporary_folder
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

# Each transaction goes to the server connection that has waited longest: whatever a session keeps is found missing.
SETTINGS = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = {folder}
logfile = {folder}/log
auth_type = any
pool_mode = transaction
server_round_robin = 1
min_pool_size = 3
default_pool_size = 10
server_lifetime = 86400
"""


@contextmanager
def pooled(dsn: str) -> Iterator[str]:
    """The same database by way of a pooler."""
    program = _program()
    parts = conninfo_to_dict(dsn)
    folder = temporary_folder()
    try:
        settings = SETTINGS.format(host=parts["host"], port=parts.get("port", 5432), folder=folder)
        # the pooler cannot ask who it is: everybody comes as the superuser
        settings = settings.replace("* = ", f"* = user={parts['user']} ")
        (folder / "pgbouncer.ini").write_text(settings)
        process = subprocess.Popen(
            [program, "-q", folder / "pgbouncer.ini"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **run_as(),
        )
        through = make_conninfo(dsn, host=str(folder), port=6432)
        try:
            wait_until(lambda: _lets_in(process, through, folder), "the pooler to start")
            yield through
        finally:
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program() -> Path:
    for folder in (*os.environ.get("PATH", "").split(":"), "/usr/sbin"):
        if (found := Path(folder) / "pgbouncer").exists():
            return found
    msg = "no pgbouncer here: `ci/fetch pgbouncer` brings it"
    raise MissingServer(msg)


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
