"""
The files for tools that no test can run.

They are those that are kept as examples, and do their work when they are read by the rules of these tools, as their
sources have them.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pglast
import psycopg
import pytest

import fairq_schema
from fairq_schema.export import export
from fairq_schema.export._step import package_version
from tests.package.folders import two_versions
from tests.package.portable import breaches
from tests.vendoring.conftest import made
from tests.vendoring.versions import ORIGINALS, migrations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.support.databases import Databases

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = len(ORIGINALS) + 2
UNRUN = ["atlas", "flyway", "golang-migrate", "goose"]
# what a file's name has to be, or the tool does not see the file, or refuses it
NAMES = {
    "atlas": r"\d+_\w+\.sql",
    "flyway": r"[VU]\d+__\w+\.sql",
    "golang-migrate": r"\d{1,19}_\w+\.(up|down)\.sql",
    "goose": r"\d{1,18}_\w+\.sql",
}


@pytest.fixture
def exported(tmp_path: Path) -> Callable[[str], list[Path]]:
    """
    `exported("goose")`: the files of all versions, the last of which must not be a transaction.
    """
    folder = migrations(tmp_path / "migrations", "torture", "alone")

    def write(target: str) -> list[Path]:
        return list(export(target, out=tmp_path / "out", migrations=folder).files)

    return write


@pytest.fixture
def other_db(databases: Databases) -> Iterator[str]:
    """
    A second empty database.
    """
    with databases.empty() as dsn:
        yield dsn


# --- examples ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", UNRUN)
def test_it_is_as_in_the_example(target: str, tmp_path: Path) -> None:
    """
    What is written for a tool is, byte for byte, what was once read with its manual: see golden/.

    FAIRQ_GOLDEN_REWRITE=1 writes the examples anew; read them again then.
    """
    folder = two_versions(tmp_path / "migrations")
    forward, backward = "create index concurrently i on fairq.jobs (tenant);\n", "drop index concurrently fairq.i;\n"
    folder.add("index_alone", forward, backward, header="-- transactional: false\n")
    written = export(target, out=tmp_path / "out", start="20260101000001", migrations=folder.path).files
    texts = {
        path.name: path.read_text("ascii").replace(f"fairq {package_version()}", "fairq VERSION") for path in written
    }
    if "FAIRQ_GOLDEN_REWRITE" in os.environ:
        shutil.rmtree(GOLDEN / target, ignore_errors=True)
        (GOLDEN / target).mkdir(parents=True)
        for name, text in texts.items():
            (GOLDEN / target / name).write_text(text, "ascii")
    assert texts == {path.name: path.read_text("ascii") for path in (GOLDEN / target).iterdir()}


# --- rules -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", UNRUN)
def test_its_files_are_seen(exported: Callable[[str], list[Path]], target: str) -> None:
    """
    Every name is one that the tool takes for a migration, and all of them are one version after the other.
    """
    names = [path.name for path in exported(target)]
    assert [name for name in names if not re.fullmatch(NAMES[target], name)] == []
    numbers = [int(re.sub(r"^\D?(\d+).*", r"\1", name)) for name in names]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == VERSIONS


@pytest.mark.parametrize("target", UNRUN)
def test_it_keeps_to_the_portable_subset(exported: Callable[[str], list[Path]], target: str) -> None:
    """
    What the exporter adds is within the subset too; only a tool's own directives are not, and only to the other tools.
    """
    for path in exported(target):
        lines = path.read_text("ascii").splitlines(keepends=True)
        sql = "".join(line for line in lines if not is_directive(line, target))
        found = [each for each in breaches(sql) if not each.startswith("CONCURRENTLY together")]
        assert found == [], path.name


def test_goose_finds_its_annotations(exported: Callable[[str], list[Path]]) -> None:
    """
    Each file is one statement up and one down, in this order; no other comment has the mark that goose looks for.
    """
    for path in exported("goose"):
        text = path.read_text("ascii")
        marks = [line for line in text.splitlines() if line.lstrip().startswith("--") and "+goose" in line]
        statement = ["-- +goose StatementBegin", "-- +goose StatementEnd"]
        expected = ["-- +goose Up", *statement, "-- +goose Down", *statement]
        if "concurrently" in text:
            expected = ["-- +goose NO TRANSACTION", *expected]
        assert marks == expected, path.name


def test_atlas_finds_its_directive(exported: Callable[[str], list[Path]]) -> None:
    """
    The directive of a file is its first line and parted from the rest by an empty one; else it is a mere comment.
    """
    heads = [path.read_text("ascii").splitlines()[:3] for path in exported("atlas")]
    assert [head[:2] == ["-- atlas:txmode none", ""] for head in heads] == [False] * (VERSIONS - 1) + [True]
    assert all(not line.startswith("-- atlas:") for head in heads[:-1] for line in head)


# --- read by the rules, and run ----------------------------------------------------------------------------


@pytest.mark.parametrize("target", UNRUN)
def test_it_makes_what_apply_makes(
    exported: Callable[[str], list[Path]],
    tmp_path: Path,
    empty_db: str,
    other_db: str,
    target: str,
) -> None:
    """
    Sent to the server as the tool sends it, each version is that of `fairq apply`; where there is a way back, so is it.
    """
    files = exported(target)
    up, down = directions(target, files)
    assert len(up) == VERSIONS
    stages = [made(empty_db)]
    for number, path in enumerate(up, start=1):
        run(empty_db, READ[target](path, "Up"), in_transaction(target, path))
        fairq_schema.apply(other_db, to=number, migrations=tmp_path / "migrations")
        stages.append(made(other_db))
        assert made(empty_db).differences(stages[-1]) == [], path.name
    for path in down:
        run(empty_db, READ[target](path, "Down"), in_transaction(target, path))
        stages.pop()
        assert made(empty_db).differences(stages[-1]) == [], path.name
    assert bool(down) is (target != "atlas")


def is_directive(line: str, target: str) -> bool:
    """
    Tell a tool's own comments from SQL and from other comments.
    """
    return line.startswith({"goose": "-- +goose", "atlas": "-- atlas:"}.get(target, "\0"))


def directions(target: str, files: list[Path]) -> tuple[list[Path], list[Path]]:
    """
    The files in the order in which they run up, and those that run down.
    """
    if target == "flyway":
        back = [path for path in files if path.name.startswith("U")]
    elif target == "golang-migrate":
        back = [path for path in files if path.name.endswith(".down.sql")]
    else:
        return files, files[::-1] if target == "goose" else []
    return [path for path in files if path not in back], back[::-1]


def in_transaction(target: str, path: Path) -> bool:
    """
    Whether the tool begins a transaction for this file.
    """
    text = path.read_text("ascii")
    return {
        "atlas": not text.startswith("-- atlas:txmode none\n\n"),
        # it looks for statements that cannot be in one
        "flyway": not re.search("(create|drop) index concurrently", text),
        # one simple query is one transaction by itself
        "golang-migrate": False,
        "goose": "-- +goose NO TRANSACTION" not in text,
    }[target]


def read_whole(path: Path, _: str) -> list[str]:
    """
    The file is one query.
    """
    return [path.read_text("ascii")]


def read_statements(path: Path, _: str) -> list[str]:
    """
    The file is split into its statements.
    """
    return [str(statement) for statement in pglast.split(path.read_text("ascii"))]


def read_goose(path: Path, direction: str) -> list[str]:
    """
    What stands between the marks of one direction is a statement, less the comments and empty lines at its beginning.
    """
    section = re.split(r"^-- \+goose (?:Up|Down)\n", path.read_text("ascii"), flags=re.MULTILINE)
    text = section[1 if direction == "Up" else 2]
    marked = re.findall(r"^-- \+goose StatementBegin\n(.*?)^-- \+goose StatementEnd\n", text, re.MULTILINE | re.DOTALL)
    return [re.sub(r"\A(\s*--[^\n]*\n|\n)*", "", statement).strip() for statement in marked]


READ: dict[str, Callable[[Path, str], list[str]]] = {
    "atlas": read_statements,
    "flyway": read_statements,
    "golang-migrate": read_whole,
    "goose": read_goose,
}


def run(dsn: str, statements: Iterable[str], within: bool) -> None:
    """
    Send queries without parameters, as all four tools do.
    """
    with psycopg.connect(dsn, autocommit=not within) as connection:
        for statement in statements:
            connection.execute(statement.encode())
