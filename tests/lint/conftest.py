"""
plpgsql_check is Debian's, for its PostgreSQL 15: the functions are the same on every version, and are checked there.

So these tests run when 15 is among the servers asked for, and are deselected otherwise, which the report says.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.fixtures import asked_servers

if TYPE_CHECKING:
    import pytest

HERE = Path(__file__).parent
DEBIANS = "15"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave these tests to the run on Debian's server, and there to that server alone."""
    elsewhere = [item for item in items if HERE in item.path.parents and f"[pg{DEBIANS}" not in item.name]
    items[:] = [item for item in items if item not in elsewhere]
    config.hook.pytest_deselected(items=elsewhere)


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    """Say why they are not run."""
    if DEBIANS in asked_servers(config):
        return None
    return f"tests/lint: deselected, plpgsql_check is for PostgreSQL {DEBIANS} (--pg {DEBIANS})"
