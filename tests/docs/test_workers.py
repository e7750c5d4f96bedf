"""The worker of docs/workers.md works, and so do the statements beside it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support import Database

PAGE = Path(__file__).parents[2] / "docs" / "workers.md"
LONGEST = 40
A_LONG_TIME = 100_000
IDLE = """
    select state = 'idle' and wait_event = 'ClientRead'
    from pg_stat_activity
    where usename = %s and query ~ 'claim_jobs'
"""


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def statements(word: str) -> str:
    """The one block of SQL that has this in it."""
    (block,) = (block for block in blocks("sql") if word in block)
    return block


@contextmanager
def worker(db: Database, user: str, folder: Path, *edit: str) -> Iterator[subprocess.Popen[str]]:
    """
    The page's worker in a process of its own, which is ended with the test whatever becomes of it.

    `edit` is a text of it, and what a test writes in its place.
    """
    source = blocks("python")[0]
    if edit:
        assert source.count(edit[0]) == 1
        source = source.replace(*edit)
    script = folder / "worker.py"
    script.write_text(source, encoding="utf-8")
    command = [sys.executable, str(script), make_conninfo(db.dsn, user=user), "mail", "worker 1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def user(db: Database) -> str:
    """A login that is a worker and nothing else."""
    db.set_queue("mail", notify=True)
    return db.login("fairq_worker")


def lives(process: subprocess.Popen[str]) -> None:
    """No news of a worker is good news; else what it said."""
    if process.poll() is not None:
        assert process.stderr
        pytest.fail(process.stderr.read())


def becomes(db: Database, process: subprocess.Popen[str], job: int, state: str) -> dict[str, Any]:
    """Wait until a job is in a state, for as long as the worker lives."""

    def arrived() -> bool:
        lives(process)
        return db.state(job) == state

    wait_until(arrived, f"job {job} to be {state}")
    return db.job(job)


def test_there_is_one_worker_and_it_is_short() -> None:
    """A page's worth."""
    (source,) = blocks("python")
    assert len(source.splitlines()) <= LONGEST


def test_the_worker_completes_jobs_and_fails_what_it_cannot_do(db: Database, user: str, tmp_path: Path) -> None:
    """Those that waited, those that come later, and one whose payload is wrong."""
    before = db.enqueue("amber", queue="mail", payload={"letter": 1}).job_id
    with worker(db, user, tmp_path) as process:
        assert becomes(db, process, before, "succeeded")["result"] == {"sent": 1}

        wrong = db.enqueue("amber", queue="mail", payload={}).job_id
        assert "KeyError" in str(becomes(db, process, wrong, "scheduled")["last_error"])

        wait_until(lambda: db.rows(IDLE, user) == [(True,)], "the worker to have nothing to do")
        later = db.enqueue("birch", queue="mail", payload={"letter": 2}).job_id
        assert becomes(db, process, later, "succeeded")["lease_owner"] == "worker 1"


def test_sigterm_gives_the_job_back_and_ends_the_worker(db: Database, user: str, tmp_path: Path) -> None:
    """The attempt does not count, and the job can start elsewhere at once."""
    job = db.enqueue("amber", queue="mail", payload={"letter": 1, "steps": A_LONG_TIME}).job_id
    with worker(db, user, tmp_path) as process:
        becomes(db, process, job, "running")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, "")
    assert (db.job(job)["state"], db.job(job)["attempts"]) == ("queued", 0)
    assert [claimed.job_id for claimed in db.claim(queue="mail")] == [job]


def test_the_worker_renews_and_stops_when_its_job_is_cancelled(db: Database, user: str, tmp_path: Path) -> None:
    """Releasing the job ends it; the worker goes on with the next."""
    job = db.enqueue("amber", queue="mail", payload={"letter": 1, "steps": A_LONG_TIME}).job_id
    with worker(db, user, tmp_path, "done.wait(10)", "done.wait(0.01)") as process:
        becomes(db, process, job, "running")
        ends = "select max(lease_expires_at) from fairq.leases"
        first = db.value(ends)
        wait_until(lambda: lives(process) or db.value(ends) > first, "the lease to be renewed")
        assert db.cancel(job) == "cancel_requested"
        becomes(db, process, job, "cancelled")
        later = db.enqueue("birch", queue="mail", payload={"letter": 2}).job_id
        becomes(db, process, later, "succeeded")


def test_the_worker_undoes_what_it_did_when_its_lease_is_lost(db: Database, user: str, tmp_path: Path) -> None:
    """It does not complete somebody else's job, nor fail it, and goes on; of the two, one effect stays."""
    db.execute(f"create table effects (job bigint); grant insert on effects to {user}")
    complete = "            if not conn.execute("
    effect = "            conn.execute('insert into effects values (%s)', [job.job_id])\n"
    job = db.enqueue("amber", queue="mail", payload={"letter": 1, "steps": 60}).job_id
    with worker(db, user, tmp_path, complete, effect + complete) as process:
        becomes(db, process, job, "running")
        db.execute("update fairq.leases set lease_token = gen_random_uuid()")
        later = db.enqueue("birch", queue="mail", payload={"letter": 2}).job_id
        becomes(db, process, later, "succeeded")
    assert db.state(job) == "running"
    assert db.rows("select job from effects") == [(later,)]


def test_sigterm_ends_a_worker_that_has_nothing_to_do(db: Database, user: str, tmp_path: Path) -> None:
    """While it waits for a notification, too."""
    with worker(db, user, tmp_path) as process:
        wait_until(lambda: lives(process) or db.rows(IDLE, user) == [(True,)], "the worker to have nothing to do")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, "")


def test_a_worker_listens_on_the_channel_that_an_enqueue_notifies(db: Database, user: str) -> None:
    """Once it has found the queue empty."""
    session = db.session(user=user)
    channel = session.value("select quote_ident(fairq.channel(%s))", "mail")
    session.execute(f"listen {channel}")
    assert session.claim(queue="mail") == []
    db.enqueue("amber", queue="mail")
    assert len(list(session.conn.notifies(timeout=60, stop_after=1))) == 1


def test_a_poll_waits_until_the_next_job_is_due(db: Database, user: str) -> None:
    """Thirty seconds when none is, and before the queue was ever claimed from."""
    session = db.session(user=user)
    wait = statements("next_due_at")
    assert session.value(wait) == 30
    session.claim(queue="mail")
    assert session.value(wait) == 30
    db.execute("select fairq.enqueue_job('amber', 'work', p_queue => 'mail', p_delay => '20 seconds')")
    assert 0 < session.value(wait) < 20


def test_a_login_is_narrowed_to_one_queue(db: Database) -> None:
    """By an operator, with the statements of the page; a claim from another queue returns nothing."""
    user = db.login("fairq_worker")
    for queue in ("mail", "other"):
        db.given_jobs("amber", queue=queue)
    assert "create role mail_worker login;\ngrant fairq_worker to mail_worker;\n" in blocks("sql")
    operator, session = db.session(role="fairq_operator"), db.session(user=user)

    operator.execute(statements("insert into fairq.access_grants").replace("mail_worker", user))

    assert session.claim(queue="other") == []
    assert [job.queue for job in session.claim(queue="mail")] == ["mail"]
    asked = operator.rows(statements("pg_has_role").replace("mail_worker", user))
    assert asked == [(user, "mail", "*")]


def test_a_login_without_inheritance_sets_its_role_first(db: Database) -> None:
    """And holds its leases as that role."""
    user = db.login()
    db.execute(f"alter role {user} noinherit")
    db.execute(f"grant fairq_worker to {user}")
    db.given_jobs("amber", queue="mail")
    session = db.session(user=user)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        session.claim(queue="mail")
    session.execute("set role fairq_worker")
    (job,) = session.claim(queue="mail")
    assert db.value("select caller from fairq.leases where job_id = %s", job.job_id) == "fairq_worker"
    assert session.complete(job)


def test_a_tenants_session_names_its_tenant_in_each_transaction(db: Database) -> None:
    """It sees its own job; outside that transaction it is nobody."""
    db.given_jobs("birch", queue="mail")
    session = db.session(user=db.login("fairq_tenant"))
    _, _, created, states, *_ = statements("app.tenant_id").split(";\n")
    with session.conn.transaction():
        session.execute("set local app.tenant_id = 'amber'")
        assert session.value(created) is True
        assert session.rows(states) == [("queued",)]
    assert session.rows(states) == []
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="no tenant"):
        session.execute(created)


def test_a_claim_bounds_the_idleness_of_its_transaction_and_the_wait_of_others(db: Database) -> None:
    """10 s of the one; the other gets 55P03 after its own lock_timeout if that is shorter."""
    holder, other = db.session(autocommit=False), db.session()
    holder.claim(queue="mail")
    assert holder.value("show idle_in_transaction_session_timeout") == "10s"
    other.execute("set lock_timeout = '10ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        other.claim(queue="mail")
    holder.conn.rollback()
    assert other.claim(queue="mail") == []


@pytest.mark.parametrize("page", ["workers.md", "reference.md"])
def test_links_lead_to_files(page: str) -> None:
    """A relative link names a file of the repository."""
    text = (PAGE.parent / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (PAGE.parent / target).exists(), target
