"""
The bench brings its own PostgreSQL, the embedded 18: whatever `--pg` says, it would be the same run again.

So its tests run when 18 is among the servers asked for, and are deselected otherwise, which the report says.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.fixtures import asked_servers

if TYPE_CHECKING:
    import pytest

HERE = Path(__file__).parent
THE_BENCHS = "18"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the bench's tests to the run that is on its server."""
    if THE_BENCHS in asked_servers(config):
        return
    elsewhere = [item for item in items if HERE in item.path.parents]
    items[:] = [item for item in items if HERE not in item.path.parents]
    config.hook.pytest_deselected(items=elsewhere)


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    """Say why they are not run."""
    if THE_BENCHS in asked_servers(config):
        return None
    return f"tests/bench: deselected, the bench runs on its own PostgreSQL {THE_BENCHS} (--pg {THE_BENCHS})"
