"""
The subset of SQL that every tool people migrate with reads as PostgreSQL does.

Each rule has a tool that breaks without it: yoyo and its sqlparse, psql -v, Flyway, Liquibase, Alembic, Atlas, goose,
dbmate, the Supabase CLI, jinja.
"""

from __future__ import annotations

import re

_TEXT = re.compile(r"--[^\n]*|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")
_LITERAL = re.compile(r"--[^\n]*|('(?:[^']|'')*')")
_BODY = re.compile(r"(\$[a-z]*\$)(.*?)(\1)", re.DOTALL)

# what is wrong -> what it looks like, in the file as it is
_ANYWHERE = {
    "BEGIN ATOMIC": r"(?i)\bbegin\s+atomic\b",
    "an identifier with atomic in it": r"(?i)\w*atomic\w*",
    "a placeholder ${": r"\$\{",
    "a jinja tag": r"\{\{|\{%|\{#",
    "an escape string": r"(?i)\be'",
    "a backslash before a quote": r"\\'",
    "a tab": r"\t",
    "a block comment": r"/\*",
    "a directive of another tool": r"(?mi)^\s*--\s*(migrate:|\+goose|\+migrate|liquibase|changeset|rollback |atlas:)|^--(liquibase|changeset|rollback)",
    "COPY FROM STDIN": r"(?i)\bcopy\b[^;]*\bfrom\s+stdin\b",
    "a psql command": r"(?m)^\s*\\",
}
# the same, outside comments and literals
_IN_CODE = {
    "a bind parameter": r"(?<!:):[a-zA-Z_]",
    "psql's \\gexec and friends": r"\\g\w*",
    "IF NOT EXISTS for a schema": r"(?i)\bcreate\s+schema\s+if\s+not\s+exists\b",
}
# the same, outside bodies
_AT_THE_TOP = {
    "transaction control": r"(?mi)^\s*(begin|commit|rollback|savepoint|start\s+transaction|release)\b",
    "a statement that returns rows": r"(?mi)^\s*(select|values|table|show)\b",
    "a setting that outlives the transaction": r"(?mi)^\s*set\s+(?!local\b)",
    "a bare $1": r"\$\d",
}


def breaches(sql: str) -> list[str]:
    """
    Name each rule that a migration file breaks, with the text that breaks it.
    """
    code = _TEXT.sub(_blank, sql)
    top = _TEXT.sub(_blank, _BODY.sub(r"\1\3", sql))
    found = [*_in_bytes(sql), *_in_quotes(sql)]
    for rules, text in ((_ANYWHERE, sql), (_IN_CODE, code), (_AT_THE_TOP, top)):
        for name, pattern in rules.items():
            found += [f"{name}: {match[0].strip()!r}" for match in re.finditer(pattern, text)]
    if re.search(r"(?i)\bconcurrently\b", code) and top.count(";") != 1:
        found.append("CONCURRENTLY together with another statement")
    return found


def _in_bytes(sql: str) -> list[str]:
    rules = {
        "not ASCII": not sql.isascii(),
        "CR in a line end": "\r" in sql,
        "no newline at the end": not sql.endswith("\n"),
    }
    return [name for name, broken in rules.items() if broken]


def _in_quotes(sql: str) -> list[str]:
    """
    What keeps the schema from being renamed: literals that name it where no cast says that they are names.
    """
    found = []
    for match in _LITERAL.finditer(sql):
        literal = match[1]
        if not literal or not re.match(r"'fairq['.]", literal):
            continue
        before, after = sql[: match.start()], sql[match.end() :]
        is_name = re.match(r"\s*::\s*reg", after) or re.search(r"to_reg\w+\s*\(\s*$", before)
        is_setting = re.search(r"(current_setting|set_config)\s*\(\s*$", before)
        if not is_name and not is_setting:
            found.append(f"the schema's name in a literal: {literal}")
    return found


def _blank(match: re.Match[str]) -> str:
    return "" if match[0].startswith("--") else "''"
