"""What was measured, in words; and whether it keeps the promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairq_schema.demo.options import WEIGHTS
from fairq_schema.demo.screen import seconds
from fairq_schema.demo.tally import CALM, FLOOD, percentile

if TYPE_CHECKING:
    from fairq_schema.demo.options import Options
    from fairq_schema.demo.tally import Tally

PHASES = {CALM: "before the flood", FLOOD: "during the flood"}


def summarize(options: Options, tally: Tally, elapsed: float, in_database: int) -> int:
    """Print the measurements; give 0 if the promise was kept and every start accounted for, else 1."""
    starts, lag = tally.starts(), tally.lag()
    print(f"\n{len(starts):,} jobs started in {elapsed:.1f} s by {options.workers} workers")
    for phase, words in PHASES.items():
        _print_phase(tally, phase, words)
    print(
        f"lag ratio: {float(lag.ratio):.3f}, promised: at most 1, one job of each"
        + (f" (worst stretch: {lag.pair[0]} and {lag.pair[1]})" if lag.pair else "")
    )
    print(
        f"judged: {lag.judged:,} of {len(starts):,} starts, "
        "those at which two tenants or more had work waiting for certain"
    )
    complete = len({start.job_id for start in starts}) == len(starts) == in_database
    if not complete:
        print(f"the workers report {len(starts):,} starts, the database knows of {in_database:,}: nothing is proved")
    return 0 if complete and starts and lag.ratio <= 1 else 1


def _print_phase(tally: Tally, phase: str, words: str) -> None:
    waits = tally.waits(phase)
    total, weights = sum(map(len, waits.values())), sum(WEIGHTS[tenant] for tenant in waits)
    for tenant, measured in waits.items():
        print(
            f"  {words}: {tenant:<6} {len(measured) / total:6.1%} of the starts,"
            f" entitled to {WEIGHTS[tenant] / weights:6.1%};"
            f" waited {seconds(percentile(measured, 50))} (p50), {seconds(percentile(measured, 99))} (p99)"
        )
