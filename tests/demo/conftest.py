"""
The demo brings its own PostgreSQL, the embedded 18: whatever `--pg` says, it would be the same run again.

So its tests run when 18 is among the servers asked for, and are deselected otherwise, which the report says.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fixtures import asked_servers

HERE = Path(__file__).parent
THE_DEMOS = "18"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the demo's tests, and leave them to the run that is on its server."""
    elsewhere = [item for item in items if HERE in item.path.parents]
    for item in elsewhere:
        item.add_marker("demo")
    if THE_DEMOS in asked_servers(config):
        return
    items[:] = [item for item in items if HERE not in item.path.parents]
    config.hook.pytest_deselected(items=elsewhere)


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    """Say why they are not run."""
    if THE_DEMOS in asked_servers(config):
        return None
    return f"tests/demo: deselected, the demo runs on its own PostgreSQL {THE_DEMOS} (--pg {THE_DEMOS})"
