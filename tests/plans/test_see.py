"""
What operators and tenants look at costs the same whatever the backlog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plans.backlog import fill
from tests.support.plans import buffers_of, indexes, plans_inside, seq_scans

if TYPE_CHECKING:
    from tests.support.database import Database

LONG = "1 hour"
# Pages a look may touch: the entries that its counts stop at, a page each where nothing was vacuumed, and some.
# Measured in the second round: 16,000, 131,000, 14,000, 1,700 and 3,100.
MOST = {
    "select * from fairq.queue_stats()": 35_000,
    "select * from fairq.tenant_stats('default')": 150_000,
    "select * from fairq.tenant_stats('default', p_limit => 10, p_by => 'backlog')": 20_000,
    "select * from fairq.tenant_stats('default', 't5')": 5_000,
    "select * from fairq.tenant_stats('default', p_limit => 1)": 8_000,
}
WHY = "select e.* from fairq.explain_wait(%s) as e"
MOST_TO_EXPLAIN = 30_000


@pytest.mark.slow
def test_a_look_at_a_loaded_queue_is_bounded(db: Database, subtests: pytest.Subtests) -> None:
    """Three hundred thousand jobs of two thousand tenants, one of whom has fifty thousand; then as many again."""
    for round_number in (1, 2):
        fill(db, jobs=250_000, tenants=2_000)
        fill(db, jobs=50_000, tenants=1, prefix="elephant")
        fill(db, jobs=50_000, tenants=2_000, state="scheduled", delay="1 hour")
        db.claim(1000, lease=LONG)
        for query, most in MOST.items():
            with subtests.test(query, round=round_number):
                assert buffers_of(db.conn, query) < most
        for name, job in {"the first": "min", "the last": "max"}.items():
            with subtests.test(f"explain_wait of the elephant's {name} job", round=round_number):
                job_id = db.value(
                    f"""select {job}(j.job_id) from fairq.jobs as j
                        where j.tenant = 'elephant0' and j.state = 'queued'
                          and not exists (select from fairq.leases as l where l.job_id = j.job_id)"""
                )
                assert buffers_of(db.conn, WHY, job_id) < MOST_TO_EXPLAIN


def test_the_last_of_many_tenants_is_found_by_its_name(db: Database) -> None:
    """Twelve thousand tenants are before it in the pick order; it costs a page for each of those counted, and some."""
    fill(db, jobs=12_000, tenants=12_000)
    fill(db, jobs=2, tenants=1, prefix="zz")
    (served,) = db.claim(1, lease=LONG)

    (last,) = db.rows("select * from fairq.tenant_stats('default', 'zz0')")
    assert (last.queued, last.share) == (2, 0)
    assert last.entitled == pytest.approx(1 / 12_001)
    (other,) = db.rows("select * from fairq.tenant_stats('default', %s)", served.tenant)
    assert (other.running, other.share) == (1, 1)
    assert buffers_of(db.conn, "select * from fairq.tenant_stats('default', 'zz0')") < 13_000


def test_a_look_reads_no_table_from_end_to_end(db: Database) -> None:
    """Also right after the schema was made, when every table is known to be empty."""
    job = db.enqueue("a").job_id
    db.given_jobs("b", 3)
    db.claim(1, lease=LONG)
    heard = [part for query in MOST for part in plans_inside(db.conn, query)]
    heard += plans_inside(db.conn, WHY, db.enqueue("a").job_id) + plans_inside(db.conn, WHY, job)

    # few rows each, and no hot path: what queues there are, how they are set, who may what
    small = {"schedulers", "queues", "access_grants"}
    assert [text for text, plan in heard if seq_scans(plan) - small] == []


def test_the_dead_are_found_at_the_end_of_what_failed(db: Database) -> None:
    """Beside any number that succeeded, and behind ten thousand that were cancelled."""
    db.claim(1)
    db.execute(
        """insert into fairq.finished_jobs (
            job_id, queue, tenant, task, payload, priority, state, attempts, max_attempts, run_at, cost, created_at,
            started_at, finished_at, lease_owner, token_hash
        )
        select
            -n, 'default', 't', 'work', '{}', 2, ('{succeeded,cancelled,dead}'::text[])[n % 3 + 1], 1, 1,
            now(), 1, now(), now(), now() - n * interval '1 second', 'w', ''
        from generate_series(1, 60000) as n"""
    )
    assert db.value("select dead from fairq.queue_stats()") == 5_000
    assert [row.job_id for row in db.rows("select job_id from fairq.dead_jobs(p_limit => 3)")] == [-2, -5, -8]
    assert buffers_of(db.conn, "select * from fairq.dead_jobs()") < 12_000
    looks = ("select * from fairq.dead_jobs()", "select * from fairq.queue_stats()")
    heard = [part for query in looks for part in plans_inside(db.conn, query)]
    rides = [indexes(plan) for text, plan in heard if "state <> 'succeeded'" in text]
    assert len(rides) == 2
    for names in rides:
        assert "finished_jobs_failed_idx" in names
        assert "finished_jobs_prune_idx" not in names
