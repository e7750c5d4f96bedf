"""
Tables from a file of results, and docs/performance.md with them.

No number in that page is typed: what stands between `<!-- bench: NAME -->` and `<!-- /bench -->` is written here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BLOCK = re.compile(r"(?P<open><!-- bench: (?P<name>[\w-]+) -->\n).*?(?P<close><!-- /bench -->)", re.DOTALL)
NOT_MEASURED = "Not measured yet.\n"

# What the columns of each table are called, by the key in the results. A heading is short; the page explains it.
SPEED = {
    "jobs_s": "jobs/s",
    "cpu_us": "CPU µs",
    "client_us": "client CPU µs",
    "instructions": "instructions",
    "wal_bytes": "WAL bytes",
}
BUFFERS = {"claim_buffers": "buffers, claim", "complete_buffers": "buffers, complete"}
RATIOS = {
    "cpu_us_ratio": "CPU ratio",
    "jobs_s_ratio": "jobs/s ratio",
    "wal_bytes_ratio": "WAL ratio",
    "buffers_ratio": "buffers ratio",
    "instructions_ratio": "instructions ratio",
}
COLUMNS: dict[str, dict[str, str]] = {
    "claim": {"batch": "batch", "tenants": "tenants", "queue": "queue", **SPEED, **BUFFERS, "empty": "empty", **RATIOS},
    "profile": {
        "step": "step",
        **{f"at_{batch}": f"batch {batch}" for batch in (1, 10, 100)},
        **{f"ahead_{batch}": f"ahead, batch {batch}" for batch in (1, 10, 100)},
    },
    "instructions": {
        "batch": "batch",
        "queue": "queue",
        "enqueue": "enqueue",
        "claim": "claim",
        "complete": "complete",
        "all": "claim and complete",
        "all_ratio": "ratio",
    },
    "enqueue": {"batch": "batch", "queue": "queue", **SPEED, "buffers": "buffers", **RATIOS},
    "groups": {
        "batch": "batch",
        "big": "jobs of the large group",
        "small": "small groups",
        "served": "served",
        "last_first": "dispatches until the last had its first",
        "median_first": "median",
    },
    "depth": {
        "queue": "queue",
        "waiting": "waiting",
        **BUFFERS,
        "cpu_us": "CPU µs",
        "jobs_s": "jobs/s",
        "first_buffers": "buffers, first claims",
        "first_claim_ms": "first claim, ms",
        "claim_buffers_ratio": "claim ratio",
        "complete_buffers_ratio": "complete ratio",
        "buffers_ratio": "buffers ratio",
        "cpu_us_ratio": "CPU ratio",
    },
    "held": {
        "queue": "queue",
        "until": "until, s",
        "jobs_s": "jobs/s",
        "cpu_us": "CPU µs",
        "claimed": "jobs a claim",
        "call_buffers": "buffers a claim",
        **BUFFERS,
        "jobs_s_ratio": "jobs/s, last to first",
        "call_buffers_ratio": "buffers a claim, last to first",
        "claim_buffers_ratio": "buffers, last to first",
        "cpu_us_ratio": "CPU, last to first",
    },
    "wake": {"queue": "queue", "jobs": "jobs", "p50_ms": "p50, ms", "p99_ms": "p99, ms", "p50_ms_ratio": "p50 ratio"},
    "notify": {"queue": "queue", "jobs_s": "jobs/s", "cpu_us": "CPU µs", "jobs_s_ratio": "jobs/s ratio"},
    "sessions": {
        "sessions": "sessions",
        "queue": "queue",
        "jobs_s": "jobs/s",
        "cpu_us": "CPU µs",
        "empty": "empty claims",
        "jobs_s_ratio": "jobs/s, to the fewest",
        "waits": "what the sessions wait for",
    },
    "wal": {
        "queue": "queue",
        "enqueue_wal": "enqueue",
        "wal_bytes": "claim and complete",
        "history_wal": "of it history",
        "all_wal": "all",
        "all_but_history": "all but history",
        "all_wal_ratio": "ratio",
        "all_but_history_ratio": "ratio without history",
        "tables": "by table",
    },
    "growth": {"what": "what grows", "value": "to", **BUFFERS, "cpu_us": "CPU µs", "jobs_s": "jobs/s"},
}


def tables(results: Mapping[str, Any]) -> str:
    """Write all tables, one below the other."""
    names = ["setup", "queues", *results["runs"]]
    return "\n".join(f"## {name}\n\n{block(results, name)}" for name in names)


def render(page: str, results: Mapping[str, Any]) -> str:
    """Fill the blocks of a page."""
    return BLOCK.sub(lambda found: f"{found['open']}{block(results, found['name'])}{found['close']}", page)


def block(results: Mapping[str, Any], name: str) -> str:
    """Write what one block of the page says."""
    if not results["runs"]:
        return NOT_MEASURED
    if name == "setup":
        return table(("what", "value"), results["setup"].items())
    if name == "queues":
        cells = ((key, each["version"], each["about"]) for key, each in results["queues"].items())
        return table(("queue", "version", "what it is"), cells)
    run = results["runs"].get(name)
    if run is None:
        return NOT_MEASURED
    # a column that says nothing is left out: perf did not run, or there was nobody to compare with
    columns = {
        key: heading for key, heading in COLUMNS[name].items() if any(row.get(key) is not None for row in run["rows"])
    }
    body = table(list(columns.values()), ([shown(key, row.get(key)) for key in columns] for row in run["rows"]))
    if name == "growth":
        body = f"![buffers and CPU per job as one thing grows](performance.png)\n\n{body}"
    others = [row["foreign"] for row in run["rows"] if "foreign" in row]
    busy = f"; cores that others used: at most {max(others)}" if others else ""
    size = f"Size `{run['size']}`, {_many(run['rounds'], 'round')}"
    if run["rounds"] > 1:
        size += " (a ratio is the median of theirs)"
    server = f", {run['server']}" if "server" in run else ""
    return f"{body}\n{size}, commit {run['commit']}{server}{busy}.\n"


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def table(heads: Sequence[str], rows: Any) -> str:  # noqa: ANN401 (an iterable of cells of any kind)
    """Write a table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in lines)


def shown(key: str, value: object) -> str:
    """Write a number as people read it."""
    if value is None:
        return ""
    if key.endswith("_ratio"):
        return f"{value:.2f}"
    if isinstance(value, (int, float)):
        return f"{value:,}"
    return str(value)
