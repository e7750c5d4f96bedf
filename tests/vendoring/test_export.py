"""
`fairq export`: which versions it writes, under which names, and what it refuses.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairq_schema import errors
from fairq_schema.cli import main
from fairq_schema.export import TARGETS, export
from fairq_schema.export._step import label, package_version
from tests.vendoring.versions import SHIPPED, ids, migrations

if TYPE_CHECKING:
    from collections.abc import Callable

STAMPED = sorted(name for name, target in TARGETS.items() if target.is_stamped)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """
    What we ship, a version after it, and another that must not be a transaction.
    """
    return migrations(tmp_path / "migrations", "torture", "alone", shipped=1)


@pytest.fixture
def written(tmp_path: Path, folder: Path) -> Callable[..., dict[str, str]]:
    """
    `written("dbmate", have=1)`: the names and texts that are written to `out`.
    """

    def write(target: str, **options: object) -> dict[str, str]:
        out = tmp_path / "out"
        export(target, **{"migrations": folder, "out": out} | options)  # type: ignore[arg-type]
        return {str(path.relative_to(out)): path.read_bytes().decode() for path in out.rglob("*") if path.is_file()}

    return write


# --- which versions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("have", "to", "expected"),
    [
        (0, None, [1, 2, 3]),
        (0, 1, [1]),
        (1, None, [2, 3]),
        (1, 2, [2]),
        ("fairq_0001_initial", "fairq_0002_torture", [2]),
        ("0002", "3", [3]),
    ],
)
def test_versions_above_what_there_is(
    written: Callable[..., dict[str, str]],
    tmp_path: Path,
    have: int | str,
    to: int | str | None,
    expected: list[int],
) -> None:
    """
    Written is what is newer than the project's version, up to and with the one asked for, by number or by id.
    """
    for target in TARGETS:
        texts = written(target, have=have, to=to, out=tmp_path / "out" / target.replace("-", "_"))
        names = {name for name in texts if name.startswith(target.replace("-", "_") + "/")}
        numbers = {int(number) for name in names for number in re.findall(r"(?:^|_|/)(\d{4})_", name)}
        assert numbers == set(expected), target


@pytest.mark.parametrize(
    ("have", "to", "complaint"),
    [
        (3, None, "nothing to write: the project has version 3, and version 3 was asked for"),
        (2, 1, "nothing to write: the project has version 2, and version 1 was asked for"),
        (4, None, "no migration '4' here"),
        (0, 4, "no migration '4' here"),
        (0, 0, "no migration '0' here"),
        (-1, None, "no migration '-1' here"),
    ],
)
def test_no_version_to_write(written: Callable[..., dict[str, str]], have: int, to: int | None, complaint: str) -> None:
    """
    An empty range, or a version that does not exist, is refused.
    """
    with pytest.raises(errors.FairqError, match=complaint):
        written("psql", have=have, to=to)


# --- what is in the files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_every_file_says_where_it_is_from(written: Callable[..., dict[str, str]], folder: Path, target: str) -> None:
    """
    Version, id and schema stand at the top of each file, with a sha256 that sha256sum gives of the original.
    """
    texts = {name: text for name, text in written(target, schema="q 1").items() if text}
    assert texts
    for name, text in texts.items():
        (id_,) = {each for each in ids(folder) if each.removeprefix("fairq_") in name or each[6:10] + "_" in name}
        head = "\n".join(text.splitlines()[:14])
        assert f"fairq {package_version()}" in head, name
        assert f"export --target {target}" in head, name
        assert "for schema q 1" in head, name
        assert f"{id_}" in head, name
        sums = re.findall(r"\b[0-9a-f]{64}\b", text)
        originals = [folder / f"{id_}.sql", folder / f"{id_}.rollback.sql"]
        known = [hashlib.sha256(path.read_bytes()).hexdigest() for path in originals]
        assert sums, name
        assert set(sums) <= set(known), name


@pytest.mark.parametrize("target", TARGETS)
def test_the_sql_is_there_to_the_letter(written: Callable[..., dict[str, str]], folder: Path, target: str) -> None:
    """
    What stands in the package stands in what is exported, but for what the tool itself takes away again.
    """
    texts = "".join(written(target).values())
    if target == "liquibase":
        texts += re.sub("^--rollback ", "", texts, flags=re.MULTILINE)
    if target in {"liquibase", "sql-migrate"}:
        texts += re.sub("^[|]", "", texts, flags=re.MULTILINE)
    backward_too = target not in {"atlas", "supabase"}
    for id_ in ids(folder):
        assert (folder / f"{id_}.sql").read_text("ascii") in texts
        assert ((folder / f"{id_}.rollback.sql").read_text("ascii") in texts) is backward_too


def test_no_tag_is_used_twice() -> None:
    """
    Files for sql-migrate and Liquibase put the SQL between tags of their own: no file of ours has these in it.
    """
    texts = [path.read_text("ascii") for path in SHIPPED.glob("*.sql")]
    assert texts
    assert [re.findall(r"\$text\$|\$migration\$", text) for text in texts] == [[]] * len(texts)


@pytest.mark.parametrize("target", ["sql-migrate", "liquibase"])
def test_no_line_that_the_tool_would_lose(written: Callable[..., dict[str, str]], target: str) -> None:
    """
    Between the tags no line begins with a comment (sql-migrate), none is empty or ends in a space (Liquibase).
    """
    lost = {"sql-migrate": "-- ", "liquibase": r"--rollback *$"}[target]
    texts = "".join(written(target).values())
    within = re.findall(r"\$text\$\n(.*?)\n[^\n]*\$text\$", texts, re.DOTALL)
    assert len(within) == {"sql-migrate": 4, "liquibase": 2}[target]
    assert [re.findall(f"^{lost}", text, re.MULTILINE) for text in within] == [[]] * len(within)


def test_a_package_that_nobody_installed(
    written: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A copy of the package on the path has no version, which is said, and is no reason to fail.
    """

    def missing(_: str) -> str:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", missing)
    assert written("psql", to=1)["fairq_0001_initial.sql"].startswith("-- fairq of a checkout: fairq_0001_initial.sql")


# --- names and numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", STAMPED)
def test_numbers_begin_where_one_says(written: Callable[..., dict[str, str]], target: str) -> None:
    """
    `--start 008` gives 008, 009, 010, as wide as it was said.
    """
    numbers = {re.match(r"[VU]?(\d+)[_-]", name).group(1) for name in written(target, start="008")}  # type: ignore[union-attr]
    assert numbers == {"008", "009", "010"}


@pytest.mark.parametrize("target", STAMPED)
def test_numbers_are_the_time(written: Callable[..., dict[str, str]], target: str) -> None:
    """
    Without `--start` they are the time in UTC, increasing: after whatever the project has got until now.
    """
    before = int(datetime.now(timezone.utc).strftime("%Y%m%d%H%M%S"))
    numbers = sorted({int(re.match(r"[VU]?(\d{14})[_-]", name).group(1)) for name in written(target)})  # type: ignore[union-attr]
    after = int(datetime.now(timezone.utc).strftime("%Y%m%d%H%M%S"))
    assert before <= numbers[0] <= after
    assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]


@pytest.mark.parametrize("target", TARGETS)
def test_two_installations_get_on(tmp_path: Path, target: str) -> None:
    """
    Under another name of the schema no file has the name of one for `fairq`, nor do names that look alike.
    """
    found: set[str] = set()
    for number, schema in enumerate(("fairq", "jobs", "My-Queue", "my_queue", "My Queue", "my_queue_b03fe5")):
        # Django's app has the files' names for itself
        out = tmp_path / str(number) / ("app" if target == "django" else "")
        names = {str(path.relative_to(out)) for path in export(target, schema=schema, out=out, start=None).files}
        numbered = {name for name in names if "fairq" in name}
        assert numbered
        assert not numbered & found
        found |= numbered


@pytest.mark.parametrize("schema", ["fairq", "jobs", "a" * 20, "a" * 21, "My-Queue", "x" * 63, "a- -", "1st"])
def test_alembic_has_room_for_the_revision(written: Callable[..., dict[str, str]], schema: str) -> None:
    """
    A revision's name fits into the 32 letters of Alembic's table, whatever the schema is called.
    """
    revisions = re.findall(r"^revision = '(.+)'$", "".join(written("alembic", schema=schema).values()), re.MULTILINE)
    assert len(set(revisions)) == 3
    assert max(map(len, revisions)) <= 32
    assert re.fullmatch(r"fairq(_[a-z0-9_]+)?", label(schema))


def test_alembic_follows_what_it_is_told(written: Callable[..., dict[str, str]]) -> None:
    """
    With `--after` the first revision follows it, and still depends on the version before; the others follow each other.
    """
    text = written("alembic", have=1, after="abc123")
    assert (
        "down_revision = 'abc123'\nbranch_labels = None\ndepends_on = 'fairq_0001'\n" in text["fairq_0002_torture.py"]
    )
    assert "down_revision = 'fairq_0002'\nbranch_labels = None\ndepends_on = None\n" in text["fairq_0003_alone.py"]


def test_alembic_alone_is_a_branch(written: Callable[..., dict[str, str]]) -> None:
    """
    Without `--after` the first revision begins a branch with a label, one for each schema.
    """
    text = written("alembic", schema="jobs")
    assert "down_revision = None\nbranch_labels = ('fairq_jobs',)\n" in text["fairq_jobs_0001_initial.py"]
    assert "down_revision = 'fairq_jobs_0001'\nbranch_labels = None\n" in text["fairq_jobs_0002_torture.py"]


def test_django_names_its_app(written: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    """
    The folder is the app: later migrations depend on earlier ones under its name.
    """
    text = written("django", out=tmp_path / "out" / "queue", have=1)
    assert "dependencies = [('queue', '0001_initial')]" in text["queue/migrations/0002_torture.py"]
    assert "atomic = False" in text["queue/migrations/0003_alone.py"]


def test_yoyo_depends_under_the_new_name(written: Callable[..., dict[str, str]]) -> None:
    """
    yoyo's table is the whole project's: ids and `depends` carry the schema's name.
    """
    text = written("yoyo", schema="jobs")["fairq_jobs_0002_torture.sql"]
    assert "-- depends: fairq_jobs_0001_initial\n" in text
    assert "fairq_0001_initial\n" not in text


def test_roles_by_other_names(written: Callable[..., dict[str, str]]) -> None:
    """
    Every file names the roles that were chosen, and those that were not by their usual names.
    """
    for name, text in written("psql", to=1, roles={"worker": "service_role"}).items():
        assert ("service_role" in text) is not name.endswith(".rollback.sql")
        assert "fairq_worker" not in re.sub("--.*", "", text)
        assert "fairq_owner" in text
    with pytest.raises(errors.BadRolesError, match="no part 'boss' in fairq"):
        written("psql", roles={"boss": "x"})


# --- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "options", "complaint"),
    [
        ("oracle", {}, "no target 'oracle'; there are psql, alembic,"),
        ("psql", {"start": "3"}, "--start 3: files for psql are not numbered"),
        ("goose", {"start": "1.5"}, "--start '1.5': expected digits"),
        ("goose", {"start": ""}, "--start '': expected digits"),
        ("goose", {"after": "x"}, "--after x: files for goose do not say what they follow"),
        ("psql", {"schema": "public"}, "schema 'public' is reserved"),
        ("django", {"out": Path("my-app")}, "--out my-app: the folder's name is the name of a Django app"),
    ],
)
def test_wishes_that_make_no_sense(target: str, options: dict[str, object], complaint: str) -> None:
    """
    What a tool has no use for is refused with its value, instead of being ignored.
    """
    with pytest.raises(errors.FairqError, match=re.escape(complaint)):
        export(target, **options)  # type: ignore[arg-type]


def test_a_version_is_not_given_twice(written: Callable[..., dict[str, str]]) -> None:
    """
    Under a new number it would run again: the file that has it already is named, and nothing is written.
    """
    before = written("dbmate", to=1, start="1")
    with pytest.raises(
        errors.ExportError, match=r"1_fairq_0001_initial.sql has fairq_0001_initial already: say --from 1"
    ):
        written("dbmate", start="2")
    assert written("dbmate", have=1, start="2").keys() - before.keys() == {
        "2_fairq_0002_torture.sql",
        "3_fairq_0003_alone.sql",
    }


def test_nothing_is_overwritten(written: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    """
    A file that was changed stays as it is, and nothing is written beside it; what is there as it should be is no error.
    """
    written("psql", to=1)
    assert export("psql", to=1, out=tmp_path / "out", migrations=tmp_path / "migrations").files == ()
    changed = tmp_path / "out/fairq_0001_initial.sql"
    changed.write_text("-- mine\n")
    with pytest.raises(errors.ExportError, match=r"fairq_0001_initial.sql is there already, with another text"):
        written("psql")
    assert changed.read_text() == "-- mine\n"
    assert not (tmp_path / "out/fairq_0002_torture.sql").exists()


def test_an_app_keeps_its_own_init(written: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    """
    An __init__.py that is there, with whatever in it, belongs to the project.
    """
    (tmp_path / "out").mkdir()
    (tmp_path / "out/__init__.py").write_text("default_app_config = 1\n")
    assert written("django")["__init__.py"] == "default_app_config = 1\n"


# --- the command -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("after", "head"), [("abc", "head"), (None, "heads")])
def test_a_branch_of_its_own_is_another_head(folder: Path, tmp_path: Path, after: str | None, head: str) -> None:
    """
    Behind a revision of the project the history stays one line, which has one head; else there may be several.
    """
    exported = export("alembic", out=tmp_path / "out", migrations=folder, after=after)
    assert exported.then == (f"alembic upgrade {head}",)


def test_the_command_says_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Paths on stdout, what comes next on stderr; a refusal is one line there, and 1.
    """
    monkeypatch.chdir(tmp_path)
    command = ["export", "--target", "sqitch", "--to", "1"]
    assert main(command) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [f"wrote {name}/fairq_0001_initial.sql" for name in ("deploy", "revert", "verify")]
    assert said.err.splitlines() == [
        "next: sqitch add fairq_0001_initial -n 'fairq, initial'",
        "next: sqitch deploy --verify",
    ]
    assert main(command) == 0
    assert capsys.readouterr().out == "nothing to write: all is there already\n"
    assert main([*command, "--from", "1"]) == 1
    assert capsys.readouterr().err.startswith("fairq: nothing to write: the project has version 1")
