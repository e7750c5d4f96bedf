"""
One version on its way into somebody's project: its names there, its SQL there, and what stands above it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from fairq_schema._rename import DEFAULT_SCHEMA, rename

if TYPE_CHECKING:
    from fairq_schema._files import Migration

_OUTSIDE_A_TRANSACTION = re.compile(r"^-- transactional: false$", re.MULTILINE)
# short, and not what label() itself makes of another name
_PLAIN_NAME = re.compile(r"(?!.*_[0-9a-f]{6}$)[a-z][a-z0-9_]{0,19}")


@dataclass(frozen=True, slots=True)
class Step:
    """
    One version, as one tool is to get it.

    Attributes:
        migration: what the package ships.
        before: the version before it, if there is one.
        target: the tool, by its name in the table.
        schema: where fairq will live.
        stamp: what tools that go by numbers put before the name.
        after: what it follows in the project itself, if that was said.
        app: the name of the folder that is written to.
    """

    migration: Migration
    before: Migration | None
    target: str
    schema: str
    stamp: str
    after: str | None
    app: str

    @property
    def name(self) -> str:
        """
        The name of this version, unlike any other in the project: also when fairq is there twice.
        """
        return _name(self.migration, self.schema)

    @property
    def name_before(self) -> str | None:
        """
        The name of the version before it.
        """
        return _name(self.before, self.schema) if self.before else None

    @property
    def revision(self) -> str:
        """
        The same without words: Alembic's table has room for 32 letters.
        """
        return f"{label(self.schema)}_{self.migration.number:04}"

    @property
    def revision_before(self) -> str | None:
        """
        The short name of the version before it.
        """
        return f"{label(self.schema)}_{self.before.number:04}" if self.before else None

    @property
    def words(self) -> str:
        """
        What the version changes: initial, tenant_index.
        """
        return _words(self.migration)

    @property
    def words_before(self) -> str:
        """
        What the version before it changes.
        """
        return _words(self.before) if self.before else ""

    @property
    def in_transaction(self) -> bool:
        """
        Whether the tool has to run it in a transaction, or must not (CREATE INDEX CONCURRENTLY).
        """
        return not _OUTSIDE_A_TRANSACTION.search(self.migration.forward)

    @property
    def forward(self) -> str:
        """
        The SQL that makes this version.
        """
        return rename(self.migration.forward, self.schema)

    @property
    def backward(self) -> str:
        """
        The SQL that takes it away.
        """
        return rename(self.migration.backward, self.schema)

    def header(self) -> str:
        """
        Say what the SQL below is, and how to find out whether it still is.
        """
        return self._header(f"{self.migration.id}.sql", self.migration.forward)

    def header_back(self) -> str:
        """
        Say the same of the way back.
        """
        return self._header(f"{self.migration.id}.rollback.sql", self.migration.backward)

    def _header(self, original: str, text: str) -> str:
        return (
            f"-- fairq {package_version()}: {original}, for schema {self.schema}\n"
            f"-- Written by fairq export --target {self.target}; do not edit: a change is a new version of fairq.\n"
            f"-- sha256 of the original: {sha256(text)}\n"
        )


def package_version() -> str:
    """
    Return the version of the package that writes.
    """
    try:
        return metadata.version("fairq-schema")
    except metadata.PackageNotFoundError:  # a folder on the path, that nobody installed
        return "of a checkout"


def sha256(text: str) -> str:
    """
    Return what sha256sum says of a file with this text.
    """
    return hashlib.sha256(text.encode()).hexdigest()


def label(schema: str) -> str:
    """
    Return the word that names of one installation begin with; two schemas never share it.
    """
    if schema == DEFAULT_SCHEMA:
        return "fairq"
    if _PLAIN_NAME.fullmatch(schema):
        return f"fairq_{schema}"
    plain = re.sub(r"[^a-z0-9]+", "_", schema.lower()).strip("_")[:12]
    return f"fairq_{plain}_{sha256(schema)[:6]}"


def _name(migration: Migration, schema: str) -> str:
    return f"{label(schema)}_{migration.number:04}_{_words(migration)}"


def _words(migration: Migration) -> str:
    return re.sub(r"^fairq_\d{4}_", "", migration.id)
