"""Who can install, with which rights, and what is said to those who cannot."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.short

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
INITIAL = (MIGRATIONS / "fairq_0001_initial.sql").read_text("ascii")
PARTS = ("owner", "api", "worker", "producer", "tenant", "operator")


class Cluster:
    """A database, an installer and six roles of its own on the shared server: roles belong to the whole cluster."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.database = str(conninfo_to_dict(dsn)["dbname"])
        self.installer = f"{self.database}_installer"
        self.roles = {part: f"{self.database}_{part}" for part in PARTS}
        self.extra: list[str] = []
        self.major = 0
        with psycopg.connect(dsn) as connection:
            self.major = connection.info.server_version // 10000

    def sudo(self, *statements: str) -> None:
        """Let a superuser run statements; `{owner}`, `{installer}`, `{database}` and the like stand for names."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for each in statements:
                connection.execute(self.named(each).encode())

    def named(self, statement: str) -> str:
        """Put the names of this cluster into a statement."""
        return statement.format(installer=self.installer, database=self.database, **self.roles)

    def login(self, name: str, attributes: str = "") -> None:
        """A login that is gone afterwards."""
        self.extra.append(self.named(name))
        self.sudo(f"create role {name} login {attributes}")

    @contextmanager
    def as_installer(self) -> Iterator[psycopg.Connection[Any]]:
        """The installer's connection."""
        with psycopg.connect(make_conninfo(self.dsn, user=self.installer)) as connection:
            yield connection

    def install(self, before: str = "") -> None:
        """Run the migration as the installer, in one transaction."""
        self.run(before + INITIAL)

    def run(self, text: str) -> None:
        """Run a file as the installer, in one transaction, under the names of this cluster."""
        for part, name in self.roles.items():
            text = text.replace(f"fairq_{part}", name)
        with self.as_installer() as connection:
            connection.execute(text.encode())

    def refusal(self, before: str = "") -> tuple[str, str, str]:
        """What is said to somebody who may not: SQLSTATE, reason, remedy; and nothing is left."""
        with pytest.raises(psycopg.Error) as refused:
            self.install(before)
        diagnosis = refused.value.diag
        with psycopg.connect(self.dsn) as connection:
            assert connection.execute("select to_regclass('fairq.jobs')").fetchone() == (None,)
        return diagnosis.sqlstate or "", diagnosis.message_primary or "", diagnosis.message_hint or ""

    def powers(self) -> list[tuple[str, str]]:
        """Which logins, superusers aside, can be owner or api now."""
        how = "'SET'" if self.major >= 16 else "'MEMBER'"
        query = f"""
            select r.rolname::text, p.power from pg_roles as r cross join unnest(%s::text[]) as p(power)
            where not r.rolsuper and r.rolname not in (%s, %s)
              and (pg_has_role(r.oid, p.power, {how}) or pg_has_role(r.oid, p.power, 'USAGE'))
        """
        powers = [self.roles["owner"], self.roles["api"]]
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(query.encode(), [powers, *powers]).fetchall()

    def clean(self) -> None:
        """Drop what is left of the roles; the database goes by itself."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            names = [self.installer, *self.extra, *self.roles.values()]
            there = "select rolname::text from pg_roles where rolname = any (%s)"
            found = [row[0] for row in connection.execute(there, [names]).fetchall()]
            for name in found:
                connection.execute(sql.SQL("drop owned by {} cascade").format(sql.Identifier(name)))
            for name in found:
                connection.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


@pytest.fixture
def cluster(empty_db: str) -> Iterator[Cluster]:
    """A database nobody has installed anything in yet."""
    made = Cluster(empty_db)
    yield made
    made.clean()


def works(cluster: Cluster) -> None:
    """The queue runs for logins of the groups, and nobody is left with a power who had none before."""
    for part in ("producer", "worker"):
        cluster.login(f"{{{part}}}_1")
        cluster.sudo(f"grant {{{part}}} to {{{part}}}_1")
    for part, call in (
        ("producer", "select job_id from fairq.enqueue_job('a', 't')"),
        ("worker", "select job_id from fairq.claim_jobs(p_owner => 'w')"),
    ):
        with psycopg.connect(make_conninfo(cluster.dsn, user=cluster.roles[part] + "_1")) as connection:
            assert len(connection.execute(call.encode()).fetchall()) == 1
    with psycopg.connect(cluster.dsn) as connection:
        public = """
            select count(*) from pg_proc as p
            where p.pronamespace = 'fairq'::regnamespace and has_function_privilege('public', p.oid, 'execute')
        """
        assert connection.execute(public).fetchone() == (0,)


ALL_ROLES = tuple(f"create role {{{part}}} nologin noinherit" for part in PARTS)


def given(cluster: Cluster, *powers: str, roles: bool = False, member: str | None = None) -> None:
    """An installer with some powers; the roles made by a DBA; the installer a member of the two powers."""
    cluster.sudo("create role {installer} login " + " ".join(each for each in powers if each != "create"))
    if "create" in powers:
        cluster.sudo("grant create on database {database} to {installer}")
    if roles:
        cluster.sudo(*ALL_ROLES)
    if member is not None:
        options = member if cluster.major >= 16 else ""
        cluster.sudo(f"grant {{owner}}, {{api}} to {{installer}} {options}")


# --- who can -----------------------------------------------------------------------------------------------------


def test_createrole_and_create_on_the_database_are_enough(cluster: Cluster) -> None:
    """A plain login with CREATEROLE makes the roles, and keeps no power over what they own."""
    given(cluster, "createrole", "create")
    cluster.install()
    works(cluster)
    assert cluster.powers() == []


def test_the_installer_may_choose_who_the_tenant_is(cluster: Cluster) -> None:
    """Each provider needs what the first migration needed, and leaves no power either."""
    given(cluster, "createrole", "create")
    cluster.install()
    for provider in ("role", "token", "jwt", "setting"):
        cluster.run((MIGRATIONS / "tenant" / f"{provider}.sql").read_text("ascii"))
        with cluster.as_installer() as connection:
            source = "select prosrc like %s from pg_proc where proname = 'tenant_provider'"
            assert connection.execute(source, [f"%'{provider}'%"]).fetchone() == (True,)
        assert cluster.powers() == []


def test_a_role_it_makes_is_not_inherited_whatever_the_installers_habits(cluster: Cluster) -> None:
    """createrole_self_grant would make the installer a member that inherits; it is off while roles are made."""
    given(cluster, "createrole", "create")
    if cluster.major >= 16:
        cluster.sudo("alter role {installer} set createrole_self_grant = 'set, inherit'")
    cluster.install()
    assert cluster.powers() == []
    with cluster.as_installer() as connection:
        for statement in (
            "select count(*) from fairq.jobs",
            "select fairq.claim_jobs(p_owner => 'w')",
            *([cluster.named("set role {owner}"), cluster.named("set role {api}")]),
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute(statement.encode())


def test_the_owner_of_the_database_with_createrole(cluster: Cluster) -> None:
    """Owning the database is as good as CREATE on it."""
    given(cluster, "createrole")
    cluster.sudo("alter database {database} owner to {installer}")
    cluster.install()
    works(cluster)
    cluster.sudo("alter database {database} owner to current_user")
    assert cluster.powers() == []


def test_roles_made_by_a_dba(cluster: Cluster) -> None:
    """Without CREATEROLE: a DBA makes the six roles, and makes the installer a member of two."""
    given(cluster, "create", roles=True, member="with inherit false, set true")
    cluster.install()
    works(cluster)
    assert {name for name, _ in cluster.powers()} == {cluster.installer}, "what it had before it still has"


def test_several_databases_share_the_roles_of_their_cluster(cluster: Cluster) -> None:
    """Roles that are there are used."""
    given(cluster, "createrole", "create", roles=True, member="with inherit false, set true, admin option")
    cluster.install()
    works(cluster)


@pytest.mark.parametrize("name", ['Own"er; drop table x--', "a'b", "select", "x" * 60])
def test_hostile_names_of_a_database_and_an_installer(cluster: Cluster, name: str) -> None:
    """Names are quoted wherever they are put together."""
    cluster.installer = name
    cluster.extra.append(name)
    quoted = sql.Identifier(name).as_string()
    cluster.sudo(f"create role {quoted} login createrole")
    assert cluster.refusal()[0] == "42501"
    cluster.sudo(f"grant create on database {{database}} to {quoted}")
    cluster.install()
    assert cluster.powers() == []


def test_one_role_for_everything(cluster: Cluster) -> None:
    """One role may be owner, functions and installer in one; the rest is its own affair."""
    given(cluster, "create", roles=True)
    for part in ("owner", "api"):
        cluster.sudo(f"drop role {{{part}}}")
        cluster.roles[part] = cluster.installer
    cluster.install()
    works(cluster)
    with cluster.as_installer() as connection:
        connection.execute("create schema mine")
        connection.execute("create function mine.f() returns int language sql as 'select 1'")
        assert connection.execute("select has_function_privilege('public', 'mine.f()', 'execute')").fetchone() == (
            True,
        )


def test_the_roles_of_a_hosted_gateway(cluster: Cluster) -> None:
    """
    As on Supabase: tenants are one role known by claims, workers and producers another that passes by row security.

    The tenant sees its own rows; the other has no right on a table, so that passing by helps it nothing; who is nobody
    does not get in.
    """
    authenticated, service, anon = (f"{cluster.database}_{name}" for name in ("authenticated", "service_role", "anon"))
    cluster.roles |= {"tenant": authenticated, "worker": service, "producer": service}
    given(cluster, "createrole", "create")
    cluster.sudo(f"create role {authenticated} nologin noinherit", f"create role {service} nologin noinherit bypassrls")
    cluster.sudo(f"create role {anon} nologin noinherit")
    cluster.login("{installer}_gateway", "noinherit")
    cluster.extra.append(anon)
    cluster.sudo(f"grant {authenticated}, {service}, {anon} to {{installer}}_gateway")
    cluster.install()
    cluster.run((MIGRATIONS / "tenant" / "jwt.sql").read_text("ascii"))

    dsn = make_conninfo(cluster.dsn, user=cluster.named("{installer}_gateway"))
    with psycopg.connect(dsn, autocommit=True) as gateway:

        def ask(role: str, tenant: str, query: str) -> Any:
            claims = f'{{"role": "x", "app_metadata": {{"tenant_id": "{tenant}"}}}}'
            with gateway.transaction():
                gateway.execute(f"set local role {role}".encode())
                gateway.execute("select set_config('request.jwt.claims', %s, true)", [claims])
                return gateway.execute(query.encode()).fetchall()

        for tenant in "ab":
            ask(service, "", f"select fairq.enqueue_job('{tenant}', 't')")
            assert len(ask(authenticated, tenant, "select fairq.enqueue_job(p_task => 'u')")) == 1
        assert set(ask(authenticated, "a", "select tenant, task from fairq.all_jobs")) == {("a", "t"), ("a", "u")}
        assert len(ask(service, "", "select job_id from fairq.claim_jobs(p_owner => 'w')")) == 4
        for role, query in (
            (service, "select count(*) from fairq.jobs"),
            (anon, "select fairq.current_tenant_id()"),
            (anon, "select count(*) from fairq.all_jobs"),
            (authenticated, "select fairq.enqueue_job('b', 't')"),
            (authenticated, "select fairq.claim_jobs(p_owner => 'w')"),
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                ask(role, "a", query)


# --- who cannot ----------------------------------------------------------------------------------------------------


def test_without_createrole_roles_must_be_there(cluster: Cluster) -> None:
    """The first that is missing is named, with the statement that makes it."""
    given(cluster, "create")
    sqlstate, reason, remedy = cluster.refusal()
    assert (sqlstate, reason) == (
        "42501",
        cluster.named("role {owner} does not exist and {installer} may not create it"),
    )
    assert cluster.named("create role {owner} nologin noinherit;") in remedy


def test_roles_of_a_dba_without_membership(cluster: Cluster) -> None:
    """An installer that is no member hears which grant is missing."""
    given(cluster, "create", roles=True)
    sqlstate, reason, remedy = cluster.refusal()
    assert (sqlstate, reason) == ("42501", cluster.named("{installer} may not act as {owner}"))
    assert cluster.named("grant {owner} to {installer}") in remedy
    assert ("set true" in remedy) == (cluster.major >= 16)


def test_roles_of_a_dba_and_createrole_without_admin_option(cluster: Cluster) -> None:
    """From 16 on CREATEROLE is no right to roles that others made; before, it was, and the installer gives it back."""
    given(cluster, "createrole", "create", roles=True)
    if cluster.major >= 16:
        assert cluster.refusal()[:2] == ("42501", cluster.named("{installer} may not act as {owner}"))
    else:
        cluster.install()
        assert cluster.powers() == []


def test_a_membership_that_may_not_be_used(cluster: Cluster) -> None:
    """SET FALSE is no membership for this purpose."""
    given(cluster, "create", roles=True, member="with inherit false, set false")
    if cluster.major >= 16:
        assert cluster.refusal()[:2] == ("42501", cluster.named("{installer} may not act as {owner}"))
    else:
        cluster.install()


def test_without_create_on_the_database(cluster: Cluster) -> None:
    """The reason is the database, not the roles."""
    given(cluster, "createrole")
    sqlstate, reason, remedy = cluster.refusal()
    assert (sqlstate, reason) == ("42501", cluster.named("{installer} may not create a schema in database {database}"))
    assert cluster.named("grant create on database {database} to {installer};") in remedy


@pytest.mark.parametrize("attribute", ["login", "superuser", "bypassrls", "createrole", "createdb", "replication"])
@pytest.mark.parametrize("part", ["owner", "api"])
def test_a_power_that_has_more_power(cluster: Cluster, part: str, attribute: str) -> None:
    """owner and api must be roles that nobody is and that no right of the cluster lets past row-level security."""
    given(cluster, "createrole", "create", roles=True, member="with inherit false, set true, admin option")
    cluster.sudo(f"alter role {{{part}}} {attribute}")
    sqlstate, reason, remedy = cluster.refusal()
    assert (sqlstate, reason) == (
        "55000",
        cluster.named(f"role {{{part}}} has {attribute}, and must have no such right"),
    )
    assert cluster.named(f"alter role {{{part}}} no{attribute};") in remedy
    cluster.sudo(remedy[remedy.index("alter role") :])
    cluster.install()


@pytest.mark.parametrize("attribute", ["superuser", "bypassrls"])
def test_a_tenant_that_is_bound_by_nothing(cluster: Cluster, attribute: str) -> None:
    """The tenants' role must be bound by row-level security."""
    given(cluster, "createrole", "create", roles=True, member="with inherit false, set true, admin option")
    cluster.sudo(f"alter role {{tenant}} {attribute}")
    assert cluster.refusal()[0] == "55000"


def test_a_stranger_who_can_be_the_owner(cluster: Cluster) -> None:
    """A login that has a power already, be it by way of another role, is named; who trusts it says so."""
    given(cluster, "createrole", "create", roles=True, member="with inherit false, set true, admin option")
    cluster.login("{installer}_eve")
    cluster.sudo("create role {installer}_group", "grant {api} to {installer}_group")
    cluster.extra.append(cluster.named("{installer}_group"))
    cluster.sudo("grant {installer}_group to {installer}_eve")
    sqlstate, reason, remedy = cluster.refusal()
    assert (sqlstate, reason) == ("55000", cluster.named("role {api} can be used by {installer}_eve"))
    assert "trust_members" in remedy
    cluster.install("set local fairq_install.trust_members = 'yes';")


def test_a_schema_that_somebody_planted(cluster: Cluster) -> None:
    """The owner of a schema can drop what is in it: another's is not used."""
    given(cluster, "createrole", "create")
    cluster.login("{installer}_eve")
    cluster.sudo("create schema fairq authorization {installer}_eve")
    sqlstate, reason, _ = cluster.refusal()
    assert (sqlstate, reason) == ("42501", "schema fairq exists and belongs to another role")
