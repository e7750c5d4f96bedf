"""
Writes versions into a project: which of them, under which numbers, and never over something that is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from fairq_schema._files import find, load
from fairq_schema._rename import DEFAULT_SCHEMA, checked_name
from fairq_schema._roles import resolve
from fairq_schema.errors import ExportError
from fairq_schema.export._step import Step
from fairq_schema.export._targets import TARGETS, Target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairq_schema._files import Migration


@dataclass(frozen=True, slots=True)
class Export:
    """
    What was written, and what is left to do.

    Attributes:
        files: the files that were written, oldest version first; not those that were there already as they should be.
        then: the commands that make the tool run them.
    """

    files: tuple[Path, ...]
    then: tuple[str, ...]


def export(  # noqa: PLR0913  each is an option of the command
    target: str,
    have: int | str = 0,
    to: int | str | None = None,
    *,
    schema: str = DEFAULT_SCHEMA,
    roles: Mapping[str, str] | None = None,
    out: Path | None = None,
    start: str | None = None,
    after: str | None = None,
    migrations: Path | None = None,
) -> Export:
    """
    Write every version that is newer than `have`, up to and with `to`, as files of another migration tool.

    Args:
        target: the tool, one of TARGETS.
        have: the version that the project has already, by number or id; 0 if none.
        to: the last version to write, by number or id; the newest if not given.
        schema: the name that fairq shall have in the database.
        roles: which role plays which part (owner, api, worker, producer, tenant, operator), where it is not the usual.
        out: the folder to write to; if not given, the one where the tool looks.
        start: the number of the first file, for tools that go by numbers; the time if not given.
        after: the revision of the project that the first version follows, for Alembic.
        migrations: a folder to read instead of the one that the package ships.

    Raises:
        FairqError: nothing was written; the subclass says why.
    """
    tool = _target(target, start, after)
    folder = out or Path(tool.folder)
    wanted = _range(load(migrations), have, to)
    checked_name(schema)
    players = resolve(roles or {}, installer=None)
    _check_app(target, folder)
    first = start or datetime.now(timezone.utc).strftime("%Y%m%d%H%M%S")
    steps = [
        Step(
            migration=migration,
            before=before,
            target=target,
            schema=schema,
            roles=players,
            stamp=f"{int(first) + index:0{len(first)}}",
            after=None if index else after,
            app=folder.resolve().name,
        )
        for index, (before, migration) in enumerate(wanted)
    ]
    texts = {folder / path: text for step in steps for path, text in tool.files(step).items()}
    for step in steps:
        _refuse_twins(step, texts)
    written = [path for path, text in texts.items() if _is_missing(path, text)]
    for path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path], "ascii", newline="\n")
    commands = [*(_each(tool, step) for step in steps), tool.then if after else tool.then_alone or tool.then]
    return Export(tuple(written), tuple(filter(None, commands)))


def _target(name: str, start: str | None, after: str | None) -> Target:
    if name not in TARGETS:
        message = f"no target {name!r}; there are {', '.join(TARGETS)}"
        raise ExportError(message)
    tool = TARGETS[name]
    if start is not None and not tool.is_stamped:
        message = f"--start {start}: files for {name} are not numbered"
        raise ExportError(message)
    if start is not None and not (start.isascii() and start.isdecimal()):
        message = f"--start {start!r}: expected digits, such as 20260101000001 or 0007"
        raise ExportError(message)
    if after and not tool.follows:
        message = f"--after {after}: files for {name} do not say what they follow; only those for alembic do"
        raise ExportError(message)
    return tool


def _check_app(target: str, folder: Path) -> None:
    if target == "django" and not folder.resolve().name.isidentifier():
        message = f"--out {folder}: the folder's name is the name of a Django app, and Python could not import it"
        raise ExportError(message)


def _range(
    files: Sequence[Migration], have: int | str, to: int | str | None
) -> list[tuple[Migration | None, Migration]]:
    """
    Return the versions above `have` up to and with `to`, each with the one before it.
    """
    first = 0 if str(have).isdecimal() and int(have) == 0 else find(files, have).number
    last = files[-1].number if to is None else find(files, to).number
    if first >= last:
        message = f"nothing to write: the project has version {first}, and version {last} was asked for"
        raise ExportError(message)
    return [(files[number - 2] if number > 1 else None, files[number - 1]) for number in range(first + 1, last + 1)]


def _refuse_twins(step: Step, texts: dict[Path, str]) -> None:
    """
    Refuse to give a project the same version twice, under another number.
    """
    for path in [path for path in texts if step.name in path.name]:
        twins = sorted(set(path.parent.glob(f"*{step.name}*")) - texts.keys())
        if twins:
            message = f"{twins[0]} has {step.name} already: say --from {step.migration.number}, or remove it first"
            raise ExportError(message)


def _is_missing(path: Path, text: str) -> bool:
    if not path.exists():
        return True
    if text and path.read_bytes() != text.encode():
        message = f"{path} is there already, with another text: say --from the version that the project has"
        raise ExportError(message)
    return False


def _each(tool: Target, step: Step) -> str:
    requires = f" --requires {step.name_before}" if step.name_before else ""
    single = " -1" if step.in_transaction else ""
    return tool.each.format(name=step.name, words=step.words.replace("_", " "), requires=requires, single=single)
