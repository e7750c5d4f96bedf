"""
The table of targets: for each tool its files, where it looks for them, and what is left to be done.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from fairq_schema.export import _annotated, _plain, _python, _sqitch

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairq_schema.export._step import Step


@dataclass(frozen=True, slots=True)
class Target:
    """
    One tool.

    Attributes:
        files: from one version to the files that it is for this tool.
        folder: where the tool looks, unless a project says otherwise.
        then: the command that comes next, once.
        each: what comes before it for each version; {name} is the version's, {requires} names the one before,
            {single} asks psql for a transaction.
        is_stamped: whether the names begin with a number that orders them among the project's own.
        then_alone: the same where the project was not asked what the first version follows, if that is another.
        follows: whether each version says itself what it follows in the project.
    """

    files: Callable[[Step], dict[str, str]]
    folder: str
    then: str = ""
    then_alone: str = ""
    each: str = ""
    is_stamped: bool = False
    follows: bool = False


TARGETS = MappingProxyType(
    {
        "psql": Target(_plain.psql, ".", each="psql -X{single} -v ON_ERROR_STOP=1 -f {name}.sql"),
        "alembic": Target(
            _python.alembic,
            "alembic/versions",
            "alembic upgrade head",
            then_alone="alembic upgrade heads",
            follows=True,
        ),
        "django": Target(_python.django, "fairq", "python manage.py migrate"),
        "flyway": Target(_plain.flyway, "src/main/resources/db/migration", "flyway migrate", is_stamped=True),
        "liquibase": Target(_annotated.liquibase, "db/changelog/fairq", "liquibase update"),
        "sqitch": Target(
            _sqitch.sqitch, ".", "sqitch deploy --verify", each="sqitch add {name}{requires} -n 'fairq, {words}'"
        ),
        "dbmate": Target(_annotated.dbmate, "db/migrations", "dbmate migrate", is_stamped=True),
        "golang-migrate": Target(
            _plain.golang_migrate,
            "migrations",
            'migrate -path migrations -database "$DATABASE_URL" up',
            is_stamped=True,
        ),
        "goose": Target(_annotated.goose, "migrations", "goose up", is_stamped=True),
        "sql-migrate": Target(_annotated.sql_migrate, "migrations", "sql-migrate up", is_stamped=True),
        "atlas": Target(_plain.atlas, "migrations", "atlas migrate hash && atlas migrate apply", is_stamped=True),
        "supabase": Target(
            _plain.supabase, "supabase/migrations", 'supabase migration up --db-url "$DATABASE_URL"', is_stamped=True
        ),
        "yoyo": Target(_plain.yoyo, "migrations", "yoyo apply --batch"),
    }
)
