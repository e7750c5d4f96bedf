"""pgspot, which knows how scripts and functions are taken over, finds nothing in what we ship."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
PGSPOT = Path(sysconfig.get_path("scripts")) / "pgspot"
# It cannot follow an assignment to a field of a row variable, and leaves such a function out; the conventions and the
# attacks do not.
NOT_READ = {f'"{name}.queue" is not a known variable' for name in ("v_new", "v_flow")}


@pytest.mark.parametrize(
    "path", sorted(MIGRATIONS.glob("*.sql")) + sorted(MIGRATIONS.glob("tenant/*.sql")), ids=lambda p: p.stem
)
def test_pgspot_finds_nothing(path: Path) -> None:
    """No unqualified name under a path that somebody else can change, in no statement and no body."""
    said = subprocess.run([PGSPOT, path], capture_output=True, text=True, check=False).stdout
    findings = {line.strip() for line in said.splitlines() if line.strip()}
    assert findings - NOT_READ == {"Errors: 0 Warnings: 0 Unknown: 0"}


def test_pgspot_finds_something_where_something_is(tmp_path: Path) -> None:
    """The same files without their search path, and a definer without one."""
    text = (MIGRATIONS / "tenant/setting.sql").read_text("ascii")
    for name, broken in {
        "script": text.replace("set local search_path = pg_catalog, pg_temp;\n", ""),
        "function": text.replace(
            "    parallel safe\n    set search_path = pg_catalog, pg_temp\n", "    security definer\n"
        ),
    }.items():
        path = tmp_path / f"{name}.sql"
        path.write_text(broken)
        said = subprocess.run([PGSPOT, path], capture_output=True, text=True, check=False).stdout
        assert "Errors: 0 Warnings: 0" not in said, name
