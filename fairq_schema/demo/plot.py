"""The picture of the comparison, drawn by matplotlib."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from fairq_schema.demo.errors import DemoError
from fairq_schema.demo.options import FLOODING, LENGTHS, WEIGHTS

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from fairq_schema.demo.comparison import Lines

COLOURS = {"amber": "#e69f00", "birch": "#009e73", "cedar": "#56759f", "flood": "#c8372d"}
BAND, INK, GRID = "#d9dde3", "#30343b", "#eceef1"
SIZE, DPI = (9.6, 4.1), 110
# The scale is fairq's, and so much more: what leaves the picture is told in words.
HEADROOM = 1.7


def require() -> None:
    """Refuse before a long run, not after it."""
    if find_spec("matplotlib") is None:
        message = "--plot needs: pip install 'fairq-schema[plot]'"
        raise DemoError(message)


def draw(path: Path, fair: Lines, fifo: Lines, width: float, workers: int) -> None:
    """Write the picture: fairq on the left with its bound as a band of this width, first in first out on the right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 (an extra)
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    top = HEADROOM * max(levels[-1] for levels in fair.levels.values())
    left.fill_between(fair.times, *_band(fair, width), color=BAND, linewidth=0, label="the bound (T7)")
    for axes, lines, title in ((left, fair, "fairq, charging by time"), (right, fifo, "first in, first out")):
        _draw_lines(axes, lines, top)
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    left.set_ylim(0, top)
    left.set_xlim(fair.times[0], fair.times[-1] * 1.005)
    left.set_ylabel("worker-seconds per unit of weight", color=INK)
    left.legend(loc="upper left", frameon=False, fontsize=9, labelcolor=INK)
    figure.suptitle(
        f"Four tenants, {workers} workers; one floods the queue. Fair is: the lines stay together.",
        x=0.01,
        ha="left",
        fontsize=12,
        color=INK,
    )
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        message = f"the picture could not be written: {error}"
        raise DemoError(message) from error


def _band(lines: Lines, width: float) -> tuple[list[float], list[float]]:
    """Whoever keeps within the bound of everybody else keeps within half of it of their middle."""
    middle = []
    for at in range(len(lines.times)):
        here = [levels[at] for tenant, levels in lines.levels.items() if tenant != FLOODING or at >= lines.flood_from]
        middle.append((min(here) + max(here)) / 2)
    return [level - width / 2 for level in middle], [level + width / 2 for level in middle]


def _draw_lines(axes: Axes, lines: Lines, top: float) -> None:
    axes.set_axisbelow(True)
    axes.grid(color=GRID)
    axes.tick_params(colors=INK, length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_xlabel("seconds", color=INK)
    for tenant, levels in lines.levels.items():
        first = lines.flood_from if tenant == FLOODING else 0
        label = f"{tenant}: weight {WEIGHTS[tenant]}, jobs of {LENGTHS[tenant] * 1000:g} ms"
        axes.plot(
            lines.times[first:],
            levels[first:],
            color=COLOURS[tenant],
            linewidth=1.8,
            label=label,
            solid_capstyle="round",
        )
        if levels[-1] > top:
            out = next(at for at, level in enumerate(levels) if level > top)
            axes.annotate(
                f"{tenant}: up to {levels[-1]:.0f}",
                (lines.times[out], top),
                (6, -4),
                textcoords="offset points",
                va="top",
                fontsize=9,
                color=COLOURS[tenant],
            )
    if lines.flood_from < len(lines.times) - 1:
        axes.axvline(lines.times[lines.flood_from], color=INK, linewidth=0.8, linestyle=(0, (2, 3)))
        axes.annotate(
            "the flood sets in",
            (lines.times[lines.flood_from], 0),
            (4, 4),
            textcoords="offset points",
            fontsize=9,
            color=INK,
        )
