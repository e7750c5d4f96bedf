"""The metrics: every query runs for a monitoring login, and every file says what the queries give."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from contextlib import suppress
from datetime import timedelta
from importlib import resources
from math import inf, isnan
from typing import TYPE_CHECKING, Any
from urllib import request

import psycopg
import pytest
import yaml
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

import fairq_schema
from fairq_schema import cli
from fairq_schema._metrics import FAMILIES, FILES, queries, shipped, text_for
from tests.support import wait_until
from tests.support.binaries import CACHE, MissingServer

if TYPE_CHECKING:
    from tests.support import Database

pytestmark = pytest.mark.short

NAMES = {f"{family.name}_{column}" for family in FAMILIES for column in family.values}
LONG = timedelta(hours=1)


@pytest.mark.parametrize("program", FILES)
def test_the_shipped_file_is_what_the_command_prints(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Else: `fairq metrics --for ... > fairq_schema/metrics/...`."""
    assert cli.main(["metrics", "--for", program]) == 0
    assert capsys.readouterr().out == shipped(program)


@pytest.mark.parametrize("schema", ["fairq", "My-Queue"])
def test_every_query_runs_and_gives_its_columns(empty_db: str, db: Database, schema: str) -> None:
    """As a member of fairq_operator and pg_monitor; numbers and labels, nothing null, in another schema, too."""
    fairq_schema.apply(empty_db, schema=schema)
    with psycopg.connect(empty_db, autocommit=True) as admin:
        call = f'select count(*) from "{schema}".'
        admin.execute(call + "enqueue_job('a', 't')")
        admin.execute(call + "enqueue_job('a', 't', p_queue => 'unseen')")
        admin.execute(call + "claim_jobs(p_owner => 'w')")
        admin.execute(call + "enqueue_job('a', 't')")
    login = db.login("fairq_operator", "pg_monitor")
    with psycopg.connect(empty_db, user=login, row_factory=dict_row) as conn:
        for program in ("postgres_exporter", "sql_exporter"):
            texts = _queries_of(program, schema)
            assert texts.keys() == {family.name for family in FAMILIES}
            for family in FAMILIES:
                rows = conn.execute(texts[family.name].encode()).fetchall()
                assert rows, family.name
                for row in rows:
                    assert row.keys() == {*family.labels, *family.values}
                    assert all(isinstance(row[label], str) for label in family.labels)
                    numbers = [float(row[column]) for column in family.values]
                    assert not any(map(isnan, numbers))


def test_the_numbers_are_right(db: Database) -> None:
    """Of a queue with a little of everything, by a login that is no superuser."""
    db.set_queue(charge="jobs")
    db.given_jobs("a", 4)
    db.given_jobs("b", 1)
    db.given_jobs("b", 2, delay="1 hour")
    doomed, _ = db.claim(2, lease=LONG)
    db.fail(doomed, retry=False)
    db.set_tenant("b", paused=True)
    with db.connect(user=db.login("fairq_operator", "pg_monitor")) as conn:
        found = {
            name: conn.cursor(row_factory=dict_row).execute(text.encode()).fetchall()
            for name, text in queries("fairq").items()
        }
    (queue,) = found["fairq_queue"]
    said = [queue[f"{state}_jobs"] for state in ("queued", "scheduled", "running", "dead", "max_running")]
    assert said == [3, 2, 1, 1, inf]
    assert (queue["paused"], queue["eligible_tenants"] < 2) == (0, True)
    first = found["fairq_tenant"][0]
    assert (first["tenant"], first["backlog_ratio"] > 0.7, first["blocked"]) == ("a", True, 0)
    tables = {row["table"] for row in found["fairq_table"]}
    assert tables >= {"jobs", "leases", "finished_jobs", "job_log", "flows", "ticks"}
    assert not any(re.search(r"_\d$", table) for table in tables)


def test_what_is_held_shows(db: Database, empty_db: str) -> None:
    """An open claim, and a snapshot; none of another database, which keeps no row of this one."""
    db.given_jobs("a", 2)
    db.claim(1)
    holder = db.session(autocommit=False)
    holder.claim(1)
    with db.connect(user=db.login("fairq_operator", "pg_monitor")) as conn:
        ((queue, held, waiting),) = conn.execute(queries("fairq")["fairq_lock"].encode()).fetchall()
        assert (queue, held > 0, waiting) == ("default", True, 0)
        ages = {kind: age for kind, age, _ in conn.execute(queries("fairq")["fairq_held"].encode()).fetchall()}
        assert ages["session"] >= held
        assert ages.keys() == {"session", "standby", "prepared", "slot"}
        holder.conn.rollback()
        assert conn.execute(queries("fairq")["fairq_lock"].encode()).fetchall() == [("default", 0, 0)]
        with psycopg.connect(empty_db) as stranger:
            stranger.execute("select pg_current_xact_id()")
            held_by = conn.execute(queries("fairq")["fairq_held"].encode()).fetchall()
            assert {kind: age for kind, age, _ in held_by}["session"] == 0


def test_few_tenants_have_labels(db: Database) -> None:
    """Five of each of ten queues, whatever there is: what has labels is kept for ever."""
    for queue in range(12):
        db.enqueue_jobs([{"tenant": f"t{n}", "task": "t", "queue": f"q{queue}"} for n in range(8)])
        db.claim(1, queue=f"q{queue}", lease=LONG)
    rows = db.rows(queries("fairq")["fairq_tenant"])
    assert len(rows) == 50
    assert len({row.queue for row in rows}) == 10


def test_names_keep_the_conventions() -> None:
    """Base units and counters at the end of the name, words in lower case, a description for each."""
    for family in FAMILIES:
        for column, words in family.values.items():
            assert re.fullmatch(r"[a-z][a-z0-9_]*", column)
            assert not re.search(r"(milli|micro|minutes|hours|percent|kb|mb)", column), column
            assert words.endswith(".")
    counters = {name for name in NAMES if name.endswith("_total")}
    assert counters == {f"fairq_table_{verb}_rows_total" for verb in ("inserted", "updated", "deleted")}


def test_the_dashboard_draws_what_there_is() -> None:
    """Each name in it is a metric of both exporters, and each label is one of that metric."""
    board = json.loads(text_for("grafana"))
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    expressions += [variable["query"] for variable in board["templating"]["list"] if variable["type"] == "query"]
    used = {name for expression in expressions for name in re.findall(r"\bfairq_\w+", expression)}
    assert used <= NAMES
    assert used <= _names_of_sql_exporter()
    labels = {f"{f.name}_{column}": set(f.labels) for f in FAMILIES for column in f.values}
    for expression in expressions:
        for name, label in re.findall(r"(fairq_\w+)\{(\w+)", expression):
            assert label in labels[name]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_both_exporters_have_every_metric() -> None:
    """With the same type and description."""
    ours = yaml.safe_load(text_for("postgres_exporter"))
    theirs = {each["metric_name"]: each for each in yaml.safe_load(text_for("sql_exporter"))["metrics"]}
    for family, definition in ours.items():
        for column, said in (pair for each in definition["metrics"] for pair in each.items()):
            if said["usage"] != "LABEL":
                other = theirs.pop(f"{family}_{column}")
                assert (other["type"].upper(), other["help"]) == (said["usage"], said["description"])
    assert not theirs


def test_a_real_exporter_serves_them(db: Database) -> None:
    """postgres_exporter, with the file as it is shipped: every metric is there, and no query failed."""
    db.given_jobs("a", 3)
    db.claim(1, lease=LONG)
    served = _served_by_exporter(db, db.login("fairq_operator", "pg_monitor"))
    assert re.search(r'^fairq_queue_queued_jobs\{queue="default",.*\} 2$', served, re.MULTILINE)
    assert set(re.findall(r"^(fairq_\w+)\{", served, re.MULTILINE)) == NAMES
    assert "\npg_exporter_last_scrape_error 0\n" in served
    assert dict(re.findall(r"^# TYPE (fairq_\w+) (\w+)$", served, re.MULTILINE)) == {
        f"{family.name}_{column}": family.kind(column) for family in FAMILIES for column in family.values
    }


def _served_by_exporter(db: Database, login: str) -> str:
    program = CACHE / "exporter/usr/bin/prometheus-postgres-exporter"
    if not program.exists():
        msg = "no postgres_exporter here: `ci/fetch exporter` brings it"
        raise MissingServer(msg)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    options = ("disable-default-metrics", "disable-settings-metrics", f"web.listen-address={address}")
    folder = resources.files("fairq_schema") / "metrics"
    process = subprocess.Popen(
        [program, f"--extend.query-path={folder / FILES['postgres_exporter']}", *(f"--{option}" for option in options)],
        env={"DATA_SOURCE_NAME": make_conninfo(db.dsn, user=login, sslmode="disable")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def scrape() -> str:
        assert process.poll() is None, "the exporter has ended"
        with suppress(OSError), request.urlopen(f"http://{address}/metrics") as answer:
            return str(answer.read().decode())
        return ""

    try:
        return wait_until(scrape, "the exporter to answer")
    finally:
        process.kill()
        process.wait()


def _names_of_sql_exporter() -> set[str]:
    return {each["metric_name"] for each in yaml.safe_load(text_for("sql_exporter"))["metrics"]}


def _queries_of(program: str, schema: str) -> dict[str, Any]:
    document = yaml.safe_load(text_for(program, schema))
    if program == "postgres_exporter":
        return {name: each["query"] for name, each in document.items()}
    return {each["query_name"]: each["query"] for each in document["queries"]}
