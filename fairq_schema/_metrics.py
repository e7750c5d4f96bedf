"""
The metrics of fairq, and the files by which postgres_exporter, sql_exporter and Grafana know them.

The queries are in metrics/queries.sql. The other files in that folder are written by this module:
`fairq metrics --for grafana` prints what is in them, for other schema names, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from fairq_schema._rename import DEFAULT_SCHEMA
from fairq_schema._statements import statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FILES = {
    "postgres_exporter": "postgres_exporter.yaml",
    "sql_exporter": "fairq.collector.yml",
    "grafana": "grafana.json",
}


@dataclass(frozen=True, slots=True)
class Family:
    """
    The metrics of one query: its name and `_` before the names of its columns.
    """

    name: str
    labels: dict[str, str]
    values: dict[str, str]

    def kind(self, column: str) -> str:
        """
        Return the type of a metric: what is counted up has `_total` at the end of its name.
        """
        return "counter" if column.endswith("_total") else "gauge"


FAMILIES = (
    Family(
        "fairq_queue",
        {"queue": "The queue."},
        {
            "queued_jobs": "Jobs that may be claimed; the count stops at 10,000.",
            "scheduled_jobs": "Jobs that wait for their time; the count stops at 10,000.",
            "running_jobs": "Jobs under a lease; the count stops at 10,000.",
            "max_running_jobs": "The cap of the queue, +Inf without one.",
            "dead_jobs": "Dead jobs among the last 10,000 that failed or were cancelled.",
            "expired_leases": "Leases that are over and that no claim has noticed.",
            "backlogged_tenants": "Tenants with work, as far as the scheduler has looked.",
            "eligible_tenants": "Tenants with work that may be picked.",
            "paused": "1 while the queue is paused.",
            "starts_per_second": "Jobs started a second, in the last minute.",
            "oldest_wait_seconds": "How long the longest waiting job could have started.",
            "last_claim_age_seconds": "How long ago a claim last looked; where none ever did, the oldest wait.",
        },
    ),
    Family(
        "fairq_tenant",
        {"queue": "The queue.", "tenant": "One of the five tenants with most of its backlog."},
        {
            "queued_jobs": "Its jobs that may be claimed; the count stops at 1,000.",
            "running_jobs": "Its jobs under a lease.",
            "backlog_ratio": "Its part of the queue's backlog, from a sample.",
            "share_ratio": "Its part of what was spent in the last minute.",
            "entitled_ratio": "The part that its weight entitles it to.",
            "oldest_wait_seconds": "How long its longest waiting job could have started.",
            "blocked": "1 while its pause, cap or rate keeps it from being picked.",
        },
    ),
    Family(
        "fairq_lock",
        {"queue": "The queue."},
        {
            "held_seconds": "Age of the transaction that holds the queue's lock.",
            "waiting_sessions": "Sessions that wait for it.",
        },
    ),
    Family(
        "fairq_held",
        {"kind": "session, standby, prepared (transaction) or (replication) slot."},
        {
            "age_seconds": "Age of the oldest transaction that keeps dead rows from being removed; 0 for slots.",
            "transactions": "Transactions that were begun since the oldest snapshot held.",
        },
    ),
    Family(
        "fairq_table",
        {"table": "The table, its partitions together."},
        {
            "live_rows": "Live rows, as autovacuum knows them.",
            "dead_rows": "Dead rows, as autovacuum knows them.",
            "inserted_rows_total": "Rows inserted: into jobs by enqueue, into leases by claims.",
            "updated_rows_total": "Rows updated.",
            "deleted_rows_total": "Rows deleted.",
            "size_bytes": "Size with indexes and TOAST.",
            "frozen_age_transactions": "Age of the oldest row that is not frozen.",
        },
    ),
    Family(
        "fairq_server",
        {},
        {
            "schema_version": "Version of the schema of fairq.",
            "notification_queue_ratio": "How full the queue of NOTIFY is; at 1 commits fail.",
        },
    ),
)


def text_for(program: str, schema: str = DEFAULT_SCHEMA) -> str:
    """
    Return the file that a program wants.
    """
    written: dict[str, Callable[[str], str]] = {
        "postgres_exporter": _postgres_exporter,
        "sql_exporter": _sql_exporter,
        "grafana": _grafana,
    }
    return written[program](schema)


def shipped(program: str) -> str:
    """
    Return the file as it lies in this package.
    """
    return (resources.files("fairq_schema") / "metrics" / FILES[program]).read_text("ascii")


def queries(schema: str) -> dict[str, str]:
    """
    Return the query of each family.
    """
    return {name: text.strip() for name, text in statements("metrics/queries.sql", schema).items()}


_HEAD = "# Written by `fairq metrics --for {}`; its login is a member of fairq_operator and of pg_monitor.\n"


def _postgres_exporter(schema: str) -> str:
    return _HEAD.format("postgres_exporter") + "".join(_of_postgres_exporter(queries(schema)))


def _of_postgres_exporter(texts: dict[str, str]) -> Iterator[str]:
    for family in FAMILIES:
        yield f"\n{family.name}:\n  query: |\n{_indented(texts[family.name], 4)}  metrics:\n"
        for column, words in family.labels.items():
            yield _usage(column, "LABEL", words)
        for column, words in family.values.items():
            yield _usage(column, family.kind(column).upper(), words)


def _usage(column: str, usage: str, words: str) -> str:
    return f"    - {column}:\n        usage: {usage}\n        description: {json.dumps(words)}\n"


def _sql_exporter(schema: str) -> str:
    return _HEAD.format("sql_exporter") + "".join(_of_sql_exporter(queries(schema)))


def _of_sql_exporter(texts: dict[str, str]) -> Iterator[str]:
    yield "\ncollector_name: fairq\nmin_interval: 15s\n\nmetrics:\n"
    for family in FAMILIES:
        for column, words in family.values.items():
            yield f"  - metric_name: {family.name}_{column}\n    type: {family.kind(column)}\n"
            yield f"    help: {json.dumps(words)}\n"
            if family.labels:
                yield f"    key_labels: [{', '.join(family.labels)}]\n"
            yield f"    values: [{column}]\n    query_ref: {family.name}\n"
    yield "\nqueries:\n"
    for family in FAMILIES:
        yield f"  - query_name: {family.name}\n    query: |\n{_indented(texts[family.name], 6)}"


def _indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" if line else "\n" for line in text.splitlines())


# Title, unit, what is drawn and how its lines are called.
_PANELS = (
    ("Jobs that wait", "short", (('fairq_queue_queued_jobs{queue=~"$queue"}', "{{queue}}"),)),
    ("Longest wait", "s", (('fairq_queue_oldest_wait_seconds{queue=~"$queue"}', "{{queue}}"),)),
    ("Started a second", "ops", (('fairq_queue_starts_per_second{queue=~"$queue"}', "{{queue}}"),)),
    (
        "Running, and the cap",
        "short",
        (
            ('fairq_queue_running_jobs{queue=~"$queue"}', "{{queue}}"),
            ('fairq_queue_max_running_jobs{queue=~"$queue"} < +Inf', "{{queue}} at most"),
        ),
    ),
    (
        "Since the last claim, while jobs wait",
        "s",
        (('fairq_queue_last_claim_age_seconds{queue=~"$queue"} and fairq_queue_queued_jobs > 0', "{{queue}}"),),
    ),
    (
        "Dead jobs, and leases that nobody took back",
        "short",
        (
            ('fairq_queue_dead_jobs{queue=~"$queue"}', "{{queue}} dead"),
            ('fairq_queue_expired_leases{queue=~"$queue"}', "{{queue}} leases"),
        ),
    ),
    ("Whose the backlog is", "percentunit", (('fairq_tenant_backlog_ratio{queue=~"$queue"}', "{{queue}} {{tenant}}"),)),
    (
        "Share less what the weight is due",
        "percentunit",
        (
            (
                'fairq_tenant_share_ratio{queue=~"$queue"} - fairq_tenant_entitled_ratio{queue=~"$queue"}',
                "{{queue}} {{tenant}}",
            ),
        ),
    ),
    (
        "Longest wait of the tenants with most of the backlog",
        "s",
        (('fairq_tenant_oldest_wait_seconds{queue=~"$queue"}', "{{queue}} {{tenant}}"),),
    ),
    (
        "Tenants with work, and those that may be picked",
        "short",
        (
            ('fairq_queue_backlogged_tenants{queue=~"$queue"}', "{{queue}} with work"),
            ('fairq_queue_eligible_tenants{queue=~"$queue"}', "{{queue}} may be picked"),
        ),
    ),
    (
        "Enqueued, claimed and ended a second, all queues",
        "ops",
        (('rate(fairq_table_inserted_rows_total{table=~"jobs|leases|finished_jobs"}[5m])', "{{table}}"),),
    ),
    ("The queue's lock: held for", "s", (('fairq_lock_held_seconds{queue=~"$queue"}', "{{queue}}"),)),
    ("The queue's lock: sessions that wait", "short", (('fairq_lock_waiting_sessions{queue=~"$queue"}', "{{queue}}"),)),
    ("Held snapshots: age", "s", (("fairq_held_age_seconds", "{{kind}}"),)),
    ("Held snapshots: transactions since", "short", (("fairq_held_transactions", "{{kind}}"),)),
    ("Dead rows", "short", (("fairq_table_dead_rows", "{{table}}"),)),
    ("Size", "bytes", (("fairq_table_size_bytes", "{{table}}"),)),
    ("Notification queue", "percentunit", (("fairq_server_notification_queue_ratio", "full"),)),
)
_SOURCE = {"type": "prometheus", "uid": "${source}"}


def _grafana(schema: str) -> str:
    board: dict[str, Any] = {
        "uid": "fairq",
        "title": "fairq" if schema == DEFAULT_SCHEMA else f"fairq ({schema})",
        "tags": ["fairq", "postgresql"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_choice_of_source(), _choice_of_queue()]},
        "panels": [_panel(number, *panel) for number, panel in enumerate(_PANELS)],
    }
    return json.dumps(board, indent=2) + "\n"


def _choice_of_source() -> dict[str, Any]:
    return {"name": "source", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _choice_of_queue() -> dict[str, Any]:
    return {
        "name": "queue",
        "type": "query",
        "label": "Queue",
        "datasource": _SOURCE,
        "query": "label_values(fairq_queue_queued_jobs, queue)",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(number: int, title: str, unit: str, lines: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "gridPos": {"h": 8, "w": 8, "x": 8 * (number % 3), "y": 8 * (number // 3)},
        "fieldConfig": {"defaults": {"unit": unit, "min": None if "less" in title else 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for at, (expression, legend) in enumerate(lines)
        ],
    }
