"""
Wake-ups: one for the first job of a queue that a worker found empty, and none for anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support import Database


def heard(listener: Any) -> list[tuple[str, str]]:
    """
    Return what has been notified: the server sends it before it answers a query that came later.
    """
    listener.execute("select 1")
    return [(n.channel, n.payload) for n in listener.notifies(timeout=0.2)]


@pytest.fixture
def listener(db: Database) -> Any:
    """
    A session that listens to the queue `mail`, whose operator wants wake-ups.
    """
    db.set_queue("mail", notify=True)
    conn = db.connect()
    conn.execute('listen "fairq:mail"')
    assert db.value("select fairq.channel('mail')") == "fairq:mail"
    return conn


def test_the_first_job_of_an_empty_queue_wakes(db: Database, listener: Any) -> None:
    """
    After a claim that found nothing, an enqueue notifies, with a payload that says nothing.
    """
    assert db.claim(1, queue="mail") == []
    db.enqueue("a", queue="mail")
    assert heard(listener) == [("fairq:mail", "")]


def test_a_backlog_is_not_announced(db: Database, listener: Any) -> None:
    """
    While a worker finds jobs, enqueueing more notifies nobody.
    """
    db.given_jobs("a", 3, queue="mail")
    assert len(db.claim(1, queue="mail")) == 1
    db.enqueue("a", queue="mail")
    assert heard(listener) == []


def test_a_job_for_later_wakes_nobody(db: Database, listener: Any) -> None:
    """
    A delayed job, or a key that is in use, is no reason to wake a worker.
    """
    db.enqueue("a", queue="mail", key="k")
    assert len(db.claim(2, queue="mail")) == 1
    db.enqueue("a", queue="mail", delay="1 hour")
    db.enqueue("a", queue="mail", key="k")
    db.enqueue_jobs([{"tenant": "a", "task": "t", "queue": "mail", "delay": "1 hour"}])
    assert heard(listener) == []


def test_nobody_is_woken_unasked(db: Database) -> None:
    """
    Without p_notify there is no NOTIFY, which would take a lock of the whole database at commit.
    """
    conn = db.connect()
    conn.execute('listen "fairq:default"')
    assert db.claim(1) == []
    db.enqueue("a")
    assert heard(conn) == []
