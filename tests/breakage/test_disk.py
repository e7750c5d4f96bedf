"""The disk of the write-ahead log is full, in the middle of a storm."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support import Database, wait_until
from tests.support.binaries import give_away
from tests.support.servers import temporary_folder

from .crew import Crew, account, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.servers import LocalServer

pytestmark = pytest.mark.once

SMALL_LOG = {"min_wal_size": "2MB", "max_wal_size": "4MB", "wal_recycle": "off"}


@contextmanager
def small_disk() -> Iterator[Path]:
    """A disk of 32 MB, which takes the right to mount one."""
    folder = temporary_folder()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "fairq-test", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"a disk to fill cannot be mounted here, which takes root: {done.stderr}")
    try:
        give_away(folder)
        yield folder
    finally:
        # lazily: a server that was killed may be on its way out
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


def fill(disk: Path) -> Path:
    """A file that leaves no room."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        while True:
            try:
                os.write(file.fileno(), bytes(64 * 1024))
            except OSError:
                return ballast


def test_a_full_disk_stops_the_server_and_loses_nothing(start_server: Callable[..., LocalServer]) -> None:
    """
    No room for the log: the server goes down, and stays so. With room again it starts, and the storm goes on.
    """
    with small_disk() as disk:
        log = disk / "wal"
        server = start_server(durable=True, initdb=["--waldir", str(log), "--wal-segsize=1"], **SMALL_LOG)
        with server.databases.keep() as db:
            dsn = db.dsn
            prepare(db)
            with Crew(dsn) as crew:
                crew.complete_more()
                ballast = fill(disk)
                wait_until(lambda: server.process and server.process.poll() is not None, "the server to give up", 120)
                assert "No space left on device" in server.log()
                ballast.unlink()
                server.restart()
                crew.complete_more()
                crew.all_turn()
        with Database(dsn) as after:
            account(after, crew)
        server.stop()
