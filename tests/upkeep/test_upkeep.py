"""Upkeep goes on beside workers and readers: nobody waits for it, nothing is lost, and cut off anywhere it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import fairq_schema
from fairq_schema.cli import main
from tests.races.helpers import assert_agrees_after_look, check, ids
from tests.support import Edit, Statement, in_background, storm, wait_until, wait_until_blocked

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Database, Session, Worker

# Who waits for upkeep waits for ever: this is only to make it fail soon.
AT_ONCE = "5s"
OTHERS = ("b", "c")


def written(db: Session) -> int:
    """Which partition is written."""
    return int(db.value("select coalesce(pg_sequence_last_value('fairq.slot_seq') % 4, 0)"))


def turn(db: Session, slot: int, days_ago: int = 0) -> None:
    """As if the ring had been turned to this partition, so many days ago."""
    db.execute(
        "select setval('fairq.slot_seq', extract(epoch from now() - make_interval(days => %s))::bigint * 4 + %s)",
        days_ago,
        slot,
    )


def age(db: Session, days: int = 8) -> None:
    """As if all had ended so many days ago."""
    db.execute("update fairq.finished_jobs set finished_at = finished_at - make_interval(days => %s)", days)


def maintain(db: Session, limit: int = 10_000) -> dict[str, Any]:
    """One slice: its rows by task."""
    return {row.task: row for row in db.call("maintain", p_limit=limit)}


def given_old_jobs(db: Session, count: int = 5) -> list[int]:
    """Jobs past their time in partition 0, and the ring turned to 1: some succeeded, some dead."""
    jobs = db.given_jobs("old", count)
    held = db.claim(count, tenant="old")
    db.complete_all(held[1:])
    db.fail(held[0], error="no", retry=False)
    age(db)
    turn(db, 1)
    return jobs


def is_kept(db: Session, job: int) -> bool:
    """Whether there is a row of it."""
    return bool(db.rows("select 1 from fairq.all_jobs where job_id = %s", job))


def end(db: Session, jobs: list[Any], *, retry: bool = True) -> list[Any]:
    """The first fails, the others succeed."""
    for n, job in enumerate(jobs):
        if n == 0:
            db.fail(job, error="no", retry=retry)
        else:
            db.complete(job)
    return jobs


# --- beside others ------------------------------------------------------------------------------------------


@check
def check_nobody_waits_for_a_slice(db: Database) -> None:
    """While a slice that emptied a partition is not committed, jobs come, are claimed and end in every way."""
    given_old_jobs(db)
    others = db.session(lock_timeout=AT_ONCE)
    with db.connect(autocommit=False) as upkeep:
        rows = upkeep.execute("select task, lags from fairq.maintain()").fetchall()
        assert ("partitions", False) in rows
        others.given_jobs("a", 4)
        first, second, third, fourth = others.claim(4)
        assert others.complete(first)
        assert others.fail(second, error="no", retry=False) == "dead"
        assert others.release(third) == "queued"
        assert others.complete_all([fourth]) == {fourth.job_id: "succeeded"}
        upkeep.commit()
    assert db.value("select count(*) from fairq.finished_jobs") == 3


def test_nobody_waits_for_a_slice(db: Database) -> None:
    """What is locked is no table that workers write."""
    check_nobody_waits_for_a_slice(db)


@pytest.mark.once
def test_a_lock_of_the_whole_is_noticed(assert_killed: Callable[..., None]) -> None:
    """As detaching or dropping a partition would take it."""
    whole = Edit(
        "_lock_partition",
        old="lock table only fairq.finished_jobs_0 in",
        new="lock table fairq.finished_jobs in",
    )
    assert_killed(check_nobody_waits_for_a_slice, whole)


@check
def check_a_reader_is_not_waited_for(db: Database) -> None:
    """A report that reads all that has ended keeps its partition from being emptied, and nobody from working."""
    jobs = given_old_jobs(db)
    with db.connect(autocommit=False) as report:
        report.execute("select count(*) from fairq.finished_jobs")
        slices: list[dict[str, Any]] = []

        def upkeep(w: Worker) -> list[Any]:
            slices.append(maintain(w))
            return []

        def work(w: Worker) -> list[Any]:
            w.execute(f"set lock_timeout = '{AT_ONCE}'")
            w.given_jobs("a", 3)
            for job in w.claim(3):
                assert w.complete(job)
                assert w.complete(job)  # looks for it among those that have ended
            return []

        storm(db, workers=4, step=[upkeep, work, work, work], rounds=10)
        said = [each["partitions"] for each in slices if "partitions" in each]
        assert said
        assert all(row.lags and str(report.info.backend_pid) in row.why for row in said)
        assert all(is_kept(db, job) for job in jobs)
        looks, upkeeper = db.session(lock_timeout=AT_ONCE), db.session()
        slice_ = in_background(lambda: maintain(upkeeper))
        while slice_.running():
            assert looks.state(jobs[0]) in {"succeeded", "dead"}
        slice_.result()
    assert not maintain(db)["partitions"].lags
    assert not any(is_kept(db, job) for job in jobs)


def test_a_reader_is_not_waited_for(db: Database) -> None:
    """The slice says who reads, and goes on."""
    check_a_reader_is_not_waited_for(db)


@pytest.mark.once
def test_a_patient_slice_is_noticed(assert_killed: Callable[..., None]) -> None:
    """Who waits longer for a reader has everybody wait who looks for a job by its id."""
    patient = Statement("alter function fairq.maintain(integer) set lock_timeout = '8s'")
    assert_killed(check_a_reader_is_not_waited_for, patient)


@check
def check_a_job_that_ends_late_is_kept(db: Database) -> None:
    """A job that ends while its partition is to be emptied: it is written before the lock, and committed after it."""
    given_old_jobs(db)
    db.execute("alter function fairq.maintain(integer) set lock_timeout = '60s'")
    turn(db, 0)
    late = db.given_jobs("late", 1)[0]
    upkeep = db.session()
    with db.connect(autocommit=False) as worker:
        (job,) = db.claim(1)
        worker.execute("select fairq.complete_job(%s, %s)", [job.job_id, job.lease_token])
        turn(db, 1)
        slice_ = in_background(lambda: maintain(upkeep))
        wait_until_blocked(db, upkeep)
        worker.commit()
    slice_.result()
    assert db.state(late) == "succeeded"


def test_a_job_that_ends_late_is_kept(db: Database) -> None:
    """What was committed during the wait is seen."""
    check_a_job_that_ends_late_is_kept(db)


@pytest.mark.once
def test_a_look_before_the_lock_alone_is_noticed(assert_killed: Callable[..., None]) -> None:
    """One look, and then the lock."""
    once = Edit("_recycle", old="for v_try in 1..2 loop", new="for v_try in 1..1 loop")
    assert_killed(check_a_job_that_ends_late_is_kept, once)


@check
def check_two_at_once(db: Database) -> None:
    """The second does nothing, at once; together with workers they lose nothing."""
    given_old_jobs(db)
    with db.connect(autocommit=False) as first:
        first.execute("select fairq.maintain()")
        (row,) = db.session().call("maintain")
        assert (row.task, row.done, row.lags, row.why) == ("maintain", 0, False, "another one is at work")
        first.commit()

    def upkeep(w: Worker) -> list[Any]:
        maintain(w)
        return []

    def work(w: Worker) -> list[Any]:
        w.given_jobs(w.random.choice("abc"), 5)
        end(w, w.claim(5))
        return []

    kept = db.value("select count(*) from fairq.all_jobs")
    storm(db, workers=6, step=[upkeep, upkeep, work, work, work, work], rounds=10)
    assert db.value("select count(*) from fairq.all_jobs") == kept + 4 * 10 * 5
    assert_agrees_after_look(db)


def test_two_at_once(db: Database) -> None:
    """They are harmless."""
    check_two_at_once(db)


@pytest.mark.once
def test_a_second_that_waits_is_noticed(assert_killed: Callable[..., None]) -> None:
    """It would wait for the first one's transaction."""
    waits = Edit("maintain", old="where q.queue = '*' for update skip locked", new="where q.queue = '*' for update")
    assert_killed(check_two_at_once, waits)


# --- a partition is missing ---------------------------------------------------------------------------------


@check
def check_a_missing_partition_fails_nothing(db: Database) -> None:
    """The partition that is written is not there: a storm goes on as if it were."""
    turn(db, 2)
    for table in ("finished_jobs", "job_log"):
        db.execute(f"alter table fairq.{table} detach partition fairq.{table}_2")
    enqueued = [job for tenant in "abc" for job in db.given_jobs(tenant, 40)]

    def work(w: Worker) -> list[Any]:
        return end(w, w.claim(w.random.choice([1, 5])), retry=False)

    def upkeep(w: Worker) -> list[Any]:
        maintain(w)
        return []

    assert sorted(ids(storm(db, workers=5, step=[work, work, work, work, upkeep]))) == enqueued
    assert maintain(db)["partitions"].why == "a partition is missing: see fairq check"
    assert db.value("select count(*) from fairq.finished_jobs_0") == len(enqueued)
    age(db, 20)
    maintain(db)
    assert db.value("select count(*) from fairq.finished_jobs") == 0
    assert db.value("select count(*) from fairq.job_log") == 0
    for table in ("finished_jobs", "job_log"):
        db.execute(f"alter table fairq.{table} attach partition fairq.{table}_2 for values in (2)")
    assert not maintain(db)["partitions"].lags


def test_a_missing_partition_fails_nothing(db: Database) -> None:
    """Its rows lie in partition 0, are found there, and go row by row."""
    check_a_missing_partition_fails_nothing(db)


@pytest.mark.once
def test_a_ring_without_a_default_is_noticed(assert_killed: Callable[..., None]) -> None:
    """Where partition 0 takes its own rows alone, no job can end."""
    own = Statement(
        "alter table fairq.finished_jobs detach partition fairq.finished_jobs_0; "
        "alter table fairq.finished_jobs attach partition fairq.finished_jobs_0 for values in (0)"
    )
    assert_killed(check_a_missing_partition_fails_nothing, own)


# --- cut off ------------------------------------------------------------------------------------------------


def test_a_slice_that_is_cut_off_leaves_nothing_half_done(db: Database) -> None:
    """Its session is killed before it commits: what it did is undone, but for the turn of the ring, and done again."""
    jobs = given_old_jobs(db)
    turn(db, 1, days_ago=4)
    upkeep = db.connect(autocommit=False)
    assert upkeep.execute("select done from fairq.maintain() where task = 'partitions'").fetchone() == (1,)
    db.execute("select pg_terminate_backend(%s)", upkeep.info.backend_pid)
    wait_until(
        lambda: not db.rows("select 1 from pg_stat_activity where pid = %s", upkeep.info.backend_pid),
        "a session to be gone",
    )
    assert all(is_kept(db, job) for job in jobs)
    assert written(db) == 2  # a sequence keeps what it was told
    maintain(db)
    maintain(db)
    assert not any(is_kept(db, job) for job in jobs)
    assert db.value("select count(*) from fairq.job_log") == 0


@check
def check_only_what_is_over_goes(db: Database) -> None:
    """One job that must be kept keeps its whole partition, of whatever state and queue it is."""
    for state in ("succeeded", "dead"):
        turn(db, 0)
        given_old_jobs(db)
        kept = db.value("select min(job_id) from fairq.finished_jobs where state = %s", state)
        db.execute("update fairq.finished_jobs set finished_at = now() where job_id = %s", kept)
        assert not maintain(db)["partitions"].lags
        assert db.state(kept) == state
        age(db)
        maintain(db)
        maintain(db)
        assert db.rows("select 1 from fairq.finished_jobs") == []


def test_only_what_is_over_goes(db: Database) -> None:
    """Retention is exact."""
    check_only_what_is_over_goes(db)


@pytest.mark.once
@pytest.mark.parametrize("state", ["f.state = 'succeeded'", "f.state <> 'succeeded'"])
def test_a_partition_that_is_emptied_too_soon_is_noticed(assert_killed: Callable[..., None], state: str) -> None:
    """A retention that is not looked at."""
    old = f"{state} and f.queue = {'g' if ' = ' in state else 'd'}.name and f.finished_at >= p_now - s.kept"
    assert_killed(check_only_what_is_over_goes, Edit("_is_over", old=old, new="false"))


@check
def check_what_ends_lies_where_the_ring_is(db: Database) -> None:
    """One by one or by batches, in whatever state: in the partition that is written."""
    for slot in range(4):
        turn(db, slot)
        jobs = db.given_jobs("amber", 6)
        held = db.claim(6)
        db.complete_all(held[:3])
        end(db, held[3:], retry=False)
        assert db.rows("select distinct slot from fairq.finished_jobs where job_id = any(%s)", jobs) == [(slot,)]


def test_what_ends_lies_where_the_ring_is(db: Database) -> None:
    """Else a partition would fill for ever, and its turn to be emptied never come."""
    check_what_ends_lies_where_the_ring_is(db)


@pytest.mark.once
def test_a_batch_that_ends_elsewhere_is_noticed(assert_killed: Callable[..., None]) -> None:
    """Where a batch lies is asked for once, and not by the column's default."""
    elsewhere = Edit("_complete", old="pg_sequence_last_value('fairq.slot_seq'::regclass) % 4", new="null::bigint")
    assert_killed(check_what_ends_lies_where_the_ring_is, elsewhere)


# --- the books ----------------------------------------------------------------------------------------------


@check
def check_the_books_are_right_at_every_moment(db: Database) -> None:
    """Beside workers that do everything, some of them in long transactions, nothing is ever counted wrong."""

    def work(w: Worker) -> list[Any]:
        w.given_jobs(w.random.choice("abc"), 4)
        claimed = w.claim(w.random.choice([1, 4]))
        if claimed:
            w.random.choice([w.complete_all, w.release_all, w.renew_all])(claimed)
        return []

    def compare(w: Worker) -> list[Any]:
        wrong = w.rows(
            "select s.queue, d.* from fairq.schedulers as s cross join lateral fairq._drift(s.queue, 9) as d"
        )
        assert wrong == []
        return []

    storm(db, workers=6, step=[compare, work, work, work, work, work], rounds=25)
    assert db.call("reconcile") == []
    assert_agrees_after_look(db)


def test_the_books_are_right_at_every_moment(db: Database) -> None:
    """So reconcile() finds nothing where nobody has changed rows by hand."""
    check_the_books_are_right_at_every_moment(db)


@pytest.mark.once
def test_an_ending_that_is_not_reckoned_with_is_noticed(assert_killed: Callable[..., None]) -> None:
    """A settlement that no look has read belongs to the books."""
    blind = Edit("_drift", old="where s.queue = p_queue\n    ), counted", new="where false\n    ), counted")
    assert_killed(check_the_books_are_right_at_every_moment, blind, tries=20)


# --- erase --------------------------------------------------------------------------------------------------


def traces(db: Session, tenant: str) -> list[str]:
    """Tables in which a tenant is named, in whatever column."""
    tables = db.rows("""
        select c.oid::regclass::text as name from pg_class as c
        where c.relnamespace = 'fairq'::regnamespace and c.relkind in ('r', 'p')
    """)
    query = "select exists (select from {} as t where t::text like %s)"
    return [row.name for row in tables if db.value(query.format(row.name), f"%{tenant}%")]


@check
def check_a_tenant_is_erased_under_load(db: Database) -> None:
    """While workers go on, one tenant is erased in small slices; others keep every job."""
    gone = "tenant-to-be-erased"
    kept = [job for tenant in OTHERS for job in db.given_jobs(tenant, 60)]
    for _ in range(2):
        db.given_jobs(gone, 60)
    db.set_tenant(gone, weight=2)

    def work(w: Worker) -> list[Any]:
        end(w, w.claim(w.random.choice([1, 4])))
        return []

    def erase(w: Worker) -> list[Any]:
        w.call("erase_tenant", p_tenant=gone, p_limit=5)
        return []

    storm(db, workers=5, step=[erase, work, work, work, work], rounds=12)

    def is_erased() -> bool:
        rows = db.call("erase_tenant", p_tenant=gone)
        return not any(row.lags for row in rows)

    wait_until(is_erased, "a tenant to be erased")
    assert traces(db, gone) == []
    assert sorted(row.job_id for row in db.rows("select job_id from fairq.all_jobs")) == kept
    assert db.call("reconcile") == []
    assert_agrees_after_look(db)


def test_a_tenant_is_erased_under_load(db: Database) -> None:
    """Nothing of it is left, nothing of others is lost, and the books are right."""
    check_a_tenant_is_erased_under_load(db)


@check
def check_a_tenant_is_erased_though_nobody_claims(db: Database) -> None:
    """What its last job told the scheduler is read by the erasure itself."""
    db.given_jobs("gone")
    (job,) = db.claim(1)
    db.complete(job)
    assert traces(db, "gone")
    db.call("erase_tenant", p_tenant="gone")
    assert not any(row.lags for row in db.call("erase_tenant", p_tenant="gone"))
    assert traces(db, "gone") == []
    assert_agrees_after_look(db)


def test_a_tenant_is_erased_though_nobody_claims(db: Database) -> None:
    """No worker is needed."""
    check_a_tenant_is_erased_though_nobody_claims(db)


@pytest.mark.once
def test_that_an_erasure_does_not_look_is_noticed(assert_killed: Callable[..., None]) -> None:
    """It would wait for a claim."""
    blind = Edit("_erase_flow", old="perform from fairq.reconcile(p_queue, p_limit);", new="")
    assert_killed(check_a_tenant_is_erased_though_nobody_claims, blind)


@pytest.mark.once
@pytest.mark.parametrize(
    "mutation",
    [
        Edit("_erase_flow", old="for v_try in 1..2 loop", new="for v_try in 1..1 loop"),
        Edit("_erase_jobs", old="select f.job_id from fairq.finished_jobs as f where f.tenant = p_tenant limit",
             new="select f.job_id from fairq.finished_jobs as f limit"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_left_of_a_tenant_is_noticed(assert_killed: Callable[..., None], mutation: Edit) -> None:
    """Its wishes, or too much."""
    assert_killed(check_a_tenant_is_erased_under_load, mutation, tries=20)


# --- the command --------------------------------------------------------------------------------------------


@pytest.mark.short
@pytest.mark.parametrize("schema", ["fairq", "My-Queue"])
def test_the_command_does_all_there_is(empty_db: str, schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Slice by slice, under any name of the schema, by an operator's login or any other that may."""
    fairq_schema.apply(empty_db, schema)
    with psycopg.connect(empty_db, autocommit=True) as connection:

        def run(query: str) -> Any:
            return connection.execute(query.replace("fairq.", f'"{schema}".').encode()).fetchone()

        run("select count(*) from fairq.enqueue_jobs((select jsonb_agg('{\"tenant\": \"a\", \"task\": \"t\"}'::jsonb) "
            "from generate_series(1, 30)))")  # fmt: skip
        run("select count(fairq.cancel_job(j.job_id)) from fairq.jobs as j")
        assert main(["maintain", "--dsn", empty_db, "--schema", schema]) == 0
        assert "partitions: 1" in capsys.readouterr().out
        run("with old as (update fairq.finished_jobs as f set finished_at = now() - interval '8 days' returning 1) "
            "select count(*) from old")  # fmt: skip
        run("select setval('fairq.slot_seq', extract(epoch from now() - interval '4 days')::bigint * 4 + 1)")
        done = {each.task: each for each in fairq_schema.maintain(empty_db, schema, limit=7, seconds=60)}
        assert (done["partitions"].done, done["log"].done) == (1, 30)
        assert not any(each.lags for each in done.values())
        assert run("select count(*) from fairq.all_jobs") == (0,)
        assert run("select count(*) from fairq.job_log") == (0,)
        assert fairq_schema.check(empty_db, schema).differences == ()


def test_the_command_says_what_lags(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, and the reason."""
    given_old_jobs(db)
    with db.connect(autocommit=False) as report:
        report.execute("select count(*) from fairq.finished_jobs")
        assert main(["maintain", "--dsn", db.dsn, "--for", "0"]) == 1
        assert f"process {report.info.backend_pid}" in capsys.readouterr().out
    assert main(["maintain", "--dsn", db.dsn]) == 0
