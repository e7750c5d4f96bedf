"""
The same SQL under another schema name: which names are allowed, and how they get into the text.
"""

from __future__ import annotations

import hashlib
import re

from fairq_schema.errors import BadSchemaNameError

DEFAULT_SCHEMA = "fairq"
_BYTES_OF_A_NAME = 63  # PostgreSQL cuts longer identifiers, silently

# No quote, dollar, colon or backslash: such a name could end the literal or the body it is put into.
_ALLOWED = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ -]*")
_RESERVED = re.compile(r"public|information_schema|pg_.*|.*_migrate")

# The schema is renamed where it stands as code, and in the literals that PostgreSQL reads as names. Comments, other
# literals and quoted identifiers are matched first, so that nothing inside them is touched: 'fairq.tenant' may be a
# setting, and a role called fairq_owner is another word.
_TOKEN = re.compile(
    r"""
      --[^\n]*
    | '(?P<literal>fairq)(?P<rest>(?:\.[^']*)?'\s*::\s*(?:pg_catalog\.)?reg)
    | (?P<call>\b(?:to_reg\w+|nextval|currval|setval)\s*\(\s*')fairq(?P<argument>(?:\.[^']*)?')
    | '(?:[^']|'')*'
    | "(?:[^"]|"")*"
    | (?<![\w.$])fairq(?=\.\w)
    | (?P<clause>\bschema\s+)fairq\b
    """,
    re.VERBOSE | re.IGNORECASE,
)


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


def rename(sql: str, schema: str) -> str:
    """
    Return SQL written for schema fairq as it must read for another schema.
    """
    if schema == DEFAULT_SCHEMA:
        return sql
    quoted = f'"{schema}"'

    def replaced(token: re.Match[str]) -> str:
        if token["literal"]:
            return f"'{quoted}{token['rest']}"
        if token["call"]:
            return token["call"] + quoted + token["argument"]
        if token["clause"]:
            return token["clause"] + quoted
        return quoted if token[0].lower() == DEFAULT_SCHEMA else token[0]

    return _TOKEN.sub(replaced, sql)
