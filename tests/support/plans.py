"""What the planner chose, outside and inside of functions, and how many pages it cost."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

Plan = dict[str, Any]

_PARTITION = re.compile(r"_\d_")


def explain(
    conn: psycopg.Connection[Any], query: str, *args: Any, analyze: bool = False, buffers: bool = False
) -> Plan:
    """The plan of one statement as the parsed JSON of EXPLAIN: its root node."""
    options = ["format json", *(["analyze"] if analyze or buffers else []), *(["buffers"] if buffers else [])]
    row = conn.execute(f"explain ({', '.join(options)}) {query}", args or None).fetchone()
    assert row is not None
    return dict(row[0][0]["Plan"])


def plans_inside(conn: psycopg.Connection[Any], query: str, *args: Any) -> list[tuple[str, Plan]]:
    """
    Run `query` and return (text, plan) of every statement run for it, those inside of functions first.

    Needs a superuser's connection. Plans carry actual rows and buffers.
    """
    with overheard(conn) as heard:
        conn.execute(query, args or None)
    return heard


@contextmanager
def overheard(conn: psycopg.Connection[Any]) -> Iterator[list[tuple[str, Plan]]]:
    """As `plans_inside`, for whatever runs on the connection meanwhile."""
    heard: list[tuple[str, Plan]] = []
    _listen_to_auto_explain(conn)
    handler = _hear(heard)
    conn.execute("set auto_explain.log_min_duration = 0")
    conn.add_notice_handler(handler)
    try:
        yield heard
    finally:
        conn.remove_notice_handler(handler)
        conn.execute("set auto_explain.log_min_duration = -1")


def nodes(plan: Plan) -> Iterator[Plan]:
    """Every node of a plan, the root first."""
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def indexes(plan: Plan) -> set[str]:
    """The indexes that a plan reads; that of a partition by the name of the whole's."""
    return {_PARTITION.sub("_", node["Index Name"]) for node in nodes(plan) if "Index Name" in node}


def seq_scans(plan: Plan) -> set[str]:
    """The tables that a plan reads from end to end."""
    return {node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"}


def node_types(plan: Plan) -> list[str]:
    """The kinds of a plan's nodes, the root's first."""
    return [node["Node Type"] for node in nodes(plan)]


def buffers_of(conn: psycopg.Connection[Any], query: str, *args: Any) -> int:
    """Pages touched by a whole statement, everything inside of its functions included. It is run."""
    plan = explain(conn, query, *args, buffers=True)
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def _listen_to_auto_explain(conn: psycopg.Connection[Any]) -> None:
    conn.execute("load 'auto_explain'")
    settings = {
        "log_nested_statements": "on",
        "log_analyze": "on",
        "log_buffers": "on",
        "log_timing": "off",
        "log_format": "json",
        "log_level": "notice",
    }
    for name, value in settings.items():
        conn.execute(f"set auto_explain.{name} = {value}")
    conn.execute("set client_min_messages = notice")


def _hear(heard: list[tuple[str, Plan]]) -> Any:
    def handler(notice: psycopg.errors.Diagnostic) -> None:
        message = notice.message_primary or ""
        if message.startswith("duration:"):
            entry = json.loads(message[message.index("{") :])
            heard.append((entry["Query Text"], entry["Plan"]))

    return handler
