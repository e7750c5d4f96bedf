"""The workers of examples/: how each is started, and as whom."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict

from tests.support.binaries import CACHE, MissingServer, psql

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@dataclass(frozen=True)
class Program:
    """One worker: its folder and file in examples/, and the command that runs a copy of the folder."""

    folder: str
    file: str
    command: tuple[str, ...]
    # what PostgreSQL is doing when the worker completes a job
    completes: str = "complete_job"
    # texts of it, each with what a test writes in its place
    forgets_to_undo: tuple[str, str] = ("", "")
    # none for who cannot listen
    hourly: tuple[str, str] | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """The id of a test."""
        return f"{self.folder}/{Path(self.file).name}"

    @property
    def source(self) -> Path:
        """The file in the repository."""
        return EXAMPLES / self.folder / self.file

    def copy(self, folder: Path, *edits: tuple[str, str]) -> Path:
        """The folder of the worker, with texts of it replaced, somewhere else."""
        copied = folder / f"copy-{len(list(folder.iterdir()))}"
        shutil.copytree(EXAMPLES / self.folder, copied, ignore=shutil.ignore_patterns("__pycache__"))
        for old, new in edits:
            text = (copied / self.file).read_text(encoding="utf-8")
            assert text.count(old) == 1, f"{self}: {old!r} is there {text.count(old)} times"
            (copied / self.file).write_text(text.replace(old, new), encoding="utf-8")
        if self.folder == "node":
            (copied / "node_modules").symlink_to(self.modules())
        return copied

    @staticmethod
    def modules() -> Path:
        """Where node-postgres is."""
        found = CACHE / "node-pg/node_modules"
        if not found.exists():
            msg = "no node-postgres here: `ci/fetch node-pg` brings it"
            raise MissingServer(msg)
        return found


PYTHON = sys.executable
PROGRAMS = [
    Program(
        "bash", "worker.sh", ("bash", "worker.sh"),
        forgets_to_undo=('    \\if :held\n        commit;\n    \\endif"', '    commit;"'),
    ),
    Program(
        "psycopg", "worker.py", (PYTHON, "worker.py"),
        forgets_to_undo=(", lease).fetchone()[0]:\n", ", lease).fetchone():\n"),
        hourly=("timeout=1,", "timeout=3600,"),
    ),
    Program(
        "psycopg", "worker_async.py", (PYTHON, "worker_async.py"),
        forgets_to_undo=("await done.fetchone())[0]", "await done.fetchone())"),
        hourly=("timeout=1,", "timeout=3600,"),
    ),
    Program(
        "asyncpg", "worker.py", (PYTHON, "worker.py"),
        forgets_to_undo=("if not await conn.fetchval(", "if not await conn.fetchrow("),
        hourly=("0 if jobs else 1,", "0 if jobs else 3600,"),
    ),
    Program(
        "sqlalchemy", "worker.py", (PYTHON, "worker.py"),
        forgets_to_undo=("if not session.scalar(", "if not session.execute("),
        hourly=("timeout=1,", "timeout=3600,"),
    ),
    Program(
        "django", "letters/management/commands/run_worker.py", (PYTHON, "-m", "django", "run_worker"),
        environment={"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": "."},
        forgets_to_undo=("set_rollback(complete == [(False,)])", "set_rollback(complete == [])"),
        hourly=("timeout=1,", "timeout=3600,"),
    ),
    Program(
        "node", "worker.mjs", ("node", "worker.mjs"),
        forgets_to_undo=("rows[0].held ? 'commit'", "rows.length ? 'commit'"),
        hourly=("sleep(1000)", "sleep(3600000)"),
    ),
    Program(
        "postgrest", "worker.py", (PYTHON, "worker.py"), completes="finish_letter|forgetful",
        forgets_to_undo=('rpc("finish_letter", schema="api"', 'rpc("forgetful", schema="api"'),
        environment={"LEASE": "2"},
    ),
]  # fmt: skip


def url(dsn: str, **changes: str) -> str:
    """A conninfo as the URI that every driver reads."""
    parts = conninfo_to_dict(dsn) | changes
    where = urlencode({"host": parts["host"], "port": str(parts.get("port", 5432))})
    return f"postgresql://{quote(str(parts['user']))}@/{quote(str(parts['dbname']))}?{where}"


class Running:
    """A worker in a process, and what it said."""

    def __init__(self, program: Program, copied: Path, owner: str, environment: dict[str, str]) -> None:
        self.owner = owner
        self._errors = copied / f"{owner}.err"
        paths = [str(psql().parent), str(Path(PYTHON).parent), os.environ["PATH"]]
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*program.command, "mail", owner],
                cwd=copied,
                env=os.environ | {"PATH": os.pathsep.join(paths)} | program.environment | environment,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )

    def said(self) -> str:
        """All that it wrote, which is nothing when all is well."""
        return self._errors.read_text(errors="replace")

    def lives(self) -> bool:
        """True, or the error that ended it."""
        assert self.process.poll() is None, f"{self.owner} ended with {self.process.returncode}: {self.said()}"
        return True

    def leave(self) -> None:
        """SIGTERM, and a good end."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=120)
        assert (code, self.said()) == (0, "")

    def kill(self) -> None:
        """SIGKILL to it and to what it has started, as when its machine goes."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def running(program: Program, copied: Path, environment: dict[str, str], *owners: str) -> Iterator[list[Running]]:
    """Some workers, which are gone afterwards whatever becomes of them."""
    workers: list[Running] = []
    try:
        workers.extend(Running(program, copied, owner, environment) for owner in owners)
        yield workers
    finally:
        for worker in workers:
            worker.kill()
