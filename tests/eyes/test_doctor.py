"""`fairq doctor` about operation: a healthy server is clean, and each thing that hurts is found and has a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import fairq_schema
from fairq_schema import cli
from fairq_schema._statements import statements
from tests.support import storm, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairq_schema import Hazard
    from tests.support import Database
    from tests.support.races import Worker
    from tests.support.servers import LocalServer

LONG = timedelta(hours=1)
# Test servers have no autovacuum and never sync; that they are told so is a test of its own.
OF_TEST_SERVERS = {("O3", "autovacuum"), ("O14", "fsync"), ("O14", "full_page_writes")}


def findings(db: Database, *groups: str, impatient: bool = False, user: str | None = None) -> list[Hazard]:
    """What an operator in pg_monitor is told, beside what every test server is told."""
    options = "-c fairq_doctor.patience=0s -c fairq_doctor.transactions=0" if impatient else ""
    user = user or db.login("fairq_operator", "pg_monitor", *groups)
    hazards = fairq_schema.doctor(make_conninfo(db.dsn, user=user, options=options), only="operation")
    return [each for each in hazards if (each.hazard, each.subject) not in OF_TEST_SERVERS]


def codes(hazards: list[Hazard]) -> set[tuple[str, str]]:
    """Number and severity."""
    return {(each.hazard, each.severity) for each in hazards}


def test_a_healthy_server_is_clean(start_server: Callable[..., LocalServer]) -> None:
    """With work under way, logins in all groups, and things of every kind in it."""
    server = start_server(durable=True, autovacuum="on")
    with server.databases.clone() as db:
        db.login("fairq_producer")
        db.login("fairq_worker")
        db.given_jobs("a", 20, key_ttl=None)
        db.given_jobs("b", 5, delay="1 hour")
        db.complete_all(db.claim(5))
        db.claim(5, lease=timedelta(minutes=1))
        for job in db.claim(2):
            db.fail(job, retry=False)
        assert findings(db) == []
        dsn = make_conninfo(db.dsn, user=db.login("fairq_operator", "pg_monitor"))
        assert cli.main(["doctor", "--only", "operation", "--dsn", dsn]) == 0


@pytest.mark.parametrize("read_ahead", [0, 20])
def test_a_storm_is_clean(db: Database, read_ahead: int) -> None:
    """In the midst of claims and completions the scheduler's counts are found right, each time; also picked ahead."""
    db.set_queue(read_ahead=read_ahead)
    user = db.login("fairq_operator", "pg_monitor")

    def work(worker: Worker) -> list[int]:
        worker.given_jobs(worker.random.choice("abc"), 5)
        jobs = worker.claim(4)
        for job in jobs[:2]:
            worker.complete(job)
        for job in jobs[2:3]:
            worker.release(job)
        return [job.job_id for job in jobs]

    def watch(_: Worker) -> list[int]:
        assert findings(db, user=user) == []
        return []

    def step(worker: Worker) -> list[int]:
        return (work, work, watch)[worker.number](worker)

    storm(db, workers=3, step=step, rounds=15)


def test_what_only_a_test_server_does_is_said(db: Database) -> None:
    """No autovacuum, and no syncing: errors, with the statement that mends it."""
    dsn = make_conninfo(db.dsn, user=db.login())
    found = {(each.hazard, each.subject, each.severity) for each in fairq_schema.doctor(dsn, only="operation")}
    assert found >= {(*each, "error") for each in OF_TEST_SERVERS}


def test_who_sees_less_is_told_so(db: Database) -> None:
    """An operator outside of pg_monitor; a login that is no operator."""
    assert codes(findings(db, user=db.login("fairq_operator"))) == {("O15", "info")}
    notes = findings(db, user=db.login())
    assert codes(notes) == {("O15", "info")}
    assert any("O5, O7, O8, O10, O12, O16" in each.what and "fairq_operator" in each.remedy for each in notes)


@dataclass(frozen=True)
class Case:
    """A statement, what it is found as, and whether the remedy is a statement that heals it."""

    hazard: str
    severity: str
    statement: str
    heals: bool = True


CASES = [
    Case("O3", "error", "alter table fairq.jobs set (autovacuum_enabled = off)"),
    Case("O6", "error", "alter role {worker} set default_transaction_isolation = 'repeatable read'"),
    Case("O6", "error", "alter role {worker} set default_transaction_read_only = on"),
    Case("O6", "error", "alter role {worker} set row_security = off"),
    Case("O6", "error", "alter role {worker} set session_replication_role = replica"),
    Case("O6", "warning", "alter role {producer} set synchronous_commit = off"),
    Case("O6", "warning", "alter role {worker} set enable_indexscan = off"),
    Case("O6", "warning", "alter role {worker} set search_path = public, pg_catalog"),
    Case("O6", "warning", "alter role {worker} set statement_timeout = 500"),
    Case("O6", "warning", "alter role {producer} in database {db} set statement_timeout = '10ms'"),
    Case("O6", "warning", "alter role {worker} set lock_timeout = '50ms'"),
    Case("O6", "warning", "alter role {worker} set idle_session_timeout = '1h'"),
    Case("O6", "error", "alter database {db} set default_transaction_isolation = serializable"),
    Case("O5", "error", "update fairq.ticks set ticked_at = clock_timestamp() + interval '1 minute'", heals=False),
    Case(
        "O5", "error", "update fairq.leases set lease_expires_at = clock_timestamp() + interval '2 hours'", heals=False
    ),
    Case("O8", "error", "delete from fairq.leases"),
    Case("O16", "warning", "update fairq.finished_jobs set finished_at = now() - interval '16 days'", heals=False),
    Case("O16", "warning", "update fairq.job_keys set expires_at = now() - interval '2 days'", heals=False),
    Case("O16", "error", "alter table fairq.finished_jobs detach partition fairq.finished_jobs_3", heals=False),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.hazard} {case.statement[-50:]}")
def test_what_hurts_is_found(db: Database, case: Case) -> None:
    """And nothing else with it; where the remedy is a statement, it heals."""
    names = {"worker": db.login("fairq_worker"), "producer": db.login("fairq_producer"), "db": db.dbname}
    db.enqueue("a", key="k")
    db.given_jobs("a", 3)
    db.complete_all(db.claim(1))
    db.claim(1, lease=timedelta(minutes=1))
    assert findings(db) == []
    db.execute(case.statement.format(**names))
    found = findings(db)
    assert codes(found) - {("O7", "warning")} == {(case.hazard, case.severity)}
    if case.heals:
        for each in found:
            db.execute(each.remedy)
        assert findings(db) == []


@pytest.mark.parametrize(
    "statement",
    [
        "alter role {worker} set synchronous_commit = off",
        "alter role {worker} set statement_timeout = '30s'",
        "alter role {worker} set search_path = pg_catalog, public",
        "alter role {worker} set lock_timeout = 0",
        "alter role {stranger} set row_security = off",
        "alter role {worker} set application_name = 'row_security'",
    ],
)
def test_what_does_no_harm_is_not(db: Database, statement: str) -> None:
    """A worker that loses a completion does it again; who is no login of the queue may do as it likes."""
    db.execute(statement.format(worker=db.login("fairq_worker"), stranger=db.login()))
    assert findings(db) == []


def test_a_session_that_stays_in_its_transaction(db: Database, empty_db: str) -> None:
    """By a snapshot or by an id of its own, in this database; the remedy ends it, and patience decides."""
    stranger = psycopg.connect(empty_db, application_name="stranger")
    stranger.execute("select pg_current_xact_id()")
    reader = db.session(autocommit=False, application_name="report")
    reader.execute("set transaction isolation level repeatable read")
    reader.value("select 1")
    writer = db.session(autocommit=False, application_name="importer")
    writer.value("select pg_current_xact_id()::text")
    assert findings(db) == []
    held = [each for each in findings(db, impatient=True) if each.hazard == "O1"]
    names = ("report", "importer", "stranger")
    assert {name for each in held for name in names if f"({name})" in each.what} == {"report", "importer"}
    for each in held:
        call = each.remedy.partition(": ")[2].partition(";")[0]
        db.execute(call)
    wait_until(
        lambda: not [each for each in findings(db, impatient=True) if each.hazard == "O1"], "the sessions to end"
    )
    stranger.close()


def test_what_outlives_sessions(start_server: Callable[..., LocalServer]) -> None:
    """A prepared transaction, and a slot that nobody reads from."""
    server = start_server(max_prepared_transactions="5", wal_level="logical")
    with server.databases.clone() as db:
        db.execute("select pg_create_physical_replication_slot('forgotten', true)")
        db.execute("begin; select pg_current_xact_id(); prepare transaction 'half done'")
        subjects = {each.subject: each.remedy for each in findings(db, impatient=True) if each.hazard == "O1"}
        assert subjects.keys() == {"replication slot 'forgotten'", "prepared transaction 'half done'"}
        db.execute("rollback prepared 'half done'")
        db.execute(subjects["replication slot 'forgotten'"].partition(": ")[2])
        assert findings(db, impatient=True) == []


def test_a_standby_that_feeds_back(start_server: Callable[..., LocalServer]) -> None:
    """A long query there holds rows here."""
    server = start_server(durable=True, autovacuum="on", wal_level="replica")
    feedback = {"hot_standby_feedback": "on", "wal_receiver_status_interval": "1s"}
    # what pg_basebackup writes has options that the libpq of some packages does not know
    feedback["primary_conninfo"] = make_conninfo(host=str(server.folder), port=server.port, user="postgres")
    with (
        server.databases.clone() as db,
        psycopg.connect(start_server(copy_of=server, **feedback).dsn(db.dbname)) as reader,
    ):
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from fairq.jobs")
        for _ in range(5):
            db.given_jobs("a")
        user = db.login("fairq_operator", "pg_monitor")

        def said() -> list[str]:
            found = findings(db, user=user, impatient=True)
            return [each.what for each in found if each.subject.startswith("standby")]

        assert "a query on this standby" in wait_until(said, "the standby to feed back")[0]
        on_standby = fairq_schema.doctor(reader.info.dsn, only="operation")
        assert ("O14", "info") in {(each.hazard, each.severity) for each in on_standby}


def test_an_index_that_was_not_finished(db: Database) -> None:
    """The remedy builds it."""
    db.given_jobs("a", 2)
    with pytest.raises(psycopg.errors.UniqueViolation):
        db.execute("create unique index concurrently jobs_tenant_idx on fairq.jobs (tenant)")
    (found,) = findings(db)
    assert (found.hazard, found.severity, found.subject) == ("O2", "error", "fairq.jobs_tenant_idx")
    db.cancel(db.job_ids("a")[0])
    db.execute(found.remedy)
    assert findings(db) == []


def test_a_notification_queue_that_fills(start_server: Callable[..., LocalServer]) -> None:
    """A listener that stays in its transaction: seen from a quarter on, worse from three."""
    server = start_server()
    small = server.major >= 17
    if small:
        server = start_server(max_notify_queue_pages="64")
    with server.databases.clone() as db:
        listener = db.session(autocommit=False)
        listener.execute("listen deaf")
        listener.conn.commit()
        listener.value("select 1")
        user = db.login("fairq_operator", "pg_monitor")

        def is_told(severity: str) -> bool:
            if small:
                return ("O4", severity) in codes(findings(db, user=user))
            # the queue has 8 GB: the same question, with bounds that can be reached
            (query,) = (text for name, text in statements("doctor_operation.sql", "fairq").items() if "O4" in name)
            return severity in {row.severity for row in db.rows(query.replace("0.", "0.0000"))}

        for severity in ("warning", "error"):
            assert not is_told(severity)
            while not is_told(severity):
                db.execute("select pg_notify('deaf', repeat('x', 7000) || n) from generate_series(1, 4) as n")
        listener.conn.rollback()


def test_leases_longer_than_jobs_need(db: Database) -> None:
    """Once it is known what jobs take."""
    db.given_jobs("a", 3)
    db.complete_all(db.claim(1))
    db.claim(1, lease=LONG)
    (found,) = findings(db)
    assert (found.hazard, found.severity, found.subject) == ("O7", "warning", "queue default")
    assert "59" in found.what or "1:00" in found.what


def test_dead_rows_that_nobody_removes(db: Database) -> None:
    """Said from ten thousand on, where they are most of the table; a vacuum mends it."""
    jobs = [{"tenant": "a", "task": "t"}] * 6000
    for _ in range(2):
        db.enqueue_jobs(jobs)
    db.execute("delete from fairq.jobs")
    db.execute("select pg_stat_force_next_flush()")
    found = wait_until(lambda: findings(db), "the statistics to be told")
    assert [(each.hazard, each.subject) for each in found] == [("O9", "fairq.jobs")]
    db.execute(found[0].remedy.rpartition("then: ")[2])
    db.execute("select pg_stat_force_next_flush()")
    wait_until(lambda: not findings(db), "the statistics to be told")


def test_a_lock_that_is_not_let_go(db: Database) -> None:
    """The process that holds the queue is named, with what it is."""
    db.given_jobs("a", 2)
    db.claim(1)
    holder = db.session(autocommit=False, application_name="forgetful")
    holder.claim(1)
    (found,) = [each for each in findings(db, impatient=True) if each.hazard == "O10"]
    assert f"process {holder.conn.info.backend_pid} " in found.what
    assert "(forgetful)" in found.what
    assert "idle in transaction" in found.what
    holder.conn.rollback()


def test_transaction_ids_that_grow_old(start_server: Callable[..., LocalServer]) -> None:
    """When autovacuum, which would freeze them, is kept from it."""
    server = start_server(autovacuum_freeze_max_age="100000")
    with server.databases.clone() as db:
        holder = db.session(autocommit=False)
        holder.value("select pg_current_xact_id()::text")
        burn = "begin insert into burnt values (n); exception when others then null; end;"
        db.execute("create temporary table burnt (n integer)")
        db.execute(f"do $$ begin for n in 1..200100 loop {burn} end loop; end $$")
        found = [each for each in findings(db) if each.hazard == "O11"]
        assert {each.subject for each in found} > {f"database {db.dbname}", "fairq.jobs"}
        assert {each.severity for each in found} == {"warning"}


def test_a_queue_that_stands_still(db: Database) -> None:
    """Nobody ever claimed, nobody claims any more, leases are over: not where it is paused."""
    db.given_jobs("a", 2, queue="unknown")
    db.given_jobs("a", 2, queue="left")
    db.claim(1, queue="left", lease=LONG)
    db.given_jobs("a", 1, queue="over")
    db.claim(1, queue="over", lease=timedelta(milliseconds=1))
    db.given_jobs("a", 1, queue="paused")
    db.set_queue("paused", paused=True)
    wait_until(lambda: db.value("select expired from fairq.queue_stats('over')") == 1, "the lease to be over")
    assert codes(findings(db)) == set()
    said = {each.subject: each.what for each in findings(db, impatient=True) if each.hazard == "O12"}
    assert said.keys() == {"queue unknown", "queue left", "queue over"}
    assert "nobody has ever claimed" in said["queue unknown"]
    assert said["queue over"].startswith("1 leases are over")


def test_connections_that_run_out(start_server: Callable[..., LocalServer]) -> None:
    """Before they are refused."""
    server = start_server(max_connections="12")
    with server.databases.clone() as db:
        user = db.login("fairq_operator", "pg_monitor")
        assert findings(db, user=user) == []
        crew = [db.session() for _ in range(7)]
        assert codes(findings(db, user=user)) == {("O13", "warning")}
        for each in crew:
            each.conn.close()


def test_what_cannot_be_read_is_said(db: Database) -> None:
    """A migration that holds a table keeps the doctor from one question, not from the others."""
    migration = db.session(autocommit=False)
    migration.execute("lock table fairq.leases in access exclusive mode")
    found = findings(db)
    assert {each.hazard for each in found} >= {"O5", "O7", "O8"}
    assert all("could not be looked at" in each.what for each in found)
    migration.conn.rollback()


def test_another_schema_is_looked_at_by_its_name(empty_db: str) -> None:
    """Every question, whatever the schema is called."""
    fairq_schema.apply(empty_db, schema="My-Queue")
    with psycopg.connect(empty_db, autocommit=True) as conn:
        conn.execute("""select "My-Queue".enqueue_job('a', 't')""")
        conn.execute("""alter table "My-Queue".jobs set (autovacuum_enabled = off)""")
    found = {(each.hazard, each.subject) for each in fairq_schema.doctor(empty_db, "My-Queue", "operation")}
    assert found - OF_TEST_SERVERS == {("O3", '"My-Queue".jobs')}


def test_a_terminal_obeys_no_name(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """Queues are named by producers: what is said of one is shown as it is."""
    db.enqueue("a", queue="\x1b[2Jq")
    db.claim(1, queue="\x1b[2Jq")
    db.execute("update fairq.ticks set running = 5")
    cli.main(["doctor", "--dsn", db.dsn])
    cli.main(["maintain", "--dsn", db.dsn])
    shown = capsys.readouterr().out
    assert r"queue \x1b[2Jq" in shown
    assert "\x1b" not in shown
