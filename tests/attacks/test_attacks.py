"""Every attack fails, on every version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .attacks import ATTACKS

if TYPE_CHECKING:
    from tests.support.database import Database

pytestmark = pytest.mark.short


@pytest.mark.parametrize("number", ATTACKS)
def test_an_attack_fails(db: Database, number: str) -> None:
    """See attacks.py for what each does."""
    ATTACKS[number](db)
