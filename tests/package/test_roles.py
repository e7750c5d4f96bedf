"""
Who plays the parts of fairq: names chosen at installation, or one login for everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

import fairq_schema
from fairq_schema import errors
from fairq_schema._roles import DEFAULT_ROLES, parse, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Server

Ask = Callable[..., Any]
MakeRole = Callable[..., str]


@pytest.fixture
def make_role(ask: Ask) -> Iterator[MakeRole]:
    """
    `make_role("Service role", "login")`: a role that is gone after the test.
    """
    made: list[sql.Identifier] = []

    def make(name: str, options: str = "") -> str:
        role = sql.Identifier(name)
        ask(sql.SQL("create role {} {}").format(role, sql.SQL(options)).as_string())
        made.append(role)
        return name

    yield make
    for role in reversed(made):
        ask(sql.SQL("drop owned by {} cascade").format(role).as_string())
    for role in reversed(made):
        ask(sql.SQL("drop role {}").format(role).as_string())


@pytest.fixture
def connect(server: Server, empty_db: str) -> Callable[[str], psycopg.Connection[Any]]:
    """
    `connect("app")`: a connection to this test's database as another login.
    """
    name = str(conninfo_to_dict(empty_db)["dbname"])
    return lambda user: psycopg.connect(server.dsn(name, user=user), autocommit=True)


def one(connection: psycopg.Connection[Any], query: str) -> Any:
    """
    The first value.
    """
    row = connection.execute(query.encode()).fetchone()
    return row[0] if row else None


# --- names chosen at installation --------------------------------------------------------------------------


@pytest.mark.short
def test_roles_may_have_the_names_of_a_platform(
    empty_db: str, ask: Ask, make_role: MakeRole, connect: Callable[[str], psycopg.Connection[Any]]
) -> None:
    """
    With worker=service_role,producer=service_role,tenant=authenticated these roles work the queue, and no others.
    """
    worker, tenant = make_role("fairq test Service-role"), make_role("fairq_test_authenticated")
    make_role("fairq_test_gateway", f"login in role {tenant}")
    make_role("fairq_test_server", f'login in role "{worker}"')
    make_role("fairq_test_usual", "login")
    roles = {"worker": worker, "producer": worker, "tenant": tenant}
    fairq_schema.apply(empty_db, roles=roles)
    fairq_schema.apply(empty_db, "other")  # whose members have no business here
    ask("grant fairq_worker, fairq_producer, fairq_tenant to fairq_test_usual")

    with connect("fairq_test_server") as server, connect("fairq_test_gateway") as gateway:
        server.execute("select fairq.enqueue_job('a', 'mail'), fairq.enqueue_job('b', 'mail')")
        gateway.execute("set app.tenant_id = 'b'")
        assert one(gateway, "select string_agg(tenant, ', ') from fairq.all_jobs") == "b"
        assert one(server, "select count(*) from fairq.claim_jobs(p_owner => 'w', p_limit => 9)") == 2
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            one(gateway, "select count(*) from fairq.claim_jobs(p_owner => 'w')")
    with connect("fairq_test_usual") as usual, pytest.raises(psycopg.errors.InsufficientPrivilege):
        usual.execute("select fairq.enqueue_job('a', 'mail')")


def test_roles_are_chosen_once(empty_db: str, make_role: MakeRole) -> None:
    """
    The history knows the roles: later runs need not say them again, and cannot say others.
    """
    worker = make_role("fairq_test_worker")
    assert fairq_schema.apply(empty_db, roles={"worker": worker}) != []
    assert fairq_schema.apply(empty_db) == []
    assert fairq_schema.apply(empty_db, roles={"worker": worker}) == []
    with pytest.raises(errors.BadRolesError, match=f"worker=fairq_worker, but .* made with worker={worker}"):
        fairq_schema.apply(empty_db, roles={"producer": worker})
    fairq_schema.rollback(empty_db, to=0)
    assert fairq_schema.apply(empty_db) != []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("worker", "write part=role"),
        ("worker=a,worker=b", "each part once"),
        ("manager=a", "no part 'manager' in fairq; there are owner, api, worker"),
        ("worker=a'b", "use at most 63 ASCII letters"),
        ("worker=public", "no reserved name"),
        ("worker=", "use at most 63 ASCII letters"),
        ("tenant=a,api=a", "tenant=a is also owner or api"),
    ],
)
def test_a_choice_that_cannot_work_is_refused(text: str, complaint: str) -> None:
    """
    Unknown parts, names that could end a literal, and a tenant who would fence in the queue are refused at once.
    """
    with pytest.raises(errors.BadRolesError, match=complaint):
        resolve(parse(text), installer=None)


def test_parts_are_read_from_one_word() -> None:
    """
    `worker=service_role, tenant=authenticated` names two; the others keep their usual names.
    """
    roles = resolve(parse("worker=service_role, tenant=authenticated"), installer=None)
    assert roles == {**DEFAULT_ROLES, "worker": "service_role", "tenant": "authenticated"}


# --- no roles ----------------------------------------------------------------------------------------------


@pytest.mark.short
def test_one_login_is_enough(ask: Ask, make_role: MakeRole, connect: Callable[[str], psycopg.Connection[Any]]) -> None:
    """
    Without roles a login with two schemas of its own, and no right beyond, installs and works the whole queue.
    """
    make_role("fairq_test_app", "login")
    for name in ("fairq", "fairq_migrate"):
        ask(f"create schema {name} authorization fairq_test_app")
    roles = "select string_agg(rolname, ', ' order by rolname) from pg_roles"
    before = ask(roles)

    with connect("fairq_test_app") as app:
        ids = fairq_schema.apply(app, make_roles=False)
        assert ask(roles) == before
        assert ask("select count(*) from pg_default_acl") == 0
        app.execute("select fairq.set_tenant(p_queue => 'default', p_tenant => 'a', p_weight => 2)")
        assert one(app, "select job_id from fairq.enqueue_job('a', 'mail')") is not None
        app.execute("create temporary table claimed as select * from fairq.claim_jobs(p_owner => 'w')")
        assert one(app, "select fairq.complete_job(job_id, lease_token) from claimed")
        assert one(app, "select state from fairq.all_jobs") == "succeeded"
        assert fairq_schema.apply(app, make_roles=False) == []
        assert fairq_schema.rollback(app, to=0, lose_data=True) == ids[::-1]


def test_without_roles_a_missing_one_is_named(empty_db: str, ask: Ask) -> None:
    """
    With make_roles=False a role that was chosen and does not exist is not made, but asked for.
    """
    told = r"role fairq_test_nobody does not exist.*create role fairq_test_nobody nologin noinherit;"
    with pytest.raises(errors.MigrationFailedError, match=told):
        fairq_schema.apply(empty_db, roles={"worker": "fairq_test_nobody"}, make_roles=False)
    assert ask("select to_regnamespace('fairq')") is None
    assert ask("select to_regnamespace('fairq_migrate')") is None


def test_the_right_to_create_the_schema_is_asked_for(
    ask: Ask, make_role: MakeRole, connect: Callable[[str], psycopg.Connection[Any]]
) -> None:
    """
    A login that may not create the schema is told both ways to go on; nothing is left behind.
    """
    make_role("fairq_test_app", "login")
    ask("create schema fairq_migrate authorization fairq_test_app")
    told = "may not create a schema in database.*with authorization fairq_test_app, or for: grant create on"
    with connect("fairq_test_app") as app, pytest.raises(errors.MigrationFailedError, match=told):
        fairq_schema.apply(app, make_roles=False)
    assert ask("select count(*) from pg_class where relnamespace = 'fairq_migrate'::regnamespace") == 0
