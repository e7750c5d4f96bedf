"""
What people install: the same migration files in every form of the package.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
LIST_FILES = """
import hashlib, json
from fairq_schema._files import shipped_folder

def walk(folder, prefix=""):
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith((".sql", ".json", "CHECKSUMS")):
            yield prefix + entry.name, hashlib.sha256(entry.read_bytes()).hexdigest()

print(json.dumps(dict(walk(shipped_folder()))))
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    A copy of the checkout, so that building leaves no trace in it.
    """
    copy = tmp_path_factory.mktemp("package") / "fairq"
    wanted = ("ci", "fairq_schema", "migrations", "pyproject.toml", "README.md", "LICENSE")
    for name in wanted:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            copy.mkdir(exist_ok=True)
            shutil.copy(source, copy / name)
    return copy


@pytest.fixture(scope="module")
def built(checkout: Path) -> Path:
    """
    The folder with the sdist, and the wheel that was built from it.
    """
    run(sys.executable, "-m", "build", "--no-isolation", checkout)
    return checkout / "dist"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """
    The interpreter of a new environment that finds the dependencies of this one, but not its fairq_schema.
    """
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    return tmp_path / "venv/bin/python"


def run(*command: str | Path, **environment: str) -> str:
    """
    Run a program far from the checkout, and return what it prints.
    """
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd="/", env=os.environ | {"PYTHONPATH": ""} | environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_seen_by(python: str | Path, **environment: str) -> dict[str, str]:
    """
    Name -> sha256 of the migration files that an installed package finds.
    """
    files: dict[str, str] = json.loads(run(python, "-c", LIST_FILES, **environment))
    return files


@pytest.fixture(scope="module")
def expected(checkout: Path) -> dict[str, str]:
    """
    Name -> sha256 of the files in the checkout.
    """
    folder = checkout / "migrations"
    paths = [path for path in folder.rglob("*") if path.name.endswith((".sql", ".json", "CHECKSUMS"))]
    assert paths
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.mark.parametrize("form", ["wheel", "sdist", "editable"])
def test_every_form_carries_the_files(
    built: Path, checkout: Path, python: Path, expected: dict[str, str], form: str
) -> None:
    """
    Installed from the wheel, from the sdist or in place, the package finds exactly the files of the checkout.
    """
    what: dict[str, str | Path] = {
        "wheel": next(built.glob("*.whl")),
        "sdist": next(built.glob("*.tar.gz")),
        "editable": f"--editable={checkout}",
    }
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "--python", python, "install", *offline, what[form])
    assert files_seen_by(python) == expected
    metrics = run(python.with_name("fairq"), "metrics", "--for", "postgres_exporter")
    assert metrics == (CHECKOUT / "fairq_schema/metrics/postgres_exporter.yaml").read_text()


def interpreters() -> dict[str, str]:
    """
    Version -> program, of every Python that we support; FAIRQ_TEST_PYTHONS names those that must be here.
    """
    found: dict[str, str] = {}
    for version in ("3.10", "3.11", "3.12", "3.13"):
        managed = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
        for program in (shutil.which(f"python{version}"), *map(str, managed)):
            if program and runs(program, version):
                found[version] = program
                break
    wanted = os.environ.get("FAIRQ_TEST_PYTHONS", "").split(",")
    missing = sorted(set(filter(None, wanted)) - set(found))
    assert not missing, f"no Python {', '.join(missing)} here"
    return found


def runs(program: str, version: str) -> bool:
    """
    Whether it is what its name says: a shim may stand for nothing.
    """
    ask = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([program, "-c", ask], capture_output=True, text=True, check=False, cwd="/")
    return (done.returncode, done.stdout.strip()) == (0, version)


@pytest.fixture(scope="module", params=interpreters().items(), ids=lambda item: f"python{item[0]}")
def supported(request: pytest.FixtureRequest, built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    A new environment of each Python, with our dependencies from the index, as its users have them.
    """
    _, program = request.param
    home = tmp_path_factory.mktemp("python") / "venv"
    run(program, "-m", "venv", home)
    run(home / "bin/pip", "install", "--quiet", "--disable-pip-version-check", next(built.glob("*.whl")))
    return home / "bin/python"


@pytest.mark.slow
def test_every_python_finds_the_files(supported: Path, built: Path, checkout: Path, expected: dict[str, str]) -> None:
    """
    On each Python, the wheel, the sdist and an install in place give the same files, and the command starts.
    """
    forms: list[str | Path] = [next(built.glob("*.whl")), next(built.glob("*.tar.gz")), f"--editable={checkout}"]
    for form in forms:
        run(
            supported,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--force-reinstall",
            form,
        )
        assert files_seen_by(supported) == expected, form
        assert "apply" in run(supported.with_name("fairq"), "--help")


def test_a_zip_carries_the_files(built: Path, expected: dict[str, str]) -> None:
    """
    Imported from inside a zip the package finds the same files, under the same names.
    """
    assert files_seen_by(sys.executable, PYTHONPATH=str(next(built.glob("*.whl")))) == expected


def test_no_python_among_the_migrations(expected: dict[str, str]) -> None:
    """
    yoyo would take an __init__.py among the files for a migration.
    """
    assert expected
    assert [path.name for path in (CHECKOUT / "migrations").glob("*.py")] == []


def test_the_package_is_typed(built: Path) -> None:
    """
    Type checkers of our users see our types.
    """
    assert "fairq_schema/py.typed" in run(sys.executable, "-m", "zipfile", "-l", next(built.glob("*.whl")))
