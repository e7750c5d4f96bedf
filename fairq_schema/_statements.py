"""
Named statements in a file of SQL: each begins with a line `-- name: words`, and ends where the next one begins.
"""

from __future__ import annotations

import re
from importlib import resources

from fairq_schema._rename import checked_name, rename

_HEADER = re.compile(r"^-- name: (.+)\n", re.MULTILINE)


def statements(file: str, schema: str) -> dict[str, str]:
    """
    Return the statements of a file of this package by name, in their order, as they read for a schema.
    """
    text = (resources.files("fairq_schema") / file).read_text("ascii")
    _, *parts = _HEADER.split(text)
    return dict(zip(parts[::2], (rename(part, checked_name(schema)) for part in parts[1::2]), strict=True))
