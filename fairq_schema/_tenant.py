"""
How a database knows the tenant of a session: the provider of current_tenant_id(), chosen once, at the installation.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from fairq_schema._backend import Backend
from fairq_schema._check import Given, players_of
from fairq_schema._files import shipped_folder
from fairq_schema._migrate import refuse_other_roles, told_as
from fairq_schema._rename import DEFAULT_SCHEMA, checked_name, rename
from fairq_schema._session import Connection, one_value, session
from fairq_schema._turns import in_turn
from fairq_schema.errors import TenantProviderWarning, UnknownTargetError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PROVIDERS = ("setting", "jwt", "role", "token")


def set_tenant_provider(  # noqa: PLR0913  as apply()
    connection: str | Connection,
    provider: str,
    schema: str = DEFAULT_SCHEMA,
    *,
    roles: Mapping[str, str] | None = None,
    make_roles: bool = True,
    migrations: Path | None = None,
    lock_wait: float = 300,
) -> str:
    """
    Let current_tenant_id() know the tenant in another way; afterwards no migration changes it.

    Warns with TenantProviderWarning where a queue that has had jobs gets another provider than it had.

    Args:
        connection: a libpq connection string, or an idle connection.
        provider: setting (app.tenant_id), jwt (request.jwt.claims), role (tenant_roles) or token (app.tenant_token).
        schema: the name that fairq has here.
        roles: which role plays which part; needed only where another tool installed fairq for other roles.
        make_roles: False: the parts that `roles` does not name are played by the owner of the schema.
        migrations: a folder to read instead of the one that the package ships.
        lock_wait: how many seconds to go on trying: for another process that migrates, and for what is in use.

    Returns:
        The provider that the database had before.

    Raises:
        FairqError: nothing was changed; the subclass says why.
    """
    checked_name(schema)
    if provider not in PROVIDERS:
        message = f"no tenant provider {provider!r} here; there are {', '.join(PROVIDERS)}"
        raise UnknownTargetError(message)
    text = ((migrations or shipped_folder()) / "tenant" / f"{provider}.sql").read_text("ascii")
    with session(connection) as conn:
        backend = Backend(conn, schema)

        def replace() -> str:
            before = _provider(conn, schema)
            players = players_of(conn, backend, schema, Given(roles, make_roles, migrations))
            refuse_other_roles(backend.roles() if backend.may_read() else None, players, chosen=True)
            with told_as(f"tenant provider {provider}"):
                backend.run(rename(text, schema, players))
            return before

        before: str = in_turn(backend, conn, schema, lock_wait, replace)
        if before != provider and _was_used(conn, schema):
            message = (
                f"the tenants of schema {schema} were known by {before} and are known by {provider} from now on: "
                f"a session that says its tenant by {before} alone acts for none (42501), and reads no row"
            )
            warnings.warn(message, TenantProviderWarning, stacklevel=2)
        return before


def _was_used(connection: Connection, schema: str) -> bool:
    # by the files of two tables that get rows with the first job: whoever installs need not see a row
    query = """
        select coalesce(sum(pg_relation_size(c.oid)), 0) > 0
        from pg_class as c
        where c.relnamespace = to_regnamespace(%s) and c.relname in ('jobs', 'ticks') and c.relkind = 'r'
    """
    return bool(one_value(connection, query, f'"{schema}"'))


def _provider(connection: Connection, schema: str) -> str:
    # from the catalog, not by a call: whoever installs fairq need not be one of its users
    query = "select prosrc from pg_proc where pronamespace = to_regnamespace(%s) and proname = 'tenant_provider'"
    source: str | None = one_value(connection, query, f'"{schema}"')
    return source.split("'")[1] if source else "none"
