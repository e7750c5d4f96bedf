"""
The ways to know a session's tenant, under every name and for every role that fairq can be installed with.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import fairq_schema
from fairq_schema import _files, errors
from fairq_schema._backend import Backend
from fairq_schema._rename import rename
from fairq_schema._roles import resolve
from fairq_schema._tenant import PROVIDERS
from fairq_schema.cli import main

Ask = Callable[..., Any]
MakeRole = Callable[..., str]
Connect = Callable[[str], psycopg.Connection[Any]]

pytestmark = pytest.mark.short


@pytest.mark.parametrize("provider", PROVIDERS)
def test_check_knows_each_provider(empty_db: str, ask: Ask, provider: str) -> None:
    """
    A provider that we ship is no drift, whatever the schema and its roles are called; another's text is.
    """
    fairq_schema.apply(empty_db, "My-Queue")
    assert fairq_schema.set_tenant_provider(empty_db, provider, "My-Queue") == "setting"
    assert ask('select "My-Queue".tenant_provider()') == provider
    assert fairq_schema.check(empty_db, "My-Queue").differences == ()
    ask("""create or replace function "My-Queue".tenant_provider() returns text language sql immutable parallel safe
        set search_path = pg_catalog, pg_temp as $$ select 'mine' $$""")
    assert fairq_schema.check(empty_db, "My-Queue").differences == (
        f'function "My-Queue".tenant_provider(): its body is not that of version {_files.load()[-1].number}',
    )


def test_another_choice_is_no_drift(empty_db: str, ask: Ask) -> None:
    """
    What the providers before left, tenants' roles and keys, stays and is theirs; but it must be what they made.
    """
    fairq_schema.apply(empty_db)
    for before, provider in zip(("setting", "token", "role"), ("token", "role", "jwt"), strict=True):
        assert fairq_schema.set_tenant_provider(empty_db, provider) == before
        assert fairq_schema.check(empty_db).differences == ()
    ask("alter table fairq.tenant_keys disable row level security")
    assert fairq_schema.check(empty_db).differences == ("relation fairq.tenant_keys: row security is off, expected on",)


def test_each_provider_is_for_the_roles_of_its_installation(
    empty_db: str, ask: Ask, make_role: MakeRole, connect: Connect
) -> None:
    """
    The history says for whom: the chosen roles get what the usual ones would, and those get nothing.
    """
    tenant, operator = make_role("fairq test tenants"), make_role("fairq_test_operator")
    make_role("fairq_test_birch", f'login in role "{tenant}"')
    roles = {"tenant": tenant, "operator": operator}
    fairq_schema.apply(empty_db, roles=roles)
    for provider in PROVIDERS:
        fairq_schema.set_tenant_provider(empty_db, provider)
        assert fairq_schema.check(empty_db).differences == ()
        assert not ask("select has_function_privilege('fairq_tenant', 'fairq.current_tenant_id()', 'execute')")
    fairq_schema.set_tenant_provider(empty_db, "role", roles=roles)
    ask(f"set role {operator}")
    ask("insert into fairq.tenant_roles values ('fairq_test_birch', 'birch')")
    ask("reset role")
    with connect("fairq_test_birch") as birch:
        assert birch.execute("select fairq.current_tenant_id()").fetchone() == ("birch",)


def test_a_provider_for_other_roles_is_refused(empty_db: str, ask: Ask) -> None:
    """
    Nobody else gets the rights by way of a provider.
    """
    fairq_schema.apply(empty_db)
    with pytest.raises(errors.BadRolesError, match="worker=x, but this schema was made with worker=fairq_worker"):
        fairq_schema.set_tenant_provider(empty_db, "jwt", roles={"worker": "x"})
    assert ask("select fairq.tenant_provider()") == "setting"


def test_a_single_login_may_choose_a_provider(ask: Ask, make_role: MakeRole, connect: Connect) -> None:
    """
    Without roles none is made for a provider either, and check() finds what it expects.
    """
    make_role("fairq_test_app", "login")
    for name in ("fairq", "fairq_migrate"):
        ask(f"create schema {name} authorization fairq_test_app")
    with connect("fairq_test_app") as app:
        fairq_schema.apply(app, make_roles=False)
        for provider in PROVIDERS:
            fairq_schema.set_tenant_provider(app, provider)
            assert fairq_schema.check(app).differences == ()
    query = (
        "select count(*) from pg_proc, aclexplode(proacl) as a where pronamespace = 'fairq'::regnamespace and grantee"
    )
    assert ask(f"{query} = 0") == 0, "PUBLIC"
    assert ask(f"{query} <> 'fairq_test_app'::regrole") == 0
    assert ask("select count(*) from pg_default_acl") == 0


def test_the_role_of_a_lent_connection_stays(empty_db: str, make_role: MakeRole) -> None:
    """
    The file ends with RESET ROLE, and the caller's SET ROLE is in force again.
    """
    installer = make_role("fairq_test_installer", "superuser")
    with psycopg.connect(empty_db, autocommit=True) as connection:
        connection.execute(f"set role {installer}".encode())
        fairq_schema.apply(connection)
        fairq_schema.set_tenant_provider(connection, "jwt")
        assert connection.execute("select current_user").fetchone() == (installer,)


def test_a_choice_takes_its_turn(empty_db: str) -> None:
    """
    While another process migrates, it is waited for, and named once there is no more time.
    """
    fairq_schema.apply(empty_db)
    with psycopg.connect(empty_db, autocommit=True) as other:
        migrating = Backend(other, "fairq")
        with migrating.turn():
            assert migrating.try_lock()
            with pytest.raises(errors.BusyError, match=f"in server process {other.info.backend_pid}"):
                fairq_schema.set_tenant_provider(empty_db, "jwt", lock_wait=0)
        assert fairq_schema.set_tenant_provider(empty_db, "jwt", lock_wait=0) == "setting"


def test_a_provider_of_another_tool_is_adopted(empty_db: str, ask: Ask) -> None:
    """
    Files and a provider that were run without us are a version like any other.
    """
    for file in _files.load():
        ask(f"begin; {file.forward}; commit")
    ask(f"begin; {(_files.shipped_folder() / 'tenant/token.sql').read_text('ascii')}; commit")
    assert fairq_schema.check(empty_db).differences == ()
    assert fairq_schema.adopt(empty_db) == [file.id for file in _files.load()]
    assert fairq_schema.set_tenant_provider(empty_db, "setting") == "token"


def test_where_nobody_plays_the_tenant_nothing_asks_for_one() -> None:
    """
    A role that happens to be called fairq_tenant is no business of an installation without tenants.
    """
    alone = resolve({}, installer="app")
    folder = _files.shipped_folder()
    texts = [file.forward for file in _files.load()]
    texts += [(folder / f"tenant/{provider}.sql").read_text("ascii") for provider in PROVIDERS]
    for text in texts:
        assert "fairq_tenant" in text
        assert "fairq_tenant" not in re.sub("--.*", "", without_rows(rename(text, "fairq", alone)))


def without_rows(text: str) -> str:
    """
    Leave out the grants of queues, which are rows about a role that need not exist.
    """
    return re.sub(r"^ +\('fairq_tenant', '\w+', '\*', '@own'\),?$", "", text, flags=re.MULTILINE)


# --- powers ------------------------------------------------------------------------------------------------


def test_a_chosen_owner_with_too_much_power_is_refused(empty_db: str, ask: Ask, make_role: MakeRole) -> None:
    """
    The refusal speaks of the role by its own name, with the statement that mends it.
    """
    owner, tenant = make_role("fairq_test_owner", "bypassrls"), make_role("fairq_test_tenant", "bypassrls")
    told = r"role fairq_test_owner has bypassrls.*alter role fairq_test_owner nobypassrls;"
    with pytest.raises(errors.MigrationFailedError, match=told):
        fairq_schema.apply(empty_db, roles={"owner": owner})
    with pytest.raises(errors.MigrationFailedError, match="role fairq_test_tenant is not bound by row-level security"):
        fairq_schema.apply(empty_db, roles={"tenant": tenant})
    assert ask("select to_regnamespace('fairq')") is None


# --- the command -------------------------------------------------------------------------------------------


def test_a_live_queue_that_changes_its_provider_is_told(
    empty_db: str, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    At the installation a provider is chosen without a word; once there were jobs, what it means for sessions is said.
    """
    apply = ["apply", "--dsn", empty_db, "--tenant"]
    assert main([*apply, "jwt"]) == 0
    assert main([*apply, "setting"]) == 0
    assert capsys.readouterr().err == ""
    ask("select fairq.enqueue_job('a', 'mail')")
    assert main([*apply, "setting"]) == 0
    assert capsys.readouterr().err == ""
    assert main([*apply, "role"]) == 0
    told = "fairq: the tenants of schema fairq were known by setting and are known by role from now on: "
    assert capsys.readouterr().err.startswith(told)
    with pytest.warns(errors.TenantProviderWarning, match="known by role and are known by setting"):
        assert fairq_schema.set_tenant_provider(empty_db, "setting") == "role"


def test_one_command_for_a_platform(
    empty_db: str, ask: Ask, make_role: MakeRole, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    `fairq apply --tenant jwt --role ...` says what it will do, does it, and says what there was before.

    check and doctor know those roles, too.
    """
    tenant, worker = make_role("fairq_test_authenticated"), make_role("fairq_test_service", "bypassrls")
    apply = ["apply", "--dsn", empty_db, "--role", f"tenant={tenant},worker={worker},producer={worker}"]
    assert main([*apply, "--tenant", "jwt", "--dry-run"]) == 0
    assert "would know the tenant by jwt" in capsys.readouterr().out
    assert ask("select to_regnamespace('fairq')") is None
    assert main([*apply, "--tenant", "jwt"]) == 0
    assert "the tenant is known by jwt, no longer by setting" in capsys.readouterr().out
    assert main([*apply, "--tenant", "jwt"]) == 0
    assert "nothing to apply\nthe tenant is known by jwt\n" in capsys.readouterr().out
    assert main(["check", "--dsn", empty_db]) == 0
    assert ask("select has_function_privilege(%s, 'fairq.current_tenant_id()', 'execute')", tenant)
    assert main(["doctor", "--only", "isolation", "--dsn", empty_db]) == 0
    assert f"warning H2: {worker}: " in capsys.readouterr().out
    ask(f"alter role {tenant} bypassrls")
    assert main(["doctor", "--only", "isolation", "--dsn", empty_db]) == 1
    assert f"error H2: {tenant}: " in capsys.readouterr().out
