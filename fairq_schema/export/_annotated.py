"""
Tools that want both directions in one file, told apart by comments of their own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairq_schema.export._step import Step


def dbmate(step: Step) -> dict[str, str]:
    """
    Write two sections, each sent to the server in one piece.
    """
    option = "" if step.in_transaction else " transaction:false"
    text = (
        f"{step.header()}-- migrate:up{option}\n\n{step.forward}\n"
        f"-- migrate:down{option}\n\n{step.header_back()}{step.backward}"
    )
    return {f"{step.stamp}_{step.name}.sql": text}


def goose(step: Step) -> dict[str, str]:
    """
    Make each direction one statement to goose, which else looks for semicolons inside of function bodies.
    """
    first = "" if step.in_transaction else "-- +goose NO TRANSACTION\n"
    text = step.header() + first + _whole("+goose Up", "+goose", step.forward) + "\n"
    text += _whole("+goose Down", "+goose", step.header_back() + step.backward)
    return {f"{step.stamp}_{step.name}.sql": text}


def sql_migrate(step: Step) -> dict[str, str]:
    """
    Do the same for the tool that goose grew out of; it says elsewhere what must not be a transaction.
    """
    option = "" if step.in_transaction else " notransaction"
    forward, backward = (_barred(step, sql, _COMMENT) for sql in (step.forward, step.backward))
    text = step.header() + _whole(f"+migrate Up{option}", "+migrate", forward) + "\n"
    text += _whole(f"+migrate Down{option}", "+migrate", step.header_back() + backward)
    return {f"{step.stamp}-{step.name}.sql": text}


def liquibase(step: Step) -> dict[str, str]:
    """
    Write a changelog of one change set, which keeps its identity wherever the file is moved to.
    """
    option = "" if step.in_transaction else " runInTransaction:false"
    backward = step.header_back() + _barred(step, step.backward, _EMPTY)
    text = (
        f"--liquibase formatted sql logicalFilePath:{step.name}\n\n"
        f"--changeset fairq:{step.name} splitStatements:false stripComments:false"
        f" rollbackSplitStatements:false{option}\n"
        f"{step.header()}{step.forward}\n" + "".join(f"--rollback {line}\n" for line in backward.splitlines())
        # not inside of /* liquibase rollback */, of which 4.28 makes one line, a comment
    )
    return {f"{step.name}.sql": text}


def _whole(section: str, prefix: str, sql: str) -> str:
    return f"-- {section}\n-- {prefix} StatementBegin\n{sql}-- {prefix} StatementEnd\n"


# Lines that a tool loses, also inside of function bodies: what they begin with, and what is said of them.
_COMMENT = ("-- ", "sql-migrate drops every line that begins with a comment")
_EMPTY = ("\n", "Liquibase drops every empty line of a rollback")
_BARRED = """\
-- {why}, also inside of functions: here each
-- has a bar before it, which is taken away as it is run.
do $migration$
begin
execute regexp_replace($text$
{sql}$text$, '^[|]', '', 'gn');
end
$migration$;
"""


def _barred(step: Step, sql: str, lines: tuple[str, str]) -> str:
    if not step.in_transaction:  # one statement without a body, and DO would be a transaction
        return sql
    begin, why = lines
    return _BARRED.format(why=why, sql=re.sub(rf"^(?={begin}|[|])", "|", sql, flags=re.MULTILINE))
