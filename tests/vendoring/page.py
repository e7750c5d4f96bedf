"""
docs/vendoring.md, as the tests read it: the commands of each tool.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.vendoring.versions import LATER_NAME

PAGE = Path(__file__).resolve().parents[2] / "docs/vendoring.md"
_BLOCK = re.compile(r"^(?P<what>[A-Z][a-z ]+):\n\n```sh\n(?P<commands>.*?)^```$", re.MULTILINE | re.DOTALL)
INSTALL, LATER, BACK, REMOVE = "Install", "A version later", "Back by one version", "Remove"


def sections() -> dict[str, str]:
    """
    Return what the page says of each tool, by the heading.
    """
    parts = re.split(r"^## (.+)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def commands(heading: str) -> dict[str, str]:
    """
    Return the commands of one section, by what they are for, with the second version in the place of NAME.
    """
    return {
        match["what"]: match["commands"].replace("NAME", LATER_NAME) for match in _BLOCK.finditer(sections()[heading])
    }
