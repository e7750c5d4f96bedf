"""
Finds, reads and checks the migration files; the only user of importlib.resources.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from fairq_schema.errors import FilesError, UnknownTargetError

if TYPE_CHECKING:
    import sys
    from collections.abc import Sequence

    if sys.version_info >= (3, 11):
        from importlib.resources.abc import Traversable
    else:
        from importlib.abc import Traversable

_FILE_NAME = re.compile(r"(?P<id>fairq_(?P<number>\d{4})_[a-z][a-z0-9_]*)\.sql")
# Stands in the header of a migration that clients of the version before cannot live with.
_BREAKING = re.compile(r"^-- breaking:", re.MULTILINE)
_DEPENDS = re.compile(r"^-- depends:(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Migration:
    """
    One version of the schema: the text that makes it and the text that takes it away.
    """

    id: str
    number: int
    forward: str
    backward: str

    @property
    def sha256(self) -> str:
        """
        The fingerprint that is recorded when the file is applied, the same for LF and CRLF checkouts.
        """
        return hashlib.sha256(self.forward.encode()).hexdigest()

    @property
    def is_breaking(self) -> bool:
        """
        Whether an older package must keep its hands off a database that has it.
        """
        return bool(_BREAKING.search(self.forward))

    @property
    def depends(self) -> tuple[str, ...]:
        """
        The ids named in the header.
        """
        return tuple(name for line in _DEPENDS.findall(self.forward) for name in line.split())


def load(folder: Path | None = None) -> tuple[Migration, ...]:
    """
    Read every migration of a folder, or those that the package ships, oldest first.
    """
    where = folder or shipped_folder()
    names = sorted(entry.name for entry in where.iterdir() if entry.is_file())
    matches = [match for match in map(_FILE_NAME.fullmatch, names) if match]
    migrations = tuple(_read(where, match["id"], int(match["number"])) for match in matches)
    _check_chain(migrations, where)
    return migrations


def shipped_folder() -> Traversable:
    """
    Return migrations/ inside the installed package, or beside it in a checkout.
    """
    installed = resources.files("fairq_schema") / "migrations"
    if installed.is_dir():
        return installed
    # An editable install or a checkout: the wheel gets its copy when it is built, the checkout has the original.
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file() and (checkout / "migrations").is_dir():
        return checkout / "migrations"
    message = "the migration files are missing from this installation of fairq"
    raise FilesError(message)


def catalog_text(name: str, folder: Path | None = None) -> str | None:
    """
    Return the text that says what a version ("0001") should be in a database; None where the folder has none.
    """
    file = (folder or shipped_folder()) / "catalog" / f"{name}.json"
    return file.read_text("ascii") if file.is_file() else None


def find(migrations: Sequence[Migration], target: int | str) -> Migration:
    """
    Return the migration with this number (2, "2", "0002") or this id.
    """
    text = str(target)
    for migration in migrations:
        if migration.id == text or (text.isdecimal() and migration.number == int(text)):
            return migration
    message = f"no migration {text!r} here; there are {', '.join(each.id for each in migrations)}"
    raise UnknownTargetError(message)


def _read(where: Traversable, name: str, number: int) -> Migration:
    backward = where / f"{name}.rollback.sql"
    if not backward.is_file():
        message = f"{name}.sql has no rollback: {name}.rollback.sql is missing from {where}"
        raise FilesError(message)
    # read_text() turns CRLF into LF
    return Migration(name, number, (where / f"{name}.sql").read_text("ascii"), backward.read_text("ascii"))


def _check_chain(migrations: Sequence[Migration], where: Traversable) -> None:
    if not migrations:
        message = f"no file named fairq_NNNN_what_it_does.sql in {where}"
        raise FilesError(message)
    previous: tuple[str, ...] = ()
    for number, migration in enumerate(migrations, start=1):
        if migration.number != number:
            message = f"{migration.id}.sql: expected number {number:04}, the numbers have no gaps and no twins"
            raise FilesError(message)
        if migration.depends != previous:
            message = f"{migration.id}.sql must depend on {previous or 'nothing'}, not on {migration.depends}"
            raise FilesError(message)
        previous = (migration.id,)
