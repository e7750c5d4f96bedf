"""
The same SQL for another schema name and for other roles: which names are allowed, and how they get into the text.
"""

from __future__ import annotations

import hashlib
import re

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
_ABOUT_TENANTS = re.compile(r"^(?:grant|revoke|create policy)\b[^;]*?\b(?:to|from)\s+fairq_tenant\b(?!\s*,)[^;]*;\n", re.M)
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
    usual = all(roles[part] == DEFAULT_ROLES[part] for part in PARTS if roles[part] is not None)
    if schema == DEFAULT_SCHEMA and usual:
        return sql
    home = DEFAULT_SCHEMA if schema == DEFAULT_SCHEMA else quoted(schema)

    def role(usual_name: str) -> str:
        return roles[usual_name.lower().removeprefix("fairq_")] or usual_name

    def as_identifier(usual_name: str) -> str:
        name = role(usual_name)
        return usual_name if name == usual_name else quoted(name)

    def replaced(token: re.Match[str]) -> str:  # noqa: PLR0911  one return for each kind of token
        if token["literal"]:
            return f"'{home}{token['rest']}"
        if token["call"]:
            return token["call"] + home + token["argument"]
        if token["cast"]:
            return f"'{as_identifier(token['cast'])}'"
        if token["named"]:
            return f"'{role(token['named'])}'"
        if token["role"]:
            return as_identifier(token["role"])
        if token["clause"]:
            return token["clause"] + home
        return home if token[0].lower() == DEFAULT_SCHEMA else token[0]

    return _TOKEN.sub(replaced, sql)
