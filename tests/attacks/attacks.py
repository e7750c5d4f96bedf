"""The attacks, each a function that asserts that it fails; numbered as the plan of them is, hence the short names."""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
import pytest

from tests.support.races import in_background

from .cast import NOT_ALLOWED, OK, TABLES_OF_TENANTS, code, codes, refused, seen, world

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.database import Database, Session

    Attack = Callable[[Database], None]

ATTACKS: dict[str, Attack] = {}


def attack(number: str) -> Callable[[Attack], Attack]:
    """Enter an attack into the list."""

    def enter(function: Attack) -> Attack:
        assert number not in ATTACKS
        ATTACKS[number] = function
        return function

    return enter


# What each group may call. Whatever else there is, it may not.
ALLOWED = {
    "fairq_worker": {
        "claim_jobs", "renew_job_lease", "renew_job_leases", "complete_job", "complete_jobs", "fail_job", "fail_jobs",
        "release_job", "release_jobs", "release_expired_jobs", "promote_due_jobs", "queue_stats",
    },
    "fairq_producer": {"enqueue_job", "enqueue_jobs", "cancel_job", "explain_wait", "get_job"},
    "fairq_tenant": {"enqueue_job", "enqueue_jobs", "cancel_job", "explain_wait", "get_job"},
    "fairq_operator": {
        "release_expired_jobs", "promote_due_jobs", "cancel_job", "retry_job", "reschedule_job", "prune", "maintain",
        "reconcile", "erase_tenant", "set_tenant",
        "pause_tenant", "resume_tenant", "purge_tenant", "set_queue", "queue_stats", "tenant_stats", "explain_wait",
        "get_job", "dead_jobs", "pause_tenant_because", "pause_queue", "resume_queue", "pauses",
    },
}  # fmt: skip
FORGED = (
    "insert into fairq.job_log (job_id, queue, tenant, event_type, attempt, actor, created_at) "
    "values (1, 'default', 'b', 'dead', 1, 'honest', now())"
)
FOR_ALL = {"channel", "current_tenant_id", "tenant_provider", "schema_version"}


def calls(db: Database) -> dict[str, list[str]]:
    """Every function of the schema by name, as a call with nulls."""
    found: dict[str, list[str]] = {}
    query = """
        select p.proname as name, format('select fairq.%I(%s)', p.proname, (
                select string_agg('null::' || format_type(a.type, null), ', ' order by a.nth)
                from unnest(p.proargtypes) with ordinality as a(type, nth)
            )) as call
        from pg_proc as p where p.pronamespace = 'fairq'::regnamespace
    """
    for row in db.rows(query):
        # a pseudo-type has no null, and a trigger is not called
        call = row.call.replace("null::anyarray", "null::text[]")
        found.setdefault(row.name, []).append(call)
    return found


def relations(db: Database, kinds: str = "rp") -> list[str]:
    """Every table (or view, sequence) of the schema."""
    query = """
        select c.oid::regclass::text from pg_class as c
        where c.relnamespace = 'fairq'::regnamespace and c.relkind = any (%s::text[]) order by 1
    """
    return [row[0] for row in db.rows(query, list(kinds))]


# --- before everything else ------------------------------------------------------------------------------------


@attack("M00")
def the_attackers_are_bound_by_what_they_attack(db: Database) -> None:
    """Canary: none is a superuser or passes by row security; otherwise the rest of this file would mean nothing."""
    w = world(db)
    for session in (w.tenant(), w.worker(), w.producer(), w.operator(), w.stranger()):
        query = "select r.rolsuper or r.rolbypassrls from pg_roles as r where r.rolname = session_user"
        assert session.value(query) is False
        assert session.value("select session_user = current_user")
    assert w.tenant().value("select row_security_active('fairq.jobs')")


# --- privileges --------------------------------------------------------------------------------------------------


@attack("P01")
def nothing_is_for_public(db: Database) -> None:
    """No function, table, sequence, schema or type has a right for PUBLIC."""
    query = """
        select p.oid::regprocedure::text
        from pg_proc as p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a
        where p.pronamespace = 'fairq'::regnamespace and a.grantee = 0
        union all
        select c.oid::regclass::text from pg_class as c, aclexplode(c.relacl) as a
        where c.relnamespace = 'fairq'::regnamespace and a.grantee = 0
        union all
        select c.attrelid::regclass::text || '.' || c.attname from pg_attribute as c, aclexplode(c.attacl) as a
        where c.attrelid in (select oid from pg_class where relnamespace = 'fairq'::regnamespace) and a.grantee = 0
        union all
        select t.oid::regtype::text from pg_type as t, aclexplode(coalesce(t.typacl, acldefault('T', t.typowner))) as a
        where t.typnamespace = 'fairq'::regnamespace and t.typelem = 0 and a.grantee = 0
        union all
        select n.nspname::text from pg_namespace as n, aclexplode(n.nspacl) as a
        where n.nspname = 'fairq' and a.grantee = 0
    """
    assert db.rows(query) == []


@attack("P02")
def a_stranger_can_do_nothing(db: Database) -> None:
    """A login without a part in fairq calls every function and reads every table."""
    stranger = world(db).stranger()
    refused(stranger, [call for each in calls(db).values() for call in each])
    refused(stranger, [f"select * from {each}" for each in relations(db, "rvS")])


@attack("P03")
def each_group_calls_what_is_its_own(db: Database) -> None:
    """Every group calls every function that is not for it: internal ones, and those of others."""
    w = world(db)
    for group, allowed in ALLOWED.items():
        session = w.login(group, tenant="a")
        others = [call for name, each in calls(db).items() if name not in allowed | FOR_ALL for call in each]
        assert len(others) > 30
        refused(session, others)
        mine = {name: codes(session, each) for name, each in calls(db).items() if name in allowed}
        assert all(NOT_ALLOWED not in found.values() for found in mine.values()), mine


@attack("P04")
def workers_and_producers_have_no_table(db: Database) -> None:
    """Reading, writing, locking, copying and emptying, table by table."""
    w = world(db)
    for session in (w.worker(), w.producer()):
        for table in relations(db, "rv"):
            refused(session, [f"select from {table}", f"select count(*) from {table}", f"copy {table} to stdout"])
        for table in relations(db):
            column = db.value("select attname from pg_attribute where attrelid = %s::regclass and attnum = 1", table)
            refused(
                session,
                [
                    f"delete from {table}",
                    f"insert into {table} default values",
                    f"update {table} set {column} = null",
                ],
            )
        for table in relations(db):
            refused(session, [f"truncate {table}", f"lock table {table} in access share mode"])


@attack("P06")
def a_tenant_changes_nothing(db: Database) -> None:
    """No write, no lock that hurts, no trigger, key, policy, index or publication on any table it can read."""
    tenant = world(db).tenant()
    tenant.execute("create temp table mine (job_id bigint)")
    for table in ("jobs", "leases", "finished_jobs", "job_log"):
        refused(tenant, [
            f"insert into fairq.{table} (job_id) values (1)", f"update fairq.{table} set tenant = 'a'",
            f"delete from fairq.{table}", f"truncate fairq.{table}",
            f"lock table fairq.{table} in share mode", f"lock table fairq.{table} in access exclusive mode",
            f"select job_id from fairq.{table} for update", f"select job_id from fairq.{table} for key share",
            f"alter table fairq.{table} disable row level security", f"alter table fairq.{table} owner to current_user",
            f"drop table fairq.{table}", f"create index on fairq.{table} (job_id)",
            f"create policy mine on fairq.{table} using (true)", f"drop policy tenant_fence on fairq.{table}",
            f"create trigger mine after insert on fairq.{table} execute function suppress_redundant_updates_trigger()",
            f"comment on table fairq.{table} is 'mine'",
            f"merge into fairq.{table} as t using mine as m on t.job_id = m.job_id when matched then delete",
        ])  # fmt: skip
    for name in TABLES_OF_TENANTS[4:]:
        refused(tenant, [f"drop view fairq.{name}", f"create or replace view fairq.{name} as select 1"])
    refused(tenant, ["create publication mine for table fairq.jobs", "select nextval('fairq.jobs_job_id_seq')"])
    db.execute(f"create schema mine authorization {tenant.conn.info.user}")
    refused(tenant, ["create table mine.child (id bigint references fairq.jobs)",
                     "create view mine.v as select lease_token from fairq.leases; select * from mine.v"])  # fmt: skip


@attack("P07")
def no_fence_is_shown(db: Database) -> None:
    """Lease columns by name, in a whole row, in a filter, an order or a copy; for tenants and operators alike."""
    w = world(db)
    for session in (w.tenant(), w.operator()):
        refused(session, [
            "select lease_token from fairq.leases", "select * from fairq.leases", "select l from fairq.leases as l",
            "select to_jsonb(l) from fairq.leases as l", "select 1 from fairq.leases where lease_token is null",
            "select 1 from fairq.leases order by lease_token", "copy fairq.leases to stdout",
            "copy (select lease_token from fairq.leases) to stdout", "select count(lease_token) from fairq.leases",
            "select token_hash from fairq.finished_jobs", "select f from fairq.finished_jobs as f",
            "select 1 from fairq.finished_jobs where token_hash is not null", "table fairq.finished_jobs",
        ])  # fmt: skip
    refused(w.tenant(), ["select caller from fairq.leases", "select changed_xid from fairq.jobs"])
    token = str(w.running["a"].lease_token)
    for table in TABLES_OF_TENANTS[4:]:
        assert token not in str(w.operator().rows(f"select v::text from fairq.{table} as v"))


@attack("P08")
def nobody_makes_something_in_the_schema(db: Database) -> None:
    """Nor gives it away, nor takes what is in it."""
    w = world(db)
    for session in (w.tenant(), w.worker(), w.producer(), w.operator(), w.login("fairq_api"), w.stranger()):
        refused(session, ["create table fairq.mine ()", "create view fairq.mine as select 1"])
    for session in (w.tenant(), w.worker(), w.producer(), w.operator()):
        refused(session, [
            "create function fairq.mine() returns int language sql as 'select 1'", "create domain fairq.text as text",
            "create schema fairq", "alter schema fairq rename to other", "drop schema fairq cascade",
            "drop function fairq.claim_jobs", "alter function fairq.channel(text) reset search_path",
        ])  # fmt: skip


@attack("P09")
def the_roles_have_no_power_of_their_own(db: Database) -> None:
    """None can log in, and none has a right of the cluster; none of the groups is a power."""
    query = """
        select r.rolname from pg_roles as r
        where r.rolname ~ '^fairq_(owner|api|worker|producer|tenant|operator)$'
          and (r.rolcanlogin or r.rolsuper or r.rolbypassrls or r.rolcreaterole or r.rolcreatedb or r.rolreplication
               or r.rolname not like '%owner' and pg_has_role(r.oid, 'fairq_owner', 'member')
               or r.rolname not like '%api' and pg_has_role(r.oid, 'fairq_api', 'member'))
    """
    assert db.rows(query) == []


@attack("P10")
def row_security_is_forced_and_definers_are_pinned(db: Database) -> None:
    """On every table and every partition there will be; in every function, with the owner it should have."""
    query = """
        select c.oid::regclass::text from pg_class as c
        where c.relnamespace = 'fairq'::regnamespace and c.relkind in ('r', 'p')
          and not (c.relrowsecurity and c.relforcerowsecurity)
        union all
        select p.oid::regprocedure::text from pg_proc as p
        where p.pronamespace = 'fairq'::regnamespace
          and (p.proconfig is null or not p.proconfig @> '{"search_path=pg_catalog, pg_temp"}'
               or p.prosecdef and p.proowner::regrole::text
                  <> case when p.proname in ('prune', 'maintain', 'erase_tenant')
                          then 'fairq_owner' else 'fairq_api' end)
    """
    assert db.rows(query) == []


@attack("P11")
def even_the_functions_role_is_bounded(db: Database) -> None:
    """What a mistake in a function could do: nothing to tenants, ids, payloads, tokens, the log or the schema."""
    api = world(db).login("fairq_api")
    refused(api, [
        "update fairq.jobs set tenant = 'b'", "update fairq.jobs set payload = '{}'",
        "update fairq.jobs set job_id = 1", "update fairq.jobs set queue = 'q'",
        "update fairq.leases set lease_token = gen_random_uuid()",
        "update fairq.leases set caller = 'me'", "update fairq.finished_jobs set result = null",
        "update fairq.job_log set details = '{}'", "delete from fairq.job_log", "truncate fairq.jobs",
        "truncate fairq.job_log", "delete from fairq.job_keys", "delete from fairq.tenants", "delete from fairq.queues",
        "delete from fairq.access_grants", "insert into fairq.access_grants values ('x', 'claim')",
        "update fairq.access_grants set tenant = '*'", "update fairq.tenants set tenant = 'b'",
        "update fairq.queues set queue = 'b'", "update fairq.flows set tenant = 'b'", "delete from fairq.flows",
        "alter table fairq.jobs no force row level security", "alter table fairq.jobs disable row level security",
        "update fairq.schedulers set queue = 'other'", "alter table fairq.job_log disable trigger all",
        "drop policy tenant_fence on fairq.jobs", "update fairq.jobs set max_attempts = 9",
        "create policy mine on fairq.jobs using (true)", "drop table fairq.jobs", "create table fairq.mine ()",
        "select fairq.prune()", "update fairq.finished_jobs set state = 'dead'",
        "create trigger mine after insert on fairq.jobs execute function suppress_redundant_updates_trigger()",
    ])  # fmt: skip


@attack("P14")
def nobody_grants_himself_anything(db: Database) -> None:
    """The rows that say who may do what are the operators' alone."""
    w = world(db)
    for session in (
        w.tenant(),
        w.worker(),
        w.producer(),
        w.stranger(),
        w.login("pg_read_all_data", "pg_write_all_data"),
    ):
        user = session.conn.info.user
        refused(session, [
            f"insert into fairq.access_grants values ('{user}', 'claim', '*', '*')",
            f"grant fairq_owner to {user}", f"grant fairq_api to {user}", f"grant fairq_operator to {user}",
            "set role fairq_owner", "set role fairq_api", "set session authorization fairq_owner",
            f"alter role {user} bypassrls", f"alter role {user} superuser",
        ])  # fmt: skip


# --- isolation between tenants -----------------------------------------------------------------------------------


@attack("I01")
def without_a_tenant_nothing_is_seen(db: Database) -> None:
    """Not set, set to nothing, and set for a transaction that is over: no row, no error; functions raise."""
    w = world(db)
    session = w.tenant(None)

    def is_nobody() -> None:
        assert seen(session) == set()
        refused(session, ["select fairq.enqueue_job(p_task => 't')", "select fairq.enqueue_job('a', 't')",
                          "select fairq.cancel_job(1)", "select * from fairq.get_job(1)",
                          "select fairq.explain_wait(1)"])  # fmt: skip

    is_nobody()
    session.execute("begin; set local app.tenant_id = 'a'; commit")
    is_nobody()
    session.execute("set app.tenant_id = ''")
    is_nobody()


@attack("I02")
def a_tenant_sees_its_own_rows(db: Database) -> None:
    """In every table and view, and of each of them; another tenant's, and nobody's, are not there."""
    w = world(db)
    for table in TABLES_OF_TENANTS:
        assert db.value(f"select count(distinct tenant) from fairq.{table}") == 2, table
    for tenant in "ab":
        session = w.tenant(tenant)
        for table in TABLES_OF_TENANTS:
            assert session.rows(f"select distinct tenant from fairq.{table}") == [(tenant,)], table
    assert seen(w.tenant("nobody")) == set()
    assert seen(w.tenant("%")) == seen(w.tenant("*")) == seen(w.tenant("' or '1'='1")) == set()


@attack("I03")
def a_leaky_filter_is_asked_of_its_own_rows_only(db: Database) -> None:
    """A cheap function in WHERE, and a division by zero, meet no row of another tenant."""
    w = world(db)
    session = w.tenant("a")
    session.execute("set enable_indexscan = off; set enable_bitmapscan = off")
    session.execute("""
        create function pg_temp.leak(p text) returns boolean language plpgsql cost 0.0000001 as
        $$ begin raise notice 'saw %', p; return true; end $$
    """)
    said: list[str] = []
    session.conn.add_notice_handler(lambda diagnosis: said.append(diagnosis.message_primary or ""))
    for table in TABLES_OF_TENANTS:
        session.rows(f"select from fairq.{table} as t where pg_temp.leak(t.tenant)")
        assert code(session, f"select 1 / (case when tenant = 'b' then 0 else 1 end) from fairq.{table}") == OK
        assert (
            code(session, f"select from fairq.{table} where 1 / (case when tenant = 'b' then 0 else 1 end) = 1") == OK
        )
    assert set(said) == {"saw a"}


@attack("I04")
def row_security_cannot_be_turned_off(db: Database) -> None:
    """It raises rather than open."""
    session = world(db).tenant("a")
    session.execute("set row_security = off")
    refused(session, [f"select count(*) from fairq.{table}" for table in TABLES_OF_TENANTS])


@attack("I05")
def the_tenant_is_not_a_matter_of_the_search_path(db: Database) -> None:
    """A current_setting() of the attacker's own is not asked."""
    session = world(db).tenant("a")
    session.execute("""
        create function pg_temp.nothing() returns int language sql as 'select 1';
    """)
    db.execute(f"create schema evil authorization {session.conn.info.user}")
    session.execute("""
        create function evil.current_setting(text, boolean) returns text language sql as $$ select 'b' $$;
        create function evil.nullif(text, text) returns text language sql as $$ select 'b' $$;
        create function evil.eq(text, text) returns boolean language sql as $$ select true $$;
        create operator evil.= (leftarg = text, rightarg = text, function = evil.eq);
        create function evil.current_tenant_id() returns text language sql as $$ select 'b' $$;
        grant usage on schema evil to public;
        set search_path = evil, pg_catalog, fairq;
    """)
    assert session.value("select fairq.current_tenant_id()") == "a"
    rows = {r.tenant for t in TABLES_OF_TENANTS for r in session.rows(f"select distinct tenant from fairq.{t}")}
    assert rows == {"a"}


@attack("I06")
def the_fence_holds_for_a_login_with_more_rights(db: Database) -> None:
    """A tenant that was made an operator or worse by mistake still sees its own rows."""
    w = world(db)
    for groups in (("fairq_tenant", "fairq_operator"), ("fairq_tenant", "fairq_api"), ("fairq_tenant", "fairq_owner")):
        session = w.login(*groups, tenant="a")
        for table in TABLES_OF_TENANTS[:4]:
            assert session.rows(f"select distinct tenant from fairq.{table}") == [("a",)], (groups, table)


@attack("I07")
def a_tenant_acts_for_itself_alone(db: Database) -> None:
    """Naming another tenant, its job's id or its key gets what naming nothing gets."""
    w = world(db)
    session = w.tenant("a")
    theirs = [row.job_id for row in db.rows("select job_id from fairq.all_jobs where tenant = 'b'")]
    before = db.rows("select * from fairq.all_jobs where tenant = 'b' order by job_id")
    assert len(theirs) == 4
    refused(session, [
        "select fairq.enqueue_job('b', 't')", """select fairq.enqueue_jobs('[{"tenant": "b", "task": "t"}]')""",
        """select fairq.enqueue_jobs('[{"task": "t"}, {"tenant": "b", "task": "t"}]')""",
        "select fairq.enqueue_job('b', 't', p_queue => 'q')",
    ])  # fmt: skip
    for job_id in [*theirs, -1]:
        assert session.cancel(job_id) == "not_found"
        assert session.rows("select * from fairq.get_job(%s)", job_id) == []
        assert session.rows("select * from fairq.explain_wait(%s)", job_id)[0].reason == "not_found"
    assert db.rows("select * from fairq.all_jobs where tenant = 'b' order by job_id") == before
    own = session.value("select (fairq.enqueue_job(p_task => 't')).job_id")
    assert db.job(own)["tenant"] == "a"
    assert session.rows("select tenant from fairq.get_job(%s)", own) == [("a",)]
    assert session.cancel(own) == "cancelled"


@attack("I08")
def who_calls_itself_everybody_is_nobody(db: Database) -> None:
    """`*` is every tenant in a grant, and nobody in a session."""
    w = world(db)
    for name in ("*", "@own"):
        session = w.tenant(name)
        assert seen(session) == set()
        refused(session, ["select fairq.enqueue_job('b', 't')"])
        for job_id in (w.running["b"].job_id, -1):
            assert code(session, f"select fairq.cancel_job({job_id})") == code(session, "select fairq.cancel_job(-1)")
    assert db.states("b") == {"queued": 1, "scheduled": 1, "running": 1, "succeeded": 1}


@attack("I11")
def statistics_say_nothing(db: Database) -> None:
    """What the planner has gathered is not shown to tenants."""
    w = world(db)
    db.execute("analyze")
    session = w.tenant("a")
    assert session.value("select count(*) from pg_stats where schemaname = 'fairq'") == 0
    assert session.value("select count(*) from pg_stats_ext where schemaname = 'fairq'") == 0
    refused(session, ["select * from pg_statistic"])


@attack("I13")
def who_reads_and_writes_everything_elsewhere_does_not_here(db: Database) -> None:
    """A login with pg_read_all_data and pg_write_all_data reads no row, changes none and adds none."""
    w = world(db)
    session = w.login("pg_read_all_data", "pg_write_all_data")
    before = {table: db.value(f"select count(*) from {table}") for table in relations(db)}
    for table in relations(db):
        assert session.value(f"select count(*) from {table}") == 0, table
        assert code(session, f"delete from {table}") in (OK, NOT_ALLOWED)
        session.execute(f"do $$ begin delete from {table}; exception when insufficient_privilege then null; end $$")
    refused(session, [
        "insert into fairq.access_grants values ('x', 'claim')",
        FORGED,
        "insert into fairq.jobs (tenant, task) values ('b', 't')", "truncate fairq.jobs", "truncate fairq.job_log",
        "insert into fairq.tenants (queue, tenant, weight) values ('default', 'x', 1000)",
    ])  # fmt: skip
    assert {table: db.value(f"select count(*) from {table}") for table in relations(db)} == before


# --- workers -----------------------------------------------------------------------------------------------------


@attack("W01")
def a_worker_claims_what_it_was_granted(db: Database) -> None:
    """Without a row it gets nothing; with one for a queue or a tenant, that alone, whatever it asks for."""
    w = world(db)
    db.execute("delete from fairq.access_grants where role_name = 'fairq_worker'")
    db.given_jobs("c", 1)
    db.given_jobs("c", 1, queue="other")
    worker = w.worker()
    assert worker.claim(10) == worker.claim(10, tenant="b") == worker.claim(10, queue="other") == []
    db.execute("insert into fairq.access_grants values ('somebody else', 'claim', '*', '*')")
    assert worker.claim(10) == []
    me = worker.conn.info.user
    db.execute(
        "insert into fairq.access_grants values (%s, 'claim', 'elsewhere', '*'), (%s, 'enqueue', '*', '*')", me, me
    )
    assert worker.claim(10) == []
    db.execute("insert into fairq.access_grants values (%s, 'claim', 'default', 'c')", me)
    assert worker.claim(10, queue="other") == worker.claim(10, tenant="a") == worker.claim(10, tenant="b") == []
    assert [job.tenant for job in worker.claim(10)] == ["c"]
    assert worker.claim(10) == []
    assert code(worker, "select fairq.claim_jobs('default', 'w', p_tenant => '*')") == "22023"


@attack("W03")
def producers_enqueue_what_they_were_granted(db: Database) -> None:
    """Narrowed to a queue and a tenant, a producer neither enqueues nor cancels nor sees anything else."""
    w = world(db)
    db.execute("delete from fairq.access_grants where role_name = 'fairq_producer'")
    producer = w.producer()
    refused(producer, ["select fairq.enqueue_job('a', 't')"])
    for role, verb, queue, tenant in (
        ("somebody else", "enqueue", "*", "*"), (producer.conn.info.user, "claim", "*", "*"),
        (producer.conn.info.user, "enqueue", "q", "a"), (producer.conn.info.user, "cancel", "q", "a"),
    ):  # fmt: skip
        db.execute("insert into fairq.access_grants values (%s, %s, %s, %s)", role, verb, queue, tenant)
    job = producer.value("select (fairq.enqueue_job('a', 't', p_queue => 'q')).job_id")
    refused(producer, ["select fairq.enqueue_job('b', 't', p_queue => 'q')", "select fairq.enqueue_job('a', 't')",
                       """select fairq.enqueue_jobs('[{"tenant": "a", "task": "t"}]')""",
                       """select fairq.enqueue_jobs('[{"tenant": "a", "task": "t", "queue": "q"},
                                                      {"tenant": "b", "task": "t", "queue": "q"}]')"""])  # fmt: skip
    for other in (w.running["a"].job_id, w.running["b"].job_id, -1):
        assert producer.cancel(other) == "not_found"
        assert producer.rows("select * from fairq.get_job(%s)", other) == []
    assert producer.cancel(job) == "cancelled"

    # who has set a role is that role, whatever its login may do
    login, role = db.login("fairq_producer"), db.login("fairq_producer")
    db.execute(f"grant {role} to {login}")
    for who, tenant in ((login, "b"), (role, "a")):
        db.execute("insert into fairq.access_grants values (%s, 'enqueue', 'q', %s)", who, tenant)
    session = db.session(user=login)
    for tenant in ("a", "b"):
        assert session.value("select (fairq.enqueue_job(%s, 't', p_queue => 'q')).created", tenant)
    session.execute(f"set role {role}")
    assert session.value("select (fairq.enqueue_job('a', 't', p_queue => 'q')).created")
    refused(session, ["select fairq.enqueue_job('b', 't', p_queue => 'q')",
                      """select fairq.enqueue_jobs('[{"tenant": "b", "task": "t", "queue": "q"}]')"""])  # fmt: skip


ENDINGS = ("renew_job_lease", "complete_job", "fail_job", "release_job")


@attack("W04")
def one_answer_to_every_wrong_job_and_token(db: Database) -> None:
    """Nil, another job's, another tenant's and an unknown job's token: nothing happens, and one answer; null raises."""
    w = world(db)
    db.given_jobs("a", 1)
    db.given_jobs("b", 1)
    worker = w.worker()
    mine = {job.tenant: job for job in worker.claim(4)}
    a, b = mine["a"], mine["b"]
    nil = UUID(int=0)
    wrong = [(a.job_id, nil), (a.job_id, b.lease_token), (-1, a.lease_token), (-1, nil),
             (w.running["a"].job_id, a.lease_token), (w.running["a"].job_id, nil)]  # fmt: skip
    before = db.rows("select * from fairq.leases order by job_id")
    for function in ENDINGS:
        answers = {str(worker.value(f"select fairq.{function}(%s, %s)", *each)) for each in wrong}
        assert len(answers) == 1, function
        assert answers <= {"False", "None"}, function
        for arguments in ((None, nil), (a.job_id, None)):
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                worker.value(f"select fairq.{function}(%s::bigint, %s::uuid)", *arguments)
    for function in ("renew_job_leases", "complete_jobs", "fail_jobs", "release_jobs"):
        rows = worker.rows(
            f"select * from fairq.{function}(%s::bigint[], %s::uuid[])", *map(list, zip(*wrong, strict=True))
        )
        assert {row.outcome for row in rows} == {"lost"}, function
    assert db.rows("select * from fairq.leases order by job_id") == before
    assert worker.complete(a) is True
    assert worker.complete(a) is True, "the same once more: its first answer may have been lost"


@attack("W05")
def a_stolen_token_is_worth_nothing(db: Database) -> None:
    """A lease belongs to the role that claimed: another worker with the right token gets the answer to a wrong one."""
    w = world(db)
    db.given_jobs("c", 3)
    holder, thief = w.worker(), w.worker()
    jobs = [job for job in holder.claim(10) if job.tenant == "c"]
    assert len(jobs) == 3
    for job in jobs:
        assert (thief.renew(job), thief.complete(job), thief.fail(job), thief.release(job)) == (
            False,
            False,
            None,
            None,
        )
        assert set(thief.complete_all([job]).values()) == {"lost"}
    assert all(db.job(job.job_id)["state"] == "running" for job in jobs)
    assert holder.renew(jobs[0])
    assert holder.complete(jobs[0])
    # neither does setting the group's role make one the other
    for session in (holder, thief):
        session.execute("set role fairq_worker")
    assert (holder.complete(jobs[1]), thief.complete(jobs[1])) == (False, False)
    holder.execute("reset role")
    assert holder.complete(jobs[1])


def leases_are_over(db: Database) -> None:
    """Time has passed; the scheduler has looked ahead, and must look again."""
    db.execute("update fairq.ticks set expire_floor = '-infinity'")
    db.execute("update fairq.leases set lease_expires_at = clock_timestamp()")


@attack("W06")
def a_lease_that_is_over_is_dead(db: Database) -> None:
    """For renew, complete, fail and release alike; and when the job is claimed again, the old token stays dead."""
    w = world(db)
    db.execute("delete from fairq.leases; delete from fairq.jobs")
    db.given_jobs("c", 1)
    worker = w.worker()
    (job,) = worker.claim(1)
    leases_are_over(db)
    assert (worker.renew(job), worker.complete(job), worker.fail(job), worker.release(job)) == (
        False,
        False,
        None,
        None,
    )
    (again,) = worker.claim(1)
    assert again.job_id == job.job_id
    assert again.lease_token != job.lease_token
    assert (worker.renew(job), worker.complete(job), worker.fail(job), worker.release(job)) == (
        False,
        False,
        None,
        None,
    )
    assert worker.complete(again)


@attack("W07")
def tokens_are_random_and_new(db: Database) -> None:
    """Version 4, a new one for each claim, also of the same job."""
    w = world(db)
    db.given_jobs("c", 20)
    worker = w.worker()
    tokens = set()
    for _ in range(2):
        jobs = worker.claim(20)
        tokens |= {job.lease_token for job in jobs}
        worker.release_all(jobs)
    assert len(tokens) >= 40
    assert all(token.version == 4 for token in tokens)


@attack("W09")
def no_job_is_claimed_twice(db: Database) -> None:
    """Eight workers at once."""
    db.given_jobs("c", 120)
    users = [db.login("fairq_worker") for _ in range(8)]
    sessions = [db.session(user=user) for user in users]

    def drain(number: int) -> list[int]:
        got: list[int] = []
        while jobs := sessions[number].claim(3, owner=str(number)):
            got += [job.job_id for job in jobs]
        return got

    running = [in_background(lambda number=number: drain(number)) for number in range(8)]
    claimed = [job for each in running for job in each.result()]
    assert len(claimed) == len(set(claimed)) == 120


@attack("W10")
def a_lease_ends_once(db: Database) -> None:
    """Of a completion and a failure at once, by the same worker on two connections, one counts."""
    db.given_jobs("c", 5)
    user = db.login("fairq_worker")
    one, other = db.session(user=user), db.session(user=user)
    for job in one.claim(5):
        first = in_background(lambda job=job: one.complete(job))
        second = in_background(lambda job=job: other.fail(job))
        assert (first.result() is True) + (second.result() is not None) == 1


@attack("W12")
def nobody_ends_a_lease_that_lives(db: Database) -> None:
    """Neither release_expired_jobs() nor promote_due_jobs() of another worker does it any harm."""
    w = world(db)
    db.given_jobs("c", 1)
    holder, other = w.worker(), w.worker()
    job = next(job for job in holder.claim(10) if job.tenant == "c")
    other.expire(limit=1000)
    other.promote(limit=1000)
    assert holder.complete(job)


@attack("W13")
def a_job_that_kills_workers_dies(db: Database) -> None:
    """Lost leases count as attempts: a job whose worker never comes back is dead in the end."""
    w = world(db)
    db.execute("delete from fairq.leases; delete from fairq.jobs")
    (job_id,) = db.given_jobs("c", 1, max_attempts=3)
    worker = w.worker()
    for _ in range(3):
        assert len(worker.claim(1)) == 1
        leases_are_over(db)
    assert worker.claim(1) == []
    assert db.state(job_id) == "dead"


@attack("W14")
def a_claim_that_is_rolled_back_never_was(db: Database) -> None:
    """The job is there for the next one."""
    w = world(db)
    db.execute("delete from fairq.leases; delete from fairq.jobs")
    db.given_jobs("c", 1)
    gone = db.session(user=db.login("fairq_worker"), autocommit=False)
    (job,) = gone.claim(1)
    gone.conn.rollback()
    worker = w.worker()
    assert worker.complete(job) is False
    assert [each.job_id for each in worker.claim(1)] == [job.job_id]


# --- the log -----------------------------------------------------------------------------------------------------

CHANGES = [
    "update fairq.job_log set attempt = 0", "delete from fairq.job_log", "truncate fairq.job_log",
    "truncate fairq.jobs, fairq.job_log cascade",
    "update fairq.job_log_0 set attempt = 0", "delete from fairq.job_log_0", "truncate fairq.job_log_0",
]  # fmt: skip


@attack("A01")
def nobody_rewrites_the_log(db: Database) -> None:
    """Neither the roles nor the owner nor a superuser, nor a session that replays as a replica."""
    w = world(db)
    before = db.rows("select * from fairq.job_log order by log_id")
    assert before
    for session in (w.tenant(), w.worker(), w.producer(), w.operator(), db.session(role="fairq_api"),
                    db.session(role="fairq_owner"), db.session()):  # fmt: skip
        refused(session, CHANGES)
    replica = db.session()
    replica.execute("set session_replication_role = replica")
    refused(replica, CHANGES)
    assert db.rows("select * from fairq.job_log order by log_id") == before


@attack("A02")
def nobody_forges_an_event(db: Database) -> None:
    """No caller writes the log, and the actor of an event is the caller, not what he says he is."""
    w = world(db)
    for session in (w.tenant(), w.worker(), w.producer(), w.operator()):
        refused(session, [FORGED])
    tenant = w.tenant("a")
    job = tenant.value("select (fairq.enqueue_job(p_task => 't')).job_id")
    tenant.cancel(job)
    assert db.value("select actor from fairq.job_log where job_id = %s", job) == tenant.conn.info.user


@attack("A03")
def the_log_outlives_its_job(db: Database) -> None:
    """No foreign key reaches it: deleting jobs takes no event along, and its rows go by prune() alone."""
    query = "select count(*) from pg_constraint where contype = 'f' and connamespace = 'fairq'::regnamespace"
    assert db.value(query) == 0
    world(db)
    before = db.value("select count(*) from fairq.job_log")
    db.execute("delete from fairq.leases; delete from fairq.jobs")
    assert db.value("select count(*) from fairq.job_log") == before > 0


# --- one tenant's use against another's ---------------------------------------------------------------------------


@attack("D04")
def payloads_are_bounded_by_their_text(db: Database) -> None:
    """One byte more than the queue allows is refused, however well it compresses; so is a result."""
    w = world(db)
    fits = "x" * (262144 - len('{"x": ""}'))
    # who says for which tenant takes another way
    for session, who in ((w.tenant("a"), {"task": "t"}), (w.producer(), {"task": "t", "tenant": "a"})):
        one = f"select fairq.enqueue_job({', '.join(f'p_{key} => %s' for key in who)}, p_payload => %s)"
        many = "select fairq.enqueue_jobs(jsonb_build_array(%s::jsonb || jsonb_build_object('payload', %s::jsonb)))"
        assert code(session, one, *who.values(), f'{{"x": "{fits}"}}') == OK
        for payload in (
            f'{{"x": "{fits}y"}}', f'{{"x": "{"a" * 20_000_000}"}}', f'{{"x": [{",".join("1" * 200_000)}]}}'
        ):  # fmt: skip
            assert code(session, one, *who.values(), payload) == "54000"
            assert code(session, many, json.dumps(who), payload) == "54000"
    worker = w.worker()
    (job,) = worker.claim(1)
    held = [job.job_id, job.lease_token]
    assert code(worker, "select fairq.complete_job(%s, %s, %s)", *held, f'{{"x": "{fits}y"}}') == "54000"
    assert worker.complete(job)


@attack("D07")
def an_error_of_any_size_ends_the_attempt(db: Database) -> None:
    """Forty megabytes of text are cut, and do not keep the job running."""
    w = world(db)
    worker = w.worker()
    (job,) = worker.claim(1)
    assert worker.fail(job, error="é" * 20_000_000, retry=False) == "dead"
    stored = db.value("select octet_length(last_error::text) from fairq.finished_jobs where job_id = %s", job.job_id)
    assert stored < 20_000


@attack("D09")
def depths_and_characters_are_refused_by_code(db: Database) -> None:
    """A JSON too deep, NUL, a lone surrogate, and half a character: the documented code, and the session lives."""
    w = world(db)
    tenant = w.tenant("a")
    before = tenant.value("select count(*) from fairq.all_jobs")
    call = "select fairq.enqueue_job(p_task => 't', p_payload => %s::jsonb)"
    deep = '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}"
    hostile = {deep: "54001", r'{"x": "\u0000"}': "22P05", r'{"x": "\ud800"}': "22P02", '{"x": NaN}': "22P02"}
    for payload, expected in hostile.items():
        assert code(tenant, call, payload) == expected
    assert code(tenant, "select fairq.enqueue_job(p_task => convert_from('\\xff'::bytea, 'UTF8'))") == "22021"
    assert code(tenant, "select fairq.enqueue_job(p_task => 't', p_run_at => 'infinity')") == "22023"
    # who says for which tenant takes another way
    for session, who in ((tenant, "p_task => 't'"), (w.producer(), "p_task => 't', p_tenant => 'a'")):
        for cost in ("NaN", "infinity"):
            assert code(session, f"select fairq.enqueue_job({who}, p_cost => %s)", cost) == "22023"
    assert tenant.value("select count(*) from fairq.all_jobs") == before
    assert code(tenant, "select fairq.enqueue_job(p_task => 't')") == OK


@attack("D11")
def keys_of_two_tenants_never_meet(db: Database) -> None:
    """The same key is two jobs, and tells neither tenant of the other; one tenant's own is one job."""
    w = world(db)
    call = "select (e).job_id, (e).created from (select fairq.enqueue_job(p_task => 't', p_key => 'k') as e) as s"
    a, b = w.tenant("a"), w.tenant("b")
    (first,), (second,), (again,) = a.rows(call), b.rows(call), a.rows(call)
    assert first.created
    assert second.created
    assert second.job_id != first.job_id
    assert (again.job_id, again.created) == (first.job_id, False)


@attack("D12")
def errors_carry_no_row(db: Database) -> None:
    """A violated constraint tells nothing of the row under row-level security, not even to the functions' role."""
    world(db)
    for role in ("fairq_api", "fairq_owner"):
        session = db.session(role=role)
        with pytest.raises(psycopg.errors.CheckViolation) as refusal:
            session.execute(
                "insert into fairq.jobs (tenant, task, payload, attempts) values ('b', 't', '{\"s\": 1}', 9)"
            )
        assert refusal.value.diag.message_detail is None
        with pytest.raises(psycopg.errors.UniqueViolation) as taken:
            session.execute("insert into fairq.queues (queue) values ('*')")
        assert taken.value.diag.message_detail is None


# --- hijacking the functions ---------------------------------------------------------------------------------------


def life(session: Session, queue: str = "h") -> None:
    """A job from enqueue to the end, and whatever else the session's groups may call."""
    one = "select (fairq.enqueue_job('a', 't', '{\"x\": 1}', %s, p_key => %s)).job_id"
    session.value(one, queue, "k")
    session.value(one, queue, "k")
    session.rows("select * from fairq.enqueue_jobs(%s)",
                 f'[{{"tenant": "a", "task": "t", "queue": "{queue}"}}, {{"tenant": "b", "task": "t", "key": "k", '
                 f'"queue": "{queue}"}}]')  # fmt: skip
    renewed = "select fairq.renew_job_lease(%s, %s, '1 minute')"
    endings = (
        "fail_job(%s, %s, '{\"code\": \"E\"}', '0')",
        "release_job(%s, %s)",
        "complete_job(%s, %s, '{\"ok\": true}')",
    )
    for ending in endings:
        (job,) = session.rows("select job_id, lease_token from fairq.claim_jobs(%s, 'thief', 1)", queue)
        assert job.lease_token.version == 4
        assert session.value(renewed, job.job_id, job.lease_token) is True
        assert session.value(f"select fairq.{ending}", job.job_id, job.lease_token)
    held = session.rows("select job_id, lease_token from fairq.claim_jobs(%s, 'thief', 10)", queue)
    pairs = [job.job_id for job in held], [job.lease_token for job in held]
    assert {row.outcome for row in session.rows("select * from fairq.renew_job_leases(%s, %s)", *pairs)} == {"renewed"}
    assert {row.outcome for row in session.rows("select * from fairq.complete_jobs(%s, %s)", *pairs)} == {"succeeded"}
    other = session.value(one, queue, "other")
    assert session.rows("select reason from fairq.explain_wait(%s)", other)[0].reason in ("not_looked_at", "in_line")
    assert session.value("select fairq.cancel_job(%s)", other) == "cancelled"
    assert session.value("select fairq.retry_job(%s)", other) == "queued"
    assert session.value("select fairq.reschedule_job(%s, p_priority => 0)", other) == "queued"
    assert session.rows("select state from fairq.get_job(%s)", other) == [("queued",)]
    session.execute("select fairq.set_tenant(%s, 'a', 2), fairq.set_queue(%s, p_charge => 'jobs')", queue, queue)
    session.execute("select fairq.pause_tenant(%s, 'a'), fairq.resume_tenant(%s, 'a')", queue, queue)
    session.rows("select s.queue, t.tenant from fairq.queue_stats(%s) as s, fairq.tenant_stats(%s) as t", queue, queue)
    session.rows("select fairq.prune(), fairq.promote_due_jobs(), fairq.release_expired_jobs()")
    assert session.value("select fairq.purge_tenant(%s, 'a')", queue) == 1


def thief(db: Database) -> Session:
    """A login that may call nearly everything and owns a schema of traps that everybody may use."""
    user = db.login("fairq_worker", "fairq_producer", "fairq_operator")
    db.execute(f"create schema trap authorization {user}")
    session = db.session(user=user)
    session.execute("""
        create sequence trap.traces;
        create function trap.leave(p anyelement) returns boolean language sql as
        $$ select nextval('trap.traces') > 0 $$;
        create function trap.leave_row() returns trigger language plpgsql as
        $$ begin perform nextval('trap.traces'); return new; end $$;
        grant usage on schema trap to public;
        grant usage on sequence trap.traces to public;
    """)
    return session


def nothing_was_trapped(session: Session) -> None:
    """No code of the thief's has run with rights that are not his."""
    session.execute("reset search_path")
    assert session.value("select is_called from trap.traces") is False


TYPES = ("text", "jsonb", "uuid", "int4", "int8", "timestamptz", "name", "bytea", "interval", "float8", "bool", "xid8")


@attack("H01")
def temporary_types_are_not_used(db: Database) -> None:
    """A domain in pg_temp of the name of each type a body speaks of, with a check that leaves a trace."""
    session = thief(db)
    for name in TYPES:
        session.execute(f"create domain pg_temp.{name} as pg_catalog.{name} check (trap.leave(value))")
    session.execute("set search_path = pg_temp, pg_catalog, trap")
    life(session)
    for name in TYPES:
        session.execute(f"drop domain pg_temp.{name}")
    nothing_was_trapped(session)


@attack("H02")
def temporary_tables_are_not_used(db: Database) -> None:
    """One of the name of each table, view and of parts of the catalog, open to all, with a trigger."""
    session = thief(db)
    names = [each.split(".")[1] for each in relations(db, "rv")]
    for name in [*names, "pg_class", "pg_proc", "pg_locks", "pg_stat_activity", "pg_roles"]:
        session.execute(f"create temp table {name} (like pg_catalog.pg_class)")
        session.execute(f"create trigger trap before insert or update or delete on pg_temp.{name} "
                        "for each row execute function trap.leave_row()")  # fmt: skip
        session.execute(f"grant all on pg_temp.{name} to public")
    session.execute("set search_path = pg_temp, pg_catalog, trap")
    life(session)
    nothing_was_trapped(session)


@attack("H03")
def operators_and_functions_of_the_attackers_are_not_used(db: Database) -> None:
    """Comparisons, the clock, chance and settings, in a schema that is first in the path."""
    session, number = thief(db), itertools.count()
    for sign in ("=", "<>", "<", ">", ">=", "<=", "||", "~", "!~", "+", "-"):
        for name in ("text", "timestamptz", "int4", "int8", "uuid", "jsonb", "interval", "xid8"):
            function = f"trap.same_{next(number)}"
            session.execute(f"create function {function}({name}, {name}) returns boolean language sql as "
                            "$$ select nextval('trap.traces') > 0 $$")  # fmt: skip
            session.execute(f"create operator trap.{sign} (leftarg = {name}, rightarg = {name}, function = {function})")
    for signature, returned in {
        "now()": "timestamptz", "clock_timestamp()": "timestamptz", "gen_random_uuid()": "uuid", "length(text)": "int",
        "current_setting(text)": "text", "current_setting(text, boolean)": "text", "octet_length(text)": "int",
        "set_config(text, text, boolean)": "text", "pg_current_xact_id()": "xid8", "sha256(bytea)": "bytea",
        "pg_has_role(name, oid, text)": "boolean", "jsonb_typeof(jsonb)": "text", "nextval(regclass)": "bigint",
    }.items():  # fmt: skip
        session.execute(f"create function trap.{signature} returns {returned} language sql as "
                        f"$$ select pg_catalog.nextval('trap.traces'); select null::{returned} $$")  # fmt: skip
    session.execute("set search_path = trap, pg_catalog")
    life(session)
    nothing_was_trapped(session)


@attack("H04")
def nothing_foreign_hangs_on_our_tables(db: Database) -> None:
    """No trigger, rule or default of another schema's function."""
    query = """
        select t.tgname::text from pg_trigger as t
        join pg_class as c on c.oid = t.tgrelid join pg_proc as p on p.oid = t.tgfoid
        where c.relnamespace = 'fairq'::regnamespace and not t.tgisinternal and p.pronamespace <> 'fairq'::regnamespace
        union all
        select r.rulename::text from pg_rewrite as r join pg_class as c on c.oid = r.ev_class
        where c.relnamespace = 'fairq'::regnamespace and r.rulename <> '_RETURN'
    """
    assert db.rows(query) == []


@attack("H05")
def hostile_words_are_kept_as_they_are(db: Database) -> None:
    """In queue, tenant, task, key and owner; nothing in the schema puts a statement together."""
    words = ["q'; drop table fairq.jobs; --", "$$;select 1;--", "$fn$", '"', "a\nb", "%s %I", "\\", "{}", "😀" * 20]
    session = thief(db)
    for word in words:
        job = session.value("select (fairq.enqueue_job(%s, %s, p_queue => %s, p_key => %s)).job_id", *[word] * 4)
        assert session.rows("select tenant, task, queue, operation_key from fairq.get_job(%s)", job) == [(word,) * 4]
        (claimed,) = session.rows("select * from fairq.claim_jobs(%s, %s)", word, word)
        assert (claimed.job_id, claimed.tenant) == (job, word)
        assert session.value("select fairq.fail_job(%s, %s, %s, '0')", job, claimed.lease_token, word) == "queued"
        session.value("select fairq.channel(%s)", word)
        session.execute("select fairq.set_tenant(%s, %s, 2), fairq.set_queue(%s, p_paused => true)", word, word, word)
    bodies = db.rows("select prosrc from pg_proc where pronamespace = 'fairq'::regnamespace")
    assert [b for (b,) in bodies if re.search(r"(?i)\bexecute\b", re.sub(r"--[^\n]*|'[^']*'", "", b))] == []


@attack("H07")
def settings_of_the_caller_change_nothing(db: Database) -> None:
    """Those that change what SQL means: quotes, nulls, asserts, dates, numbers, plans, isolation."""
    bodies = db.rows("select proname, prosrc from pg_proc where pronamespace = 'fairq'::regnamespace")
    assert [row.proname for row in bodies if "\\" in row.prosrc] == []
    session = thief(db)
    for name, value in {
        "transform_null_equals": "on", "array_nulls": "off", "extra_float_digits": "-15", "datestyle": "SQL, DMY",
        "intervalstyle": "sql_standard", "bytea_output": "escape", "plpgsql.check_asserts": "off",
        "plpgsql.print_strict_params": "on", "plpgsql.variable_conflict": "use_column", "timezone": "'Pacific/Apia'",
        "default_transaction_isolation": "'read committed'", "enable_indexscan": "off", "from_collapse_limit": "1",
        "standard_conforming_strings": "off", "backslash_quote": "on", "escape_string_warning": "off",
        "row_security": "on", "xmlbinary": "hex", "lc_messages": "'C'", "client_min_messages": "error",
        "check_function_bodies": "off", "default_toast_compression": "pglz", "work_mem": "64", "jit": "off",
        "synchronous_commit": "off", "temp_buffers": "800", "statement_timeout": "20000",
    }.items():  # fmt: skip
        try:
            session.execute(f"set {name} = {value}")
        except psycopg.errors.InsufficientPrivilege:
            assert name in ("plpgsql.variable_conflict", "lc_messages")
    life(session)


# --- side channels ---------------------------------------------------------------------------------------------


@attack("S01")
def a_notification_says_nothing(db: Database) -> None:
    """Off by default; switched on, whoever listens hears that a queue has work, and no more."""
    w = world(db)
    db.claim(100)
    listener = w.stranger()
    channels = [db.value("select fairq.channel(%s)", queue) for queue in ("default", "loud")]
    for channel in channels:
        listener.execute(f'listen "{channel}"')
    db.claim(1, queue="loud")
    for call in (
        "enqueue_job('a', 't')", "enqueue_job('a', 't', p_key => 'k')",
        """enqueue_jobs('[{"tenant": "a", "task": "t"}]')""",
    ):  # fmt: skip
        w.producer().execute(f"select fairq.{call}")
    assert list(listener.conn.notifies(timeout=0.2)) == []
    db.set_queue("loud", notify=True)
    for caller, tenant in ((w.tenant("a"), None), (w.producer(), "a")):
        caller.execute("select fairq.enqueue_job(%s, 't', '{\"s\": 1}', p_queue => 'loud')", tenant)
        heard = list(listener.conn.notifies(timeout=5, stop_after=1))
        assert [(each.channel, each.payload) for each in heard] == [(channels[1], "")]


@attack("S02")
def no_advisory_lock_is_in_the_way(db: Database) -> None:
    """No body takes one, so that nobody can hold it; a stranger who holds all likely ones delays no claim."""
    bodies = db.rows("select proname, prosrc from pg_proc where pronamespace = 'fairq'::regnamespace")
    assert [row.proname for row in bodies if "advisory" in row.prosrc.lower()] == []
    w = world(db)
    stranger = w.stranger()
    stranger.execute("select pg_advisory_lock(n) from generate_series(-50, 50) as n")
    for text in ("fairq", "default", "fairq.jobs", "fairq.claim_jobs"):
        stranger.execute("select pg_advisory_lock(hashtext(%s)), pg_advisory_lock(hashtextextended(%s, 0))", text, text)
    worker = db.session(user=db.login("fairq_worker"), statement_timeout="3s")
    assert worker.claim(1)


@attack("S04")
def views_have_the_rights_of_their_reader(db: Database) -> None:
    """Each is security_invoker, and none is materialized."""
    query = """
        select c.oid::regclass::text from pg_class as c
        where c.relnamespace = 'fairq'::regnamespace
          and (c.relkind = 'm' or c.relkind = 'v' and not coalesce(c.reloptions @> '{security_invoker=true}', false))
    """
    assert db.rows(query) == []


@attack("S05")
def sequences_tell_nobody_how_much_is_going_on(db: Database) -> None:
    """last_value, nextval and setval are for the functions alone."""
    w = world(db)
    for session in (w.tenant(), w.worker(), w.producer(), w.operator(), w.stranger()):
        for sequence in relations(db, "S"):
            refused(session, [f"select last_value from {sequence}", f"select nextval('{sequence}')",
                              f"select setval('{sequence}', 1)", f"select currval('{sequence}')"])  # fmt: skip


@attack("S07")
def what_is_unique_is_so_within_a_tenant(db: Database) -> None:
    """Keys that tenants choose are unique within the tenant; ids that fairq gives are the only others."""
    given_by_us = {"jobs_pkey", "leases_pkey", "finished_jobs_pkey", "job_log_pkey", "ready_picks_pkey"}
    given_by_us |= {f"{table}_{slot}_pkey" for table in ("finished_jobs", "job_log") for slot in range(4)}
    of_operators = {"queues_pkey", "schedulers_pkey", "ticks_pkey", "access_grants_pkey", "pause_notes_pkey"}
    query = """
        select c.relname::text as name, a.attname::text as first from pg_index as i
        join pg_class as c on c.oid = i.indexrelid
        join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
        where c.relnamespace = 'fairq'::regnamespace and i.indisunique
    """
    others = {row.name: row.first for row in db.rows(query) if row.name not in given_by_us | of_operators}
    assert others
    assert set(others.values()) == {"tenant"}, others
    assert (
        db.value("select count(*) from pg_constraint where contype = 'f' and connamespace = 'fairq'::regnamespace") == 0
    )


@attack("S08")
def a_tenants_open_transaction_holds_up_nobody(db: Database) -> None:
    """It has read all it may and sits there: others enqueue, claim and complete."""
    w = world(db)
    idle = db.session(user=db.login("fairq_tenant"), autocommit=False)
    idle.execute("set app.tenant_id = 'a'")
    for table in TABLES_OF_TENANTS:
        idle.rows(f"select count(*) from fairq.{table}")
    idle.execute("select fairq.enqueue_job(p_task => 't', p_key => 'k')")
    other = db.session(user=db.login("fairq_tenant"), statement_timeout="3s")
    other.execute("set app.tenant_id = 'b'")
    other.execute("select fairq.enqueue_job(p_task => 't', p_key => 'k')")
    worker = db.session(user=db.login("fairq_worker"), statement_timeout="3s")
    for job in worker.claim(10):
        assert worker.complete(job)
    idle.conn.rollback()
    assert w.running


# --- operating ---------------------------------------------------------------------------------------------------


@attack("O02")
def the_owner_is_not_blind(db: Database) -> None:
    """Row security is forced on the owner, too, and lets it reach every row: a migration's backfill misses none."""
    world(db)
    owner = db.session(role="fairq_owner")
    for table in relations(db):
        assert owner.value(f"select count(*) from {table}") == db.value(f"select count(*) from {table}"), table
    assert owner.execute("update fairq.jobs set last_error = '{}'").rowcount == db.value(
        "select count(*) from fairq.jobs"
    )


@attack("O03")
def what_a_migration_adds_is_closed(db: Database) -> None:
    """A function or type that owner or api make later, under a new or an old name, is not PUBLIC's."""
    owner, stranger = db.session(role="fairq_owner"), world(db).stranger()
    owner.execute("""
        create function fairq.channel(p_queue text, p_more text) returns text language sql as $$ select 'x' $$;
        drop function fairq.schema_version();
        create function fairq.schema_version() returns integer language sql as $$ select 2 $$;
        create type fairq.later as (x integer);
        grant usage on schema fairq to public;
        grant create on schema fairq to fairq_api;
    """)
    db.session(role="fairq_api").execute("create function fairq.added() returns integer language sql as 'select 1'")
    refused(stranger, ["select fairq.channel('q', 'x')", "select fairq.schema_version()", "select fairq.added()",
                       "create temp table t (x fairq.later)"])  # fmt: skip


@attack("O05")
def types_are_not_for_building_on(db: Database) -> None:
    """Who made a table or function of a type of ours would keep us from changing it."""
    w = world(db)
    query = """
        select t.oid::regtype::text from pg_type as t
        where t.typnamespace = 'fairq'::regnamespace and t.typelem = 0 order by 1
    """
    names = [row[0] for row in db.rows(query)]
    assert len(names) > 20
    for session in (w.worker(), w.tenant(), w.stranger()):
        refused(session, [f"create temp table t (x {name})" for name in names])
