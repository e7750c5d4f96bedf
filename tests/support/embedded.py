"""
For folders of tests whose subject brings a server of its own, the embedded 18.

Whatever `--pg` says, it would be the same run again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.fixtures import asked_servers

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

EMBEDDED = "18"


def deselect_elsewhere(folder: Path, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests of the folder to the run that has 18 among its servers."""
    if EMBEDDED in asked_servers(config):
        return
    elsewhere = [item for item in items if folder in item.path.parents]
    items[:] = [item for item in items if folder not in item.path.parents]
    config.hook.pytest_deselected(items=elsewhere)


def why_deselected(folder: Path, config: pytest.Config) -> str | None:
    """Say why they are not run."""
    if EMBEDDED in asked_servers(config):
        return None
    return f"tests/{folder.name}: deselected, it runs on its own PostgreSQL {EMBEDDED} (--pg {EMBEDDED})"
