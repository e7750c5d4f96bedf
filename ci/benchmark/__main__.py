"""The command `ci/bench`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg

from benchmark import endurance, report, throughput
from benchmark.counted import can_count, instructions
from benchmark.errors import BenchError
from benchmark.meters import counts_instructions
from benchmark.peers import PEERS, known_queues
from benchmark.profile import profile
from benchmark.segments import SETTINGS, Bench
from benchmark.sizes import SIZES
from fairq_schema.demo.errors import DemoError
from fairq_schema.demo.server import temporary_server

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmark.segments import Row

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE, PUBLISHED = CHECKOUT / "docs" / "performance.md", CHECKOUT / "docs" / "performance.json"
PICTURE = CHECKOUT / "docs" / "performance.png"
# In the order of the targets; the numbers are those of the tables in the page.
WORKLOADS: dict[str, Callable[[Bench], list[Row]]] = {
    "claim": throughput.claim,
    "profile": profile,
    "instructions": instructions,
    "enqueue": throughput.enqueue,
    "groups": endurance.groups,
    "depth": endurance.depth,
    "held": endurance.held,
    "wake": endurance.wake,
    "notify": endurance.notify,
    "sessions": throughput.sessions,
    "wal": throughput.wal,
    "growth": endurance.growth,
}
# What has no rounds: nothing is compared in time, or it takes its own.
ONCE = {"profile", "instructions", "groups", "depth", "held"}
SERVER = "select current_setting('server_version'), current_setting('ssl_library')"
SHOWN = (
    "shared_buffers",
    "max_wal_size",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "data_checksums",
    "wal_level",
)


def main() -> int:
    """Measure, or publish what was measured."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of everything that cleans up
    try:
        if options.publish:
            publish(options.publish)
        else:
            measure(options)
    except (BenchError, DemoError) as error:
        print(f"ci/bench: {error}", file=sys.stderr)
        return 1
    return 0


def measure(options: argparse.Namespace) -> None:
    """Run the workloads; each one's results are written as soon as they are there."""
    queues = known_queues(options.peers, options.pgmq_git)
    sizes = SIZES[options.size]
    sizes = replace(sizes, rounds=options.rounds or sizes.rounds)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "results.json"
    results: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {"runs": {}}
    with temporary_server(SETTINGS, options.data, options.bindir) as dsn:
        bench = Bench(
            dsn,
            queues,
            sizes,
            perf=options.perf and counts_instructions(),
            say=lambda line: print(line, flush=True),
            binaries=options.bindir,
        )
        results["setup"] = setup(dsn)
        results["queues"] = results.get("queues", {}) | {
            queue.name: {"version": queue.version, "about": queue.about} for queue in queues.values()
        }
        for name in options.only or everything():
            print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
            rows = WORKLOADS[name](bench)
            rounds = 1 if name in ONCE else sizes.rounds
            results["runs"][name] = {
                "size": options.size,
                "rounds": rounds,
                "commit": commit(),
                "server": results["setup"]["server"],
                "rows": rows,
            }
            results["runs"] = {name: results["runs"][name] for name in WORKLOADS if name in results["runs"]}
            file.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
            print(report.block(results, name), flush=True)
    (options.out / "tables.md").write_text(report.tables(results), "utf-8")
    if "growth" in results["runs"]:
        from benchmark import plot  # noqa: PLC0415 (slow to import, and not needed by the rest)

        plot.draw(options.out / PICTURE.name, results["runs"]["growth"]["rows"])
    print(f"{file.parent}: results.json, tables.md")


def everything() -> list[str]:
    """Name what is measured when nothing is asked for."""
    if can_count():
        return list(WORKLOADS)
    print("without the workload instructions: `ci/fetch counter` brings what counts them", flush=True)
    return [name for name in WORKLOADS if name != "instructions"]


def publish(folder: Path) -> None:
    """Make the results of a run those that docs/performance.md quotes."""
    shutil.copy(folder / "results.json", PUBLISHED)
    if (folder / PICTURE.name).exists():
        shutil.copy(folder / PICTURE.name, PICTURE)
    results = json.loads(PUBLISHED.read_text("utf-8"))
    PAGE.write_text(report.render(PAGE.read_text("utf-8"), results), "utf-8")
    print(PAGE.relative_to(CHECKOUT))
    commits = {name: run["commit"] for name, run in results["runs"].items()}
    if len(set(commits.values())) > 1 or "dirty" in str(commits):
        print("not all of one clean commit:", ", ".join(f"{name} {made}" for name, made in commits.items()))


def setup(dsn: str) -> dict[str, str]:
    """Say on what it was measured."""
    with psycopg.connect(dsn) as connection:
        [version, library] = connection.execute(SERVER).fetchone() or ("", "")
        settings = {name: connection.execute("select current_setting(%s)", (name,)).fetchone() for name in SHOWN}
    return {
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
        "processor": f"{_processor()}, {psutil.cpu_count()} cores",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GB",
        "system": f"{platform.system()}, Python {platform.python_version()}",
        "server": f"PostgreSQL {version} {f'with {library}' if library else 'without OpenSSL'}",
        **{name: str(value[0]) for name, value in settings.items() if value},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def commit() -> str:
    """Say which product was measured."""
    command = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def _words(known: Sequence[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        words = [word.strip() for word in text.split(",") if word.strip()]
        if strange := [word for word in words if word not in known]:
            message = f"what is {', '.join(strange)}? ({', '.join(known)})"
            raise argparse.ArgumentTypeError(message)
        return words

    return read


def _programs(text: str) -> Path:
    folder = Path(text).resolve()
    if not (folder / "initdb").exists():
        message = f"no initdb in {folder}"
        raise argparse.ArgumentTypeError(message)
    return folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ci/bench", description="Measures fairq beside other queues, on a PostgreSQL server of its own."
    )
    add = parser.add_argument
    add("--only", type=_words(list(WORKLOADS)), metavar="NAME,...", help=f"workloads: {', '.join(WORKLOADS)}")
    add("--peers", type=_words(PEERS), default=[], metavar="NAME,...", help=f"beside fairq and toy: {', '.join(PEERS)}")
    git = os.environ.get("FAIRQ_PGMQ_GIT")
    add("--pgmq-git", type=Path, default=git and Path(git), metavar="DIR", help="pgmq's repository (or FAIRQ_PGMQ_GIT)")
    add(
        "--size",
        choices=SIZES,
        default="quick",
        help="smoke: seconds, whether it runs at all; quick (default): minutes; full: ten times as much of everything",
    )
    add(
        "--rounds",
        type=int,
        metavar="N",
        help="how often each queue has its turn (quick: 1, full: 3); the median counts",
    )
    add(
        "--out",
        type=Path,
        default=CHECKOUT / ".cache" / "bench" / "results",
        metavar="DIR",
        help="results; those of other workloads that are there stay (default: .cache/bench/results)",
    )
    add(
        "--data", type=Path, metavar="DIR", help="where the server's data goes (default: the system's temporary folder)"
    )
    add("--bindir", type=_programs, metavar="DIR", help="the server's programs (default: those of the demo's wheel)")
    add("--no-perf", dest="perf", action="store_false", help="do not count instructions by perf, beside the rest")
    add(
        "--publish", type=Path, metavar="DIR", help="measure nothing: write the results in DIR into docs/performance.md"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
