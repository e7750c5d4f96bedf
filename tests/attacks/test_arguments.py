"""Every public function bears every argument: success or a documented code, a session that lives, nothing half done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fairq_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.database import Database, Session
    from tests.support.databases import Databases

# what a function may say; whatever else comes out of its body is a defect
DOCUMENTED = {"22023", "42501", "54000", "QF002", "40001", "0A000", "55P03"}

WORDS = [
    "", " ", "a", "b", "*", "@own", "default", "'", '"', "\\", "$$", "$fn$", "%", "%s", "{}", "{a,b}", "null", "\n\t",
    "'; drop table fairq.jobs; --", "k" * 200, "k" * 201, "é" * 100, "é" * 101, "😀", "\u202e", "\ufeff", "\x01",
    "x" * 100_000,
]  # fmt: skip
NUMBERS = [-(2**31), -1000, -1, 0, 1, 2, 3, 4, 10, 1000, 1001, 10_000, 100_000, 2**31 - 1]
SPANS = [
    "0", "1 microsecond", "-1 microsecond", "1 millisecond", "1 second", "1 hour", "7 days", "8 days", "3650 days",
    "3651 days", "1 month -1 day", "-1 month 40 days", "1 day -1 second", "100 years", "178000000 years",
    "-178000000 years", "infinity", "-infinity", "2147483647 days", "00:00:00.0000005",
]  # fmt: skip
MOMENTS = [
    "now", "epoch", "infinity", "-infinity", "4714-11-24 00:00:00+00 BC", "294276-12-31 23:59:59+00", "2000-02-29",
    "9999-12-31 23:59:59.999999+00",
]  # fmt: skip
FRACTIONS = [
    "0",
    "-0",
    "1",
    "-1",
    "0.001",
    "1e6",
    "1000001",
    "1e308",
    "-1e308",
    "5e-324",
    "NaN",
    "Infinity",
    "-Infinity",
]
UUIDS = ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"]

any_text = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=300)
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)
FIELDS = [
    "tenant",
    "task",
    "payload",
    "queue",
    "run_at",
    "delay",
    "priority",
    "max_attempts",
    "key",
    "key_ttl",
    "cost",
    "traceparent",
    "zz",
]
a_job = st.dictionaries(
    st.sampled_from(FIELDS), any_json | st.sampled_from([*WORDS, *SPANS, *MOMENTS, *FRACTIONS, *NUMBERS]), max_size=6
)


@dataclass
class Attacked:
    """A database, the logins that call, and what they hold."""

    db: Database
    callers: list[Session]
    tokens: list[str] = field(default_factory=list)
    functions: dict[str, list[tuple[str, str]]] = field(default_factory=dict)


def signatures(db: Database, groups: list[str]) -> dict[str, list[tuple[str, str]]]:
    """Each public function as the catalog has it: name -> (argument, type)."""
    query = """
        select p.proname as name, coalesce(p.proargnames, '{}') as names,
            array(select format_type(a.type, null) from unnest(p.proargtypes) with ordinality as a(type, nth)
                  order by a.nth) as types
        from pg_proc as p
        where p.pronamespace = 'fairq'::regnamespace
          and exists (select from unnest(%s::text[]) as g where has_function_privilege(g, p.oid, 'execute'))
    """
    return {row.name: list(zip(row.names, row.types, strict=True)) for row in db.rows(query, groups)}


GROUPS = ["fairq_worker", "fairq_producer", "fairq_operator"]


@pytest.fixture(scope="module", params=["setting", "token"])
def attacked(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Attacked]:
    """Two tenants with jobs, some of them held by the attacker, who has every group's rights; and a tenant."""
    with databases.clone() as db:
        fairq_schema.set_tenant_provider(db.dsn, request.param)
        functions = signatures(db, [*GROUPS, "fairq_tenant"])
        if request.param == "token":
            functions = {name: each for name, each in functions.items() if "tenant_" in name}
        everything, tenant = (db.session(user=db.login(*groups)) for groups in (GROUPS, ["fairq_tenant"]))
        tenant.execute("set app.tenant_id = 'a'")
        for name in "ab":
            db.given_jobs(name, 10)
        tokens = [str(job.lease_token) for job in everything.claim(8)]
        yield Attacked(db, [everything, tenant], tokens, functions)


def value(kind: str, tokens: list[str]) -> st.SearchStrategy[str | None]:
    """Hostile values of a type, as text; null among them."""
    if kind.endswith("[]"):
        element = value(kind.removesuffix("[]"), tokens)
        plain = st.lists(element, max_size=5).map(array)
        odd = st.sampled_from(["{}", "[0:0]={1}", "{{1,2},{3,4}}", "{NULL}", "[2:3]={1,2}"])
        many = element.map(lambda each: array([each] * 1001))
        return st.none() | plain | odd | many
    import json

    strategies: dict[str, st.SearchStrategy[str]] = {
        "text": st.sampled_from(WORDS) | any_text,
        "integer": st.sampled_from(NUMBERS).map(str) | st.integers(-(2**31), 2**31 - 1).map(str),
        "bigint": st.integers(0, 25).map(str) | st.integers(-(2**63), 2**63 - 1).map(str),
        "boolean": st.sampled_from(["t", "f"]),
        "double precision": st.sampled_from(FRACTIONS) | st.floats().map(repr),
        "interval": st.sampled_from(SPANS),
        "timestamp with time zone": st.sampled_from(MOMENTS),
        "uuid": st.sampled_from([*UUIDS, *tokens]) | st.uuids().map(str),
        "bytea": st.binary(max_size=70).map(lambda each: f"\\x{each.hex()}"),
        "jsonb": (any_json | st.lists(a_job, max_size=4) | st.just([{"tenant": "a", "task": "t"}] * 10_001)).map(
            json.dumps
        )
        | st.integers(1, 9000).map(lambda depth: '{"x": ' + "[" * depth + "]" * depth + "}"),
    }
    return st.none() | strategies[kind]


def array(elements: list[str | None]) -> str:
    """An array as PostgreSQL reads it."""
    quoted = (
        "NULL" if each is None else '"' + each.replace("\\", "\\\\").replace('"', '\\"') + '"' for each in elements
    )
    return "{" + ",".join(quoted) + "}"


def counts(db: Database) -> Any:
    """How many rows are where, and that no job is in two places, or runs and is not there."""
    query = """
        select (select count(*) from fairq.jobs) as jobs, (select count(*) from fairq.leases) as leases,
            (select count(*) from fairq.finished_jobs) as finished, (select count(*) from fairq.job_log) as log,
            (select count(*) from fairq.job_keys) as keys, (select count(*) from fairq.tenants) as tenants,
            (select count(*) from fairq.queues) as queues, (select count(*) from fairq.settlements) as settlements,
            (select count(*) from fairq.leases as l where not exists (
                select from fairq.jobs as j where j.job_id = l.job_id)) as homeless,
            (select count(*) from fairq.jobs as j join fairq.finished_jobs as f using (job_id)) as twice,
            (select count(*) from fairq.access_grants) as grants
    """
    (row,) = db.rows(query)
    assert (row.homeless, row.twice, row.grants) == (0, 0, 6)
    return row


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_any_argument_is_borne(attacked: Attacked, data: st.DataObject) -> None:
    """A call with hostile arguments, some of them left out, by one who may do everything and by a tenant."""
    assert attacked.functions
    caller = data.draw(st.sampled_from(attacked.callers), label="caller")
    name = data.draw(st.sampled_from(sorted(attacked.functions)), label="function")
    arguments = attacked.functions[name]
    given_ones = data.draw(st.lists(st.sampled_from(arguments), unique=True) if arguments else st.just([]))
    drawn = {argument: data.draw(value(kind, attacked.tokens), label=argument) for argument, kind in given_ones}
    kinds = dict(arguments)
    call = ", ".join(f"{argument} => %s::{kinds[argument]}" for argument in drawn)
    before = counts(attacked.db)
    try:
        caller.conn.execute(f"select fairq.{name}({call})".encode(), list(drawn.values()) or None)
    except psycopg.Error as error:
        refusal: psycopg.Error | None = error
    else:
        refusal = None
    after = counts(attacked.db)
    if refusal is not None:
        said = f"{name}({drawn!r:.300}): {refusal.sqlstate} {refusal.diag.message_primary} {refusal.diag.context}"
        if "function fairq." in (refusal.diag.context or ""):
            assert refusal.sqlstate in DOCUMENTED, said
        else:
            # the literal itself, or an argument that has no default
            assert (refusal.sqlstate or "")[:2] in ("22", "42", "54"), said
        assert after == before, said
    assert caller.value("select 1") == 1


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(text=any_text | st.sampled_from(WORDS))
def test_any_token_is_borne(attacked: Attacked, text: str) -> None:
    """Whatever a session says it is: a tenant, or nobody; never an error of another kind, never another tenant."""
    caller = attacked.callers[1]
    for setting in ("app.tenant_id", "app.tenant_token"):
        caller.execute("select set_config(%s, %s, false)", setting, text)
    try:
        assert caller.value("select fairq.current_tenant_id()") in (text or None, None)
        tenants = {row.tenant for row in caller.rows("select distinct tenant from fairq.all_jobs")}
        assert tenants <= {text}
    finally:
        caller.execute("set app.tenant_id = 'a'")
