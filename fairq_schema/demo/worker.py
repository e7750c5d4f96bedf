"""
One worker process: claims, works, completes, and reports each start on its standard output.

It lives as long as its standard input is open: the demo closes it to end the worker, and its own death closes it too.
The first line of the input holds the settings, so that no password shows in the list of processes.
"""

from __future__ import annotations

import json
import random
import select
import sys
from typing import Any

import psycopg

CLAIM = """
select c.job_id, c.tenant, c.lease_token, (extract(epoch from c.created_at) * 1000000)::bigint
from fairq.claim_jobs(p_queue => %s, p_owner => %s, p_limit => %s) as c
"""
# In a second statement: the first one's snapshot is older than the leases it makes.
STARTS = """
select l.job_id, l.dispatch, (extract(epoch from l.started_at) * 1000000)::bigint
from fairq.leases as l
where l.job_id = any (%s)
"""
COMPLETE = """
select o.job_id, (extract(epoch from clock_timestamp()) * 1000000)::bigint
from fairq.complete_jobs(p_job_ids => %s, p_tokens => %s) as o
where o.outcome = 'succeeded'
"""
# The same of a plain table, first in first out: what the comparison sets beside fairq.
FIFO_CLAIM = """
with next as (
    select f.job_id from fairq_demo.fifo as f where f.claimed_at is null
    order by f.job_id limit %s for update skip locked
)
update fairq_demo.fifo as f set claimed_at = clock_timestamp() from next as n where f.job_id = n.job_id
returning f.job_id, f.tenant, null, (extract(epoch from f.created_at) * 1000000)::bigint
"""
FIFO_STARTS = """
select f.job_id, f.job_id, (extract(epoch from f.claimed_at) * 1000000)::bigint
from fairq_demo.fifo as f
where f.job_id = any (%s)
"""
FIFO_COMPLETE = """
delete from fairq_demo.fifo as f where f.job_id = any (%s)
returning f.job_id, (extract(epoch from clock_timestamp()) * 1000000)::bigint
"""
IDLE = 0.01


def main() -> None:
    """Work until the input ends."""
    settings = json.loads(sys.stdin.readline())
    limits = random.Random(settings["seed"])  # noqa: S311 (sizes of batches, not secrets)
    with psycopg.connect(settings["dsn"], autocommit=True, application_name=settings["owner"]) as connection:
        report(ready=True)
        while not stopped(0):
            if not serve(connection, settings, limits.randint(1, settings["batch"])):
                stopped(IDLE)


def serve(connection: psycopg.Connection[Any], settings: dict[str, Any], limit: int) -> int:
    """Claim a batch, work through it, complete it; give its size."""
    if settings["fifo"]:
        claimed = connection.execute(FIFO_CLAIM, (limit,)).fetchall()
    else:
        claimed = connection.execute(CLAIM, (settings["queue"], settings["owner"], limit)).fetchall()
    if claimed:
        jobs = [job for job, *_ in claimed]
        starts = {job: rest for job, *rest in connection.execute(FIFO_STARTS if settings["fifo"] else STARTS, (jobs,))}
        report(claimed=[(job, tenant, created, *starts[job]) for job, tenant, _, created in claimed])
        for _, tenant, *_ in claimed:
            stopped(settings["work"][tenant])
        if settings["fifo"]:
            completed = connection.execute(FIFO_COMPLETE, (jobs,))
        else:
            completed = connection.execute(COMPLETE, (jobs, [token for _, _, token, _ in claimed]))
        ends = dict(completed.fetchall())
        report(done=[(tenant, starts[job][1], ends[job]) for job, tenant, *_ in claimed if job in ends])
    return len(claimed)


def stopped(seconds: float) -> bool:
    """Wait so long, or until the input ends; tell whether it has. This wait is also the job's work."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def report(**what: object) -> None:
    """Write one line for the demo to read."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
