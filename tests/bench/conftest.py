"""The bench runs on a server of its own, so its tests run when 18 is asked for, and are deselected otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.embedded import deselect_elsewhere, why_deselected

if TYPE_CHECKING:
    import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave them to the run that is on that server."""
    deselect_elsewhere(HERE, config, items)


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    """Say why they are not run."""
    return why_deselected(HERE, config)
