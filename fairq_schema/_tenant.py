"""
How a database knows the tenant of a session: the provider of current_tenant_id(), chosen once, at the installation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from fairq_schema._backend import Backend
from fairq_schema._files import shipped_folder
from fairq_schema._rename import DEFAULT_SCHEMA, checked_name, rename
from fairq_schema._roles import DEFAULT_ROLES
from fairq_schema._session import Connection, one_value, session
from fairq_schema.errors import MigrationFailedError, UnknownTargetError

if TYPE_CHECKING:
    from pathlib import Path

PROVIDERS = ("setting", "jwt", "role", "token")


def set_tenant_provider(
    connection: str | Connection, provider: str, schema: str = DEFAULT_SCHEMA, *, migrations: Path | None = None
) -> str:
    """
    Let current_tenant_id() know the tenant in another way; afterwards no migration changes it.

    Args:
        connection: a libpq connection string, or an idle connection.
        provider: setting (app.tenant_id), jwt (request.jwt.claims), role (tenant_roles) or token (app.tenant_token).
        schema: the name that fairq has here.
        migrations: a folder to read instead of the one that the package ships.

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
        before = _provider(conn, schema)
        roles = Backend(conn, schema).roles() or DEFAULT_ROLES
        try:
            with conn.transaction():
                # every name is qualified, so what resolves does not depend on who runs it
                conn.execute("set local search_path = pg_catalog, pg_temp")
                conn.execute("set local standard_conforming_strings = on")
                conn.execute(rename(text, schema, roles).encode())
        except psycopg.Error as error:
            hint = f" ({error.diag.message_hint})" if error.diag.message_hint else ""
            message = f"tenant provider {provider}: {error.diag.message_primary or error}{hint}"
            raise MigrationFailedError(message) from error
    return before


def _provider(connection: Connection, schema: str) -> str:
    # from the catalog, not by a call: whoever installs fairq need not be one of its users
    query = "select prosrc from pg_proc where pronamespace = to_regnamespace(%s) and proname = 'tenant_provider'"
    source: str | None = one_value(connection, query, f'"{schema}"')
    return source.split("'")[1] if source else "none"
