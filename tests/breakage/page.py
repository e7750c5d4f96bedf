"""The blocks of docs/operations.md, so that tests run what the page says."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def block(language: str, words: str) -> str:
    """The one block that has these words in it."""
    (found,) = (text for text in blocks(language) if words in text)
    return found
