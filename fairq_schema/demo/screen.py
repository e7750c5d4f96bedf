"""How the demo shows itself: a live table in a terminal, else one line a second."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from fairq_schema.demo.tally import Row


class Screen(Protocol):
    """Shows the table; `interval` is how often it wants to, in seconds."""

    interval: float

    def show(self, elapsed: float, phase: str, rows: Sequence[Row]) -> None:
        """Show the state of the run."""


class PlainScreen:
    """One line a second, for a pipe, a log or a terminal without rich."""

    interval = 1.0

    def show(self, elapsed: float, phase: str, rows: Sequence[Row]) -> None:
        """Print one line."""
        cells = [
            f"{row.name} {row.queued} queued {row.done} done {row.share:.1%} of {row.entitled:.1%}"
            f" wait p50 {seconds(row.p50)} p99 {seconds(row.p99)}"
            for row in rows
        ]
        print(f"{elapsed:5.1f} s  {phase}  |  " + "  |  ".join(cells), flush=True)


class LiveScreen:
    """A table that is drawn over itself."""

    interval = 0.25

    def __init__(self, update: object) -> None:
        """Draw by rich's `Live.update`."""
        self._update = update

    def show(self, elapsed: float, phase: str, rows: Sequence[Row]) -> None:
        """Draw the table anew."""
        self._update(draw(elapsed, phase, rows), refresh=True)  # type: ignore[operator]


def draw(elapsed: float, phase: str, rows: Sequence[Row]) -> Table:
    """Lay out the table."""
    from rich import box  # noqa: PLC0415 (rich is an extra, and plain output does without)
    from rich.table import Table  # noqa: PLC0415

    # Fits 80 columns.
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        title=f"fairq demo   {elapsed:.0f} s   {phase}",
        title_justify="left",
    )
    table.add_column("tenant")
    for name in ("weight", "queued", "running", "done", "share", "entitled", "wait p50", "wait p99"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.name,
            str(row.weight),
            f"{row.queued:,}",
            f"{row.running:,}",
            f"{row.done:,}",
            f"{row.share:.1%}",
            f"{row.entitled:.1%}",
            seconds(row.p50),
            seconds(row.p99),
        )
    return table


def seconds(value: float | None) -> str:
    """Write a waiting time."""
    return "-" if value is None else f"{value:.2f} s"


@contextlib.contextmanager
def screen(*, plain: bool) -> Iterator[Screen]:
    """Give the screen that suits standard output."""
    if plain or not sys.stdout.isatty():
        yield PlainScreen()
        return
    try:
        from rich.live import Live  # noqa: PLC0415
    except ImportError:
        yield PlainScreen()
        return
    with Live(auto_refresh=False) as live:
        yield LiveScreen(live.update)
