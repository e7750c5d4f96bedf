"""
The subset of SQL that every tool people migrate with reads as PostgreSQL does.

Each rule has a tool that breaks without it: yoyo and its sqlparse, psql -v, Flyway, Liquibase, Alembic, Atlas, goose,
dbmate, the Supabase CLI, jinja.
"""

from __future__ import annotations

import re

from fairq_schema._rename import rename

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
    "a directive of another tool": r"(?mi)^\s*--\s*"
    r"(migrate:|\+goose|\+migrate|liquibase|changeset|rollback\b|atlas:"
    # Liquibase eats these as well, wherever they stand
    r"|comments?\b|property\b|precondition|validchecksum|ignore(lines)?:)",
    "COPY FROM STDIN": r"(?i)\bcopy\b[^;]*\bfrom\s+stdin\b",
    "a psql command": r"(?m)^\s*\\",
}
# the same, outside comments and literals
_IN_CODE = {
    "a bind parameter": r"(?<!:):[a-zA-Z_]",
    "psql's \\gexec and friends": r"\\g\w*",
    "IF NOT EXISTS for a schema": r"(?i)\bcreate\s+schema\s+if\s+not\s+exists\b",
}
# how no statement may begin
_AT_THE_START = {
    "transaction control": r"(?i)(begin|commit|rollback|savepoint|start\s+transaction|release)\b",
    "a statement that returns rows": r"(?i)(select|values|table|show)\b",
    "a setting that outlives the transaction": r"(?i)set\s+(?!local\b)",
}


def breaches(sql: str) -> list[str]:
    """
    Name each rule that a migration file breaks, with the text that breaks it.
    """
    code = _TEXT.sub(_blank, sql)
    statements = [each.strip() for each in _TEXT.sub(_blank, _BODY.sub(r"\1\3", sql)).split(";")]
    found = [*_in_bytes(sql), *_in_literals(sql)]
    for rules, text in ((_ANYWHERE, sql), (_IN_CODE, code)):
        for name, pattern in rules.items():
            found += [f"{name}: {match[0].strip()!r}" for match in re.finditer(pattern, text)]
    for name, pattern in _AT_THE_START.items():
        found += [f"{name}: {statement[:60]!r}" for statement in statements if re.match(pattern, statement)]
    if re.search(r"(?i)\bconcurrently\b", code) and len(list(filter(None, statements))) != 1:
        found.append("CONCURRENTLY together with another statement")
    if any(re.search(r"\$\d", statement) for statement in statements):
        found.append("a bare $1")
    return found


def _in_bytes(sql: str) -> list[str]:
    rules = {
        "not ASCII": not sql.isascii(),
        "CR in a line end": "\r" in sql,
        "no newline at the end": not sql.endswith("\n"),
    }
    return [name for name, broken in rules.items() if broken]


def _in_literals(sql: str) -> list[str]:
    """
    What keeps the schema from being renamed: literals that name it where rename() cannot tell that they are names.
    """
    renamed = rename(sql, "another")
    literals = [(match.start(), match[1]) for match in _LITERAL.finditer(renamed) if match[1]]
    return [
        f"the schema's name in a literal: {literal}"
        for start, literal in literals
        if re.match(r"'fairq['.]", literal) and not re.search(r"(current_setting|set_config)\s*\(\s*$", renamed[:start])
    ]


def _blank(match: re.Match[str]) -> str:
    return "" if match[0].startswith("--") else "''"
