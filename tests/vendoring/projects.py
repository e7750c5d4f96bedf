"""
Projects that use another migration tool, as its own command makes them, with a migration of their own in them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

from tests.support.binaries import CHECKOUT, psql

if TYPE_CHECKING:
    from collections.abc import Callable

TOOLS = CHECKOUT / ".cache/tools/bin"

DJANGO_DATABASES = """\
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["PGDATABASE"],
        "HOST": os.environ["PGHOST"],
        "PORT": os.environ["PGPORT"],
        "USER": os.environ["PGUSER"],
    }
}"""


@dataclass
class Project:
    """
    A folder, a database, and the programs that are used here.
    """

    folder: Path
    dsn: str
    fairq: Path
    extra: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """
        Say where the database is in every way that there is.
        """
        where = conninfo_to_dict(self.dsn)
        host, port, user, name = (str(where[key]) for key in ("host", "port", "user", "dbname"))
        self.address = f"{user}@{host}:{port}/{name}"
        self.environment = {
            "HOME": str(self.folder),
            "LC_ALL": "C.UTF-8",
            "PGHOST": host,
            "PGPORT": port,
            "PGUSER": user,
            "PGDATABASE": name,
            "PGSSLMODE": "disable",
            "DATABASE_URL": f"postgres://{self.address}?sslmode=disable",
            "JDBC_URL": f"jdbc:postgresql://{host}:{port}/{name}?user={user}",
        }

    def run(self, commands: str, **environment: str) -> str:
        """
        Run commands as a shell does that stops at the first failure; return what they print.
        """
        done = self.try_to(commands, **environment)
        assert done.returncode == 0, f"{commands}\n{done.stdout}"
        return done.stdout

    def try_to(self, commands: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """
        Run them, and return the exit code too.
        """
        path = [self.fairq, TOOLS, Path(sys.executable).parent, psql().parent, *os.environ["PATH"].split(":")]
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=self.folder,
            env={"PATH": ":".join(map(str, path))} | self.environment | self.extra | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def write(self, name: str, text: str) -> None:
        """
        Write a file of the project.
        """
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    def edit(self, name: str, pattern: str, new: str) -> None:
        """
        Replace one line of a file of the project.
        """
        path = self.folder / name
        text, count = re.subn(pattern, lambda _: new, path.read_text("utf-8"), flags=re.MULTILINE)
        assert count == 1, f"{name}: {pattern!r} is there {count} times"
        path.write_text(text, "utf-8")


def bare(_: Project) -> None:
    """
    A folder, and nothing in it.
    """


def alembic(project: Project, driver: str = "psycopg") -> None:
    """
    A linear history with one revision in it; the later commands know no other head.
    """
    project.run("alembic init --template generic alembic")
    project.edit("alembic.ini", "^sqlalchemy.url = .*$", f"sqlalchemy.url = postgresql+{driver}://{project.address}")
    project.run("alembic revision -m first")


def alembic_async(project: Project, driver: str) -> None:
    """
    The same with a driver that does not block; psycopg is one too.
    """
    project.run("alembic init --template async alembic")
    driver = driver.removesuffix("_async")
    project.edit("alembic.ini", "^sqlalchemy.url = .*$", f"sqlalchemy.url = postgresql+{driver}://{project.address}")
    project.run("alembic revision -m first")


def alembic_later(project: Project) -> None:
    """
    The project has gone on: another revision of its own follows fairq's.
    """
    project.run("alembic revision -m second")


def django(project: Project) -> None:
    """
    A project with the apps that Django gives it, and fairq among them.
    """
    project.run("django-admin startproject shop .")
    project.edit("shop/settings.py", r"^DATABASES = \{$", f"{DJANGO_DATABASES}\nEXAMPLE = {{")
    project.edit("shop/settings.py", r"^from pathlib import Path$", "import os\nfrom pathlib import Path")
    project.edit("shop/settings.py", r"^INSTALLED_APPS = \[$", 'INSTALLED_APPS = [\n    "fairq",')


def sqitch(project: Project) -> None:
    """
    A plan with one change of the project's own.
    """
    project.extra |= {"SQITCH_FULLNAME": "Ann", "SQITCH_EMAIL": "ann@example.com"}
    project.run(f"sqitch init shop --engine pg --target db:pg://{project.address}")
    project.run("sqitch add shop -n 'the shop'")


def dbmate(project: Project) -> None:
    """
    The folder for migrations; dbmate wants no dump of the schema, which takes a pg_dump as new as the server.
    """
    project.extra |= {"DBMATE_NO_DUMP_SCHEMA": "true"}
    project.write("db/migrations/20200101000000_shop.sql", "-- migrate:up\ncreate table shop ();\n-- migrate:down\n")


def sql_migrate(project: Project) -> None:
    """
    A configuration, as its README shows it.
    """
    source = " ".join(
        f"{key.lower()[2:]}={value}" for key, value in project.environment.items() if key.startswith("PG")
    )
    source = source.replace("database=", "dbname=")
    project.write(
        "dbconfig.yml",
        f"development:\n  dialect: postgres\n  datasource: {source}\n  dir: migrations\n  table: migrations\n",
    )
    project.write("migrations/20200101000000-shop.sql", "-- +migrate Up\ncreate table shop ();\n-- +migrate Down\n")


def liquibase(project: Project) -> None:
    """
    A changelog that includes the folder of fairq's.
    """
    project.extra |= {
        "LIQUIBASE_COMMAND_URL": project.environment["JDBC_URL"],
        "JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # for a short life: half the time
    }
    project.write("liquibase.properties", "changeLogFile: db/changelog/root.yaml\n")
    project.write(
        "db/changelog/root.yaml",
        "databaseChangeLog:\n  - includeAll:\n      path: fairq/\n      relativeToChangelogFile: true\n",
    )


def supabase(project: Project) -> None:
    """
    A project as `supabase init` makes it.
    """
    project.run("supabase init")


def yoyo(project: Project) -> None:
    """
    A configuration that names folder and database, and a migration of the project's own.
    """
    url = f"postgresql+psycopg://{project.address}"
    project.write("yoyo.ini", f"[DEFAULT]\nsources = migrations\ndatabase = {quote(url, safe=':/@+')}\n")
    project.write("migrations/0001_shop.sql", "create table shop ();\n")


SET_UP: dict[str, Callable[[Project], None]] = {
    "psql": bare,
    "Alembic": alembic,
    "Django": django,
    "Liquibase": liquibase,
    "Sqitch": sqitch,
    "dbmate": dbmate,
    "sql-migrate": sql_migrate,
    "Supabase": supabase,
    "yoyo": yoyo,
}
# What a project does beside the commands that export prints.
OPTIONS = {"Alembic": "--after \"$(alembic heads | cut -d' ' -f1)\""}
ONE_DOWN = {
    "psql": (
        'file=$(ls fairq_*.rollback.sql | tail -n 1); one=-1; if grep -q concurrently "$file"; then one=; fi; '
        'psql -X $one -v ON_ERROR_STOP=1 -f "$file"; mv "$file" done'
    ),
    "Alembic": "alembic downgrade -1",
    "Django": (
        "now=$(python manage.py showmigrations fairq | grep -c '[[]X'); "
        'python manage.py migrate fairq "$(printf %04d $((now - 1)))"'
    ),
    "Liquibase": "liquibase rollback-count 1",
    "Sqitch": "sqitch revert -y --to @HEAD^",
    "dbmate": "dbmate rollback",
    "sql-migrate": "sql-migrate down -limit=1",
    "yoyo": "yoyo rollback --batch",
}
GOES_ON: dict[str, Callable[[Project], None]] = {"Alembic": alembic_later}


def lose_jobs(project: Project) -> dict[str, str]:
    """
    The environment in which the way back may lose jobs, as the page says.
    """
    return {
        "PGOPTIONS": "-c fairq_rollback.lose_jobs=yes",
        "JDBC_URL": project.environment["JDBC_URL"] + "&options=-c%20fairq_rollback.lose_jobs=yes",
    }
