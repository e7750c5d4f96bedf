"""
Reads migrations/schema/, what the schema is now, and writes it as migrations, how a database gets there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MIGRATIONS = Path(__file__).resolve().parents[1] / "migrations"

INITIAL = "fairq_0001_initial"
# These make the frame of every migration: who runs it, as whom, and giving that back.
FRAME = ("roles.sql", "finish.sql")
VERSION = "functions/version.sql"

_INCLUDE = re.compile(r"\\ir (\S+)")
_SECTION = re.compile(r"^--\n-- schema/(\S+)\n--\n\n", re.MULTILINE)
_BLOCK = re.compile(r"^--\n-- changes\n--\n\n(.*?)(?=^--\n-- schema/|\Z)", re.MULTILINE | re.DOTALL)
_MAP = "install.sql"

_HEADER = """\
-- depends:{depends}
-- {title}
--
-- Compiled by ci/new_migration from migrations/schema/, where the schema is meant to be read.
"""


# Names resolve to what is PostgreSQL's own, whatever path the installer has, until finish.sql gives that back: other
# tools write their own tables in the same transaction. No lock is waited for long, for everybody who comes later waits
# behind the one who waits here, and shorter than deadlock_timeout (1 s), after which somebody who is waited for in turn
# would be the one to fail; `fairq apply` tries again.
_SETTINGS = """\
do $fn$
begin
    perform pg_catalog.set_config('fairq_install.path', pg_catalog.current_setting('search_path'), true);
end
$fn$;
set local search_path = pg_catalog, pg_temp;
set local lock_timeout = '500ms';
"""

_PROVIDER = """\
-- How fairq knows the tenant: {name}
--
-- Replaces current_tenant_id(), in one transaction; no migration does, so run it once, after the first migration.
-- Compiled by ci/new_migration from migrations/schema/.

{settings}
do $fn$
begin
    if to_regnamespace('fairq') is null then
        raise exception 'fairq is not installed in this database'
            using errcode = '55000', hint = 'Apply the migrations first.';
    end if;
end
$fn$;
"""


@dataclass(frozen=True)
class Piece:
    """
    A file of the tree, or lines of the map itself, in the order of installation.
    """

    path: str
    text: str


def pieces(tree: Path) -> list[Piece]:
    """
    Walk the map: each file that it includes, and between them its own statements.
    """
    found: list[Piece] = []
    own: list[str] = []
    for line in _without_heading((tree / _MAP).read_text("ascii")).splitlines(keepends=True):
        include = _INCLUDE.fullmatch(line.strip())
        if include:
            found += [*_own(own), _piece(tree, include[1])]
            own = []
        else:
            own.append(line)
    return [*found, *_own(own)]


def install_text(tree: Path) -> str:
    """
    Return the whole schema as one text, which needs no psql.
    """
    return _sections(pieces(tree))


def initial(tree: Path) -> tuple[str, str]:
    """
    Return the first migration and its rollback.
    """
    header = _HEADER.format(depends="", title="0001 initial")
    forward = f"{header}\n{_SETTINGS}\n{install_text(tree)}"
    backward = f"-- 0001 initial, the way back\n\n{_sections([_piece(tree, 'rollback_initial.sql')])}"
    return forward, backward


def tenant_providers(tree: Path) -> dict[str, str]:
    """
    Return name -> text of each way to know the tenant: a file that any tool can run, inside the frame of a migration.
    """
    texts = {}
    for path in sorted((tree / "tenant").glob("*.sql")):
        header = _PROVIDER.format(name=path.stem, settings=_SETTINGS)
        own = [Piece(_MAP, "set local role fairq_owner;\n"), _piece(tree, f"tenant/{path.name}")]
        frame = [_piece(tree, name) for name in FRAME]
        texts[path.stem] = f"{header}\n{_sections([frame[0], *own, frame[1]])}"
    return texts


def successor(tree: Path, folder: Path, slug: str) -> tuple[str, str, str]:
    """
    Return the id of the next migration, its text and its rollback: every function file that changed, verbatim.
    """
    earlier = forward_files(folder)
    number = len(earlier) + 1
    title = f"{number:04} {slug.replace('_', ' ')}"
    _bump(tree / VERSION, number)
    changed, previous = _changes_since(earlier, tree)
    header = _HEADER.format(depends=f" {earlier[-1].stem}", title=title)
    forward = f"{header}{_WHY}\n{_SETTINGS}\n{_sections(changed, stub=_CHANGES)}"
    new = [piece.path for piece in changed if piece.path not in {old.path for old in previous}]
    stub = _CHANGES + "".join(_NEW_FILE.format(path=path) for path in new)
    backward = f"-- {title}, the way back\n\n{_SETTINGS}\n{_sections(previous, stub=stub)}"
    return f"fairq_{number:04}_{slug}", forward, backward


def refreshed(tree: Path, folder: Path) -> tuple[str, str, str]:
    """
    Return the newest migration, which is not released yet, with the functions as they are now.

    What a human wrote stays: everything above the first section, and the changes.
    """
    *earlier, newest = forward_files(folder)
    texts = [path.read_text("ascii") for path in (newest, newest.with_name(f"{newest.stem}.rollback.sql"))]
    forward, backward = (
        text[: _SECTION.search(text).start()] + _sections(sections, stub=_written_changes(text))  # type: ignore[union-attr]
        for text, sections in zip(texts, _changes_since(earlier, tree), strict=True)
    )
    return newest.stem, forward, backward


def forward_files(folder: Path) -> list[Path]:
    """
    Return the migrations of a folder, oldest first.
    """
    return sorted(path for path in folder.glob("fairq_*.sql") if not path.name.endswith(".rollback.sql"))


def unreleased(folder: Path) -> list[Path]:
    """
    Return the migrations that may still be written anew.
    """
    checksums = folder / "CHECKSUMS"
    frozen = checksums.read_text("ascii").split() if checksums.is_file() else []
    return [path for path in forward_files(folder) if path.name not in frozen]


def is_released(folder: Path) -> bool:
    """
    Tell whether the migrations that exist are frozen.
    """
    checksums = folder / "CHECKSUMS"
    return checksums.is_file() and bool(checksums.read_text("ascii").strip())


def carried(released: list[Path]) -> dict[str, str]:
    """
    Return path -> the text that the newest migration with this file brought.
    """
    texts: dict[str, str] = {}
    for migration in released:
        parts = _SECTION.split(_BLOCK.sub("", migration.read_text("ascii")))
        for path, text in zip(parts[1::2], parts[2::2], strict=True):
            texts[path] = text.strip() + "\n"
    return texts


_WHY = """\
--
-- Why:     TODO
-- Tables:  TODO (rewritten? scanned?)
-- Locks:   TODO
-- Clients: TODO
-- Undo:    TODO
-- breaking: TODO what clients of the version before cannot live with; nothing: leave this line out
"""
_CHANGES = """\
-- TODO set local role fairq_owner; then lock table ... in access exclusive mode, all tables at once, so that nobody is
-- met half-way, in a do block, since some tools send no begin; then, as ALTER statements, what changed in the files
-- that are not functions
"""
_NEW_FILE = "-- TODO drop what {path} makes, a file that the version before did not have\n"


def _changes_since(earlier: list[Path], tree: Path) -> tuple[list[Piece], list[Piece]]:
    """
    Return what changed since, and what it was before; of a file that is new there is nothing to go back to.
    """
    before = carried(earlier)
    changed = [piece for piece in pieces(tree) if _belongs(piece, before)]
    # the frame is that of today: the map stands in it in several pieces, each with the role of what comes next
    return changed, [
        piece if piece.path in (*FRAME, _MAP) else Piece(piece.path, before[piece.path])
        for piece in changed
        if piece.path in (*FRAME, _MAP) or piece.path in before
    ]


def _written_changes(text: str) -> str:
    found = _BLOCK.search(text)
    return found[1].strip() + "\n" if found else _CHANGES


def _belongs(piece: Piece, before: dict[str, str]) -> bool:
    if piece.path in (*FRAME, _MAP):
        return True
    return piece.path.startswith("functions/") and before.get(piece.path) != piece.text


def _sections(found: list[Piece], stub: str = "") -> str:
    texts = []
    for piece in found:
        texts.append(f"--\n-- schema/{piece.path}\n--\n\n{piece.text}")
        if stub and piece.path == FRAME[0]:
            texts.append(f"--\n-- changes\n--\n\n{stub}")
    return "\n".join(texts)


def _piece(tree: Path, path: str) -> Piece:
    return Piece(path, (tree / path).read_text("ascii").strip() + "\n")


def _own(lines: list[str]) -> list[Piece]:
    text = "".join(lines).strip()
    return [Piece(_MAP, text + "\n")] if text else []


def _without_heading(text: str) -> str:
    """
    Leave out the first comment: it speaks of the map, not of the schema.
    """
    return re.sub(r"\A(?:--.*\n)+", "", text)


def _bump(path: Path, number: int) -> None:
    text, count = re.subn(r"(?<=select )\d+", str(number), path.read_text("ascii"))
    if count != 1:
        message = f"{path} must say `select <number>` once, and says it {count} times"
        raise SystemExit(message)
    path.write_text(text, "ascii")
