"""
The command `fairq`: what it prints, where, and with which exit code.
"""

from __future__ import annotations

import subprocess
import sys
import types
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest

from fairq_schema import _files
from fairq_schema.cli import main

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from tests.package.folders import Folder


@pytest.fixture(autouse=True)
def shipped(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """
    The package ships the two migrations of the test folder.
    """
    monkeypatch.setattr(_files, "shipped_folder", lambda: folder.path)
    return folder


def test_there_and_back(empty_db: str, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """
    apply, status and rollback print one line for each migration, and say so when there is nothing to do.
    """
    first, second = folder.ids

    def lines(*arguments: str) -> list[str]:
        assert main([*arguments, "--dsn", empty_db]) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out.splitlines()

    assert lines("status") == [f"{first}  pending", f"{second}  pending"]
    assert lines("apply", "--to", "1") == [f"applied {first}"]
    assert lines("apply") == [f"applied {second}"]
    assert lines("apply") == ["nothing to apply"]
    assert all("+00:00" in line for line in lines("status"))
    assert lines("rollback") == [f"rolled back {second}"]
    assert lines("rollback", "--to", "0") == [f"rolled back {first}"]
    assert lines("rollback") == ["nothing to roll back"]
    assert lines("apply", "--schema", "other") == [f"applied {first}", f"applied {second}"]
    assert lines("rollback", "--steps", "2", "--schema", "other") == [f"rolled back {second}", f"rolled back {first}"]


def test_a_dry_run_names_the_locks(empty_db: str, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """
    `apply --dry-run` prints what is to come and whom it makes wait, and does nothing.
    """
    locks = ['{"jobs": "RowExclusiveLock"}', '{"jobs": "ShareLock", "leases": "AccessExclusiveLock"}']
    (folder.path / "catalog").mkdir()
    for number, each in enumerate(locks, start=1):
        (folder.path / f"catalog/{number:04}.json").write_text(f'{{"locks": {each}, "objects": {{}}}}')

    for _ in range(2):
        assert main(["apply", "--dry-run", "--dsn", empty_db]) == 0
        assert capsys.readouterr().out.splitlines() == [
            f"would apply {folder.ids[0]}",
            "    takes no lock on a table that others could wait for",
            f"would apply {folder.ids[1]}",
            "    ShareLock on jobs: reading goes on, writing waits",
            "    AccessExclusiveLock on leases: nobody reads or writes it meanwhile",
        ]
    assert main(["apply", "--dsn", empty_db]) == 0
    capsys.readouterr()
    assert main(["apply", "--dry-run", "--dsn", empty_db]) == 0
    assert capsys.readouterr().out == "nothing to apply\n"


def test_a_newer_database_is_told(empty_db: str, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """
    Where a newer package has been, apply does nothing, says so on stderr, and is content.
    """
    assert main(["apply", "--dsn", empty_db]) == 0
    for path in folder.path.glob("*0002*"):
        path.unlink()
    capsys.readouterr()
    assert main(["apply", "--dsn", empty_db]) == 0
    printed = capsys.readouterr()
    assert printed.out == "nothing to apply\n"
    assert printed.err.startswith(f"fairq: the database has {folder.ids[1]}, newer than {folder.ids[0]}")


def test_losing_jobs_takes_a_yes(empty_db: str, ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """
    A rollback that would lose jobs ends with 1 and the reason; with --yes it is done.
    """
    assert main(["apply", "--dsn", empty_db]) == 0
    ask("insert into fairq.jobs values (1, 'a')")
    assert main(["rollback", "--to", "0", "--dsn", empty_db]) == 1
    assert "would lose 1 jobs" in capsys.readouterr().err
    assert main(["rollback", "--to", "0", "--yes", "--dsn", empty_db]) == 0


def test_a_refusal_is_one_line(empty_db: str, capsys: pytest.CaptureFixture[str]) -> None:
    """
    What is refused, by fairq or by the server, is told on stderr without a traceback, and ends with 1.
    """
    assert main(["apply", "--dsn", empty_db, "--to", "9"]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert printed.err.startswith("fairq: no migration '9' here")
    assert main(["status", "--dsn", f"{empty_db} dbname=nowhere"]) == 1
    assert '"nowhere" does not exist' in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["frobnicate"], ["apply", "--steps", "1"], ["rollback", "--steps", "many"]])
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    """
    A command line that cannot be understood touches nothing and ends with 2.
    """
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2


def test_the_demo_says_what_is_missing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Without the extra, `fairq demo` names the command that installs it.
    """
    monkeypatch.setitem(sys.modules, "fairq_schema.demo", None)
    assert main(["demo"]) == 1
    assert "pip install 'fairq-schema[demo]'" in capsys.readouterr().err


def test_the_demo_reads_its_own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    `fairq demo` hands everything after it to the demo, and returns its exit code.
    """
    seen: dict[str, object] = {}

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--dsn")
        parser.add_argument("--seconds", type=int)

    def run(**arguments: object) -> int:
        seen.update(arguments)
        return 7

    demo = types.ModuleType("fairq_schema.demo")
    demo.__dict__.update(add_arguments=add_arguments, main=run)
    monkeypatch.setitem(sys.modules, "fairq_schema.demo", demo)
    assert main(["demo", "--seconds", "3"]) == 7
    assert seen == {"dsn": None, "seconds": 3}


def test_python_m_is_the_command() -> None:
    """
    `python -m fairq_schema` is `fairq`, and its help names every command.
    """
    done = subprocess.run([sys.executable, "-m", "fairq_schema", "--help"], capture_output=True, text=True, check=True)
    for word in ("apply", "status", "rollback", "demo"):
        assert word in done.stdout


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    """
    Messages ask for a newer fairq: this says which one it is.
    """
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"fairq {version('fairq-schema')}\n"
