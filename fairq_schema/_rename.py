"""
The same SQL for another schema name and for other roles: which names are allowed, and how they get into the text.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from fairq_schema._roles import DEFAULT_ROLES, PARTS, Roles
from fairq_schema.errors import BadSchemaNameError

DEFAULT_SCHEMA = "fairq"
_BYTES_OF_A_NAME = 63  # PostgreSQL cuts longer identifiers, silently

# No quote, dollar, colon or backslash: such a name could end the literal or the body it is put into.
_ALLOWED = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ -]*")
_RESERVED = re.compile(r"public|information_schema|pg_.*|.*_migrate")

# The schema is renamed where it stands as code, and in the literals that PostgreSQL reads as names. Comments, other
# literals and quoted identifiers are matched first, so that nothing inside them is touched: 'fairq.tenant' may be a
# setting. A role is renamed as code, and where it is the whole of a literal.
_ROLE = rf"fairq_(?:{'|'.join(PARTS)})"
_TOKEN = re.compile(
    rf"""
      --[^\n]*
    | '(?P<literal>fairq)(?P<rest>(?:\.[^']*)?'\s*::\s*(?:pg_catalog\.)?reg)
    | (?P<call>\b(?:to_reg\w+|nextval|currval|setval)\s*\(\s*')fairq(?P<argument>(?:\.[^']*)?')
    | '(?P<cast>{_ROLE})'(?=\s*::\s*(?:pg_catalog\.)?regrole)
    | '(?P<named>{_ROLE})'
    | '(?:[^']|'')*'
    | "(?:[^"]|"")*"
    | (?<![\w.$])(?P<role>{_ROLE})(?![\w.])
    | (?<![\w.$])fairq(?=\.\w)
    | (?P<clause>\bschema\s+)fairq\b
    """,
    re.VERBOSE | re.IGNORECASE,
)

# What says something about tenants alone, and what names them among others.
_ABOUT_TENANTS = re.compile(
    r"^(?:grant|revoke|create policy)\b[^;]*?\b(?:to|from)\s+fairq_tenant\b(?!\s*,)[^;]*;\n", re.MULTILINE
)
_AMONG_OTHERS = re.compile(r"(?:,\s*('?)fairq_tenant\1(?!\w))|(?:\bfairq_tenant\s*,\s*)")


def checked_name(schema: str) -> str:
    """
    Return the name if fairq can live under it: rollback drops this schema with everything in it.
    """
    if not _ALLOWED.fullmatch(schema) or len(schema) > _BYTES_OF_A_NAME:
        message = f"schema {schema!r}: use at most 63 ASCII letters, digits, '_', '-' and spaces"
        raise BadSchemaNameError(message)
    if _RESERVED.fullmatch(schema):
        message = f"schema {schema!r} is reserved: fairq needs a schema of its own, to create and to drop"
        raise BadSchemaNameError(message)
    return schema


def bookkeeping_schema(schema: str) -> str:
    """
    Return the schema that remembers what was applied to the given one; two schemas never share it.
    """
    name = f"{schema}_migrate"
    if len(name) <= _BYTES_OF_A_NAME:
        return name
    return f"{schema[:40]}_{hashlib.sha256(schema.encode()).hexdigest()[:12]}_migrate"


def quoted(name: str) -> str:
    """
    Return a name as an identifier, always in quotes.
    """
    return f'"{name}"'


def rename(sql: str, schema: str, roles: Roles = DEFAULT_ROLES) -> str:
    """
    Return SQL written for schema fairq and its usual roles as it must read for others.
    """
    if roles["tenant"] is None:
        sql = _AMONG_OTHERS.sub("", _ABOUT_TENANTS.sub("", sql))
    names = Names(schema, roles)
    return sql if names.are_usual else renamed_by(names, sql)


def renamed_by(names: Names, sql: str) -> str:
    """
    Return SQL with these names.
    """
    return _TOKEN.sub(names.instead_of, sql)


@dataclass(frozen=True, slots=True)
class Names:
    """
    What an installation calls its schema and its roles.

    The schema stands in quotes, unless it is to be `spelled` otherwise, as PostgreSQL prints it.
    """

    schema: str
    roles: Roles
    spelled: str = ""

    @property
    def are_usual(self) -> bool:
        """
        Tell whether a text needs no change.
        """
        return self.schema == DEFAULT_SCHEMA and self.roles == DEFAULT_ROLES

    @property
    def home(self) -> str:
        """
        Return the schema as an identifier.
        """
        if self.spelled:
            return self.spelled
        return self.schema if self.schema == DEFAULT_SCHEMA else quoted(self.schema)

    def role(self, usual: str) -> str:
        """
        Return the role that is called this by default; other roles, and those that nobody plays, keep their names.
        """
        return self.roles.get(usual.lower().removeprefix("fairq_")) or usual

    def instead_of(self, token: re.Match[str]) -> str:
        """
        Return the text to put in the place of a token.
        """
        if token["literal"]:
            return f"'{self.home}{token['rest']}"
        if token["call"]:
            return token["call"] + self.home + token["argument"]
        if token["clause"]:
            return token["clause"] + self.home
        if token["named"]:
            return f"'{self.role(token['named'])}'"
        if token["cast"] or token["role"]:
            usual = token["cast"] or token["role"]
            name = self.role(usual)
            mark = "'" if token["cast"] else ""
            return mark + (usual if name == usual else quoted(name)) + mark
        return self.home if token[0].lower() == DEFAULT_SCHEMA else token[0]
