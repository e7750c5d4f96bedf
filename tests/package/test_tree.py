"""
ci/new_migration and ci/check_schema, on a small tree of their own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fairq_schema
from fairq_schema import _files
from tests.package.portable import breaches

if TYPE_CHECKING:
    from collections.abc import Callable

    New = Callable[..., None]

CI = Path(__file__).resolve().parents[2] / "ci"

TREE = {
    "install.sql": """\
-- The map.
-- Its heading does not travel.

\\ir roles.sql

-- owned by the owner
set local role none;
\\ir tables.sql
\\ir functions/version.sql
\\ir functions/claim.sql
\\ir finish.sql
""",
    "roles.sql": "do $fn$ begin if to_regnamespace('fairq') is null then create schema fairq; end if; end $fn$;\n",
    "tables.sql": "create table fairq.jobs (job_id bigint);\n",
    "functions/version.sql": """\
create or replace function fairq.schema_version() returns integer language sql as $fn$
    select 1
$fn$;
""",
    "functions/claim.sql": """\
create or replace function fairq.claim() returns text language sql as $fn$
    values ('a')
$fn$;
""",
    "finish.sql": "reset role;\n",
    "rollback_initial.sql": "drop schema fairq cascade;\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """
    A folder of migrations with a schema tree in it and nothing compiled.
    """
    migrations = tmp_path / "migrations"
    for name, text in TREE.items():
        path = migrations / "schema" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "ascii")
    return migrations


def run(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """
    Run a script of ci/ as a developer does.
    """
    return subprocess.run([sys.executable, CI / script, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def new_migration(tree: Path, empty_db: str) -> Callable[..., None]:
    """
    `new_migration("in_words")`: runs ci/new_migration, which must succeed.
    """

    def write(*slug: str) -> None:
        done = run("new_migration", *slug, "--migrations", tree, "--dsn", empty_db)
        assert done.returncode == 0, done.stderr

    return write


@pytest.fixture
def release(tree: Path, empty_db: str) -> Callable[[], None]:
    """
    `release()`: runs ci/freeze, which must succeed.
    """

    def freeze() -> None:
        done = run("freeze", "--migrations", tree, "--dsn", empty_db)
        assert done.returncode == 0, done.stdout + done.stderr

    return freeze


def edit(path: Path, before: str, after: str) -> None:
    """
    Replace a text that must be there.
    """
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_the_first_version_is_the_tree_in_order(tree: Path, new_migration: New) -> None:
    """
    0001 is the map with every file in its place, its own statements too, and passes all rules for migrations.
    """
    new_migration()
    (migration,) = _files.load(tree)
    sections = re.findall(r"^-- schema/(\S+)$", migration.forward, re.MULTILINE)
    assert sections == [
        "roles.sql",
        "install.sql",
        "tables.sql",
        "functions/version.sql",
        "functions/claim.sql",
        "finish.sql",
    ]
    assert migration.forward.index("set local role none") < migration.forward.index("create table")
    assert "The map" not in migration.forward
    assert breaches(migration.forward) == breaches(migration.backward) == []


def test_until_the_release_0001_is_written_anew(tree: Path, new_migration: New) -> None:
    """
    Before the first release there is one migration, which follows the tree; a name makes no second one.
    """
    new_migration()
    edit(tree / "schema/functions/claim.sql", "'a'", "'b'")
    new_migration()
    assert "values ('b')" in (tree / "fairq_0001_initial.sql").read_text()
    edit(tree / "schema/functions/claim.sql", "'b'", "'c'")
    new_migration("claim_c")
    assert "values ('c')" in (tree / "fairq_0001_initial.sql").read_text()
    assert len(_files.load(tree)) == 1


def test_a_missing_file_is_an_error(tree: Path) -> None:
    """
    A map that names a file which is not there compiles to nothing.
    """
    (tree / "schema/tables.sql").unlink()
    assert run("new_migration", "--migrations", tree).returncode == 1
    assert not (tree / "fairq_0001_initial.sql").exists()


def test_after_the_release_changes_make_the_next_version(
    tree: Path, empty_db: str, new_migration: New, release: Callable[[], None]
) -> None:
    """
    The next migration carries the changed function files verbatim and no others; its rollback carries what they were.
    """
    new_migration()
    release()
    edit(tree / "schema/functions/claim.sql", "'a'", "'b'")
    new_migration("claim_says_b")

    first, second = _files.load(tree)
    assert second.id == "fairq_0002_claim_says_b"
    assert (tree / "schema/functions/claim.sql").read_text() in second.forward
    assert TREE["functions/claim.sql"] in second.backward
    assert "create table" not in second.forward + second.backward
    fairq_schema.apply(empty_db, migrations=tree)
    assert fairq_schema.status(empty_db, migrations=tree).version == 2
    assert fairq_schema.rollback(empty_db, migrations=tree) == [second.id]
    assert fairq_schema.status(empty_db, migrations=tree).version == 1
    assert first.depends == ()


def test_a_third_version_starts_from_the_second(tree: Path, new_migration: New, release: Callable[[], None]) -> None:
    """
    What a file was is read from the newest migration that carried it.
    """
    new_migration()
    release()
    for number, (before, after) in enumerate([("'a'", "'b'"), ("'b'", "'c'")], start=2):
        edit(tree / "schema/functions/claim.sql", before, after)
        new_migration(f"version_{number}")
    backward = (tree / "fairq_0003_version_3.rollback.sql").read_text()
    assert "values ('b')" in backward
    assert "select 2" in backward


def test_what_a_human_wrote_stays(tree: Path, new_migration: New, release: Callable[[], None]) -> None:
    """
    As long as the newest migration is not released, its functions follow the tree; header and changes stay.
    """
    new_migration()
    release()
    edit(tree / "schema/functions/claim.sql", "'a'", "'b'")
    new_migration("claim_says_b")
    forward = tree / "fairq_0002_claim_says_b.sql"
    edit(forward, "-- Why:     TODO", "-- Why:     b is better")
    edit(forward, "-- changes\n--\n", "-- changes\n--\n\nalter table fairq.jobs add column tenant text;\n")
    edit(tree / "schema/functions/claim.sql", "'b'", "'c'")

    new_migration()

    text = forward.read_text()
    assert "-- Why:     b is better" in text
    assert text.count("alter table fairq.jobs add column tenant text;") == 1
    assert "values ('c')" in text
    assert "values ('b')" not in text
    new_migration()
    assert forward.read_text() == text
    new_migration("next")
    assert "alter table" not in (tree / "fairq_0003_next.rollback.sql").read_text()


def test_what_is_not_done_is_not_frozen(
    tree: Path, empty_db: str, new_migration: New, release: Callable[[], None]
) -> None:
    """
    A TODO, and files that are not the schema in the tree, keep a release back; what is frozen is not written again.
    """
    new_migration()
    edit(tree / "schema/tables.sql", "bigint", "integer")
    refused = run("freeze", "--migrations", tree, "--dsn", empty_db)
    assert (refused.returncode, (tree / "CHECKSUMS").exists()) == (1, False)
    new_migration()
    release()
    frozen = (tree / "CHECKSUMS").read_text().split()[1::2]
    assert frozen == ["fairq_0001_initial.rollback.sql", "fairq_0001_initial.sql", "catalog/0001.json"]

    assert run("new_migration", "--migrations", tree, "--dsn", empty_db).returncode == 2
    new_migration("more")
    refused = run("freeze", "--migrations", tree, "--dsn", empty_db)
    told = "something is left to do in fairq_0002_more.sql, fairq_0002_more.rollback.sql\n"
    assert (refused.returncode, refused.stdout) == (1, told)


def test_a_new_file_is_dropped_on_the_way_back(
    tree: Path, empty_db: str, new_migration: New, release: Callable[[], None]
) -> None:
    """
    What a new file makes the rollback has to drop, which is for a human to write; what was written stays.
    """
    new_migration()
    release()
    edit(tree / "schema/install.sql", "\\ir functions/claim.sql", "\\ir functions/claim.sql\n\\ir functions/see.sql")
    (tree / "schema/functions/see.sql").write_text(TREE["functions/claim.sql"].replace("claim", "see"))
    new_migration("one_may_see")
    backward = tree / "fairq_0002_one_may_see.rollback.sql"
    todo = re.findall("^-- TODO .*$", backward.read_text(), re.MULTILINE)
    assert todo[-1] == "-- TODO drop what functions/see.sql makes, a file that the version before did not have"
    written = re.sub(r"(?m)^-- TODO .*\n(?:-- .*\n)*", "drop function fairq.see();\n", backward.read_text())
    backward.write_text(written)
    new_migration()
    assert backward.read_text() == written
    assert check(tree, empty_db) == (0, "migrations and schema agree\n")


def test_a_stale_catalog_is_found(tree: Path, empty_db: str, new_migration: New) -> None:
    """
    What says that it is what a version makes, and is not, is named.
    """
    new_migration()
    edit(tree / "catalog/0001.json", '"bigint"', '"integer"')
    assert check(tree, empty_db) == (1, "catalog/0001.json is not up to date: run ci/new_migration\n")


def test_check_schema_agrees_with_a_compiled_tree(
    tree: Path, empty_db: str, new_migration: New, release: Callable[[], None]
) -> None:
    """
    Migrations compiled from the tree are the tree; and after a release, with a migration finished by hand, still.
    """
    new_migration()
    assert check(tree, empty_db) == (0, "migrations and schema agree\n")

    release()
    edit(tree / "schema/tables.sql", "(job_id bigint)", "(job_id bigint, tenant text)")
    new_migration("jobs_have_tenants")
    code, told = check(tree, empty_db)
    assert code == 1
    assert "column fairq.jobs.tenant" in told

    forward, backward = tree / "fairq_0002_jobs_have_tenants.sql", tree / "fairq_0002_jobs_have_tenants.rollback.sql"
    edit(forward, "-- changes\n--\n", "-- changes\n--\n\nalter table fairq.jobs add column tenant text;\n")
    edit(backward, "-- changes\n--\n", "-- changes\n--\n\nalter table fairq.jobs drop column tenant;\n")
    new_migration()
    assert check(tree, empty_db) == (0, "migrations and schema agree\n")


@pytest.mark.parametrize(
    ("file", "before", "after", "complaint"),
    [
        ("schema/tables.sql", "bigint", "integer", "not up to date"),
        ("fairq_0001_initial.sql", "job_id bigint", "job_id integer", "column fairq.jobs.job_id"),
        (
            "fairq_0001_initial.rollback.sql",
            "drop schema fairq cascade;",
            "drop function fairq.claim();",
            "left after rollback",
        ),
    ],
)
def test_check_schema_finds_differences(
    tree: Path, empty_db: str, new_migration: New, file: str, before: str, after: str, complaint: str
) -> None:
    """
    A stale file, another definition, and a rollback that leaves things behind are each found and named.
    """
    new_migration()
    edit(tree / file, before, after)
    code, told = check(tree, empty_db)
    assert code == 1
    assert complaint in told


def check(tree: Path, dsn: str) -> tuple[int, str]:
    """
    Run ci/check_schema: its exit code and what it says.
    """
    done = run("check_schema", "--dsn", dsn, "--migrations", tree)
    return done.returncode, done.stdout + done.stderr
