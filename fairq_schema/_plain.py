"""
Names that others chose, for a terminal.
"""

from __future__ import annotations


def plain(text: str) -> str:
    """
    Return a text whose characters can all be seen, and none of which a terminal obeys: others are written as in Python.
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
