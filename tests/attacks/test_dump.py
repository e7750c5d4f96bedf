"""A dump by whoever may not see all fails, or has everything: it is never quietly short of rows."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import make_conninfo

from tests.support.binaries import binaries

from .cast import world

if TYPE_CHECKING:
    from tests.support.database import Database

pytestmark = pytest.mark.short


def dump(pg: str, db: Database, user: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Dump the jobs, as this login."""
    dsn = make_conninfo(db.dsn, user=user)
    command = [str(binaries(pg) / "pg_dump"), "--data-only", "--table=fairq.jobs", *options, dsn]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_dump_fails_or_is_complete(pg: str, db: Database) -> None:
    """O01: a tenant's dump fails, or has its own jobs alone when it asks for that; the owner's has all."""
    world(db)
    jobs = db.value("select count(*) from fairq.jobs")
    assert jobs > 1
    dumper = db.login("fairq_tenant")
    assert dump(pg, db, dumper).returncode != 0
    db.execute(f"grant fairq_owner to {dumper}")
    whole = dump(pg, db, dumper, "--role=fairq_owner", "--enable-row-security")
    assert whole.returncode == 0, whole.stderr
    rows = whole.stdout.split("FROM stdin;\n", 1)[1].split("\n\\.", 1)[0].splitlines()
    assert len(rows) == jobs
