"""The run from start to end: server, queue, producers, workers, screen, summary."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairq_schema.demo.comparison import WARM_UP, bound, lines
from fairq_schema.demo.crew import Crew, crew
from fairq_schema.demo.database import clock, count_started, demo_queue, fifo_table
from fairq_schema.demo.errors import DemoError
from fairq_schema.demo.options import FLOODING, LENGTHS, WEIGHTS, Options
from fairq_schema.demo.producers import Producers, producers
from fairq_schema.demo.screen import screen
from fairq_schema.demo.server import temporary_server
from fairq_schema.demo.summary import summarize
from fairq_schema.demo.tally import MICROSECONDS, Tally

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    import psycopg

    from fairq_schema.demo.comparison import Lines
    from fairq_schema.demo.tally import Span

DEFAULTS = Options()
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(  # noqa: PLR0913 (the options of the command line, one to one)
    dsn: str | None = None,
    *,
    seconds: float = DEFAULTS.seconds,
    workers: int = DEFAULTS.workers,
    batch: int = DEFAULTS.batch,
    flood: int = DEFAULTS.flood,
    seed: int = DEFAULTS.seed,
    plain: bool = False,
    plot: str | None = None,
) -> int:
    """Show fairness at work: three tenants, then a fourth that floods the queue; measure the lag ratio."""
    options = Options(dsn, seconds, workers, batch, flood=flood, seed=seed, plain=plain)
    with interruptible() as interruption:
        try:
            if plot:
                halves = replace(options, seconds=seconds / 2, batch=1, charge="time", lengths=LENGTHS)
                return compare(halves, Path(plot), interruption)
            return run(options, interruption)
        except DemoError as error:
            print(f"fairq demo: {error}", file=sys.stderr)
            return 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `fairq demo`; their names are those of main()."""
    parser.add_argument(
        "--dsn",
        help="use this database (as a superuser) instead of a server of the demo's own; "
        "a schema that is missing is applied and stays",
    )
    parser.add_argument(
        "--seconds", type=positive(float), default=DEFAULTS.seconds, help="how long (default %(default)s)"
    )
    parser.add_argument(
        "--workers", type=positive(int), default=DEFAULTS.workers, help="worker processes (default %(default)s)"
    )
    parser.add_argument(
        "--batch",
        type=positive(int),
        default=DEFAULTS.batch,
        help="a claim asks for 1 up to this many jobs (default %(default)s)",
    )
    parser.add_argument(
        "--flood", type=positive(int), default=DEFAULTS.flood, help="jobs of the flood (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=DEFAULTS.seed, help="of the batch sizes (default %(default)s)")
    parser.add_argument(
        "--plot",
        metavar="FILE.png",
        help="instead: jobs of different lengths, charged by time, for half of the seconds; then the same for a table "
        "that is first in, first out; and a picture of both",
    )
    parser.add_argument("--plain", action="store_true", help="a line a second instead of the live table")


def positive(number: Any) -> Any:  # noqa: ANN401 (int or float, and argparse's view of it)
    """Make a converter for argparse that refuses what is not above zero."""

    def convert(text: str) -> Any:  # noqa: ANN401
        value = number(text)
        if not value > 0:
            raise ValueError
        return value

    convert.__name__ = f"positive {number.__name__}"
    return convert


class Interruption(threading.Event):
    """Set by the first signal; later ones change nothing, so that nothing interrupts the clearing away."""

    signum = 0

    def receive(self, signum: int, _frame: object) -> None:
        """Note a signal."""
        self.signum = self.signum or signum
        self.set()


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Turn signals into an event that the run looks at between its steps; each is short, or waits for the event."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {signum: signal.signal(signum, interruption.receive) for signum in SIGNALS}
    try:
        yield interruption
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def run(options: Options, interruption: Interruption) -> int:
    """Set everything up, watch until the time is over, clear away, and give the exit status."""
    tally = Tally(WEIGHTS, FLOODING, options.flood)
    with contextlib.ExitStack() as stack:
        dsn = options.dsn or stack.enter_context(temporary_server())
        if interruption.is_set():
            return 128 + interruption.signum
        connection = stack.enter_context(
            demo_queue(dsn, options.queue, options.charge, remove=bool(options.dsn))
        )  # else it goes with its server
        announce(options, connection.info)
        with crew(options, dsn, tally) as working, producers(options, dsn, tally) as producing:
            elapsed = watch(options, interruption, tally, producing, working)
        status = summarize(options, tally, elapsed, count_started(connection, options.queue))
    return 128 + interruption.signum if interruption.is_set() else status


def compare(options: Options, picture: Path, interruption: Interruption) -> int:
    """Run fairq, then first in first out, draw both, and give the exit status: 0 if fairq kept within its bound."""
    from fairq_schema.demo.plot import draw, require  # noqa: PLC0415 (matplotlib is an extra)

    require()
    with contextlib.ExitStack() as stack:
        dsn = options.dsn or stack.enter_context(temporary_server())
        connection = stack.enter_context(demo_queue(dsn, options.queue, options.charge, remove=bool(options.dsn)))
        stack.enter_context(fifo_table(connection, remove=bool(options.dsn)))
        announce(options, connection.info)
        results = []
        for name, settings in (("fairq", options), ("first in, first out", replace(options, fifo=True))):
            print(f"\n{name}:", flush=True)
            results.append(measure(settings, dsn, connection, interruption))
            if interruption.is_set():
                return 128 + interruption.signum
    (fair, spans), (fifo, _) = results
    width = bound(spans, options.workers)
    draw(picture, fair, fifo, width, options.workers)
    print(
        f"\nworker-seconds per weight drifted apart by at most {fair.spread():.2f} s (bound T7: {width:.2f} s); "
        f"first in, first out: {fifo.spread():.2f} s"
    )
    print(f"the picture: {picture}")
    return 0 if spans and fair.spread() <= width else 1


def measure(
    options: Options, dsn: str, connection: psycopg.Connection[Any], interruption: Interruption
) -> tuple[Lines, list[Span]]:
    """Run one of the two, and give its lines, and the jobs they are made of."""
    tally = Tally(WEIGHTS, FLOODING, options.flood)
    with crew(options, dsn, tally) as working, producers(options, dsn, tally) as producing:
        began = clock(connection)
        watch(options, interruption, tally, producing, working)
    spans = [span for span in tally.spans() if span.began >= began + options.seconds * WARM_UP * MICROSECONDS]
    first = min((span.began for span in spans if span.tenant == FLOODING), default=None)
    flood_at = None if first is None else (first - began) / MICROSECONDS
    return lines(spans, began, options.seconds, flood_at), spans


def announce(options: Options, info: Any) -> None:  # noqa: ANN401 (psycopg's ConnectionInfo)
    """Say what runs where, before the table takes the screen."""
    server = f"PostgreSQL {info.parameter_status('server_version')} at {info.host or 'the local socket'}"
    weights = ", ".join(f"{tenant} {weight}" for tenant, weight in WEIGHTS.items())
    claims = f"claims of 1 to {options.batch}" if options.batch > 1 else "claims of 1"
    print(f"{server}; {options.workers} workers, {claims}; charged by {options.charge}; weights: {weights}", flush=True)


def watch(options: Options, interruption: Interruption, tally: Tally, producing: Producers, working: Crew) -> float:
    """Show the state until the time is over or a signal arrives; give the time it took."""
    began = time.monotonic()
    elapsed = 0.0
    with screen(plain=options.plain) as display:
        while elapsed < options.seconds and not interruption.wait(min(display.interval, options.seconds - elapsed)):
            elapsed = time.monotonic() - began
            if elapsed >= options.flood_at:
                producing.begin_flood()
            producing.check()
            working.check()
            display.show(elapsed, tally.phase, tally.rows())
    return time.monotonic() - began
