"""
check() and adopt(): whether a database is what its version should be, whoever brought it there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairq_schema._backend import Backend, read_step
from fairq_schema._catalog import Attributes, read
from fairq_schema._expected import has_body, load_expected, load_variants
from fairq_schema._files import load
from fairq_schema._history import installed_version, known_history
from fairq_schema._rename import DEFAULT_SCHEMA, checked_name, quoted
from fairq_schema._roles import Roles, resolve
from fairq_schema._session import Connection, one_value, session
from fairq_schema._turns import in_turn
from fairq_schema.errors import DriftError, HistoryError, NotInstalledError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_HASH = "body sha256"
_NAMED_IN_A_REFUSAL = 5
# Said of an object as a whole; what is part of it is then not said again.
_OF_A_RELATION = ("column", "constraint", "policy", "trigger", "rule", "view")


@dataclass(frozen=True, slots=True)
class Report:
    """
    Which version a schema has, and in what it is not that version; no differences, no drift.
    """

    schema: str
    version: int
    differences: tuple[str, ...]


def check(
    connection: str | Connection = "",
    schema: str = DEFAULT_SCHEMA,
    *,
    roles: Mapping[str, str] | None = None,
    make_roles: bool = True,
    migrations: Path | None = None,
) -> Report:
    """
    Compare a schema with what its version should be, object by object; changes nothing, and needs no right to.

    Args:
        connection: a libpq connection string ("" means the PG* environment variables), or an idle connection.
        schema: the name that fairq has here.
        roles: which role plays which part; needed only where another tool installed fairq for other roles.
        make_roles: False: the parts that `roles` does not name are played by the owner of the schema.
        migrations: a folder to read instead of the one that the package ships.

    Raises:
        NotInstalledError: there is no fairq in this schema.
        HistoryError: it is newer than this package.
    """
    checked_name(schema)
    with session(connection) as conn:
        backend = Backend(conn, schema)
        with backend.turn(read_only=True):
            return report_on(conn, backend, schema, Given(roles, make_roles, migrations))


def adopt(  # noqa: PLR0913  as apply()
    connection: str | Connection = "",
    schema: str = DEFAULT_SCHEMA,
    *,
    roles: Mapping[str, str] | None = None,
    make_roles: bool = True,
    migrations: Path | None = None,
    lock_wait: float = 300,
) -> list[str]:
    """
    Record what another tool applied, so that apply() goes on from there; refused if the schema is not its version.

    Returns:
        The ids that were recorded now, oldest first.

    Raises:
        DriftError: something is not what the version should be; the message says what.
    """
    checked_name(schema)
    files = load(migrations)
    with session(connection) as conn:
        backend = Backend(conn, schema)

        def record() -> list[str]:
            given = Given(roles, make_roles, migrations)
            done = known_history(backend, files).done
            version = _version(conn, schema)
            if version < len(done):
                message = f"schema {schema} has version {version}, but its history has {done[-1].id} already"
                raise HistoryError(message)
            _refuse_drift(report_on(conn, backend, schema, given, with_history=False))
            missing = files[len(done) : version]
            if missing:
                backend.prepare()
            if not done:
                backend.keep_roles(players_of(conn, backend, schema, given))
            for file in missing:
                backend.record(file, read_step(file, schema, resolve({}, installer=None)), "mark")
            return [file.id for file in missing]

        return in_turn(backend, conn, schema, lock_wait, record)


@dataclass(frozen=True, slots=True)
class Given:
    """
    What the caller said about roles and files.
    """

    roles: Mapping[str, str] | None
    make_roles: bool
    migrations: Path | None


def report_on(
    connection: Connection, backend: Backend, schema: str, given: Given, *, with_history: bool = True
) -> Report:
    """
    Compare inside a transaction that is there.
    """
    version = _version(connection, schema, backend)
    files = load(given.migrations)
    if version > len(files):
        message = f"schema {schema} has version {version}, the newest here is {files[-1].id}: install a newer fairq"
        raise HistoryError(message)
    players = players_of(connection, backend, schema, given)
    spelled = str(one_value(connection, "select quote_ident(%s)", schema))
    usual = load_expected(version, given.migrations)
    live = read(connection, schema)
    variants = load_variants(given.migrations)
    # of several ways to be this version, the one that is nearest is meant
    found = [
        list(_Comparison(schema, version, each.beside(variants, live).under(schema, spelled, players), live).lines())
        for each in (usual, *(overlay.over(usual) for overlay in variants.values()))
    ]
    differences = [line.replace(" fairq.", f" {spelled}.", 1) for line in min(found, key=len)]
    if with_history:
        differences += _of_history(backend, schema, version)
    return Report(schema, version, tuple(differences))


def _version(connection: Connection, schema: str, backend: Backend | None = None) -> int:
    """
    Return what the schema says of itself; where that is lost, what the history says.
    """
    version = installed_version(connection, schema)
    if version is None and backend and one_value(connection, "select to_regnamespace(%s)", quoted(schema)):
        version = len(backend.history() if backend.may_read() else []) or None
    if version is None:
        message = f"there is no fairq in schema {schema}: was another name meant? `fairq apply --schema` makes it"
        raise NotInstalledError(message)
    return version


def players_of(connection: Connection, backend: Backend, schema: str, given: Given) -> Roles:
    """
    Return who plays the parts: as the caller says, or as the history remembers, or as usual.
    """
    kept = backend.roles() if backend.may_read() else None
    if kept and not given.roles and given.make_roles:
        return kept
    query = "select pg_get_userbyid(nspowner)::text from pg_namespace where nspname = %s"
    return resolve(given.roles or {}, installer=None if given.make_roles else one_value(connection, query, schema))


def _of_history(backend: Backend, schema: str, version: int) -> Iterator[str]:
    history = backend.history() if backend.may_read() else []
    if history and len(history) != version:
        yield f"history: ends at {history[-1].id}, but {schema}.schema_version() says {version}"


def _refuse_drift(report: Report) -> None:
    if not report.differences:
        return
    shown = "; ".join(report.differences[:_NAMED_IN_A_REFUSAL])
    more = len(report.differences) - _NAMED_IN_A_REFUSAL
    message = f"schema {report.schema} is not version {report.version}: {shown}" + (f"; and {more} more" * (more > 0))
    raise DriftError(message)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """
    What should be, and what is.
    """

    schema: str
    version: int
    expected: dict[str, Attributes]
    live: dict[str, Attributes]

    def lines(self) -> Iterator[str]:
        """
        Name each difference, in one sentence.
        """
        for name in sorted(self.expected.keys() | self.live.keys()):
            if self._is_part_of_another(name):
                continue
            if name not in self.live:
                yield f"{name} is missing"
            elif name not in self.expected:
                yield f"{name} is no part of version {self.version}{self._overloads(name)}"
            else:
                yield from self._of_one(name, self.expected[name], self.live[name])

    def _is_part_of_another(self, name: str) -> bool:
        """
        Tell whether the table is missing, or strange, as a whole.
        """
        kind, _, path = name.partition(" ")
        relation = f"relation {path.rpartition('.')[0] if kind != 'view' else path}"
        return kind in _OF_A_RELATION and (relation in self.expected) != (relation in self.live)

    def _overloads(self, name: str) -> str:
        kind, _, rest = name.partition(" ")
        called = f"function {rest.partition('(')[0]}("
        others = [other for other in self.expected if kind == "function" and other.startswith(called)]
        return f": an overload, by which calls of {others[0].removeprefix('function ')} may go astray" if others else ""

    def _of_one(self, name: str, expected: Attributes, live: Attributes) -> Iterator[str]:
        if _HASH in expected and not has_body(live, expected, self.schema):
            yield f"{name}: its body is not that of version {self.version}"
        for word in sorted((expected.keys() | live.keys()) - {"body", _HASH}):
            one, two = expected.get(word), live.get(word)
            if one == two:
                continue
            if word == "rights":
                yield from (f"{name}: {line}" for line in _of_rights(one or {}, two or {}))
            else:
                yield f"{name}: {word} is {_said(two)}, expected {_said(one)}"


def _of_rights(expected: Mapping[str, str], live: Mapping[str, str]) -> Iterator[str]:
    for who in sorted(expected.keys() | live.keys()):
        if expected.get(who) != live.get(who):
            yield f"{who} has {live.get(who, 'no right')}, expected {expected.get(who, 'no right')}"


def _said(value: Any) -> str:  # noqa: ANN401  what JSON has
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "on", False: "off"}[value]
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
