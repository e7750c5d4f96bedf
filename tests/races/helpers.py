"""What the race tests share: the books of a queue, pauses inside a claim, and errors that count as failures."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from tests.support import (
    Background,
    Database,
    NeverHappened,
    Session,
    in_background,
    is_blocked,
    mutant,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from typing_extensions import Self

NOBODY = "nobody"
_numbers = itertools.count(1)


def check(call: Callable[..., None]) -> Callable[..., None]:
    """
    Make a check of a function of a database: an SQL error, and a wait for what never happens, are failures of it.

    So a mutant counts as killed when it makes the scheduler raise or hang, too.
    """

    @functools.wraps(call)
    def wrapped(db: Database, *args: Any) -> None:
        try:
            call(db, *args)
        except (psycopg.Error, NeverHappened) as error:
            if str(getattr(error, "sqlstate", "")).startswith("42"):
                # nonsense, and no answer of the scheduler
                raise
            if "storm seed" not in str(getattr(error, "__notes__", "")):
                msg = f"{type(error).__name__}: {error}"
                raise AssertionError(msg) from error
            msg = f"{type(error).__name__}: {error} ({error.__notes__})"
            raise AssertionError(msg) from error

    return wrapped


def ids(jobs: Iterable[Any]) -> list[int]:
    """The ids of claimed jobs."""
    return [job.job_id for job in jobs]


def look(db: Session, queue: str = "default") -> None:
    """Let the scheduler catch up with all that is committed, without handing out a job."""
    assert db.claim(1, queue=queue, tenant=NOBODY) == []


def look_everywhere(db: Session) -> None:
    """Look, in each queue that was ever claimed from."""
    for row in db.rows("select queue from fairq.schedulers"):
        look(db, row.queue)


def drain(db: Session, queue: str = "default", batch: int = 100) -> list[int]:
    """Claim and complete until nothing is left: the ids in order of dispatch."""
    done: list[int] = []
    while jobs := db.claim(batch, queue=queue):
        assert set(db.complete_all(jobs).values()) == {"succeeded"}
        done += ids(jobs)
    return done


def check_books(db: Session, enqueued: Iterable[int]) -> None:
    """
    Every job is accounted for once, and the scheduler's own state agrees with the jobs and leases.

    Nothing may be under way. Looks first, so that the scheduler knows what there is to know.
    """
    kept = Counter(row.job_id for row in db.rows("select job_id from fairq.all_jobs"))
    assert kept == Counter(enqueued)
    look_everywhere(db)
    assert_agrees(db)


def assert_agrees(db: Session) -> None:
    """What the scheduler believes is what is there; each row of an answer is a fault."""
    for fault, query in BELIEFS.items():
        assert db.rows(READY + query) == [], fault


def assert_agrees_after_look(db: Session) -> None:
    """The beliefs hold once the scheduler has looked."""
    look_everywhere(db)
    assert_agrees(db)


BELIEFS = {
    "a lease without a job": """
        select l.job_id from fairq.leases as l
        where not exists (select from fairq.jobs as j where j.job_id = l.job_id)
    """,
    "a scheduled job that runs": """
        select j.job_id from fairq.jobs as j join fairq.leases as l using (job_id) where j.state <> 'queued'
    """,
    # what functions refuse or never write, and no constraint forbids: tables.sql says why
    "a job as there is none": """
        select j.job_id from fairq.jobs as j
        where j.priority not between 0 and 3 or not (j.cost > 0 and j.cost <= 1000000) or not isfinite(j.run_at)
           or '' in (j.queue, j.tenant, j.task)
    """,
    "a lease as there is none": """
        select l.job_id from fairq.leases as l
        where l.attempt <= 0 or l.lease_expires_at <= l.started_at or l.prepaid <= 0
           or (l.weight is null) <> (l.prepaid is null)
    """,
    "an ended job as there is none": """
        select f.job_id from fairq.finished_jobs as f
        where num_nulls(f.started_at, f.lease_owner, f.token_hash) not in (0, 3)
           or f.started_at is null and f.state <> 'cancelled'
           or f.result is not null and f.state <> 'succeeded'
           or f.slot not between 0 and 3 or f.state not in ('succeeded', 'dead', 'cancelled')
    """,
    "a flow as there is none": """
        select f.queue, f.tenant from fairq.flows as f
        where cardinality(f.head_at) <> 4 or cardinality(f.head_id) <> 4
           or cardinality(f.started) <> 2 or cardinality(f.spent) <> 2
    """,
    "a settlement or a row of picks with nothing in it": """
        select s.queue from fairq.settlements as s where s.endings = '{}'
        union all
        select r.queue from fairq.ready_picks as r where r.jobs = '{}'
    """,
    "a tenant with two flows": "select queue, tenant from fairq.flows group by queue, tenant having count(*) > 1",
    "two ticks of a queue": "select queue from fairq.ticks group by queue having count(*) > 1",
    "a settlement that no look has read": "select * from fairq.settlements",
    "a wrong count of what runs": """
        select f.queue, f.tenant, f.running, count(l.job_id) from fairq.flows as f
        left join (select queue, tenant, job_id from fairq.leases union all table ready) as l
          on l.queue = f.queue and l.tenant = f.tenant
        group by f.queue, f.tenant, f.running
        having f.running <> count(l.job_id)
    """,
    "a job before its tenant's head": """
        select j.queue, j.tenant, j.job_id from fairq.jobs as j
        left join fairq.flows as f on f.queue = j.queue and f.tenant = j.tenant
        where j.state = 'queued'
          and not exists (select from fairq.leases as l where l.job_id = j.job_id)
          and not exists (select from ready as r where r.job_id = j.job_id)
          and (f.head_at[j.priority + 1], f.head_id[j.priority + 1]) <= (j.run_at, j.job_id) is not true
          and exists (select from fairq.schedulers as s where s.queue = j.queue)
    """,
    "a flow below the floor of the pick": """
        select f.queue, f.tenant from fairq.flows as f join fairq.ticks as t using (queue)
        where f.eligible and (f.vtime, f.charge, f.served, f.tenant) < (
            (t.pick_floor).vtime, (t.pick_floor).charge, (t.pick_floor).served, (t.pick_floor).tenant
        )
    """,
    "a limited flow below the floor of tokens": """
        select f.queue, f.tenant from fairq.flows as f join fairq.ticks as t using (queue)
        where f.limited and f.token_due_at < t.token_floor
    """,
    "what reconcile() would correct": """
        select s.queue, d.* from fairq.schedulers as s cross join lateral fairq._drift(s.queue, 100) as d
    """,
    "a wrong count of what the queue runs": """
        select t.queue, t.running, count(l.job_id) from fairq.ticks as t
        left join (select queue, job_id from fairq.leases union all select queue, job_id from ready) as l using (queue)
        group by t.queue, t.running
        having t.running <> count(l.job_id)
    """,
    "a wrong count of backlogged tenants, or of what they weigh": """
        select t.queue, t.backlogged, t.milliweight, count(f.tenant), sum(round(f.weight * 1000))
        from fairq.ticks as t left join fairq.flows as f on f.queue = t.queue and f.has_work
        group by t.queue, t.backlogged, t.milliweight
        having (t.backlogged, t.milliweight) <> (count(f.tenant), coalesce(sum(round(f.weight * 1000)), 0))
    """,
    # a flow without work, waiting or running, learns of a wish for all with its next job
    "a wish that is not in force": """
        select f.queue, f.tenant from fairq.flows as f cross join lateral fairq._wish(f.queue, f.tenant) as w
        where (f.weight, f.max_running, f.paused, f.rate, f.burst)
           is distinct from (w.weight, w.max_running, w.paused, w.rate, w.burst)
          and (f.has_work or f.running > 0 or w.tenant = f.tenant)
    """,
    "a lease that is prepaid though its queue does not charge by time, or the other way round": """
        select l.job_id from fairq.leases as l join fairq.ticks as t using (queue)
        where (l.prepaid is not null) <> (t.charge = 'time')
    """,
    "a scheduled job below the floor of promote": """
        select j.job_id from fairq.jobs as j join fairq.ticks as t using (queue)
        where j.state = 'scheduled' and j.run_at < t.promote_floor
    """,
    "a lease below the floor of expire": """
        select l.job_id from fairq.leases as l join fairq.ticks as t using (queue)
        where l.lease_expires_at < t.expire_floor
    """,
    "a pick that is ready, below the floor": """
        select r.queue, r.dispatch from fairq.ready_picks as r left join fairq.ticks as t using (queue)
        where r.dispatch >= nullif(t.ready_floor, 0) is not true
    """,
}

# Picked ahead of the claims (queues.read_ahead): counted as running, though nobody has them yet.
READY = "with ready as (select r.queue, p.tenant, p.job_id from fairq.ready_picks as r cross join unnest(r.jobs) as p)"


def on_another_cluster(db: Database) -> None:
    """As if the database had been restored here: transaction ids are said to come from elsewhere."""
    db.execute("update fairq.ticks set system_identifier = 0, boot_at = '-infinity'")


def let_leases_end(db: Session, queue: str = "default") -> None:
    """Come back when no lease is left; each wait is for a clock that the leases set."""

    def have_ended() -> bool:
        look(db, queue)
        return not db.rows("select 1 from fairq.leases where queue = %s", queue)

    wait_until(have_ended, "leases to end")


def waits(db: Database, session: Session, call: Callable[[], Any]) -> Background:
    """Start `call` on `session`, which must come to wait for a lock."""
    begun = in_background(call)
    wait_until(lambda: not begun.running() or is_blocked(db, session), "a call to wait for a lock")
    if not begun.running():
        msg = f"it did not wait for a lock, and answered {begun.result()}"
        raise NeverHappened(msg)
    return begun


class Gate:
    """A place inside a claim where the session named `paused` stops until it is opened."""

    def __init__(self, db: Database) -> None:
        self.keeper = db.session()
        self.db = db

    def stop(self, session: Session, call: Callable[[], Any]) -> Background:
        """Start `call` on `session` and come back when it stands at the gate."""
        self.close()
        return waits(self.db, session, call)

    def close(self) -> None:
        """Let nobody through."""
        self.keeper.execute("select pg_advisory_lock(4711)")

    def open(self) -> None:
        """Let everybody through."""
        self.keeper.execute("select pg_advisory_unlock_all()")

    def __enter__(self) -> Self:
        """As it is."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave nobody standing."""
        self.open()


@contextmanager
def gate_before(db: Database, event: str) -> Iterator[Gate]:
    """
    A gate before a statement of the scheduler: `gate_before(db, "update on fairq.flows")`.

    The statement's snapshot is taken, and none of its rows is changed.
    """
    name = f"gate_{next(_numbers)}"
    _make_gate(db)
    db.execute(f"create trigger {name} before {event} for each statement execute function public.stop_at_gate()")
    try:
        with Gate(db) as gate:
            yield gate
    finally:
        db.execute(f"drop trigger {name} on {event.split(' on ')[1]}")


@contextmanager
def gate_inside(db: Database, function: str, old: str, new: str) -> Iterator[Gate]:
    """A gate inside a statement: `new`, in place of a piece of it, asks public.at_gate()."""
    _make_gate(db)
    text = db.value("select pg_get_functiondef(oid) from pg_proc where proname = %s", function)
    mutant(db, function, old, new)
    try:
        with Gate(db) as gate:
            yield gate
    finally:
        db.execute(text)


def _make_gate(db: Database) -> None:
    db.execute("""
        create or replace function public.at_gate() returns boolean language plpgsql as $$
        begin
            if current_setting('application_name') = 'paused' then
                perform pg_advisory_lock_shared(4711);
                perform pg_advisory_unlock_shared(4711);
            end if;
            return true;
        end
        $$;
        create or replace function public.stop_at_gate() returns trigger language plpgsql as $$
        begin
            perform public.at_gate();
            return null;
        end
        $$
    """)


def paused_session(db: Database, **how: Any) -> Session:
    """A session that gates stop."""
    return db.session(application_name="paused", **how)
