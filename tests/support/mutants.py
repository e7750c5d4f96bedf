"""Mutants: a check is worth something only when it fails on a broken schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.database import Database

Check = Callable[[Database], Any]
Mutation = Callable[[Database], None]


class StaleMutant(Exception):
    """The text that a mutant edits is not there (or not once): the mutant must follow the code."""


class Survived(Exception):
    """A check passed although the schema was broken."""


def mutant(db: Database, function: str, old: str, new: str, times: int = 1) -> None:
    """
    Edit the live text of a function of fairq, named alone or with its argument types; owner and rights stay.

    What is edited stands there `times` times.
    """
    oid = _oid(db, function)
    text = db.value("select pg_get_functiondef(%s::oid)", oid)
    if (found := text.count(old)) != times:
        msg = f"found {found} times, not {'once' if times == 1 else times}, in {function}: {old!r}"
        raise StaleMutant(msg)
    db.execute(text.replace(old, new))


def mutant_sql(db: Database, statement: str) -> None:
    """Break the schema by a statement (drop a policy, a constraint, an index)."""
    db.execute(statement)


@dataclass(frozen=True)
class Edit:
    """A mutation for a table of mutants: `function` with `old` replaced by `new`."""

    function: str
    old: str
    new: str = ""
    times: int = 1

    def __call__(self, db: Database) -> None:
        """Break `db`."""
        mutant(db, self.function, self.old, self.new, self.times)

    def __str__(self) -> str:
        """Name the test that uses it."""
        return f"{self.function}: {' '.join(self.old.split())[:40]}"


@dataclass(frozen=True)
class Statement:
    """A mutation for a table of mutants: one SQL statement."""

    sql: str

    def __call__(self, db: Database) -> None:
        """Break `db`."""
        mutant_sql(db, self.sql)

    def __str__(self) -> str:
        """Name the test that uses it."""
        return " ".join(self.sql.split())[:60]


@dataclass(frozen=True)
class Both:
    """Mutations that make sense together only."""

    parts: tuple[Mutation, ...]

    def __call__(self, db: Database) -> None:
        """Break `db` in each of the ways."""
        for part in self.parts:
            part(db)

    def __str__(self) -> str:
        """Name the test that uses it."""
        return " and ".join(map(str, self.parts))


def both(*parts: Mutation) -> Both:
    """Several edits, one mutant."""
    return Both(parts)


def assert_fails_under(check: Check, mutation: Mutation, db: Database) -> None:
    """
    Break the fresh database `db` by `mutation` and require that `check` notices by an AssertionError.

    Any other error is passed on: a check that crashes has not noticed anything.
    """
    mutation(db)
    try:
        check(db)
    except AssertionError:
        return
    msg = f"{getattr(check, '__name__', check)} passed under the mutant {mutation}"
    raise Survived(msg)


def _oid(db: Database, function: str) -> int:
    if "(" in function:
        name = function if function.split("(", maxsplit=1)[0].count(".") else f"fairq.{function}"
        return int(db.value("select %s::regprocedure::oid", name))
    query = "select oid from pg_proc where pronamespace = 'fairq'::regnamespace and proname = %s"
    found = db.rows(query, function.removeprefix("fairq."))
    if len(found) != 1:
        msg = f"{len(found)} functions are named {function}; give the argument types"
        raise StaleMutant(msg)
    return int(found[0].oid)
