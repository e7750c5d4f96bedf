"""The workloads that tell whether cost and order stay: groups, depth, held snapshot, wake-up, growth."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from benchmark.meters import Meter
from benchmark.segments import ONE, SESSIONS, WARMUP, drained, in_turn, room, spread, taker
from benchmark.throughput import enqueued
from benchmark.workers import Task, drain, produce

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmark.queues import Queue
    from benchmark.segments import Bench, Database, Row

GROUP_JOBS = 10
GROUP_DISPATCHES = 5  # times as many as there are small groups: if they have not all had theirs by then, it is lost
SMALL_QUEUE = 10_000
HELD_BATCH, HELD_RATE, MIXED_RATE, HELD_AHEAD, HELD_TENANTS = 10, 2_000, 500, 1_000, 100
WAKE_RATE = 50
BACKLOG = 20_000


def groups(bench: Bench) -> list[Row]:
    """One large group and many small ones: after how many dispatches each of those had its first job."""
    [queue] = bench.present("fairq")
    return [_groups(bench, queue, batch) for batch in (1, 10, 100) if batch in bench.sizes.jobs]


def _groups(bench: Bench, queue: Queue, batch: int) -> Row:
    big, small = bench.sizes.big, bench.sizes.small
    with bench.database(queue) as database:
        database.load(big + GROUP_JOBS * small, f"case when i <= {big} then 'big' else 's' || (i - {big} - 1) / 10 end")
        task = Task(role=drain, batch=batch, in_order=True)
        outcome = database.run(*[task] * SESSIONS, budget=GROUP_DISPATCHES * small)
        database.check(outcome.tallies)
    order = sorted(each for tally in outcome.tallies for each in tally.order)
    first: dict[str, int] = {}
    for number, (_, _, tenant) in enumerate(order, 1):
        first.setdefault(tenant, number)
    served = sorted(number for tenant, number in first.items() if tenant != "big")
    bench.say(f"    batch {batch}: {len(served)} of {small} small groups, the last after {served[-1]:,} dispatches")
    return {
        "batch": batch,
        "big": big,
        "small": small,
        "served": len(served),
        "last_first": served[-1] if len(served) == small else None,
        "median_first": served[len(served) // 2],
        "dispatches": len(order),
    }


def depth(bench: Bench) -> list[Row]:
    """Claim from a deep queue right after it was loaded, with no ANALYZE, and from a small one."""
    [queue] = bench.present("fairq")
    sizes = bench.sizes
    jobs = min(sizes.jobs[10], SMALL_QUEUE // 2, sizes.queued // 3)
    with bench.database(queue) as database:
        database.load(max(room(10, SESSIONS, jobs), min(SMALL_QUEUE, sizes.queued)), spread(min(100, sizes.active)))
        small = _depth(database, "small", jobs)
    with bench.database(queue) as database:
        database.load_finished(sizes.finished, spread(sizes.active))
        database.load(sizes.idle, "'idle' || i")
        drained(database, Task(role=drain, batch=1000), jobs=sizes.idle, sessions=1)
        database.load(sizes.queued, spread(sizes.active))
        deep = _depth(database, "deep", jobs)
    for key in ("claim_buffers", "complete_buffers", "buffers", "cpu_us"):
        deep[f"{key}_ratio"] = round(deep[key] / small[key], 2)
    return [small, deep]


def _depth(database: Database, name: str, jobs: int) -> Row:
    waiting = database.waiting
    row, outcome = drained(database, taker(10), jobs=jobs)
    row["first_buffers"] = round(outcome.warmup_buffers / sum(tally.warm for tally in outcome.tallies), 2)
    row["first_claim_ms"] = round(1000 * max(tally.first_claim for tally in outcome.tallies), 1)
    database.bench.say(f"    {name}: {row['claim_buffers']} + {row['complete_buffers']} buffers per job")
    return {"queue": name, "waiting": waiting, **row}


def held(bench: Bench) -> list[Row]:
    """Produce and consume while a transaction holds its snapshot, stretch by stretch."""
    sizes = bench.sizes
    rows = []
    for queue in bench.present("fairq", "fairq-mixed"):
        rows += _held(bench, queue, sizes.held, sizes.held_step)
    for queue in bench.present("pgmq"):
        rows += _held(bench, queue, sizes.held_peer, min(sizes.held_step, sizes.held_peer / 6))
    return rows


def _held(bench: Bench, queue: Queue, seconds: float, step: float) -> list[Row]:
    mixed = queue.name.endswith("mixed")
    with bench.database(queue) as database, psycopg.connect(database.dsn) as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("select count(*) from pg_class")
        rate = MIXED_RATE if mixed else HELD_RATE
        maker = Task(
            role=produce,
            batch=HELD_BATCH,
            seconds=seconds,
            rate=rate,
            ahead=HELD_AHEAD,
            tenants=HELD_TENANTS,
            mixed=mixed,
        )
        taker = Task(role=drain, batch=HELD_BATCH, seconds=seconds, mixed=mixed)
        with database.crew(maker, taker, taker) as crew:
            meter = Meter(database.admin)
            before, consumed = meter.read(), 0
            start = crew.go()
            rows: list[Row] = []
            for number in range(1, round(seconds / step) + 1):
                time.sleep(max(0.0, start + number * step - time.monotonic()))
                after, now = meter.read(), crew.consumed
                spent, jobs = after - before, max(1, now - consumed)
                claims = max(1, spent.claims)
                rows.append(
                    {
                        "queue": queue.name,
                        "until": round(number * step, 1),
                        "jobs_s": round(jobs / spent.seconds),
                        "cpu_us": round(spent.cpu / jobs * 1e6, 1),
                        "claimed": round(jobs / claims, 1),
                        "call_buffers": round(spent.claim_buffers / claims, 1),
                        "claim_buffers": round(spent.claim_buffers / jobs, 2),
                        "complete_buffers": round(spent.complete_buffers / jobs, 2),
                    }
                )
                before, consumed = after, now
                bench.say(f"    {queue.name}: {rows[-1]}")
            tallies = crew.tallies()
        holder.rollback()
        # a job that failed, or whose lease ran out, is claimed again
        database.check(tallies, once=not mixed)
    for key in ("jobs_s", "cpu_us", "call_buffers", "claim_buffers"):
        rows[-1][f"{key}_ratio"] = round(rows[-1][key] / rows[0][key], 2) if rows[0][key] else None
    return rows


def wake(bench: Bench) -> list[Row]:
    """From enqueue to claimed on an idle queue, by LISTEN."""
    queues = bench.present("fairq-notify", "procrastinate")
    contestants = {queue.name: partial(_wake, bench, queue) for queue in queues}
    return in_turn(bench, contestants, lambda _: "procrastinate")


def _wake(bench: Bench, queue: Queue) -> Row:
    with bench.database(queue) as database:
        producer = Task(role=produce, seconds=bench.sizes.wake, rate=WAKE_RATE, warmup=6)
        consumer = Task(role=drain, seconds=bench.sizes.wake + 1, warmup=WARMUP, wakes=True)
        outcome = database.run(producer, consumer)
        database.check(outcome.tallies)
    latencies = sorted(latency for tally in outcome.tallies for latency in tally.latencies)
    return {
        "queue": queue.name,
        "jobs": len(latencies),
        "p50_ms": _percentile(latencies, 0.5),
        "p99_ms": _percentile(latencies, 0.99),
        "foreign": outcome.foreign,
    }


def _percentile(values: Sequence[float], share: float) -> float:
    return round(1000 * values[min(len(values) - 1, int(share * len(values)))], 2)


def notify(bench: Bench) -> list[Row]:
    """Enqueue under a backlog, with notify on and off."""
    queues = bench.present("fairq-notify", "fairq")
    return in_turn(bench, {queue.name: partial(_notify, bench, queue) for queue in queues}, lambda _: "fairq")


def _notify(bench: Bench, queue: Queue) -> Row:
    with bench.database(queue) as database:
        database.load(min(BACKLOG, bench.sizes.queued))
        # some worker has found work here, and not a queue that is empty
        database.admin.execute(queue.claim, {"owner": "bench", "limit": 10})
        row = enqueued(database, 1, bench.sizes.notify)
    return {"queue": queue.name, **row}


def growth(bench: Bench) -> list[Row]:
    """Measure what a job costs as one thing grows: tenants, backlog, finished jobs, batch or sessions."""
    [queue] = bench.present("fairq")
    sizes = bench.sizes
    rows = []
    for what, values in (
        ("tenants", sizes.growth_tenants),
        ("backlog", sizes.growth_backlog),
        ("finished", sizes.growth_finished),
        ("batch", sizes.growth_batch),
        ("sessions", sizes.growth_sessions),
    ):
        bench.say(f"  {what}")
        most = max(sizes.growth_tenants) if what == "tenants" else 0
        contestants = {f"{what} {value}": partial(_growth, bench, queue, what, value, most) for value in values}
        rows += in_turn(bench, contestants, lambda _: "nothing")
    return rows


def _growth(bench: Bench, queue: Queue, what: str, value: int, most_tenants: int) -> Row:
    point = {"tenants": 100, "backlog": 0, "finished": 0, "batch": 10, "sessions": SESSIONS, what: value}
    jobs, batch = bench.sizes.jobs[point["batch"]], point["batch"]
    if what == "backlog":
        # the smallest one must outlast its measuring
        jobs = min(jobs, value // 4)
    backlog = point["backlog"] or max(room(batch, point["sessions"], jobs), 2 * most_tenants)
    with bench.database(queue) as database:
        if point["finished"]:
            database.load_finished(point["finished"], ONE)
        database.load(backlog, spread(point["tenants"]))
        row, _ = drained(database, taker(batch), jobs=jobs, sessions=point["sessions"])
    return {"what": what, "value": value, **row}
