"""
The migration files that we ship: their names, their order, and the SQL that every tool can read.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pglast
import pytest
import sqlparse

from fairq_schema import _files, errors
from fairq_schema._rename import rename
from tests.package.folders import INITIAL, INITIAL_BACK, Folder
from tests.package.portable import breaches

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
FILES = sorted(MIGRATIONS.glob("*.sql"))


@pytest.fixture(params=FILES or [MIGRATIONS / "fairq_0001_initial.sql"], ids=lambda path: path.name)
def sql(request: pytest.FixtureRequest) -> str:
    """
    The text of each file, as its bytes say.
    """
    path: Path = request.param
    return path.read_bytes().decode()


# --- ours --------------------------------------------------------------------------------------------------


def test_we_ship_one_chain() -> None:
    """
    The folder holds at least one migration, numbered without gaps, each with a rollback and on top of the one before.
    """
    assert _files.load(MIGRATIONS)[0].id == "fairq_0001_initial"


def test_nothing_else_is_taken_for_a_migration() -> None:
    """
    yoyo would run any other .sql or .py file of this folder too.
    """
    strangers = [path.name for path in MIGRATIONS.iterdir() if path.suffix in {".sql", ".py"}]
    assert [name for name in strangers if not re.fullmatch(r"fairq_\d{4}_[a-z0-9_]+(\.rollback)?\.sql", name)] == []


def test_released_files_are_frozen() -> None:
    """
    A file named in CHECKSUMS is what it was at its release.
    """
    checksums = MIGRATIONS / "CHECKSUMS"
    lines = checksums.read_text("ascii").splitlines() if checksums.is_file() else []
    for line in lines:
        expected, name = line.split()
        assert hashlib.sha256((MIGRATIONS / name).read_bytes()).hexdigest() == expected, f"{name} was released: restore"


def test_every_tool_can_read_it(sql: str) -> None:
    """
    Each file keeps to the portable subset, and can be installed under another schema name.
    """
    assert breaches(sql) == []


def test_yoyo_splits_it_as_postgresql_does(sql: str) -> None:
    """
    The statements that yoyo executes are those that PostgreSQL's own parser finds.
    """
    ours = [without_comments(statement) for statement in sqlparse.split(sql)]
    theirs = [without_comments(str(statement)) for statement in pglast.split(sql)]
    assert [statement for statement in ours if statement] == theirs
    assert theirs != []


def test_another_name_changes_only_the_name(sql: str) -> None:
    """
    Put back, the new name gives the file as it was; and no name of the schema is left behind.
    """
    renamed = rename(sql, "elsewhere_x")
    assert renamed.replace('"elsewhere_x"', "fairq") == re.sub(r"(?i)\bfairq\b", "fairq", sql)
    assert breaches(renamed) == []


def without_comments(statement: str) -> str:
    """
    The statement as both splitters must see it: neither leading comments nor the final semicolon.
    """
    return re.sub(r"\A(\s*--[^\n]*\n)+", "", statement).strip().rstrip(";").strip()


# --- the rules themselves ----------------------------------------------------------------------------------

BREACHES = [
    ("create function f() returns int begin atomic select 1; end;\n", "BEGIN ATOMIC"),
    ("create table atomic_things (id integer);\n", "an identifier with atomic in it"),
    ("comment on table t is '${name}';\n", "a placeholder ${"),
    ("comment on table t is '{{name}}';\n", "a jinja tag"),
    ("comment on table t is E'it\\'s';\n", "an escape string"),
    ("comment on table t is 'it\\';\n", "a backslash before a quote"),
    ("create\ttable t ();\n", "a tab"),
    ("/* a /* b */ */ create table t ();\n", "a block comment"),
    ("-- migrate:up\n", "a directive of another tool"),
    ("--changeset a:b\n", "a directive of another tool"),
    ("-- comment: of Liquibase\n", "a directive of another tool"),
    ("  -- preconditions first\n", "a directive of another tool"),
    ("copy t from stdin;\n", "COPY FROM STDIN"),
    ("\\ir other.sql\n", "a psql command"),
    ("do $fn$ begin perform :name; end $fn$;\n", "a bind parameter"),
    ("create schema if not exists fairq;\n", "IF NOT EXISTS for a schema"),
    ("begin;\ncreate table t ();\ncommit;\n", "transaction control"),
    ("select set_config('a.b', 'c', true);\n", "a statement that returns rows"),
    ("set search_path = fairq;\n", "a setting that outlives the transaction"),
    ("create rule r as on insert to t do select $1;\n", "a bare $1"),
    ("create index concurrently i on t (a);\ncreate table u ();\n", "CONCURRENTLY together with another statement"),
    ("comment on table t is '\u00fc';\n", "not ASCII"),
    ("create table t ();\r\n", "CR in a line end"),
    ("create table t ();", "no newline at the end"),
    ("select 1 from n where nspname = 'fairq';\n", "the schema's name in a literal"),
    ("do $fn$ begin execute 'fairq.f()'; end $fn$;\n", "the schema's name in a literal"),
]


@pytest.mark.parametrize(("sql", "rule"), BREACHES)
def test_each_rule_can_be_broken(sql: str, rule: str) -> None:
    """
    Each rule of the subset finds the text that it is about.
    """
    assert [found for found in breaches(sql) if found.startswith(rule)] != []


@pytest.mark.parametrize("sql", [INITIAL, INITIAL_BACK, "-- it's :fine; select\ncomment on table t is 'a:b; 10%';\n"])
def test_ordinary_sql_breaks_no_rule(sql: str) -> None:
    """
    Casts, bodies, apostrophes in comments, percent signs and semicolons in literals are all within the subset.
    """
    assert breaches(sql) == []


# --- what load() refuses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda folder: (folder.path / "fairq_0001_initial.rollback.sql").unlink(), "has no rollback"),
        (lambda folder: (folder.path / "fairq_0001_initial.sql").unlink(), "expected number 0001"),
        (lambda folder: folder.add("skips", "-- depends: fairq_0001_initial\n"), "must depend on"),
        (lambda folder: [path.unlink() for path in folder.path.iterdir()], "no file named"),
    ],
)
def test_a_damaged_folder_is_refused(folder: Folder, damage: object, complaint: str) -> None:
    """
    Files that are missing, or that do not form one chain, are refused by name before any database is touched.
    """
    assert callable(damage)
    damage(folder)
    with pytest.raises(errors.FilesError, match=complaint):
        _files.load(folder.path)
