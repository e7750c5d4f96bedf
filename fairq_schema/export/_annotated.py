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
    text = step.header() + _whole(f"+migrate Up{option}", "+migrate", _barred(step, step.forward)) + "\n"
    text += _whole(f"+migrate Down{option}", "+migrate", step.header_back() + _barred(step, step.backward))
    return {f"{step.stamp}-{step.name}.sql": text}


def liquibase(step: Step) -> dict[str, str]:
    """
    Write a changelog of one change set, which keeps its identity wherever the file is moved to.
    """
    option = "" if step.in_transaction else " runInTransaction:false"
    backward = "".join(f"--rollback {line}".rstrip() + "\n" for line in step.backward.splitlines())
    text = (
        f"--liquibase formatted sql logicalFilePath:{step.name}\n\n"
        f"--changeset fairq:{step.name} splitStatements:false stripComments:false"
        f" rollbackSplitStatements:false{option}\n"
        f"{step.header()}{step.forward}\n"
        f"{backward}"
    )
    return {f"{step.name}.sql": text}


_BARRED = """\
-- sql-migrate drops every line that begins with a comment, also those inside of function bodies: here each has a bar
-- before it, which is taken away as it is run.
do $migration$
begin
execute replace($text$
{sql}$text$, chr(10) || '|-- ', chr(10) || '-- ');
end
$migration$;
"""


def _barred(step: Step, sql: str) -> str:
    if not step.in_transaction:  # one statement without a body, and DO would be a transaction
        return sql
    return _BARRED.format(sql=re.sub(r"^-- ", "|-- ", sql, flags=re.MULTILINE))


def _whole(section: str, prefix: str, sql: str) -> str:
    return f"-- {section}\n-- {prefix} StatementBegin\n{sql}-- {prefix} StatementEnd\n"
