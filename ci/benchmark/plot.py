"""The picture of what a job costs as things grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

SIZE, DPI = (11, 4.8), 110
ROWS = (("buffers", "buffers per job", "#009e73"), ("cpu_us", "server CPU µs per job", "#c8372d"))
HEADROOM = 1.15
INK, GRID = "#30343b", "#eceef1"


def draw(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw one column for each thing that grows: buffers above, CPU below."""
    things = list(dict.fromkeys(row["what"] for row in rows))
    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(ROWS), len(things), squeeze=False, sharex="col")
    for across, thing in enumerate(things):
        points = [row for row in rows if row["what"] == thing]
        for down, (key, words, colour) in enumerate(ROWS):
            axes: Axes = grid[down][across]
            # zero is nothing a logarithm knows; it stands where one would be
            places = [max(1, row["value"]) for row in points]
            axes.plot(places, [row[key] for row in points], marker="o", color=colour)
            axes.set_xscale("log")
            axes.set_ylim(0, HEADROOM * max(row[key] for row in points))
            axes.grid(color=GRID)
            if not across:
                axes.set_ylabel(words, color=INK)
        grid[-1][across].set_xlabel(thing, color=INK)
    figure.suptitle("fairq: what a job costs to claim and complete, as one thing grows", x=0.01, ha="left", color=INK)
    figure.savefig(path, format="png")
