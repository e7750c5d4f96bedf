"""The clock of the server steps: forward, and back, under libfaketime."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.races.helpers import check_books, drain, ids
from tests.support import Database
from tests.support.servers import temporary_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.servers import LocalServer

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


class Clock:
    """The clock of a server, which `step` moves against that of everybody else."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "time"
        self._offset = timedelta(0)
        self.step(timedelta(0))
        self.environment = {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DISABLE_SHM": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, by: timedelta) -> None:
        """Move the clock, at once."""
        self._offset += by
        # never half written: the server reads it all the time
        new = self._file.with_suffix(".new")
        new.write_text(f"{self._offset.total_seconds():+.0f}")
        new.chmod(0o644)
        new.replace(self._file)


@pytest.fixture
def clock() -> Iterator[Clock]:
    """A clock for one server."""
    if not LIBRARY.exists():
        pytest.fail("no libfaketime here: `ci/fetch faketime` brings it")
    folder = temporary_folder()
    yield Clock(folder)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


@pytest.fixture
def db(start_server: Callable[..., LocalServer], clock: Clock) -> Iterator[Database]:
    """A database on a server with that clock."""
    with start_server(environment=clock.environment).databases.keep() as fresh:
        yield fresh
