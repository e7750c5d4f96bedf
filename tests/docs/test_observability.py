"""docs/observability.md: its commands and statements run, its worker carries the trace."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import namedtuple_row

import fairq_schema
from fairq_schema._metrics import FAMILIES
from fairq_schema._statements import statements

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from tests.support import Database

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
METRICS = {f"{family.name}_{column}" for family in FAMILIES for column in family.values}


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def rows(head: str) -> list[list[str]]:
    """The cells of the table with this first cell in its head."""
    (table,) = re.findall(rf"^\| {re.escape(head)} \|.*\n\|(?: ---[ |]*)+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]


@pytest.fixture
def monitor(db: Database) -> str:
    """The login that the page makes, under a name of this test's own."""
    login = db.login()
    create, grant = blocks("sql")[0].splitlines()
    assert create == "create role mail_monitor login;"
    db.execute(grant.replace("mail_monitor", login))
    return login


def test_the_commands_run(db: Database, monitor: str, tmp_path: Path) -> None:
    """Each as it stands, but for the database; the live view once."""
    db.given_jobs("amber", 3, queue="mail")
    db.claim(1, queue="mail")
    where = conninfo_to_dict(db.dsn) | {"user": monitor}
    environment = {f"PG{name.upper()}".replace("DBNAME", "DATABASE"): str(value) for name, value in where.items()}
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) == 8
    for command in commands:
        words = shlex.split(command.partition(" > ")[0].replace("--dsn 'dbname=app user=mail_monitor'", ""))
        assert words[0] == "fairq"
        live = words[1] == "top" and not {"--once", "--json"} & set(words)
        call = [sys.executable, "-m", "fairq_schema", *words[1:], *(["--once"] if live else [])]
        done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
        # the doctor has something to say of every test server
        assert done.returncode == (1 if words[1] == "doctor" else 0), done.stderr
        assert done.stdout
        assert not done.stderr


def test_the_sample_has_the_columns_of_the_view(db: Database, monitor: str) -> None:
    """Head by head."""
    db.set_queue("mail", charge="jobs")
    db.given_jobs("amber", 3, queue="mail")
    for job in db.claim(1, queue="mail"):
        db.fail(job, retry=False)
    reader = db.session(autocommit=False)
    reader.execute("set transaction isolation level repeatable read")
    reader.value("select 1")
    call = [sys.executable, "-m", "fairq_schema", "top", "--once", "--dsn", f"{db.dsn} user={monitor}"]
    frame = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    assert _heads(frame) == _heads(blocks("text")[0])


def _heads(frame: str) -> list[list[str]]:
    lines = frame.splitlines()
    return [
        re.split(r" {2,}", line.strip()) for line, below in pairwise(lines) if below.strip("─ ") == "" != below.strip()
    ]


def test_the_findings_are_the_doctors() -> None:
    """Each number is in the page, and the other way round."""
    asked = [name.split()[0] for name in statements("doctor_operation.sql", "fairq")]
    assert [row[0] for row in rows("number")] == asked == [f"O{n}" for n in range(1, 17)]


def test_the_metrics_are_those_of_the_exporters() -> None:
    """With their labels and descriptions; alerts name no others."""
    said = [tuple(row) for row in rows("metric")]
    assert said == [
        (f"`{family.name}_{column}`", ", ".join(f"`{label}`" for label in family.labels), words)
        for family in FAMILIES
        for column, words in family.values.items()
    ]
    alerts = " ".join(row[0] for row in rows("expression"))
    assert set(re.findall(r"fairq_\w+", alerts)) <= METRICS


def test_every_event_has_an_operation(db: Database) -> None:
    """Those of the log and those of rows."""
    known = "select pg_get_constraintdef(oid) from pg_constraint where conname = %s and conrelid = %s::regclass"
    check = db.value(known, "job_log_event_known", "fairq.job_log")
    events = set(re.findall(r"'(\w+)'", check)) | {"created", "claimed", "succeeded"}
    said = [event for row in rows("`event_type`") for event in re.findall(r"`(\w+)`", row[0])]
    assert sorted(said) == sorted(events)


def test_the_timeline_is_one_of_log_records(db: Database) -> None:
    """Of a job that failed once, with its trace."""
    header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    job = db.enqueue("amber", "send", queue="mail", traceparent=header).job_id
    assert job == 1
    (claimed,) = db.claim(1, queue="mail")
    db.fail(claimed, error='{"code": "MAILBOX_FULL"}')
    query = blocks("sql")[1]
    found = db.execute(query).fetchall()
    assert [row[1] for row in found] == ["fairq.job.created", "fairq.job.claimed", "fairq.job.retry_scheduled"]
    assert {(row[2], row[3]) for row in found} == {("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")}
    assert found[2][4] == {
        "messaging.system": "fairq",
        "messaging.destination.name": "mail",
        "messaging.message.id": "1",
        "messaging.client.id": "worker",
        "error.type": "MAILBOX_FULL",
        "fairq.tenant": "amber",
        "fairq.task": "send",
        "fairq.attempt": 1,
    }


def test_the_worker_goes_on_with_the_producers_trace(db: Database) -> None:
    """One trace from enqueue to the attempt that succeeds, and the one that failed before it."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    (source,) = blocks("python")
    names: dict[str, Any] = {}
    exec(compile(source, "observability.md", "exec"), names)  # noqa: S102  the page's own program
    names["tracer"] = trace.get_tracer("mail", tracer_provider=provider)
    db.set_queue("mail", backoff_base="0", backoff_cap="0")
    conn = db.connect(user=db.login("fairq_producer", "fairq_worker"))
    conn.row_factory = namedtuple_row
    job = names["enqueue"](conn, "mail", "amber", "send")

    def work(claimed: Any) -> None:
        if claimed.attempt == 1:
            raise TimeoutError

    names["work_off"](conn, "mail", "w", work)
    sent, failed, done = _spans(exporter)
    assert (sent.name, failed.name, done.name) == ("enqueue mail", "process mail", "process mail")
    for span in (failed, done):
        assert span.context.trace_id == sent.context.trace_id
        assert span.parent is not None
        assert span.parent.span_id == sent.context.span_id
        assert span.attributes is not None
        assert span.attributes["messaging.message.id"] == str(job)
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "TimeoutError"
    assert db.state(job) == "succeeded"
    said = set(re.findall(r"^\| `([\w.]+)` \|", PAGE, re.MULTILINE)) | {"messaging.operation.type"}
    assert set(failed.attributes) | set(sent.attributes or {}) <= said


def _spans(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)


def test_links_lead_to_files() -> None:
    """A relative link names a file of the repository."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", PAGE):
        assert (ROOT / "docs" / target).exists(), target


def test_the_package_has_what_the_page_links_to() -> None:
    """The queries are shipped."""
    assert (Path(fairq_schema.__file__).parent / "metrics" / "queries.sql").exists()
