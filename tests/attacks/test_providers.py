"""The four ways to know the tenant, each against those who would be another one."""

from __future__ import annotations

import hashlib
import hmac
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

import fairq_schema
from fairq_schema import errors
from tests.package.portable import breaches

from .cast import NOT_ALLOWED, OK, code, refused, seen, world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.database import Database, Session

    from .cast import World

pytestmark = pytest.mark.short

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
SECRET = bytes(range(32))
# what everybody may set in a session of his own
SPOOFS = [
    "set app.tenant_id = 'b'",
    'set request.jwt.claims = \'{"app_metadata": {"tenant_id": "b"}}\'',
    "set app.tenant_token = 'v1.k.62.99999999999.00'",
    "select set_config('session_authorization', current_user, false)",
    "set search_path = evil, pg_catalog",
]


@contextmanager
def provided(db: Database, provider: str) -> Iterator[World]:
    """Two tenants in a database with this provider."""
    fairq_schema.set_tenant_provider(db.dsn, provider)
    yield world(db)


@contextmanager
def setting(session: Session, name: str, value: str) -> Iterator[None]:
    """A setting for one transaction, bound and not spelled out."""
    with session.conn.transaction():
        session.execute("select set_config(%s, %s, true)", name, value)
        yield


def token(
    tenant: str = "a", *, kid: str = "k", secret: bytes = SECRET, expires: float = 60, version: str = "v1"
) -> str:
    """A token as an application makes it, without fairq."""
    message = f"{version}.{kid}.{tenant.encode().hex()}.{int(time.time() + expires)}"
    return f"{message}.{hmac.new(secret, message.encode(), hashlib.sha256).hexdigest()}"


def acts_as_nobody(session: Session) -> None:
    """No row is seen, and functions say why."""
    assert seen(session) == set()
    refused(
        session, ["select fairq.enqueue_job(p_task => 't')", "select fairq.cancel_job(1)", "select fairq.get_job(1)"]
    )


# --- setting ---------------------------------------------------------------------------------------------------


def test_a_setting_is_the_tenant_by_default(db: Database) -> None:
    """As installed, a session is whom it says; nobody if it says nothing, or no longer says it."""
    w = world(db)
    assert db.value("select fairq.tenant_provider()") == "setting"
    session = w.tenant(None)
    acts_as_nobody(session)
    with setting(session, "app.tenant_id", "a"):
        assert seen(session) == {"a"}
    assert session.value("select current_setting('app.tenant_id')") == ""
    acts_as_nobody(session)


def test_who_calls_itself_everybody_is_nobody(db: Database) -> None:
    """`*` means all tenants in a grant, and none as the name of a session."""
    w = world(db)
    for name in ("*", "@own"):
        session = w.tenant(name)
        assert seen(session) == set()
        assert code(session, "select fairq.enqueue_job('b', 't')") == NOT_ALLOWED
        with setting(session, "app.tenant_id", "*"), pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.cancel(w.running["b"].job_id)
        session.execute("reset app.tenant_id")


# --- jwt -------------------------------------------------------------------------------------------------------


def test_verified_claims_are_the_tenant(db: Database) -> None:
    """app_metadata.tenant_id names it."""
    with provided(db, "jwt") as w:
        session = w.tenant(None)
        with setting(session, "request.jwt.claims", '{"sub": "x", "app_metadata": {"tenant_id": "a"}}'):
            assert seen(session) == {"a"}
            assert session.value("select (fairq.enqueue_job(p_task => 't')).created")
        acts_as_nobody(session)


@pytest.mark.parametrize(
    "claims",
    [
        "",
        "{}",
        "null",
        "[]",
        '"a"',
        '{"tenant_id": "a"}',
        '{"user_metadata": {"tenant_id": "a"}}',
        '{"app_metadata": {"tenant_id": ""}}',
        '{"app_metadata": {"tenant_id": null}}',
        '{"app_metadata": {"tenant_id": ["a"]}}',
        '{"app_metadata": {"tenant_id": {"a": 1}}}',
        '{"app_metadata": {"tenant_id": 1}}',
        '{"app_metadata": [{"tenant_id": "a"}]}',
        '{"app_metadata": "a"}',
    ],
)
def test_claims_without_a_tenant_are_nobodys(db: Database, claims: str) -> None:
    """Whatever is not a name at the one place is no tenant; nor is the session's own setting."""
    with provided(db, "jwt") as w:
        session = w.tenant("a")
        with setting(session, "request.jwt.claims", claims):
            acts_as_nobody(session)


def test_claims_that_are_no_json_let_nobody_in(db: Database) -> None:
    """They raise, and close."""
    with provided(db, "jwt") as w:
        session = w.tenant("a")
        with setting(session, "request.jwt.claims", "a"):
            assert code(session, "select count(*) from fairq.jobs") == "22P02"
            assert code(session, "select fairq.get_job(1)") == "22P02"


# --- role ------------------------------------------------------------------------------------------------------


def test_the_login_is_the_tenant(db: Database) -> None:
    """By the table of operators; no setting makes it another one, and the table is not for tenants."""
    with provided(db, "role") as w:
        session, other, unknown = w.tenant(None), w.tenant(None), w.tenant("a")
        operator = w.operator()
        for each, tenant in ((session, "a"), (other, "b")):
            operator.execute("insert into fairq.tenant_roles values (%s, %s)", each.conn.info.user, tenant)
        acts_as_nobody(unknown)
        assert seen(session) == {"a"}
        for spoof in SPOOFS:
            session.execute(spoof)
            assert seen(session) == {"a"}
        assert session.value("select (fairq.enqueue_job(p_task => 't')).created")
        refused(session, [
            f"set role {other.conn.info.user}",
            f"select set_config('role', '{other.conn.info.user}', false)",
            f"set session authorization {other.conn.info.user}",
            "select * from fairq.tenant_roles",
            "update fairq.tenant_roles set tenant = 'b'",
            f"insert into fairq.tenant_roles values ('{session.conn.info.user}', 'b')",
            "select fairq.enqueue_job('b', 't')",
        ])  # fmt: skip
        assert session.cancel(w.running["b"].job_id) == "not_found"
        assert seen(other) == {"b"}


def test_a_role_that_is_set_is_the_tenant(db: Database) -> None:
    """A gateway that may set the roles of two tenants is the one it has set; a member of a role is not that role."""
    with provided(db, "role") as w:
        gateway = db.login()
        names = {}
        for tenant in "ab":
            names[tenant] = db.login("fairq_tenant")
            db.execute("insert into fairq.tenant_roles values (%s, %s)", names[tenant], tenant)
            db.execute(f"grant {names[tenant]} to {gateway}")
        session = db.session(user=gateway)
        assert seen(session) == set()
        for tenant, name in names.items():
            session.execute(f"set role {name}")
            assert seen(session) == {tenant}
        assert w.tenant(None).value("select fairq.current_tenant_id()") is None


# --- token -----------------------------------------------------------------------------------------------------


@pytest.fixture
def signed(db: Database) -> Iterator[tuple[World, Session]]:
    """A database where a token says who one is, with the key that applications know; and a tenant's session."""
    with provided(db, "token") as w:
        w.operator().call("set_tenant_key", p_kid="k", p_secret=SECRET)
        yield w, w.tenant(None)


def test_a_signed_token_is_the_tenant(signed: tuple[World, Session]) -> None:
    """Whether an application signed it or the database did; whatever the tenant's name is made of."""
    w, session = signed
    acts_as_nobody(session)
    issued = w.operator().call_one("issue_tenant_token", p_tenant="a")
    for each in (token(), issued):
        with setting(session, "app.tenant_token", each):
            assert seen(session) == {"a"}
            assert session.value("select (fairq.enqueue_job(p_task => 't')).created")
            assert session.cancel(w.running["b"].job_id) == "not_found"
    for name in ("b", "ä.ö'; --", "x" * 200):
        with setting(session, "app.tenant_token", token(name)):
            assert session.value("select fairq.current_tenant_id()") == name
    acts_as_nobody(session)


FORGED: dict[str, Callable[[], str]] = {
    "another tenant": lambda: token().replace(b"a".hex(), b"b".hex(), 1),
    "a later end": lambda: ".".join(["99999999999" if n == 3 else part for n, part in enumerate(token().split("."))]),
    "over": lambda: token(expires=-1),
    "another key": lambda: token(secret=bytes(32)),
    "an unknown key": lambda: token(kid="other"),
    "another version": lambda: token(version="v2"),
    "no signature": lambda: token().rsplit(".", 1)[0] + ".",
    "a signature cut short": lambda: token()[:-1],
    "in capitals": lambda: token()[:-64] + token()[-64:].upper(),
    "one part more": lambda: token() + ".x",
    "one part less": lambda: token().rsplit(".", 1)[0],
    "nothing": lambda: "",
    "dots": lambda: "....",
    "a name": lambda: "a",
    "very long": lambda: token() + "x" * 100_000,
    "all": lambda: token("*"),
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_token_that_is_not_whole_is_nobodys(signed: tuple[World, Session], forged: str) -> None:
    """One answer for all: nobody. Nor do other settings help."""
    _, session = signed
    for spoof in (SPOOFS[0], SPOOFS[1]):
        session.execute(spoof)
    with setting(session, "app.tenant_token", FORGED[forged]()):
        acts_as_nobody(session)


def test_keys_are_rotated_and_revoked(signed: tuple[World, Session]) -> None:
    """Two keys live side by side; one that is over takes its tokens with it, and is not signed with any more."""
    w, session = signed
    operator = w.operator()
    old = operator.call_one("issue_tenant_token", p_tenant="a")
    operator.call("set_tenant_key", p_kid="new")
    new = operator.call_one("issue_tenant_token", p_tenant="a", p_kid="new")
    for each in (old, new):
        with setting(session, "app.tenant_token", each):
            assert seen(session) == {"a"}
    operator.execute("select fairq.set_tenant_key('k', p_not_after => clock_timestamp())")
    with setting(session, "app.tenant_token", old):
        acts_as_nobody(session)
    with setting(session, "app.tenant_token", new):
        assert seen(session) == {"a"}
    assert operator.call_one("issue_tenant_token", p_tenant="a").split(".")[1] == "new"
    assert code(operator, "select fairq.issue_tenant_token('a', p_kid => 'k')") == "22023"


def test_keys_are_for_nobody(signed: tuple[World, Session]) -> None:
    """Not even an operator reads them, and no tenant adds one or has a token issued."""
    w, session = signed
    assert code(w.operator(), "select * from fairq.tenant_keys") == NOT_ALLOWED
    for each in (session, w.worker(), w.producer()):
        refused(each, [
            "select * from fairq.tenant_keys",
            "insert into fairq.tenant_keys values ('e', '', '', 'infinity')",
            "select fairq.set_tenant_key('e', '00000000000000000000000000000000')",
            "select fairq.issue_tenant_token('b')",
            "select fairq._tenant_token_hmac('', '', '')",
            "select fairq._padded_key('', 1)",
        ])  # fmt: skip


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("set_tenant_key", {"p_kid": None}),
        ("set_tenant_key", {"p_kid": "a.b"}),
        ("set_tenant_key", {"p_kid": ""}),
        ("set_tenant_key", {"p_kid": "x" * 41}),
        ("set_tenant_key", {"p_kid": "x", "p_secret": bytes(31)}),
        ("set_tenant_key", {"p_kid": "x", "p_secret": bytes(65)}),
        ("set_tenant_key", {"p_kid": "x", "p_not_after": None}),
        ("issue_tenant_token", {"p_tenant": None}),
        ("issue_tenant_token", {"p_tenant": "*"}),
        ("issue_tenant_token", {"p_tenant": " "}),
        ("issue_tenant_token", {"p_tenant": "x" * 201}),
        ("issue_tenant_token", {"p_tenant": "a", "p_lifetime": None}),
        ("issue_tenant_token", {"p_tenant": "a", "p_lifetime": "0"}),
        ("issue_tenant_token", {"p_tenant": "a", "p_lifetime": "31 days"}),
        ("issue_tenant_token", {"p_tenant": "a", "p_kid": "unknown"}),
    ],
)
def test_keys_and_tokens_have_bounds(signed: tuple[World, Session], function: str, arguments: dict[str, Any]) -> None:
    """22023, each time."""
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="must be"):
        signed[0].operator().call(function, **arguments)


# --- all of them -----------------------------------------------------------------------------------------------

PROVIDERS = ["setting", "jwt", "role", "token"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_provider_is_chosen_once_and_kept(empty_db: str, provider: str) -> None:
    """`apply()` never changes it; choosing it again does nothing but say so; it leaves no power with the installer."""
    fairq_schema.apply(empty_db)
    assert fairq_schema.set_tenant_provider(empty_db, provider) == "setting"
    assert fairq_schema.apply(empty_db) == []
    assert fairq_schema.set_tenant_provider(empty_db, provider) == provider
    with psycopg.connect(empty_db) as connection:
        assert connection.execute("select fairq.tenant_provider()").fetchone() == (provider,)
        owners = """
            select distinct proowner::regrole::text from pg_proc
            where proname in ('current_tenant_id', 'tenant_provider')
        """
        assert connection.execute(owners).fetchall() == [("fairq_owner",)]
        bad = """
            select p.oid::regprocedure::text from pg_proc as p
            where p.pronamespace = 'fairq'::regnamespace
              and (
                  has_function_privilege('public', p.oid, 'execute')
                  or not p.proconfig @> '{"search_path=pg_catalog, pg_temp"}'
              )
            union all
            select c.oid::regclass::text from pg_class as c
            where c.relnamespace = 'fairq'::regnamespace and c.relkind in ('r', 'p')
              and not (c.relrowsecurity and c.relforcerowsecurity)
            union all
            select t.oid::regtype::text from pg_type as t
            where t.typnamespace = 'fairq'::regnamespace and t.typelem = 0
              and has_type_privilege('public', t.oid, 'usage')
        """
        assert connection.execute(bad).fetchall() == []


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_provider_keeps_no_power_with_the_installer(empty_db: str, provider: str) -> None:
    """Nothing of what the file takes for its transaction is left, and the schema may have another name."""
    fairq_schema.apply(empty_db, "Other 1")
    with psycopg.connect(empty_db) as connection:
        members = "select count(*) from pg_auth_members"
        before = connection.execute(members).fetchone()
        fairq_schema.set_tenant_provider(empty_db, provider, "Other 1")
        assert connection.execute(members).fetchone() == before
        assert connection.execute('select "Other 1".tenant_provider()').fetchone() == (provider,)
        assert connection.execute("select to_regnamespace('fairq')").fetchone() == (None,)


def test_a_provider_needs_the_schema(empty_db: str) -> None:
    """Where fairq is not installed, nothing is made."""
    with pytest.raises(errors.MigrationFailedError, match="not installed"):
        fairq_schema.set_tenant_provider(empty_db, "role")
    with pytest.raises(errors.UnknownTargetError, match="setting, jwt, role, token"):
        fairq_schema.set_tenant_provider(empty_db, "magic")
    with psycopg.connect(empty_db) as connection:
        assert connection.execute("select to_regnamespace('fairq')").fetchone() == (None,)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_providers_file_can_be_run_by_any_tool(provider: str) -> None:
    """It keeps to the subset of SQL that every tool reads."""
    assert breaches((MIGRATIONS / "tenant" / f"{provider}.sql").read_text("ascii")) == []


def test_no_later_migration_speaks_of_who_the_tenant_is() -> None:
    """Only the first one makes current_tenant_id(), as installed; the rest leave alone what was chosen."""
    for path in MIGRATIONS.glob("fairq_*.sql"):
        if not path.name.startswith("fairq_0001"):
            assert "function fairq.current_tenant_id()" not in path.read_text("ascii"), path.name


@pytest.mark.parametrize("provider", PROVIDERS)
def test_parallel_plans_see_the_same(db: Database, provider: str) -> None:
    """A tenant sees its own rows in parallel workers, too."""
    with provided(db, provider) as w:
        session = w.tenant("a")
        db.execute("grant select (tenant) on fairq.jobs to fairq_tenant")
        if provider == "role":
            db.execute("insert into fairq.tenant_roles values (%s, 'a')", session.conn.info.user)
        if provider == "token":
            db.call("set_tenant_key", p_kid="k", p_secret=SECRET)
            session.execute("select set_config('app.tenant_token', %s, false)", token())
        if provider == "jwt":
            session.execute('set request.jwt.claims = \'{"app_metadata": {"tenant_id": "a"}}\'')
        for name, value in {
            "parallel_setup_cost": "0", "parallel_tuple_cost": "0", "min_parallel_table_scan_size": "0",
            "debug_parallel_query" if db.conn.info.server_version >= 160000 else "force_parallel_mode": "on",
        }.items():  # fmt: skip
            session.execute(sql.SQL("set {} = {}").format(sql.Identifier(name), value).as_string())
        assert seen(session) == {"a"}
        assert session.value("select count(*) from fairq.jobs") == 3
        assert code(session, "select * from fairq.all_jobs") == OK
