"""
Tools that read plain SQL, one file for each direction, and go by the files' names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairq_schema.export._step import Step


def psql(step: Step) -> dict[str, str]:
    """
    Write two files for `psql -X -1 -v ON_ERROR_STOP=1 -f`.
    """
    return {f"{step.name}.sql": _forward(step), f"{step.name}.rollback.sql": _backward(step)}


def yoyo(step: Step) -> dict[str, str]:
    """
    Leave the files as they are, with names and `depends` that are unlike any other's in yoyo's table.
    """
    forward = _forward(step)
    if step.name_before:
        forward = re.sub(r"^-- depends:.*$", f"-- depends: {step.name_before}", forward, count=1, flags=re.MULTILINE)
    return {f"{step.name}.sql": forward, f"{step.name}.rollback.sql": _backward(step)}


def flyway(step: Step) -> dict[str, str]:
    """
    Write a versioned migration, and its undo for the editions of Flyway that have one; the others leave it alone.
    """
    return {f"V{step.stamp}__{step.name}.sql": _forward(step), f"U{step.stamp}__{step.name}.sql": _backward(step)}


def golang_migrate(step: Step) -> dict[str, str]:
    """
    Write a pair of up and down, each sent to the server in one piece.
    """
    base = f"{step.stamp}_{step.name}"
    return {f"{base}.up.sql": _forward(step), f"{base}.down.sql": _backward(step)}


def atlas(step: Step) -> dict[str, str]:
    """
    Write the way forward only; a directive for the whole file is parted from it by an empty line.
    """
    directive = "" if step.in_transaction else "-- atlas:txmode none\n\n"
    return {f"{step.stamp}_{step.name}.sql": directive + _forward(step)}


def supabase(step: Step) -> dict[str, str]:
    """
    Write the way forward only.
    """
    return {f"{step.stamp}_{step.name}.sql": _forward(step)}


def _forward(step: Step) -> str:
    return step.header() + step.forward


def _backward(step: Step) -> str:
    return step.header_back() + step.backward
