"""What an operator says is in force at the next pick once it is committed, and holds up nobody until then."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.plans.backlog import fill
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.database import Database, Session

# A claim that waits for an operator waits for ever: this is only to make it fail soon.
AT_ONCE = "5s"
LONG = "1 hour"


class Wish(NamedTuple):
    """A call, and the tenants of the ten picks after it; a and b have work and each had one job started."""

    function: str
    arguments: dict[str, Any]
    then: str
    before: tuple[str, dict[str, Any]] | None = None


Q = {"p_queue": "q"}
A = Q | {"p_tenant": "a"}
WISHES = {
    "pause": Wish("pause_tenant", A, "bbbbbbbbbb"),
    "resume": Wish("resume_tenant", A, "ababababab", before=("pause_tenant", A)),
    "weight": Wish("set_tenant", A | {"p_weight": 3}, "abaaabaaab"),
    "cap": Wish("set_tenant", A | {"p_max_running": 4}, "ababbbbbbb"),
    "rate": Wish("set_tenant", A | {"p_rate": 0.001, "p_burst": 3}, "abababbbbb"),
    "the wish of all": Wish("set_tenant", Q | {"p_tenant": "*", "p_max_running": 3}, "ab"),
    # what came while it was under way stays
    "purge": Wish("purge_tenant", A, "abbbbbbbbb"),
    "a pause with a reason": Wish("pause_tenant_because", A | {"p_reason": "so"}, "bbbbbbbbbb"),
    "a queue's pause with a reason": Wish("pause_queue", Q | {"p_reason": "so"}, ""),
    "queue's pause": Wish("set_queue", Q | {"p_paused": True}, ""),
    "queue's cap": Wish("set_queue", Q | {"p_max_running": 7}, "aba"),
    "queue's rate": Wish("set_queue", Q | {"p_rate": 0.001, "p_burst": 4}, "abab"),
}


@pytest.mark.parametrize("name", WISHES)
def test_a_wish_is_in_force_at_the_next_pick_and_blocks_no_claim_before(db: Database, name: str) -> None:
    """While the operator's transaction is open all goes on as it was, at once; then it does as the operator says."""
    wish = WISHES[name]
    db.set_queue("q", charge="jobs")
    for tenant in "ab":
        db.given_jobs(tenant, 20, queue="q")
    if wish.before:
        db.claim(1, queue="q", lease=LONG)
        db.call(wish.before[0], **wish.before[1])
    else:
        assert tenants(db.claim(2, queue="q", lease=LONG)) == "ab"
    worker = db.session(lock_timeout=AT_ONCE)

    operator = db.session(autocommit=False, role="fairq_operator")
    operator.call(wish.function, **wish.arguments)
    assert tenants(worker.claim(2, queue="q", lease=LONG)) == ("bb" if wish.before or name == "purge" else "ab")
    assert worker.enqueue("a", queue="q").created
    operator.conn.commit()

    assert tenants(worker.claim(10, queue="q", lease=LONG))[: max(1, len(wish.then))] == wish.then


def test_a_change_of_what_is_charged_is_in_force_at_the_next_pick(db: Database) -> None:
    """By declared cost, b's jobs cost ten times a's."""
    db.set_queue("q", charge="jobs")
    db.given_jobs("a", 30, queue="q")
    db.given_jobs("b", 30, queue="q", cost=10)
    assert tenants(db.claim(4, queue="q")) == "abab"

    operator = db.session(autocommit=False, role="fairq_operator")
    operator.set_queue("q", charge="cost")
    assert tenants(db.session(lock_timeout=AT_ONCE).claim(4, queue="q")) == "abab"
    operator.conn.commit()

    assert tenants(db.claim(12, queue="q")) == "ab" + "a" * 9 + "b"


def test_a_cap_below_what_runs_kills_nothing_and_starts_nothing(db: Database) -> None:
    """Five run, the cap becomes two: the next one starts when only one of the five is left."""
    db.given_jobs("a", 9)
    running = db.claim(5)

    db.set_tenant("a", max_running=2)

    assert set(db.renew_all(running).values()) == {"renewed"}
    for _ in range(3):
        assert db.claim(1) == []
        assert db.complete(running.pop())
    assert db.claim(1) == []
    assert db.complete(running.pop())
    assert len(db.claim(5)) == 1


def test_a_queues_cap_below_what_runs_kills_nothing_and_starts_nothing(db: Database) -> None:
    """The same for all tenants together."""
    for tenant in "ab":
        db.given_jobs(tenant, 5)
    running = db.claim(4)

    db.set_queue(max_running=2)

    assert set(db.renew_all(running).values()) == {"renewed"}
    for _ in range(2):
        assert db.claim(1) == []
        assert db.complete(running.pop())
    assert db.claim(1) == []
    assert db.complete(running.pop())
    assert len(db.claim(5)) == 1


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_tenants_row_deleted_by_the_owner_leaves_defaults(db: Database, end: str) -> None:
    """The deletion reaches the scheduler as any other change does, and holds up no claim."""
    db.given_jobs("a", 5)
    db.set_tenant("a", max_running=0, weight=7)
    worker = db.session(lock_timeout=AT_ONCE)
    assert worker.claim(1) == []

    owner = db.session(autocommit=False, role="fairq_owner")
    owner.execute("delete from fairq.tenants as t where t.tenant = 'a'")
    assert worker.claim(1) == []
    getattr(owner.conn, end)()

    assert len(worker.claim(5)) == (5 if end == "commit" else 0)
    (wish,) = db.rows("select t.weight, t.max_running, t.paused from fairq.tenants as t where t.tenant = 'a'")
    assert wish == ((1, None, False) if end == "commit" else (7, 0, False))


@pytest.mark.slow
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_purge_under_way_holds_up_nobody_and_loses_nothing(db: Database, end: str) -> None:
    """A thousand of a's hundred thousand jobs are being purged: b is served at once, and later a with all the rest."""
    db.set_queue(charge="jobs")
    fill(db, jobs=100_000, tenants=1, prefix="a")
    db.given_jobs("b", 50)
    db.claim(1, lease=LONG, tenant="b")
    worker = db.session(lock_timeout=AT_ONCE)

    operator = db.session(autocommit=False, role="fairq_operator")
    assert operator.call_one("purge_tenant", p_queue="default", p_tenant="a0") == 1000
    assert tenants(worker.claim(3, lease=LONG)) == "bbb"
    assert tenants(worker.claim(20, lease=LONG)) == "b" * 20
    assert worker.claim(1, tenant="a0", lease=LONG) == []
    getattr(operator.conn, end)()

    left = 99_000 if end == "commit" else 100_000
    started = Counter(job.tenant for job in rounds(db.session(statement_timeout="0")))
    assert started == {"a0": left, "b": 26}
    assert db.value("select count(*) from fairq.finished_jobs") == 100_000 - left


def rounds(session: Session) -> list[Any]:
    """Claim until nothing is left."""
    claimed: list[Any] = []
    while batch := session.claim(1000, lease=LONG):
        claimed += batch
    return claimed


def test_a_limited_tenant_comes_back_by_itself(db: Database) -> None:
    """Nothing but claims: no enqueue, no completion, no other tenant."""
    db.set_tenant("a", rate=20)
    db.given_jobs("a", 3)
    assert len(db.claim(3)) == 1

    assert wait_until(lambda: db.claim(3), "the next token")


def tenants(jobs: list[Any]) -> str:
    """Whose jobs, in their order."""
    return "".join(job.tenant for job in jobs)
