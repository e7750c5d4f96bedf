"""Waiting for a condition, never for a duration."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class NeverHappened(Exception):
    """What a test waited for did not come in time; says what it was."""


def wait_until(condition: Callable[[], T], what: str, timeout: float = 60.0) -> T:
    """Ask `condition` until it answers something true, and return that answer."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while not (answer := condition()):
        if time.monotonic() > deadline:
            msg = f"waited {timeout:g} s for {what}"
            raise NeverHappened(msg)
        pause.wait(0.005)
    return answer
