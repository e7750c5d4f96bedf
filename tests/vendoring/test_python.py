"""
Alembic and Django share their session with what fairq does in it: which drivers, which history, and what is left.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest

from fairq_schema.export import export
from tests.vendoring.conftest import made
from tests.vendoring.projects import alembic, alembic_async, django
from tests.vendoring.versions import ORIGINALS, migrations

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fairq_schema import Fingerprint
    from tests.vendoring.projects import Project

HEAD = "$(alembic heads | cut -d' ' -f1)"


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["psycopg2", "asyncpg", "psycopg_async"])
def test_alembic_with_other_drivers(
    driver: str,
    start: Callable[..., Project],
    release: Callable[..., Path],
    applied: Callable[..., Fingerprint],
) -> None:
    """
    psycopg2 and the drivers without blocking run the same files, up and down, alone and in a transaction.
    """
    set_up = alembic if driver == "psycopg2" else alembic_async
    project = start("Alembic", release("torture", "alone"), partial(set_up, driver=driver))
    project.run(f'fairq export --target alembic --after "{HEAD}"; alembic upgrade head')
    assert made(project.dsn).differences(applied("torture", "alone")) == []
    project.run("alembic downgrade -1")
    assert made(project.dsn).differences(applied("torture")) == []
    project.run("alembic downgrade base")
    assert made(project.dsn).objects == {}


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_alembic_half_way(driver: str, start: Callable[..., Project], release: Callable[..., Path]) -> None:
    """
    What fails later in the same transaction takes fairq back with it, also where each revision has a transaction.
    """
    set_up = alembic_async if driver == "asyncpg" else alembic
    project = start("Alembic", release(), partial(set_up, driver=driver))
    connection = "connection=connection, target_metadata=target_metadata"
    project.edit("alembic/env.py", connection, f"{connection}, transaction_per_migration=True")
    project.run(f'fairq export --target alembic --to 1 --after "{HEAD}"')
    revision = project.folder / "alembic/versions/fairq_0001_initial.py"
    revision.write_text(
        f"{revision.read_text()}\n\nwhole = upgrade\ndef upgrade():\n    whole(); op.execute('select 1/0')\n"
    )
    assert "division by zero" in project.try_to("alembic upgrade head").stdout
    assert made(project.dsn).objects == {}


@pytest.mark.slow
def test_alembic_on_paper(
    start: Callable[..., Project], release: Callable[..., Path], applied: Callable[..., Fingerprint]
) -> None:
    """
    `alembic upgrade --sql` prints what psql can run.
    """
    project = start("Alembic", release("torture", "alone"))
    project.run(f'fairq export --target alembic --after "{HEAD}"')
    project.run("alembic upgrade head --sql 2>/dev/null >all.sql; psql -X -q -v ON_ERROR_STOP=1 -f all.sql")
    assert made(project.dsn).differences(applied("torture", "alone")) == []


@pytest.mark.slow
def test_alembic_branch(
    start: Callable[..., Project], release: Callable[..., Path], applied: Callable[..., Fingerprint]
) -> None:
    """
    Without --after fairq is a branch beside the project's own, which later versions prolong.
    """
    project = start("Alembic", release(shipped=1))
    project.run("fairq export --target alembic; alembic upgrade heads")
    project.fairq = release("torture", shipped=1)
    project.run("fairq export --target alembic --from 1; alembic upgrade heads")
    assert made(project.dsn).differences(applied("torture", shipped=1)) == []
    project.run("alembic downgrade fairq@-1")
    assert made(project.dsn).differences(applied(shipped=1)) == []
    project.run("alembic downgrade fairq@base")
    assert made(project.dsn).objects == {}
    assert "first" in project.run("alembic current --verbose 2>/dev/null")


@pytest.mark.slow
def test_django_on_paper_and_unchanged(start: Callable[..., Project], release: Callable[..., Path]) -> None:
    """
    `sqlmigrate` prints the SQL, `check` has nothing to say, and `makemigrations` sees no model to make a change for.
    """
    project = start("Django", release("torture", "alone"), django)
    project.run("fairq export --target django")
    assert "create table fairq.notes (" in project.run(f"python manage.py sqlmigrate fairq {len(ORIGINALS) + 1:04}")
    assert "no issues" in project.run("python manage.py check")
    project.run("python manage.py makemigrations --check")


@pytest.mark.parametrize("target", ["alembic", "django"])
def test_a_guest_leaves_no_trace(empty_db: str, tmp_path: Path, target: str) -> None:
    """
    The role that the project has set, and its settings, are as they were: in the transaction, and after it.
    """
    folder = migrations(tmp_path / "migrations", "torture", shipped=1)
    out = tmp_path / "fairq"
    export(target, out=out, migrations=folder)
    files = sorted(out.rglob("*.sql"), key=lambda path: path.name.replace(".rollback", "~"))
    names = [path.name for path in files]
    assert [name.endswith(".rollback.sql") for name in names] == [False, True] * 2
    with psycopg.connect(empty_db, autocommit=True) as connection:
        connection.execute("create role fairq_test_guest superuser")
        try:
            connection.execute("set role fairq_test_guest; set lock_timeout = '1234ms'")
            for path in (files[0], files[2], files[3], files[1]):
                with connection.transaction():
                    connection.execute("set local client_min_messages = 'log'")
                    connection.execute(path.read_bytes())
                    assert settings(connection) == ("fairq_test_guest", "1234ms", "log"), path.name
                assert settings(connection) == ("fairq_test_guest", "1234ms", "notice"), path.name
        finally:
            connection.execute("reset role")
            connection.execute("drop owned by fairq_test_guest; drop role fairq_test_guest")


def settings(connection: psycopg.Connection[tuple[str, ...]]) -> tuple[str, ...]:
    """
    What the SQL of fairq changes for itself.
    """
    query = "select current_user, current_setting('lock_timeout'), current_setting('client_min_messages')"
    row = connection.execute(query).fetchone()
    assert row
    return row
