"""A trace goes with its job, untouched, wherever the job goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import Edit

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tests.support import Database

STATE = "{}-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_trace_is_kept_wherever_its_job_goes(db: Database) -> None:
    """From enqueue through every kind of attempt and end, a revival included, and to each claim."""
    check_traces_are_kept(db)


@pytest.mark.parametrize(
    "mutation",
    [
        Edit("enqueue_job", "p_cost, p_traceparent, v_now", "p_cost, null, v_now"),
        Edit("_enqueue_plain_jobs", "            j.traceparent,", "            null,"),
        Edit("_insert_jobs", "u.traceparent", "null"),
        Edit("_lease", "j.created_at, j.traceparent\n        into", "j.created_at, null\n        into"),
        Edit("_lease", "j.created_at, j.traceparent\n        )", "j.created_at, null\n        )"),
        Edit("_complete_one", "v_job.traceparent", "null"),
        Edit("_finish", "v_job.traceparent", "null"),
        Edit("_complete", "g.traceparent", "null"),
        Edit("_cancel_waiting", "p_job.traceparent", "null"),
        Edit("retry_job", "v_job.traceparent", "null"),
    ],
    ids=str,
)
def test_a_trace_that_is_lost_is_noticed(assert_killed: Callable[..., None], mutation: Edit) -> None:
    """Each step that carries it is looked at."""
    assert_killed(check_traces_are_kept, mutation)


def check_traces_are_kept(db: Database) -> None:
    """Nine jobs of nine traces, each on a way of its own."""
    traces = {}
    for number in range(1, 10):
        trace = STATE.format(f"{number:02}")
        options = {"payload": {"big": "x" * (3000 if number == 1 else 1)}, "max_attempts": 2, "traceparent": trace}
        if number == 2:
            (row,) = db.enqueue_jobs([{"tenant": "a", "task": "work", **options}])
        else:
            # one with a key takes another way
            row = db.enqueue("a", **options, **({"key": "k"} if number == 3 else {}))
        traces[row.job_id] = trace
    jobs = _claimed(db, traces)

    db.fail(jobs[0], retry_delay="0", error="again")
    db.release(jobs[1])
    db.execute(
        "update fairq.leases set started_at = started_at - interval '1 hour', lease_expires_at = clock_timestamp()"
        " where job_id = %s",
        jobs[2].job_id,
    )
    db.expire()
    back = _claimed(db, traces)
    assert {job.job_id for job in back} == {job.job_id for job in jobs[:3]}

    db.complete(back[0])
    db.complete_all(back[1:])
    db.fail(jobs[3], retry=False)
    db.cancel(jobs[4].job_id)
    db.fail(jobs[4])
    for job in jobs[5:]:
        db.release(job, delay="1 hour")
    db.cancel(jobs[5].job_id)
    db.value("select fairq.purge_tenant('default', 'a')")
    assert _kept(db) == traces
    for job in jobs[3:]:
        assert db.retry(job.job_id) == "queued"
    held = _claimed(db, traces)
    # one by itself takes another way
    db.release(held[0])
    (one,) = db.claim(1)
    assert one.traceparent == traces[one.job_id]
    assert _kept(db) == traces


def _claimed(db: Database, traces: dict[int, str]) -> list[Any]:
    jobs = sorted(db.claim(10), key=lambda job: job.job_id)
    assert {job.job_id: job.traceparent for job in jobs} == {job.job_id: traces[job.job_id] for job in jobs}
    return jobs


def _kept(db: Database) -> dict[int, str]:
    return {row.job_id: row.traceparent for row in db.rows("select job_id, traceparent from fairq.all_jobs")}
