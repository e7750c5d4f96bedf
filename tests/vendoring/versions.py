"""
fairq as it is today, and as it will be a version later: copies of the package, with the migrations that a test wants.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
SHIPPED = CHECKOUT / "migrations"
ORIGINALS = sorted(path.stem for path in SHIPPED.glob("fairq_*.sql") if not path.name.endswith(".rollback.sql"))
# What a project gets that has version 1, a version later: ours, or while there is none yet one that is made up; as it
# is told to migrations(), and its words.
EXTRA, COUNT = ((), 2) if len(ORIGINALS) > 1 else (("torture",), 1)
LATER_NAME = ORIGINALS[1].split("_", 2)[2] if len(ORIGINALS) > 1 else "torture"

# Whatever a tool could take for something of its own, and PostgreSQL does not.
TORTURE = """\
-- depends: {before}
-- A version that never was; it's here to be read: by tools, 100% of them.
--
-- Why: nothing; at; all

set local lock_timeout = '5s';
set local role fairq_owner;

create table fairq.notes (
    note_id bigint constraint notes_pkey primary key,
    body    text not null default '50% of it''s; -- not a comment $1',
    at      timestamptz not null default '2026-01-01 00:00:00+00'::timestamptz
);
comment on table fairq.notes is 'It''s a table; of "notes" -- 100% of them, at 12:30:05.';

create function fairq.note(p_body text)
    returns text
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Don't split here; nor there.
--
declare
    v_body text := p_body
|| $q$; it is -- "quoted" $q$;

begin
    -- a comment of its own
    if v_body like '%;%' then
        return format('%s: 100%% %s', v_body, 1::text);
    end if;
    insert into fairq.notes (note_id, body) values (1, v_body);

    return v_body;
end
$fn$;
revoke all on function fairq.note(text) from public;
grant execute on function fairq.note(text) to fairq_worker;

reset role;
-- replaced, they keep their owners
{function}
create or replace function fairq.schema_version()
    returns integer
    language sql
    immutable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $fn$
    select {number}
$fn$;
"""
TORTURE_BACK = """\
-- The way back; it's short.
set local lock_timeout = '5s';
set local role fairq_owner;
drop function fairq.note(text);
drop table fairq.notes;
reset role;
-- replaced, they keep their owners
{function}
create or replace function fairq.schema_version()
    returns integer
    language sql
    immutable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $fn$
    select {number_before}
$fn$;
"""
ALONE = """\
-- depends: {before}
-- transactional: false
-- An index for a table in use; alone, since it cannot be part of a transaction.
create index concurrently notes_body_idx on fairq.notes (body);
"""
ALONE_BACK = """\
drop index concurrently fairq.notes_body_idx;
"""


def migrations(folder: Path, *extra: str, shipped: int | None = None) -> Path:
    """
    Fill a folder with the first so many migrations that we ship (all of them, if not said), and further ones.

    The further ones are "torture", then "alone".
    """
    folder.mkdir(parents=True)
    names = ORIGINALS[:shipped]
    for name in names:
        for suffix in (".sql", ".rollback.sql"):
            shutil.copy(SHIPPED / f"{name}{suffix}", folder)
    # what `fairq check` compares with; of the further ones there is none
    (folder / "catalog").mkdir()
    for number in range(1, len(names) + 1):
        shutil.copy(SHIPPED / f"catalog/{number:04}.json", folder / "catalog")
    texts = {"torture": (TORTURE, TORTURE_BACK), "alone": (ALONE, ALONE_BACK)}
    for word in extra:
        number, before = len(names) + 1, names[-1]
        names.append(f"fairq_{number:04}_{word}")
        for suffix, text in zip((".sql", ".rollback.sql"), texts[word], strict=True):
            function = _a_function(folder, changed=suffix == ".sql")
            filled = text.format(before=before, number=number, number_before=number - 1, function=function)
            (folder / f"{names[-1]}{suffix}").write_text(filled, "ascii")
    return folder


def _a_function(folder: Path, *, changed: bool) -> str:
    """
    Return a function of the first version that begins with a comment, as it is or with another one.
    """
    text = (folder / "fairq_0001_initial.sql").read_text("ascii")
    pattern = r"^create or replace function [^;]*?^as \$fn\$\n-- .*?^\$fn\$;\n"
    found = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    assert found
    return found[0].replace("as $fn$\n", "as $fn$\n-- Another; comment.\n--\n\n") if changed else found[0]


def package(folder: Path, *extra: str, shipped: int | None = None) -> Path:
    """
    Make a release of fairq with these migrations; return the folder of its command `fairq`.
    """
    shutil.copytree(CHECKOUT / "fairq_schema", folder / "fairq_schema", ignore=shutil.ignore_patterns("__pycache__"))
    migrations(folder / "fairq_schema/migrations", *extra, shipped=shipped)
    command = folder / "bin/fairq"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} -m fairq_schema "$@"\n', "ascii")
    command.chmod(0o755)
    return command.parent


def ids(folder: Path) -> list[str]:
    """
    Return the ids of a folder of migrations, oldest first.
    """
    return sorted({re.sub(r"(\.rollback)?\.sql$", "", path.name) for path in folder.glob("fairq_*.sql")})
