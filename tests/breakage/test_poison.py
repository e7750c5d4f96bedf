"""A row that cannot be read, changed or ended: it stops nobody."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.races.helpers import check, check_books, drain, ids, look
from tests.support import Database, Edit, wait_until

from .page import block

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.servers import LocalServer

SOON = timedelta(milliseconds=20)
POISON = """
    create function public.poison() returns trigger language plpgsql as $$
    begin
        perform nextval('public.tries');
        raise exception 'this row cannot be changed';
    end
    $$;
    create sequence public.tries;
    grant usage on sequence public.tries to public;
    create trigger poison before update on fairq.jobs
    for each row when (old.task = 'bad' and new.state = 'queued') execute function public.poison()
"""


@check
def check_what_cannot_be_promoted_stops_nobody(db: Database) -> None:
    """More of them than a claim promotes, before all others: these run, those stay scheduled until that is undone."""
    bad = db.given_jobs("a", 150, task="bad", delay=SOON)
    good = db.given_jobs("a", 20, delay=2 * SOON) + db.given_jobs("b", 20, delay=2 * SOON)
    db.execute(POISON)
    claimed: list[int] = []
    wait_until(lambda: claimed.extend(drain(db, batch=2)) or len(claimed) >= len(good), "the good ones to run")
    assert sorted(claimed) == sorted(good)
    look(db)
    assert {row.state for row in db.rows("select state from fairq.jobs")} == {"scheduled"}
    db.execute("drop trigger poison on fairq.jobs")
    assert db.promote() == len(bad)
    assert sorted(drain(db)) == sorted(bad)
    check_books(db, bad + good)


def test_what_cannot_be_promoted_stops_nobody(db: Database) -> None:
    """A claim goes on job by job, and past those that cannot be."""
    check_what_cannot_be_promoted_stops_nobody(db)


@check
def check_what_cannot_be_promoted_is_tried_once(db: Database) -> None:
    """A claim that finds nothing else remembers it all the same."""
    db.given_jobs("a", 150, task="bad", delay=SOON)
    look(db)
    db.execute(POISON)
    tries = "select last_value from public.tries"
    wait_until(lambda: look(db) or db.value(tries) > 1, "the bad ones to come due")
    tried = db.value(tries)
    # once in a batch, and once by itself
    assert tried == 151
    look(db)
    assert db.value(tries) == tried


def test_what_cannot_be_promoted_is_tried_once(db: Database) -> None:
    """Not by every claim."""
    check_what_cannot_be_promoted_is_tried_once(db)


@check
def check_what_cannot_be_ended_stops_nobody(db: Database) -> None:
    """
    An ended job has the id of one that runs, since the sequence was set back: the others run, it is kept for an hour.

    Its worker cannot complete it, alone or among others, and neither can the scheduler end it, attempts used up.
    """
    (first,) = db.given_jobs("a", 1)
    drain(db)
    db.execute("select setval('fairq.jobs_job_id_seq', %s, false)", first)
    (twice,) = db.given_jobs("a", 1, max_attempts=1)
    assert twice == first
    jobs = db.given_jobs("a", 3) + db.given_jobs("b", 3)
    claimed = db.claim(10, lease=timedelta(seconds=1))
    with pytest.raises(psycopg.errors.UniqueViolation):
        db.complete_all(claimed)
    (bad,) = (job for job in claimed if job.job_id == twice)
    assert db.complete(claimed[-1])

    done: set[int] = set()
    wait_until(lambda: done.update(drain(db)) or done >= set(jobs) - {claimed[-1].job_id}, "the others to run", 30)
    assert {row.job_id for row in db.rows("select job_id from fairq.leases")} == {twice}
    assert not db.complete(bad)
    kept = "select details -> 'error' ->> 'kept' from fairq.job_log where event_type = 'lease_expired' and job_id = %s"
    assert "finished_jobs" in db.rows(kept, twice)[-1][0]
    look(db)
    assert db.value("select sum(running) from fairq.flows") == 1


def test_what_cannot_be_ended_stops_nobody(db: Database) -> None:
    """It is kept, as nobody's, and the log says why."""
    check_what_cannot_be_ended_stops_nobody(db)


@pytest.mark.once
@pytest.mark.parametrize(
    ("check_it", "mutation"),
    [
        (
            check_what_cannot_be_promoted_stops_nobody,
            Edit("_promote_due", "return fairq._promote_each(p_tick, p_snap, p_own, p_now, p_limit);", "raise;"),
        ),
        (
            check_what_cannot_be_promoted_is_tried_once,
            Edit("_promote_each", "and j.job_id <> all (v_stays)", ""),
        ),
        (
            check_what_cannot_be_promoted_is_tried_once,
            Edit("_catch_up", "or p_tick.promote_floor <> v_was.promote_floor", ""),
        ),
        (check_what_cannot_be_ended_stops_nobody, Edit("_quarantine", "return 'kept';", "raise;")),
        (check_what_cannot_be_ended_stops_nobody, Edit("_expire_due", "continue when v_state = 'kept';", "")),
    ],
    ids=str,
)
def test_a_row_that_stops_others_is_noticed(
    assert_killed: Callable[..., None], check_it: Callable[..., None], mutation: Edit
) -> None:
    """Without each part of it."""
    assert_killed(check_it, mutation)


def lose_pages(server: LocalServer, file: str) -> None:
    """What a bad disk may do: a file comes back as zeroes."""
    server.halt()
    path = server.data / file
    path.write_bytes(bytes(path.stat().st_size))
    server.start()


@pytest.mark.once
def test_a_payload_that_cannot_be_read_can_be_taken_away(private_server: LocalServer) -> None:
    """Every claim that would hand it out fails, and says why; after the remedy of docs/operations.md all goes on."""
    with private_server.databases.clone() as db:
        dsn, noise = db.dsn, "".join(map(chr, random.Random(1).choices(range(0x4E00, 0x9FFF), k=20000)))
        jobs = db.given_jobs("a", 1, payload={"noise": noise}) + db.given_jobs("a", 2) + db.given_jobs("b", 1)
        toast = "select pg_relation_filepath(reltoastrelid) from pg_class where oid = 'fairq.jobs'::regclass"
        file = db.value(toast)
        db.execute("checkpoint")
        lose_pages(private_server, file)
        with Database(dsn) as after:
            assert ids(after.claim(1, tenant="b")) == jobs[3:]
            with pytest.raises(psycopg.errors.DataCorrupted):
                after.claim(10)
            after.execute(block("sql", '"lost": true'))
            claimed = after.claim(10)
            assert ids(claimed) == jobs[:3]
            assert claimed[0].payload == {"lost": True}
            assert set(after.complete_all(claimed).values()) == {"succeeded"}
            look(after)
            check_books(after, jobs)
