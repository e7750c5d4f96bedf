"""The workloads that tell how fast and at what cost: claim, enqueue, sessions, WAL."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmark.segments import SESSIONS, drained, in_turn, room, spread, taker
from benchmark.workers import Task, produce

if TYPE_CHECKING:
    from benchmark.queues import Queue
    from benchmark.segments import Bench, Database, Row

# By table, its indexes and TOAST included; what touches no table is commits. A record counts for its first block.
WAL_BY_TABLE = """
    with records as (
        select distinct on (b.start_lsn) b.record_length, b.reldatabase, b.relfilenode
        from pg_get_wal_block_info('0/0'::pg_lsn + %(first)s::numeric, '0/0'::pg_lsn + %(last)s::numeric, false) as b
        order by b.start_lsn, b.block_id
    )
    -- a partition is its table
    select regexp_replace(coalesce(t.relname, c.relname, 'other'), '_[0-9]$', ''), sum(r.record_length)
    from records as r
    left join pg_class as c
      on c.relfilenode = r.relfilenode
      and r.reldatabase = (select d.oid from pg_database as d where d.datname = current_database())
    left join pg_index as i on i.indexrelid = c.oid
    left join pg_class as t on t.oid = i.indrelid
    group by 1
    order by 2 desc
"""


def claim(bench: Bench) -> list[Row]:
    """Claim and complete, by batch and tenants."""
    rows = []
    for tenants in bench.sizes.tenants:
        for batch in (batch for batch in (1, 10, 100) if batch in bench.sizes.jobs):
            queues = bench.present("fairq", "fairq-ahead", "fairq-sync", "toy", "toy-kept", "pgmq", "pgmq-archive")
            bench.say(f"  batch {batch}, {tenants} tenants")
            rows += in_turn(bench, {queue.name: partial(_claim, bench, queue, batch, tenants) for queue in queues})
    return rows


def _claim(bench: Bench, queue: Queue, batch: int, tenants: int) -> Row:
    with bench.database(queue) as database:
        row = _drained_from_full(database, batch, tenants)
    return {"batch": batch, "tenants": tenants, "queue": queue.name, **row}


def _drained_from_full(
    database: Database, batch: int, tenants: int, sessions: int = SESSIONS, *, waits: bool = False
) -> Row:
    jobs = database.bench.sizes.jobs[batch]
    database.load(room(batch, sessions, jobs), spread(tenants))
    database.admin.execute("analyze")
    row, outcome = drained(database, taker(batch), jobs=jobs, sessions=sessions, waits=waits)
    if outcome.waits is not None:
        total = max(1, outcome.waits.total())
        row["waits"] = ", ".join(f"{wait} {count / total:.0%}" for wait, count in outcome.waits.most_common(4))
    return row


def enqueue(bench: Bench) -> list[Row]:
    """Enqueue, one job a call and a thousand, by two producers."""
    rows = []
    for batch in (1, 1000):
        bench.say(f"  batch {batch}")
        queues = bench.present("fairq", "toy", "pgmq")
        rows += in_turn(bench, {queue.name: partial(_enqueue, bench, queue, batch) for queue in queues})
    return rows


def _enqueue(bench: Bench, queue: Queue, batch: int) -> Row:
    with bench.database(queue) as database:
        row = enqueued(database, batch, bench.sizes.enqueue)
    return {"batch": batch, "queue": queue.name, **row}


def enqueued(database: Database, batch: int, seconds: float) -> Row:
    """Enqueue for so long."""
    task = Task(role=produce, batch=batch, seconds=seconds, warmup=6, tenants=100)
    outcome = database.run(task, task)
    database.check(outcome.tallies)
    return outcome.per_job(sum(tally.produced - tally.warm for tally in outcome.tallies))


def sessions(bench: Bench) -> list[Row]:
    """Many sessions, one tenant, one job a claim: the queue's lock is the limit."""
    contestants = {
        f"{queue.name} at {count}": partial(_sessions, bench, queue, count)
        for queue in bench.present("fairq", "fairq-ahead", "pgmq")
        for count in bench.sizes.sessions
    }
    fewest = bench.sizes.sessions[0]
    return in_turn(bench, contestants, lambda name: f"{name.split()[0]} at {fewest}")


def _sessions(bench: Bench, queue: Queue, count: int) -> Row:
    with bench.database(queue) as database:
        row = _drained_from_full(database, 1, 1, count, waits=True)
    return {"sessions": count, "queue": queue.name, **row}


def wal(bench: Bench) -> list[Row]:
    """WAL per job from enqueue to complete, table by table."""
    queues = bench.present("fairq", "fairq-ahead", "pgmq", "pgmq-archive")
    return in_turn(bench, {queue.name: partial(_wal, bench, queue) for queue in queues})


def _wal(bench: Bench, queue: Queue) -> Row:
    """Enqueue one by one, then claim and complete in tens: each counted by itself."""
    with bench.database(queue) as database:
        enqueuing = enqueued(database, 1, bench.sizes.notify)
        row = _drained_from_full(database, 10, 100)
        row["enqueue_wal"] = enqueuing["wal_bytes"]
        # what was written must be on disk before it can be read
        database.admin.execute("select pg_logical_emit_message(false, 'bench', '', true)")
        first, last = database.wal
        found = database.admin.execute(WAL_BY_TABLE, {"first": first, "last": last}).fetchall()
    tables = {str(table): int(size) / row["jobs"] for table, size in found}
    row["history_wal"] = round(sum(tables.get(table, 0) for table in queue.history))
    row["all_wal"] = row["enqueue_wal"] + row["wal_bytes"]
    row["all_but_history"] = row["all_wal"] - row["history_wal"]
    tables["commits"] = row["wal_bytes"] - sum(tables.values())
    row["tables"] = ", ".join(f"{table} {size:.0f}" for table, size in tables.items() if round(size))
    return {"queue": queue.name, **row}
