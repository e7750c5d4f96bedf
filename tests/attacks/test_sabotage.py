"""The attacks notice a schema that was weakened; test_attacks.py shows that they do not notice one that was not."""

from __future__ import annotations

import datetime as dt
import os
import random
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.support.databases import with_test_verbs
from tests.support.mutants import assert_fails_under

from .sabotage import SABOTAGES, noticed_by

if TYPE_CHECKING:
    from tests.support.databases import Databases

SAMPLE = 12


def chosen() -> list[str]:
    """All of them for ci/sabotage; otherwise a few, others every day."""
    if "FAIRQ_SABOTAGE" in os.environ:
        return list(SABOTAGES)
    today = dt.datetime.now(tz=dt.timezone.utc).date()
    return random.Random(today.toordinal()).sample(list(SABOTAGES), SAMPLE)


@pytest.mark.parametrize("name", chosen())
def test_a_weakening_is_noticed(databases: Databases, name: str) -> None:
    """The attack that is named for it does no longer fail."""
    mutation, noticer = SABOTAGES[name]
    with databases.clone(with_test_verbs) as db:
        assert_fails_under(partial(noticed_by, noticer), mutation, db)


def test_there_are_enough() -> None:
    """At least sixty ways, each different."""
    assert len(SABOTAGES) >= 60
