"""What each step of a claim and a completion takes, and what it buys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmark.segments import drained, room, spread, taker

if TYPE_CHECKING:
    from benchmark.queues import Queue
    from benchmark.segments import Bench, Row

# The functions that make up a step; what is in none of them is shared work, or too little to be told.
STEPS = {
    "the look: what was committed since, exactly once": ("_look",),
    "the news brought to their tenants: worker-time settled, wishes, entrants": (
        *("_catch_up", "_apply", "_by_tenant", "_average", "_averaged", "_virtual_time", "_open_flows", "_spread"),
        *("_wish", "_wished", "_refilled", "_headed", "_lifted", "_everyones_news"),
    ),
    "the pick: whose turn it is, and which job": ("_pick", "_pick_one", "_tokens"),
    "the leases: job locked, token drawn, lease written": ("_lease",),
    "the charge: each tenant moved on in the order": ("_charge", "_write_touched"),
    "the memory: tick read and written": ("_last_tick", "_write_tick", "_pick_floor"),
    "the clock: leases over, jobs due, tokens due": ("_expire_due", "_promote_due", "_tokens_due"),
    "the queue's lock, and who may claim what": ("_lock_queue", "_wait_for_queue", "_granted_tenants", "_caller"),
    "settings and arguments": (
        *("_queue_settings", "_check_name", "_check_limit", "_check_claim", "_check_held", "_check_batch"),
        *("_limit_idle_transaction",),
        "_queue_tokens",
    ),
    "what is ready: left for others, taken, put back; settings, and who may claim what": (
        *("_take", "_make_ready", "_put_ready_back", "_being_taken", "_lease_each"),
    ),
    "the claim's frame": ("claim_jobs", "_dispatch"),
    "the completion: lease judged and taken away, job moved to its history, the scheduler told of it": (
        *("complete_job", "complete_jobs", "_complete_one", "_complete", "_ending"),
    ),
}
TIMES = "select funcname, calls, self_time * 1000 from pg_stat_user_functions where schemaname = 'fairq'"


def profile(bench: Bench) -> list[Row]:
    """Self time of each step per job, by batch; one session, so that nobody waits for anybody."""
    rows: dict[str, Row] = {step: {"step": step} for step in (*STEPS, "all of it")}
    for queue, prefix in zip(bench.present("fairq", "fairq-ahead"), ("at", "ahead"), strict=True):
        _profile(bench, queue, prefix, rows)
    return list(rows.values())


def _profile(bench: Bench, queue: Queue, prefix: str, rows: dict[str, Row]) -> None:
    for batch in (batch for batch in (1, 10, 100) if batch in bench.sizes.jobs):
        jobs = bench.sizes.jobs[batch]
        with bench.database(queue) as database:
            database.admin.execute("alter database bench_now set track_functions = 'pl'")
            database.load(room(batch, 1, jobs), spread(1))
            database.admin.execute("analyze")
            drained(database, taker(batch), jobs=jobs, sessions=1)
            found = {name: (calls, time) for name, calls, time in database.admin.execute(TIMES)}
        done = found["claim_jobs"][0] * batch
        for step, names in STEPS.items():
            rows[step][f"{prefix}_{batch}"] = round(sum(found.get(name, (0, 0))[1] for name in names) / done, 1)
        rows["all of it"][f"{prefix}_{batch}"] = round(sum(time for _, time in found.values()) / done, 1)
        bench.say(f"  {queue.name}, batch {batch}: {rows['all of it'][f'{prefix}_{batch}']} µs a job")
