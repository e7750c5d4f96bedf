"""The demo runs on a server of its own, so its tests run when 18 is asked for, and are deselected otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.embedded import deselect_elsewhere, why_deselected

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the demo's tests, and leave them to the run that is on its server."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("demo")
    deselect_elsewhere(HERE, config, items)


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    """Say why they are not run."""
    return why_deselected(HERE, config)
