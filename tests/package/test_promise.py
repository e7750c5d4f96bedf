"""
What docs/upgrading.md promises of versions that follow each other: ours, and one that is made up.
"""

from __future__ import annotations

import copy
import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pglast
import pytest
from pglast import ast

from fairq_schema import _files
from tests.package.upgrades import OURS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Objects = dict[str, dict[str, Any]]
CATALOGS = sorted((OURS / "catalog").glob("[0-9]*.json"))
VIEWS = ("all_jobs", "job_events")
# writers wait for them, and they for writers
STRONG = {"ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock"}


def objects(path: Path) -> Objects:
    """
    Return what a version is made of.
    """
    found: Objects = json.loads(path.read_text("ascii"))["objects"]
    return found


def public_functions(version: Objects) -> Objects:
    """
    Return the functions whose names do not begin with `_`.
    """
    return {name: what for name, what in version.items() if re.match(r"function fairq\.[^_]", name)}


def columns(version: Objects, relation: str) -> list[tuple[str, str]]:
    """
    Return names and types, in their order.
    """
    own = {name: what for name, what in version.items() if name.startswith(f"column fairq.{relation}.")}
    found = [(what["position"], name, what["type"]) for name, what in own.items()]
    return [(name, type_) for _, name, type_ in sorted(found)]


def broken(old: Objects, new: Objects) -> list[str]:
    """
    Name each promise that the newer version does not keep.
    """
    told = []
    for name, before in public_functions(old).items():
        after = new.get(name)
        if after is None:
            told.append(f"{name} is gone, or has other arguments")
            continue
        changed = [word for word in ("arguments", "result") if before[word] != after[word]]
        told += [f"{name}: {word} was {before[word]}" for word in changed]
        for role, right in before["rights"].items():
            if after["rights"].get(role) != right:
                told.append(f"{name}: {role} had {right}")
        overloads = [other for other in new if other.startswith(f"{name.partition('(')[0]}(") and other not in old]
        told += [f"{other} makes calls of {name} ambiguous" for other in overloads]
        returned = before["result"].removeprefix("SETOF ").removeprefix("fairq.")
        if returned not in VIEWS and columns(old, returned) != columns(new, returned):
            told.append(f"{name}: {returned} has other fields")
    for view in VIEWS:
        before_all, after_all = columns(old, view), columns(new, view)
        if after_all[: len(before_all)] != before_all:
            told.append(f"{view} has other columns")
    return told


def test_each_version_keeps_what_was_promised(one_more: Path) -> None:
    """
    Functions keep arguments, results and rights, and views their columns, unless a migration says that it is breaking.
    """
    catalogs = sorted((one_more / "catalog").glob("[0-9]*.json"))
    files = _files.load(one_more)
    assert len(catalogs) == len(files) > len(CATALOGS)
    for file, (old, new) in zip(files[1:], pairwise(catalogs), strict=True):
        assert file.is_breaking or broken(objects(old), objects(new)) == [], file.id


def test_there_is_something_to_keep() -> None:
    """
    The newest version keeps its own promises, and has a good many.
    """
    newest = objects(CATALOGS[-1])
    assert len(public_functions(newest)) > 25
    assert all(len(columns(newest, view)) > 5 for view in (*VIEWS, "claimed_job"))
    assert broken(newest, newest) == []


CLAIM = next(name for name in objects(CATALOGS[-1]) if name.startswith("function fairq.claim_jobs("))
CANCEL = "function fairq.cancel_job(bigint)"


def without(name: str) -> Callable[[Objects], object]:
    """
    Take one object away.
    """
    return lambda version: version.pop(name)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (without(CANCEL), f"{CANCEL} is gone, or has other arguments"),
        (lambda v: v[CANCEL].update(arguments="p_id bigint"), f"{CANCEL}: arguments was p_job_id bigint"),
        (lambda v: v[CANCEL].update(result="integer"), f"{CANCEL}: result was text"),
        (lambda v: v[CANCEL]["rights"].pop("fairq_operator"), f"{CANCEL}: fairq_operator had EXECUTE"),
        (
            lambda v: v.update({"function fairq.cancel_job(bigint,text)": v[CANCEL]}),
            f"function fairq.cancel_job(bigint,text) makes calls of {CANCEL} ambiguous",
        ),
        (without("column fairq.claimed_job.payload"), f"{CLAIM}: claimed_job has other fields"),
        (without("column fairq.all_jobs.state"), "all_jobs has other columns"),
    ],
)
def test_a_broken_promise_is_found(change: Callable[[Objects], object], told: str) -> None:
    """
    Whatever a client could not live with is named.
    """
    old = objects(CATALOGS[-1])
    new = copy.deepcopy(old)
    change(new)
    assert told in broken(old, new)


# --- locks -------------------------------------------------------------------------------------------------


LOCKS = re.compile(r"\s*begin\s+(lock table\s[^;]*);\s*end\s*")


def locked_first(text: str) -> set[str]:
    """
    Return the tables of the one LOCK TABLE of a file, which stands before everything that could lock another.

    In a DO block: by itself it is refused where a tool sends the file in one go, without a BEGIN.
    """
    harmless = (ast.DoStmt, ast.VariableSetStmt, ast.GrantStmt)
    for statement in (raw.stmt for raw in pglast.parse_sql(text)):
        body = str(statement.args[0].arg.sval) if isinstance(statement, ast.DoStmt) and statement.args else ""
        if lock := LOCKS.fullmatch(body):
            (locks,) = pglast.parse_sql(lock[1])
            return {relation.relname for relation in locks.stmt.relations}
        # the frame makes no table, and neither it nor what it asks waits for one
        if not isinstance(statement, harmless) and not is_of_the_frame(statement):
            return set()
    return set()


def is_of_the_frame(statement: ast.Node) -> bool:
    """
    Whether it is a comment on the schema, or a right on it.
    """
    return isinstance(statement, ast.CommentStmt | ast.AlterDefaultPrivilegesStmt)


def test_tables_are_locked_at_once_and_first(one_more: Path) -> None:
    """
    A migration has all its tables or gives way: who gets one by one is met half-way by those who use them, a deadlock.
    """
    for file in _files.load(one_more)[1:]:
        locks = json.loads((one_more / f"catalog/{file.number:04}.json").read_text("ascii"))["locks"]
        # a partition is locked with its table
        needed = {re.sub(r"_\d$", "", table) for table, mode in locks.items() if mode in STRONG}
        assert needed <= locked_first(file.forward), file.id
        assert not needed or locked_first(file.backward), file.id


def test_a_lock_that_comes_late_is_found() -> None:
    """
    After the first statement that touches a table it is too late.
    """
    lock, alter = (
        "do $fn$ begin lock table fairq.queues, fairq.tenants in access exclusive mode; end $fn$;",
        "alter table fairq.jobs add x text;",
    )
    assert locked_first(f"set local lock_timeout = 1; {lock} {alter}") == {"queues", "tenants"}
    assert locked_first(f"{alter} {lock}") == set()


def test_nobody_waits_until_a_deadlock_is_looked_for() -> None:
    """
    lock_timeout of every file is below deadlock_timeout, a second: the one that gives way is the migration.
    """
    for file in _files.load(OURS):
        for text in (file.forward, file.backward):
            (limit,) = re.findall(r"set local lock_timeout = '(\d+)ms'", text)
            assert int(limit) <= 500
