"""
A look, drawn for a terminal. It needs rich, which is in the extra `top`.
"""

from __future__ import annotations

from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import psycopg
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fairq_schema._plain import plain
from fairq_schema._top import look

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import RenderableType

    from fairq_schema._session import Connection
    from fairq_schema._top import Look, Queue, Snapshot, Tenant, Wanted

_STOPPED = 60  # seconds without a claim, while jobs wait, that are worth a word
_OLD = 60  # seconds that a snapshot or a lock is held
_CAP = 10_000


class _Plain(Table):
    """
    A table of what others wrote: names and errors are no markup, and nothing that a terminal would obey.
    """

    def add_row(self, *cells: RenderableType | None, **how: Any) -> None:  # noqa: ANN401  as rich has it
        """
        Add a row, whose strings are shown as they are.
        """
        super().add_row(*(_shown(cell) if isinstance(cell, str) else cell for cell in cells), **how)


def _shown(text: str, style: str = "") -> Text:
    """
    Return what others wrote, as text.
    """
    return Text(plain(text), style=style)


def draw(seen: Look) -> Group:
    """
    Lay out one look.
    """
    parts: list[RenderableType] = [_headline(seen), _queues(seen)]
    if seen.tenants:
        parts.append(_tenants(seen))
    if seen.dead:
        parts.append(_dead(seen))
    if seen.locks:
        parts.append(_locks(seen))
    if seen.snapshots:
        parts.append(_snapshots(seen))
    parts.extend(_shown(f"note: {note}", style="dim") for note in seen.notes)
    return Group(*parts)


def print_once(seen: Look) -> None:
    """
    Print one look as plain text, as wide as the terminal, or 160 columns where there is none.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, no_color=True, width=160)
    console.print(draw(seen))


def watch(connect: Callable[[], Connection], wanted: Wanted, interval: float) -> None:
    """
    Draw looks one over the other until interrupted; a connection that is lost is made anew.
    """
    console = Console(highlight=False)
    conn: Connection | None = None
    with Live(Text("looking ..."), console=console, screen=True, auto_refresh=False) as live:
        while True:
            began = monotonic()
            try:
                if conn is None or conn.closed:
                    conn = connect()
                live.update(draw(look(conn, wanted)), refresh=True)
            except psycopg.OperationalError as error:
                conn = None
                live.update(Text(f"{error}\ntrying again every {interval:g} s, Ctrl-C ends", style="red"), refresh=True)
            sleep(max(0.0, began + interval - monotonic()))


def _headline(seen: Look) -> Text:
    server = seen.server
    text = Text.assemble(
        (f"fairq {server.version}", "bold"),
        f"  {server.database} as {server.login}  {server.looked_at:%H:%M:%S}"
        f"  {server.connections} of {server.most_connections} connections",
    )
    if server.notify_queue > 0.01:  # noqa: PLR2004  what is less is nothing to look at
        text.append(f"  notification queue {server.notify_queue:.0%} full", style="red")
    return text


def _queues(seen: Look) -> Table:
    table = _table(
        "queue", "charge", "tenants>", "queued>", "later>", "running>", "starts/s>", "oldest>", "dead>", "state"
    )
    locks = {lock.queue: lock for lock in seen.locks}
    for each in seen.queues:
        verdict, style = state_of(each)
        lock = locks.get(each.queue)
        if lock and (lock.age or 0) > _OLD:
            verdict, style = f"its lock is held by process {lock.pid} for {_span(lock.age)}", "red"
        table.add_row(
            each.queue, each.charge, f"{each.eligible_tenants}/{each.tenants}", _count(each.queued),
            _count(each.scheduled), _of(each.running, each.max_running), f"{each.per_second:.1f}",
            _span(each.oldest_wait), _count(each.dead), Text(verdict, style=style),
        )  # fmt: skip
    if not seen.queues:
        table.add_row("none yet")
    return table


def state_of(queue: Queue) -> tuple[str, str]:
    """
    Say in a few words how a queue does, and how that is to look.
    """
    waits = queue.queued > 0
    stopped = queue.last_claim is None or queue.last_claim > _STOPPED
    is_full = queue.max_running is not None and queue.running >= queue.max_running
    rules = (
        (queue.paused, "paused", "yellow"),
        (is_full, f"at its cap of {queue.max_running}", "yellow"),
        (waits and queue.last_claim is None, "nobody has claimed from it yet", "red"),
        (waits and stopped, f"nobody claims, for {_span(queue.last_claim)}", "red"),
        (queue.expired and stopped, f"{_count(queue.expired)} leases are over, nobody claims", "red"),
        (waits and queue.tenants and not queue.eligible_tenants, "every tenant is held up", "yellow"),
        (waits and queue.rate, f"flows, at most {queue.rate or 0:g} a second", "green"),
        (waits or queue.running, "flows", "green"),
        (True, "idle", "dim"),
    )
    return next((words, style) for holds, words, style in rules if holds)


def _tenants(seen: Look) -> Table:
    table = _table(
        "tenant", "queue", "weight>", "queued>", "backlog>", "running>", "starts/s>", "share>", "due>", "oldest>",
        "owed>", "blocked by",
    )  # fmt: skip
    for each in seen.tenants:
        table.add_row(
            each.tenant, each.queue, f"{each.weight:g}", _count(each.queued, 1000), _part(each.backlog_share),
            str(each.running), f"{each.per_second:.1f}", _part(each.share), _part(each.entitled),
            _span(each.oldest_wait), _owed(each), Text(each.blocked_by or "", style="yellow"),
        )  # fmt: skip
    return table


def _owed(tenant: Tenant) -> str:
    if tenant.lag_seconds is not None:
        return f"{tenant.lag_seconds:+.1f} s"
    return "" if tenant.lag_jobs is None else f"{tenant.lag_jobs:+.1f} jobs"


def _dead(seen: Look) -> Table:
    table = _table("dead", "queue", "tenant", "task", "attempts>", "ago>", "error")
    for each in seen.dead:
        table.add_row(
            str(each.job_id), each.queue, each.tenant, each.task, str(each.attempts), _span(each.ago), each.error
        )
    return table


def _locks(seen: Look) -> Table:
    table = _table("lock of queue", "process>", "login", "application", "state", "held>", "waiting>")
    for each in seen.locks:
        table.add_row(
            each.queue, str(each.pid), each.login, each.application, each.state, _age(each.age), str(each.waiting)
        )
    return table


def _snapshots(seen: Look) -> Table:
    table = _table("held snapshot", "name", "login", "application", "state", "held>", "transactions since>")
    for each in seen.snapshots:
        table.add_row(
            each.kind, each.name, each.login, each.application, each.state, _age(each.age), str(each.transactions),
            style=_style(each),
        )  # fmt: skip
    return table


def _style(snapshot: Snapshot) -> str:
    return "red" if (snapshot.age or 0) > _OLD else ""


def _table(*columns: str) -> Table:
    table = _Plain(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, expand=False)
    for column in columns:
        name = column.removesuffix(">")
        table.add_column(name, justify="right" if name != column else "left", overflow="ellipsis")
    return table


def _count(number: int, most: int = _CAP) -> str:
    return f"{number}+" if number >= most else str(number)


def _of(number: int, most: int | None) -> str:
    return _count(number) if most is None else f"{_count(number)}/{most}"


def _part(part: float | None) -> str:
    return "" if part is None else f"{part:.0%}"


def _age(seconds: float | None) -> str:
    return "?" if seconds is None else _span(seconds)


def _span(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, length in _units():
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 0.1 else "0 s"  # noqa: PLR2004  shorter is now


def _units() -> Iterable[tuple[str, int]]:
    return (("d", 86_400), ("h", 3_600), ("min", 60))
