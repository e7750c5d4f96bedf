"""
Tools whose migrations are Python: a revision that reads its SQL from files beside it, where nothing has to be escaped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairq_schema.export._step import label, package_version, sha256

if TYPE_CHECKING:
    from fairq_schema.export._step import Step

# Here the project's own migrations go on in the same session, often in the same transaction. The SQL of fairq changes
# these settings for itself, and ends with RESET ROLE, which forgets a role that the project had set.
_REMEMBER = """\
do $fn$
begin
    perform set_config('fairq_export.role', current_setting('role'), true);
    perform set_config('fairq_export.lock_timeout', current_setting('lock_timeout'), true);
    perform set_config('fairq_export.client_min_messages', current_setting('client_min_messages'), true);
end
$fn$;

"""
_GIVE_BACK = """
do $fn$
begin
    perform set_config('role', current_setting('fairq_export.role'), false);
    perform set_config('lock_timeout', current_setting('fairq_export.lock_timeout'), true);
    perform set_config('client_min_messages', current_setting('fairq_export.client_min_messages'), true);
end
$fn$;
"""

_ALEMBIC = '''\
"""
{id}

Of fairq {version}, for schema {schema}; written by fairq export --target alembic: do not edit.
{id}.sql has the sha256 {sha256},
{id}.rollback.sql {sha256_back}.

Revision ID: {revision}
Revises: {revises}
"""

from pathlib import Path

from alembic import op

revision = {revision!r}
down_revision = {down_revision!r}
branch_labels = {branch_labels!r}
depends_on = {depends_on!r}


def upgrade() -> None:
    {run}("{name}.sql")


def downgrade() -> None:
    {run}("{name}.rollback.sql")


def _run(file: str) -> None:
    sql = Path(__file__).with_name(file).read_text("ascii")
    context = op.get_context()
    if context.as_sql:
        context.impl.static_output(sql)
    elif context.dialect.driver == "asyncpg":
        # it begins the transaction with the first statement that comes by way of SQLAlchemy, and takes only one each
        op.get_bind().exec_driver_sql("select 1")
        op.get_bind().connection.dbapi_connection.run_async(lambda connection: connection.execute(sql))
    else:
        # without parameters: then % and : are nothing special, and one call may have many statements
        op.get_bind().exec_driver_sql(sql, execution_options={{"no_parameters": True}})
'''
_ALEMBIC_AUTOCOMMIT = """

def _run_alone(file: str) -> None:
    with op.get_context().autocommit_block():
        _run(file)
"""

_DJANGO = '''\
"""
{id}, of fairq {version}, for schema {schema}; written by fairq export --target django: do not edit.

{id}.sql has the sha256 {sha256},
{id}.rollback.sql {sha256_back}.
"""

from pathlib import Path

from django.db import migrations

SQL = Path(__file__).with_name("sql")


class Migration(migrations.Migration):
    atomic = {atomic!r}
    dependencies = {dependencies!r}
    operations = [
        migrations.RunSQL(
            (SQL / "{name}.sql").read_text("ascii"),
            (SQL / "{name}.rollback.sql").read_text("ascii"),
        ),
    ]
'''


def alembic(step: Step) -> dict[str, str]:
    """
    Write a revision that follows the one named by the caller, or a branch of its own.
    """
    down_revision = step.after or step.revision_before
    text = _ALEMBIC.format(
        **_origin(step),
        name=step.name,
        revision=step.revision,
        revises=down_revision or "",
        down_revision=down_revision,
        branch_labels=None if down_revision else (label(step.schema),),
        depends_on=step.revision_before if step.after else None,
        run="_run" if step.in_transaction else "_run_alone",
    )
    text += "" if step.in_transaction else _ALEMBIC_AUTOCOMMIT
    return {f"{step.name}.py": text} | _sql(step, "")


def django(step: Step) -> dict[str, str]:
    """
    Write the app of which these are the migrations, and nothing else.
    """
    text = _DJANGO.format(
        **_origin(step),
        name=step.name,
        atomic=step.in_transaction,
        dependencies=[(step.app, f"{step.before.number:04}_{step.words_before}")] if step.before else [],
    )
    own = {"__init__.py": "", "migrations/__init__.py": ""}
    return own | {f"migrations/{step.migration.number:04}_{step.words}.py": text} | _sql(step, "migrations/sql/")


def _origin(step: Step) -> dict[str, str]:
    return {
        "version": package_version(),
        "id": step.migration.id,
        "schema": step.schema,
        "sha256": sha256(step.migration.forward),
        "sha256_back": sha256(step.migration.backward),
    }


def _sql(step: Step, folder: str) -> dict[str, str]:
    return {
        f"{folder}{step.name}.sql": step.header() + _as_guest(step, step.forward),
        f"{folder}{step.name}.rollback.sql": step.header_back() + _as_guest(step, step.backward),
    }


def _as_guest(step: Step, sql: str) -> str:
    return _REMEMBER + sql + _GIVE_BACK if step.in_transaction else sql
