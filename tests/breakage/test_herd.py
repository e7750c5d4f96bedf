"""All jobs fail at once: they come back spread, and a claim costs what it always costs."""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.races.helpers import check, drain
from tests.support import Edit
from tests.support.plans import buffers_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Database

# FAIRQ_BREAKAGE_JOBS=100000 takes two minutes on a busy machine.
JOBS = int(os.environ.get("FAIRQ_BREAKAGE_JOBS", "6000"))
FEW = 1200
TENTHS = """
    select least(width_bucket((details ->> 'delay_seconds')::float, 1800, 3600, 10), 10) as tenth, count(*)
    from fairq.job_log where queue = %s and event_type = 'retry_scheduled'
    group by 1 order by 1
"""
CLAIM = "select * from fairq.claim_jobs(p_queue => %s, p_owner => 'w', p_limit => 10)"


def fail_all(db: Database, queue: str, count: int) -> None:
    """So many jobs, of ten tenants, each failed once, to be tried again after half an hour to an hour."""
    hour = timedelta(hours=1)
    db.set_queue(queue, backoff_base=hour, backoff_cap=hour, backoff_jitter=0.5)
    for n in range(0, count, 400):
        db.given_jobs(f"t{n // 400 % 10}", 400, queue=queue)
    while jobs := db.claim(1000, queue=queue, lease=hour):
        db.fail_all(jobs)


def cost_of_a_claim(db: Database, queue: str) -> int:
    """Pages of claims that find more due than they promote: the middle one of nine, an hour later."""
    db.execute("update fairq.jobs set run_at = run_at - interval '1 hour' where queue = %s", queue)
    db.execute("update fairq.ticks set promote_floor = '-infinity' where queue = %s", queue)
    db.claim(10, queue=queue)
    return sorted(buffers_of(db.conn, CLAIM, queue) for _ in range(9))[4]


@check
def check_a_herd_is_spread(db: Database) -> None:
    """Every tenth of the span that jitter allows gets about a tenth of the retries."""
    fail_all(db, "herd", FEW)
    tenths = Counter({row.tenth: row.count for row in db.rows(TENTHS, "herd")})
    assert sorted(tenths) == list(range(1, 11))
    assert max(tenths.values()) < FEW / 4


def test_a_herd_is_spread(db: Database) -> None:
    """From half the backoff to all of it."""
    check_a_herd_is_spread(db)


@pytest.mark.once
def test_a_herd_that_stays_together_is_noticed(assert_killed: Callable[..., None]) -> None:
    """Without jitter all would come back at once."""
    assert_killed(check_a_herd_is_spread, Edit("_retry_delay", "* p_random)", "* 0.5)"))


def test_a_claim_costs_the_same_however_great_the_herd(db: Database) -> None:
    """All that failed is due: a claim promotes no more than a hundred, whatever their number."""
    fail_all(db, "few", FEW)
    few = cost_of_a_claim(db, "few")
    fail_all(db, "herd", JOBS)
    # a hundred promotions each walk the indexes from the top, and greater ones have another level
    assert cost_of_a_claim(db, "herd") <= 1.8 * few
    done = drain(db, "herd", 1000)
    assert len(done) == len(set(done)) == JOBS - 100
