"""
The command `fairq`: reads arguments, calls one function, prints what it returns.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
import warnings
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psycopg

import fairq_schema
import fairq_schema.export
from fairq_schema._doctor import SUBJECTS, report
from fairq_schema._metrics import FILES, text_for
from fairq_schema._plain import plain
from fairq_schema._roles import parse
from fairq_schema._tenant import PROVIDERS
from fairq_schema._top import ORDERS, Wanted, look
from fairq_schema.errors import MissingExtraError, NewerDatabaseWarning, TenantProviderWarning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_NOTHING = "nothing to apply"
_DIFFERS, _NOT_CHECKED = 1, 2  # as diff(1) says it


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run one command; results go to stdout, refusals to stderr, and 0, 1 or 2 (wrong usage) is returned.
    """
    parser = _parser()
    known, rest = parser.parse_known_args(argv)
    arguments = vars(known)
    command = arguments.pop("command")
    if command is _demo:
        arguments["rest"] = rest  # its options are declared in the demo, which is loaded only then
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        code: int = command(**arguments)
    except (fairq_schema.FairqError, psycopg.Error) as error:
        print(f"fairq: {error}".rstrip(), file=sys.stderr)
        return _NOT_CHECKED if command is _check else 1
    return code


def _apply(to: str | None, dry_run: bool, tenant: str | None, **rest: Any) -> int:  # noqa: ANN401, FBT001  by name only
    if dry_run:
        planned = fairq_schema.plan(rest["dsn"], rest["schema"], to)
        print("\n".join("\n    ".join([f"would apply {each.id}", *each.lines()]) for each in planned) or _NOTHING)
        if tenant:
            print(f"would know the tenant by {tenant}")
        return 0
    how = _connection_and_roles(**rest)
    with _warnings_told():
        applied = fairq_schema.apply(to=to, **how)
    print("\n".join(f"applied {name}" for name in applied) or _NOTHING)
    if tenant:
        with _warnings_told():
            before = fairq_schema.set_tenant_provider(provider=tenant, **how)
        print(f"the tenant is known by {tenant}" + (f", no longer by {before}" if before != tenant else ""))
    return 0


@contextmanager
def _warnings_told() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as told:
        for each in (NewerDatabaseWarning, TenantProviderWarning):
            warnings.simplefilter("always", each)
        yield
    for warning in told:
        print(f"fairq: {warning.message}", file=sys.stderr)


def _adopt(**rest: Any) -> int:  # noqa: ANN401
    recorded = fairq_schema.adopt(**_connection_and_roles(**rest))
    print("\n".join(f"recorded {name}" for name in recorded) or "nothing to record")
    return 0


def _check(**rest: Any) -> int:  # noqa: ANN401
    found = fairq_schema.check(**_connection_and_roles(**rest))
    for difference in found.differences:
        print(difference)
    count = len(found.differences)
    verdict = f"differs in {count} place{'s' * (count > 1)} from" if count else "is"
    print(f"schema {found.schema} {verdict} version {found.version}")
    return _DIFFERS if count else 0


def _connection_and_roles(dsn: str, role: list[str], no_roles: bool, **rest: Any) -> dict[str, Any]:  # noqa: ANN401, FBT001
    return {"connection": dsn, "roles": parse(",".join(role)), "make_roles": not no_roles, **rest}


def _status(dsn: str, schema: str) -> int:
    for each in fairq_schema.status(dsn, schema).migrations:
        when = each.applied_at.isoformat(" ", "seconds") if each.applied_at else "pending"
        print(f"{each.id}  {when}")
    return 0


def _rollback(dsn: str, schema: str, to: str | None, steps: int, yes: bool, lock_wait: float) -> int:  # noqa: FBT001, PLR0913, PLR0917  by name only
    undone = fairq_schema.rollback(dsn, schema, to, steps=steps, lose_data=yes, lock_wait=lock_wait)
    print("\n".join(f"rolled back {name}" for name in undone) or "nothing to roll back")
    return 0


def _export(**options: Any) -> int:  # noqa: ANN401  argparse knows their types
    roles = parse(",".join(options.pop("role")))
    exported = fairq_schema.export.export(have=options.pop("from"), roles=roles, **options)
    print("\n".join(f"wrote {path}" for path in exported.files) or "nothing to write: all is there already")
    for command in exported.then:
        print(f"next: {command}", file=sys.stderr)
    return 0


def _doctor(dsn: str, schema: str, only: Literal["isolation", "operation"] | None) -> int:
    hazards = fairq_schema.doctor(dsn, schema, only)
    print("\n".join(report(hazards)))
    return 1 if any(each.severity == "error" for each in hazards) else 0


def _maintain(dsn: str, schema: str, limit: int, seconds: float) -> int:
    done = fairq_schema.maintain(dsn, schema, limit=limit, seconds=seconds)
    for each in done:
        print(plain(f"{each.task}: {each.done}" + (f", lags: {each.why or 'something is left'}" if each.lags else "")))
    return 1 if any(each.lags for each in done) else 0


def _top(dsn: str, once: bool, as_json: bool, interval: float, **wanted: Any) -> int:  # noqa: ANN401, FBT001  by name only
    if as_json:
        print(json.dumps(look(dsn, Wanted(**wanted)).as_json()))
        return 0
    try:
        frame = importlib.import_module("fairq_schema._frame")  # only now: what it needs is an extra
    except ImportError as error:
        message = f"{error}; top needs: pip install 'fairq-schema[top]', or say --json"
        raise MissingExtraError(message) from None
    if once:
        frame.print_once(look(dsn, Wanted(**wanted)))
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        frame.watch(
            lambda: psycopg.connect(
                dsn, autocommit=True, fallback_application_name="fairq top", client_encoding="utf8"
            ),
            Wanted(**wanted),
            interval,
        )
    return 0


def _metrics(program: str, schema: str) -> int:
    print(text_for(program, schema), end="")
    return 0


def _demo(rest: list[str]) -> int:
    try:
        demo = importlib.import_module("fairq_schema.demo")  # only now: what it needs is an extra
    except ImportError as error:
        print(f"fairq: {error}; the demo needs: pip install 'fairq-schema[demo]'", file=sys.stderr)
        return 1
    parser = argparse.ArgumentParser(prog="fairq demo", description=demo.__doc__)
    demo.add_arguments(parser)
    code: int = demo.main(**vars(parser.parse_args(rest)))
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fairq", description="The schema of fairq: into a database, and out of it.")
    parser.add_argument("--version", action="version", version=f"fairq {version('fairq-schema')}")
    commands = parser.add_subparsers(required=True, metavar="command")

    apply = commands.add_parser("apply", help="bring a database to the newest version")
    apply.add_argument("--to", help="the last migration to apply, by number or id")
    apply.add_argument("--dry-run", action="store_true", help="only say what would be applied, and whom it makes wait")
    apply.add_argument(
        "--tenant", choices=PROVIDERS, help="how a session's tenant is known (default: as it is; new: setting)"
    )
    apply.set_defaults(command=_apply)

    status = commands.add_parser("status", help="list the migrations, applied and pending")
    status.set_defaults(command=_status)

    rollback = commands.add_parser("rollback", help="undo the newest migration")
    rollback.add_argument("--to", help="undo all that are newer than this one, by number or id; 0 undoes everything")
    rollback.add_argument("--steps", type=int, default=1, help="how many to undo (default: 1)")
    rollback.add_argument("--yes", action="store_true", help="also if jobs are lost by it")
    rollback.set_defaults(command=_rollback)

    check = commands.add_parser(
        "check",
        help="compare a database with what its version should be",
        description="Name each difference. Exit code 0: none, 1: some, 2: it could not be checked.",
    )
    check.set_defaults(command=_check)

    adopt = commands.add_parser("adopt", help="record what another tool applied, once check finds nothing")
    adopt.set_defaults(command=_adopt)

    doctor = commands.add_parser("doctor", help="look for what weakens the isolation of tenants or hurts operation")
    doctor.add_argument("--only", choices=SUBJECTS, help="isolation, which any login sees, or operation, for operators")
    doctor.set_defaults(command=_doctor)

    maintain = _add_maintain(commands)
    top = _add_top(commands)

    for command in (apply, status, rollback, check, adopt, doctor, maintain, top):
        command.add_argument("--dsn", default="", help="libpq connection string or URI (default: the PG* environment)")
        command.add_argument("--schema", default="fairq", help="where fairq lives (default: fairq)")
    for command in (apply, rollback, adopt):
        _add_lock_wait(command)
    for command in (apply, check, adopt):
        _add_roles(command)

    metrics = commands.add_parser(
        "metrics", help="print the queries of an exporter of Prometheus, or a dashboard of Grafana"
    )
    metrics.add_argument("--for", required=True, choices=FILES, dest="program", help="the program")
    metrics.add_argument("--schema", default="fairq", help="where fairq lives (default: fairq)")
    metrics.set_defaults(command=_metrics)

    export = commands.add_parser("export", help="write the migrations as another tool wants them")
    export.add_argument("--target", required=True, choices=fairq_schema.export.TARGETS, help="the tool")
    export.add_argument("--from", default="0", help="the version that the project has already (default: 0, none)")
    export.add_argument("--to", help="the last version to write (default: the newest)")
    export.add_argument("--schema", default="fairq", help="where fairq will live (default: fairq)")
    export.add_argument("--out", type=Path, help="the folder to write to (default: where the tool looks)")
    export.add_argument("--start", help="the number of the first file, where files are numbered (default: the time)")
    export.add_argument("--after", help="the revision of the project that the first one follows (alembic)")
    _add_role(export)
    export.set_defaults(command=_export)

    demo = commands.add_parser("demo", help="watch four tenants share one queue", add_help=False)
    demo.set_defaults(command=_demo)
    return parser


def _add_maintain(commands: Any) -> argparse.ArgumentParser:  # noqa: ANN401  argparse hides the type
    maintain: argparse.ArgumentParser = commands.add_parser(
        "maintain",
        help="do the upkeep: retention, partitions, keys, idle flows, the scheduler's counts",
        description="Say what was done and what lags. Exit code 0: nothing lags, 1: something does.",
    )
    maintain.add_argument("--limit", type=int, default=10_000, help="rows of a slice for each task (default: 10000)")
    maintain.add_argument(
        "--for",
        dest="seconds",
        type=float,
        default=60,
        metavar="SECONDS",
        help="begin no further slice after this time (default: 60)",
    )
    maintain.set_defaults(command=_maintain)
    return maintain


def _add_top(commands: Any) -> argparse.ArgumentParser:  # noqa: ANN401  argparse hides the type
    top: argparse.ArgumentParser = commands.add_parser(
        "top", help="watch queues and tenants: who waits and why, who holds what; for operators"
    )
    top.add_argument("--queue", help="one queue alone (default: all)")
    top.add_argument("--tenants", type=int, default=10, metavar="N", help="tenants shown of each queue (default: 10)")
    top.add_argument(
        "--by",
        choices=ORDERS,
        default="backlog",
        help="which tenants: with most of the backlog, most of the last minute (share), or whose turn is next",
    )
    top.add_argument("--interval", type=float, default=2, metavar="SECONDS", help="between two looks (default: 2)")
    top.add_argument("--once", action="store_true", help="look once, and print that as text")
    top.add_argument("--json", action="store_true", dest="as_json", help="look once, and print that as JSON")
    top.set_defaults(command=_top)
    return top


def _add_lock_wait(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--lock-wait",
        type=float,
        default=300,
        metavar="SECONDS",
        help="how long to go on trying while another process migrates or tables are in use (default: 300)",
    )


def _add_role(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--role",
        action="append",
        default=[],
        metavar="PART=ROLE,...",
        help="which role plays which part: owner, api, worker, producer, tenant, operator (default: fairq_<part>)",
    )


def _add_roles(command: argparse.ArgumentParser) -> None:
    _add_role(command)
    command.add_argument(
        "--no-roles",
        action="store_true",
        help="no roles are made: the login plays all parts but those that --role names, and nobody the tenant's",
    )
