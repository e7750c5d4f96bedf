"""
The command `fairq`: reads arguments, calls one function, prints what it returns.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from typing import TYPE_CHECKING

import psycopg

import fairq_schema
import fairq_schema.errors
from fairq_schema._roles import parse

if TYPE_CHECKING:
    from collections.abc import Sequence


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
        return 1
    return code


def _apply(dsn: str, schema: str, to: str | None, role: list[str], no_roles: bool, lock_wait: float) -> int:  # noqa: FBT001, PLR0913, PLR0917  by name only
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", fairq_schema.errors.NewerDatabaseWarning)
        applied = fairq_schema.apply(
            dsn, schema, to, roles=parse(",".join(role)), make_roles=not no_roles, lock_wait=lock_wait
        )
    for warning in told:
        print(f"fairq: {warning.message}", file=sys.stderr)
    print("\n".join(f"applied {name}" for name in applied) or "nothing to apply")
    return 0


def _status(dsn: str, schema: str) -> int:
    for each in fairq_schema.status(dsn, schema).migrations:
        when = each.applied_at.isoformat(" ", "seconds") if each.applied_at else "pending"
        print(f"{each.id}  {when}")
    return 0


def _rollback(dsn: str, schema: str, to: str | None, steps: int, yes: bool, lock_wait: float) -> int:  # noqa: FBT001, PLR0913, PLR0917  by name only
    undone = fairq_schema.rollback(dsn, schema, to, steps=steps, lose_data=yes, lock_wait=lock_wait)
    print("\n".join(f"rolled back {name}" for name in undone) or "nothing to roll back")
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
    commands = parser.add_subparsers(required=True, metavar="command")

    apply = commands.add_parser("apply", help="bring a database to the newest version")
    apply.add_argument("--to", help="the last migration to apply, by number or id")
    apply.set_defaults(command=_apply)

    status = commands.add_parser("status", help="list the migrations, applied and pending")
    status.set_defaults(command=_status)

    rollback = commands.add_parser("rollback", help="undo the newest migration")
    rollback.add_argument("--to", help="undo all that are newer than this one, by number or id; 0 undoes everything")
    rollback.add_argument("--steps", type=int, default=1, help="how many to undo (default: 1)")
    rollback.add_argument("--yes", action="store_true", help="also if jobs are lost by it")
    rollback.set_defaults(command=_rollback)

    for command in (apply, rollback):
        command.add_argument(
            "--lock-wait",
            type=float,
            default=300,
            metavar="SECONDS",
            help="how long to go on trying while another process migrates or tables are in use (default: 300)",
        )
    for command in (apply,):
        command.add_argument(
            "--role",
            action="append",
            default=[],
            metavar="PART=ROLE,...",
            help="which role plays which part: owner, api, worker, producer, tenant, operator (default: fairq_<part>)",
        )
        command.add_argument(
            "--no-roles",
            action="store_true",
            help="make no role: the login plays all parts but those that --role names, and nobody the tenant's",
        )
    for command in (apply, status, rollback):
        command.add_argument("--dsn", default="", help="libpq connection string or URI (default: the PG* environment)")
        command.add_argument("--schema", default="fairq", help="where fairq lives (default: fairq)")

    demo = commands.add_parser("demo", help="watch four tenants share one queue", add_help=False)
    demo.set_defaults(command=_demo)
    return parser
