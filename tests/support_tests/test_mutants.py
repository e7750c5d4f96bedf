"""Mutants: precise edits, and only a failed assertion kills."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import (
    Database,
    Edit,
    StaleMutant,
    Statement,
    Survived,
    assert_fails_under,
    both,
    in_background,
    is_blocked,
    mutant,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SKIP_LOCKED = Edit("take", "for update skip locked", "")

pytestmark = pytest.mark.once


def check_nothing_is_taken_twice(db: Database) -> None:
    """Two workers at once get two jobs."""
    db.execute("insert into fairq.jobs (owner) values (null), (null)")
    first, second = db.session(autocommit=False), db.session()
    job = first.value("select fairq.take('first')")
    begun = in_background(lambda: second.value("select fairq.take('second')"))
    wait_until(lambda: not begun.running() or is_blocked(db, second), "the second to have its job or to wait for it")
    first.conn.commit()
    assert begun.result() != job


@pytest.mark.short
def test_nothing_is_taken_twice(toy: Database) -> None:
    """The check passes on the schema as it is."""
    check_nothing_is_taken_twice(toy)


def test_a_double_claim_is_noticed(toy: Database) -> None:
    """The same check fails without the lock."""
    assert_fails_under(check_nothing_is_taken_twice, SKIP_LOCKED, toy)


def test_an_edit_keeps_owner_and_rights(toy: Database) -> None:
    """Only the text of the function changes."""
    facts = "select proowner, proacl, prosecdef, proconfig from pg_proc where proname = 'take'"
    before = toy.rows(facts)
    mutant(toy, "take(text)", "limit 1", "limit 2")
    assert toy.rows(facts) == before
    assert "limit 2" in toy.value("select prosrc from pg_proc where proname = 'take'")


@pytest.mark.parametrize("old", ["no such text", "job_id"])
def test_a_stale_mutant_is_no_kill(toy: Database, old: str) -> None:
    """Text that is not there exactly once raises, and not an AssertionError."""
    with pytest.raises(StaleMutant):
        assert_fails_under(check_nothing_is_taken_twice, Edit("take", old), toy)


def test_several_places_are_edited_when_they_are_so_many(toy: Database) -> None:
    """What is said to stand there several times is edited wherever it does; another number raises."""
    text = "select prosrc from pg_proc where proname = 'take'"
    found = toy.value(text).count("job_id")
    assert found > 1
    with pytest.raises(StaleMutant, match=f"found {found} times, not {found + 1}"):
        Edit("take", "job_id", "job_id", times=found + 1)(toy)
    before = toy.value(text)
    Edit("take", "job_id", "job_id::bigint", times=found)(toy)
    assert toy.value(text) == before.replace("job_id", "job_id::bigint")


def test_two_edits_are_one_mutant(toy: Database) -> None:
    """Both parts are in force, and both name the test."""
    mutation = both(Edit("take", "limit 1", "limit 2"), Edit("take", "limit 2", "limit 3"))
    mutation(toy)
    assert "limit 3" in toy.value("select prosrc from pg_proc where proname = 'take'")
    assert str(mutation) == "take: limit 1 and take: limit 2"


def test_a_survivor_is_an_error(toy: Database) -> None:
    """A check that passes on a broken schema is reported."""
    with pytest.raises(Survived, match="passed under the mutant"):
        assert_fails_under(lambda _: None, Statement("drop table fairq.jobs cascade"), toy)


def test_a_crash_is_no_kill(toy: Database) -> None:
    """A check that dies of another error has not noticed anything."""
    with pytest.raises(ZeroDivisionError):
        assert_fails_under(lambda _: 1 / 0, SKIP_LOCKED, toy)


def test_chance_gets_several_tries(assert_killed: Callable[..., None]) -> None:
    """Each try has a fresh database, and the first that kills is enough; without one it is a survivor."""
    tried: list[str] = []

    def check_at_the_third(db: Database) -> None:
        tried.append(db.dbname)
        assert len(tried) < 3

    harmless = Statement("select 1")
    with pytest.raises(Survived):
        assert_killed(check_at_the_third, harmless, tries=2)
    assert_killed(check_at_the_third, harmless, tries=2)
    assert len(set(tried)) == 3
