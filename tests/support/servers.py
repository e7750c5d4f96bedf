"""PostgreSQL servers for tests: our own ones in a temporary folder, a given one, or a container."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from tests.support.binaries import binaries, give_away, run_as
from tests.support.databases import Databases
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "deadlock_timeout": "100ms",
    "shared_buffers": "64MB",
    # A vacuum at a random moment changes plans; a test that wants one says so.
    "autovacuum": "off",
    "log_min_messages": "warning",
    "timezone": "UTC",
}
NO_DURABILITY = {"fsync": "off", "full_page_writes": "off"}


class Server:
    """A running server reached through `maintenance_dsn`, a superuser's way into it."""

    def __init__(self, maintenance_dsn: str) -> None:
        self.maintenance_dsn = maintenance_dsn

    def dsn(self, dbname: str, **options: Any) -> str:
        """The conninfo of one database; options as libpq knows them (`user=`, `application_name=`)."""
        return make_conninfo(self.maintenance_dsn, dbname=dbname, **options)

    @cached_property
    def databases(self) -> Databases:
        """Fresh databases on this server."""
        return Databases(self)

    @cached_property
    def major(self) -> int:
        """The major version that answers."""
        with psycopg.connect(self.maintenance_dsn) as conn:
            return conn.info.server_version // 10000

    def stop(self) -> None:
        """Leave nothing behind."""
        self.databases.drop_all()


class LocalServer(Server):
    """
    A server of our own: its data folder and its socket live in one temporary folder.

    `copy_of` makes it a standby of another one, which streams from it; `initdb` are further arguments of initdb.
    """

    def __init__(
        self,
        major: str,
        *,
        durable: bool = False,
        copy_of: LocalServer | None = None,
        initdb: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        **settings: str,
    ) -> None:
        self.bin = binaries(major)
        self.environment = environment
        self.settings = SETTINGS | ({} if durable else NO_DURABILITY) | settings
        self.folder = temporary_folder()
        self.data = self.folder / "data"
        self.port = settings.get("port", "5432")
        super().__init__(make_conninfo(host=str(self.folder), port=self.port, user="postgres", dbname="postgres"))
        if copy_of is None:
            self._initdb(initdb)
        else:
            self._copy(copy_of)
        self.process: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)
        self.start()

    def start(self) -> None:
        """Start, and come back when it lets somebody in."""
        command = [str(self.bin / "postgres"), "-D", str(self.data), "-k", str(self.folder), "-p", self.port]
        for name, value in self.settings.items():
            command += ["-c", f"{name}={value}"]
        # Should this process be killed, the kernel tells the server to go too.
        if guard := shutil.which("setpriv"):
            command = [guard, "--pdeathsig", "INT", "--", *command]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=os.environ | self.environment if self.environment else None,
                **run_as(),
            )
        wait_until(self._lets_in, "the server to start", timeout=120)

    def kill9(self) -> None:
        """Crash: the postmaster and all its backends go without a word. `restart` recovers."""
        assert self.process is not None
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        for child in family:
            if child.is_running():
                child.kill()
        psutil.wait_procs(family, timeout=60)

    def restart(self) -> None:
        """Start again, after a crash or in peace."""
        self._stop_process()
        self.start()

    def stand_by(self) -> None:
        """Start again as a standby, which reads and never gets anything new."""
        self._stop_process()
        (self.data / "standby.signal").touch()
        self.start()

    def halt(self) -> None:
        """Stop in peace and keep the data; `start` goes on."""
        self._stop_process()

    def run(self, program: str, *args: str, text: bytes = b"") -> bytes:
        """What one of the server's programs says (psql, pg_dump), called as its superuser; `text` is its input."""
        command = [str(self.bin / program), "-h", str(self.folder), "-p", self.port, "-U", "postgres", *args]
        return subprocess.run(command, input=text, capture_output=True, check=True).stdout

    def stop(self) -> None:
        """Stop and remove every trace; a second time is no error."""
        self._stop_process()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.stop)

    def log(self) -> str:
        """What the server wrote so far."""
        return (self.folder / "log").read_text(errors="replace")

    def _stop_process(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.kill9()

    def _initdb(self, further: Sequence[str]) -> None:
        command = [str(self.bin / "initdb"), "-D", str(self.data), "-U", "postgres", "--auth=trust", "--encoding=UTF8"]
        # The flag --no-instructions only keeps the output short; --no-sync saves a second.
        self._make([*command, "--locale=C", "--no-sync", "--no-instructions", *further])

    def _copy(self, other: LocalServer) -> None:
        command = [str(self.bin / "pg_basebackup"), "-h", str(other.folder), "-p", other.port, "-U", "postgres"]
        self._make([*command, "-D", str(self.data), "--write-recovery-conf", "--checkpoint=fast", "--no-sync"])

    def _make(self, command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False, **run_as())
        if done.returncode != 0:
            msg = f"{command[0]} failed:\n{done.stdout}{done.stderr}"
            raise RuntimeError(msg)

    def _lets_in(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            msg = f"the server did not start:\n{self.log()[-3000:]}"
            raise RuntimeError(msg)
        try:
            psycopg.connect(self.maintenance_dsn).close()
        except psycopg.OperationalError:
            return False
        return True


class ContainerServer(Server):
    """A server in a container of the image that FAIRQ_TEST_CONTAINER names; needs `testcontainers`."""

    def __init__(self, image: str) -> None:
        try:
            from testcontainers.community.postgres import PostgresContainer
        except ImportError:
            from testcontainers.postgres import PostgresContainer
        self._container = PostgresContainer(image, username="postgres", driver=None)
        self._container.start()
        super().__init__(make_conninfo(self._container.get_connection_url()))

    def stop(self) -> None:
        """Remove the container."""
        self._container.stop()


def server_named(name: str) -> Server:
    """The server behind one word of `--pg`: a major version, `dsn` or `container`."""
    if name == "dsn":
        return Server(make_conninfo(os.environ["FAIRQ_TEST_DSN"]))
    if name == "container":
        return ContainerServer(os.environ["FAIRQ_TEST_CONTAINER"])
    return LocalServer(name)


def temporary_folder() -> Path:
    """A new folder for an unprivileged program, with a path short enough for a socket."""
    # A socket's path has room for 107 letters only.
    parent = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="fairq-pg-", dir=parent if len(parent) < 60 else "/tmp"))  # noqa: S108
    folder.chmod(0o755)
    give_away(folder)
    return folder
