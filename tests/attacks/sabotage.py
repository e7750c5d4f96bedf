"""Ways to weaken the schema, and for each the attack (see attacks.py) or pgTAP file that must notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.mutants import Edit, Statement
from tests.support.pgtap import run_sql_test

from .attacks import ATTACKS

if TYPE_CHECKING:
    from tests.support.database import Database
    from tests.support.mutants import Mutation

SQL_TESTS = Path(__file__).resolve().parents[2] / "sql_tests"


@dataclass(frozen=True)
class Several:
    """A weakening that takes more than one step."""

    parts: tuple[Mutation, ...]

    def __call__(self, db: Database) -> None:
        """Break `db`."""
        for part in self.parts:
            part(db)


def both(*parts: Mutation) -> Several:
    """Several steps, one weakening."""
    return Several(parts)


def noticed_by(name: str, db: Database) -> None:
    """Run an attack by its number, or a pgTAP file by its name; an AssertionError is what kills."""
    if name in ATTACKS:
        ATTACKS[name](db)
        return
    tap = run_sql_test(SQL_TESTS / f"{name}_test.sql", db.dsn)
    failed = [line for line in tap if line.startswith("not ok")]
    assert not failed, failed


CLAIM = "fairq.claim_jobs(text, text, integer, interval, text, boolean)"
COMPLETE = "fairq.complete_job(bigint, uuid, jsonb)"
SET_TENANT = "fairq.set_tenant(text, text, float8, integer, boolean, float8, integer)"
SETTING = "pg_catalog.current_setting('app.tenant_id', true)"
CALLER = "case when current_setting('role') = 'none' then session_user::text else current_setting('role') end"
CALLER_AT_ONCE = "case when current_setting('role') = 'none' then session_user else current_setting('role')::name end"
HAS_ROLE_OF_CALLER = f"""
              and pg_has_role(
                  {CALLER_AT_ONCE},
                  to_regrole(quote_ident(a.role_name))::oid, 'usage'
              )"""
HAS_ROLE = "and pg_has_role(p_caller::name, to_regrole(quote_ident(a.role_name))::oid, 'usage')"
PAYLOAD = "octet_length(p_job.payload::text) > p_settings.payload_limit"
ENQUEUE = """fairq.enqueue_job(
    text, text, jsonb, text, timestamptz, interval, integer, integer, text, interval, double precision, text
)"""
OWN = "tenant = (select fairq.current_tenant_id())"
OPEN = f"{OWN} or (select fairq.current_tenant_id()) is null"


def sql(statement: str) -> Statement:
    """One statement."""
    return Statement(statement)


def before_check_id(code: str) -> Edit:
    """One statement more in a helper that many functions call."""
    return Edit("_check_id", "if p_job_id is null then", f"{code} if p_job_id is null then")


def for_a_moment(statement: str) -> Statement:
    """A statement about roles, which belong to the whole cluster: it is never committed."""
    return Statement(f"begin; {statement}")


# what is done -> (how, who notices)
SABOTAGES: dict[str, tuple[Mutation, str]] = {
    # functions for the wrong people
    "everybody claims": (sql(f"grant execute on function {CLAIM} to public"), "P03"),
    "everybody may call what is for tenants to ask": (
        sql("grant execute on function fairq.current_tenant_id() to public"),
        "P01",
    ),
    "a tenant claims": (sql(f"grant execute on function {CLAIM} to fairq_tenant"), "P03"),
    "a worker enqueues": (sql(f"grant execute on function {ENQUEUE} to fairq_worker"), "P03"),
    "a producer completes": (sql(f"grant execute on function {COMPLETE} to fairq_producer"), "P03"),
    "a worker prunes": (sql("grant execute on function fairq.prune(integer) to fairq_worker"), "P03"),
    "a tenant sets its weight": (sql(f"grant execute on function {SET_TENANT} to fairq_tenant"), "P03"),
    "a producer revives jobs": (sql("grant execute on function fairq.retry_job(bigint) to fairq_producer"), "P03"),
    "a tenant reads the stats of all": (
        sql("grant execute on function fairq.queue_stats(text) to fairq_tenant"),
        "P03",
    ),
    "a worker calls an internal function": (sql("grant execute on function fairq._caller() to fairq_worker"), "P03"),
    "a right that may be passed on": (
        sql(f"grant execute on function {CLAIM} to fairq_worker with grant option"),
        "01_privileges",
    ),
    "another group may claim": (sql(f"grant execute on function {CLAIM} to pg_monitor"), "01_privileges"),
    "a second form of a function": (
        sql("create function fairq.channel(p_queue text, p_more text) returns text language sql as 'select 1'"),
        "01_privileges",
    ),
    # tables for the wrong people
    "a worker reads jobs": (sql("grant select on fairq.jobs to fairq_worker"), "P04"),
    "a producer deletes jobs": (sql("grant delete on fairq.jobs to fairq_producer"), "P04"),
    "a worker empties jobs": (sql("grant truncate on fairq.jobs to fairq_worker"), "P04"),
    "a worker reads who may do what": (sql("grant select on fairq.access_grants to fairq_worker"), "P04"),
    "a tenant moves jobs to another tenant": (sql("grant update (tenant) on fairq.jobs to fairq_tenant"), "P06"),
    "a tenant writes the log": (sql("grant insert on fairq.job_log to fairq_tenant"), "01_privileges"),
    "a tenant hangs a trigger on jobs": (sql("grant trigger on fairq.jobs to fairq_tenant"), "P06"),
    "a tenant probes ids by a foreign key": (sql("grant references (job_id) on fairq.jobs to fairq_tenant"), "P06"),
    "a tenant locks rows": (sql("grant update (state) on fairq.jobs to fairq_tenant"), "P06"),
    "a tenant draws ids": (sql("grant usage on sequence fairq.jobs_job_id_seq to fairq_tenant"), "S05"),
    "a worker watches the sequence": (sql("grant select on sequence fairq.dispatch_seq to fairq_worker"), "S05"),
    "a tenant reads tokens": (sql("grant select (lease_token) on fairq.leases to fairq_tenant"), "P07"),
    "an operator reads tokens": (sql("grant select on fairq.leases to fairq_operator"), "P07"),
    "an operator reads the hashes of tokens": (
        sql("grant select (token_hash) on fairq.finished_jobs to fairq_operator"),
        "P07",
    ),
    "an operator changes jobs": (sql("grant update on fairq.jobs to fairq_operator"), "01_privileges"),
    "PUBLIC reads a column": (sql("grant select (queue) on fairq.queues to public"), "P01"),
    "PUBLIC looks into the schema": (sql("grant usage on schema fairq to public"), "P01"),
    "PUBLIC makes things in the schema": (sql("grant create on schema fairq to public"), "P08"),
    "the functions' role makes things in the schema": (sql("grant create on schema fairq to fairq_api"), "P08"),
    "an operator makes things in the schema": (sql("grant create on schema fairq to fairq_operator"), "P08"),
    "PUBLIC builds on the rows of jobs": (sql("grant usage on type fairq.jobs to public"), "O05"),
    "a worker builds on what it claims": (sql("grant usage on type fairq.claimed_job to fairq_worker"), "O05"),
    "a tenant grants itself something": (sql("grant insert on fairq.access_grants to fairq_tenant"), "01_privileges"),
    "and there is a policy for it": (
        both(
            sql("grant insert on fairq.access_grants to fairq_tenant"),
            sql("create policy mine on fairq.access_grants for insert to fairq_tenant with check (true)"),
        ),
        "P14",
    ),
    # what later migrations make
    "new functions of the owner are for everybody": (
        sql("alter default privileges for role fairq_owner grant execute on functions to public"),
        "O03",
    ),
    "new functions of the functions' role are for everybody": (
        sql("alter default privileges for role fairq_api grant execute on functions to public"),
        "O03",
    ),
    "new types are for everybody": (
        sql("alter default privileges for role fairq_owner grant usage on types to public"),
        "O03",
    ),
    # roles
    "the functions pass by row security": (for_a_moment("alter role fairq_api bypassrls"), "P09"),
    "the owner logs in": (for_a_moment("alter role fairq_owner login"), "P09"),
    "workers are the functions' role": (for_a_moment("grant fairq_api to fairq_worker"), "P09"),
    "operators are the owner": (for_a_moment("grant fairq_owner to fairq_operator"), "P09"),
    "tenants make roles": (for_a_moment("alter role fairq_tenant createrole"), "P09"),
    # row-level security
    "the owner's row security is not forced": (sql("alter table fairq.jobs no force row level security"), "P10"),
    "and an error then shows the row": (sql("alter table fairq.jobs no force row level security"), "D12"),
    "grants have no row security": (sql("alter table fairq.access_grants disable row level security"), "I13"),
    "jobs have no row security": (sql("alter table fairq.jobs disable row level security"), "I02"),
    "a policy for everybody": (sql("create policy mine on fairq.flows for select using (true)"), "I13"),
    "the owner has no policy": (sql("drop policy owner_does_all on fairq.jobs"), "O02"),
    "the functions have none to lock by": (sql("drop policy api_locks on fairq.schedulers"), "00_conventions"),
    "the queue's lock can be renamed": (
        both(
            sql("drop policy api_locks on fairq.schedulers"),
            sql("create policy api_locks on fairq.schedulers for update to fairq_api using (true) with check (true)"),
        ),
        "P11",
    ),
    "ended jobs can be changed": (
        both(
            sql("drop policy api_locks on fairq.finished_jobs"),
            sql("create policy api_locks on fairq.finished_jobs for update to fairq_api using (true)"),
        ),
        "P11",
    ),
    **{
        f"no fence around {table}": (sql(f"drop policy tenant_fence on fairq.{table}"), "I06")
        for table in ("jobs", "leases", "finished_jobs", "job_log")
    },
    **{
        f"nobody sees all of {table}": (
            both(
                sql(f"alter policy tenant_fence on fairq.{table} using ({OPEN})"),
                sql(f"alter policy tenant_reads_own on fairq.{table} using ({OPEN})"),
            ),
            "I01",
        )
        for table in ("jobs", "leases", "finished_jobs", "job_log")
    },
    "everybody sees all of jobs": (
        both(
            sql("alter policy tenant_fence on fairq.jobs using (true)"),
            sql("alter policy tenant_reads_own on fairq.jobs using (true)"),
        ),
        "I02",
    ),
    "a fence for reading only": (
        both(
            sql("drop policy tenant_fence on fairq.job_log"),
            sql(f"create policy tenant_fence on fairq.job_log for select to fairq_tenant using ({OWN})"),
        ),
        "I06",
    ),
    "all_jobs has the rights of its owner": (sql("alter view fairq.all_jobs set (security_invoker = false)"), "I02"),
    "job_events has the rights of its owner": (
        sql("alter view fairq.job_events set (security_invoker = false)"),
        "I02",
    ),
    "a materialized view of all": (sql("create materialized view fairq.copies as select * from fairq.jobs"), "S04"),
    # who is the tenant
    "an empty setting is a tenant": (Edit("current_tenant_id", f"nullif({SETTING}, '')", SETTING), "I01"),
    "who says nothing is a": (
        Edit("current_tenant_id", f"nullif({SETTING}, '')", f"coalesce(nullif({SETTING}, ''), 'a')"),
        "I01",
    ),
    "the setting is looked up by the caller's path": (
        both(
            Edit("current_tenant_id", "pg_catalog.current_setting", "current_setting"),
            sql("alter function fairq.current_tenant_id() reset search_path"),
        ),
        "I05",
    ),
    "a session without a tenant hears nothing": (
        Edit("_granted_tenants", "if v_tenants is null and v_is_nobody then", "if false then"),
        "I01",
    ),
    "who calls itself * is everybody": (
        Edit("_granted_tenants", "nullif(fairq.current_tenant_id(), '*')", "fairq.current_tenant_id()"),
        "I08",
    ),
    "every tenant is granted": (
        Edit("_granted_tenants", "    if found then", "    if true then"),
        "I07",
    ),
    "a tenant acts for whom it names": (
        Edit("_acting_tenant", "if v_tenant <> all(v_granted) and", "if false and"),
        "I07",
    ),
    "a tenant finds any job": (Edit("_find_job", "if v_granted = '{*}' or", "if true or"), "I07"),
    "a grant for one queue is one for all": (
        Edit("_granted_tenants", "a.queue in (p_queue, '*')", "true", times=2),
        "W01",
    ),
    "a grant to enqueue is one to cancel": (
        Edit("_granted_tenants", "a.verb = p_verb", "true", times=2),
        "enqueue/grants",
    ),
    "a grant is for whoever calls": (Edit("_granted_tenants", HAS_ROLE, times=2), "W01"),
    # the same in the statements that most calls need alone
    **{
        f"{function}, at once: {what}": (Edit(function, old.format(tenant=tenant, queue=queue), new), noticed)
        for function, verb, tenant, queue, noticed in (
            ("enqueue_job", "enqueue", "p_tenant", "p_queue", "W03"),
            ("_enqueue_plain_jobs", "enqueue", "d.tenant", "d.queue", "W03"),
            ("_take", "claim", None, "p_queue", "W01"),
        )
        for what, old, new in (
            ("a tenant acts for whom it names", "a.tenant in ({tenant}, '*')", "true"),
            ("a grant for one queue is one for all", "a.queue in ({queue}, '*')", "true"),
            ("a grant of one verb is one of all", f"a.verb = '{verb}'", "true"),
            (
                "a grant is for whoever calls",
                {
                    "enqueue_job": HAS_ROLE_OF_CALLER,
                    "_enqueue_plain_jobs": HAS_ROLE.replace("p_caller", "fairq._caller()"),
                }.get(function, HAS_ROLE),
                "",
            ),
        )
        if tenant or "{tenant}" not in old
    },
    # workers
    "any worker ends a lease": (Edit("_hold_lease", "and v_lease.caller = p_caller"), "W05"),
    "any token ends a lease": (Edit("_hold_lease", "v_lease.lease_token = p_token and"), "W04"),
    "a lease that is over lives": (
        Edit("_hold_lease", "and v_lease.lease_expires_at > coalesce(p_now, clock_timestamp())"),
        "W06",
    ),
    "the caller is who owns the function": (Edit("_caller", CALLER, "current_user::text"), "enqueue/grants"),
    "who enqueues at once is who logged in": (Edit("enqueue_job", CALLER_AT_ONCE, "session_user"), "W03"),
    "a claim has the caller's rights": (sql(f"alter function {CLAIM} security invoker"), "P03"),
    "prune has fewer rights than it needs": (
        both(
            sql("grant create on schema fairq to fairq_api"),
            sql("alter function fairq.prune(integer) owner to fairq_api"),
            sql("revoke create on schema fairq from fairq_api"),
        ),
        "P10",
    ),
    "an internal function has its owner's rights": (
        sql("alter function fairq._granted_tenants(text, text, text) security definer"),
        "00_conventions",
    ),
    # the functions' own role
    **{
        f"the functions may {what}": (sql(f"grant {right} to fairq_api"), "P11")
        for what, right in {
            "move a job to another tenant": "update (tenant) on fairq.jobs",
            "change a payload": "update (payload) on fairq.jobs",
            "change an id": "update (job_id) on fairq.jobs",
            "move a job to another queue": "update (queue) on fairq.jobs",
            "change a token": "update (lease_token) on fairq.leases",
            "hand a lease to another": "update (caller) on fairq.leases",
            "empty jobs": "truncate on fairq.jobs",
            "hang a trigger on jobs": "trigger on fairq.jobs",
        }.items()
    },
    "the functions may delete from the log": (sql("grant delete on fairq.job_log to fairq_api"), "01_privileges"),
    "the functions may grant": (
        both(
            sql("grant insert on fairq.access_grants to fairq_api"),
            sql("create policy mine on fairq.access_grants for insert to fairq_api with check (true)"),
        ),
        "P11",
    ),
    "the functions may drop queues": (
        both(
            sql("grant delete on fairq.queues to fairq_api"),
            sql("create policy mine on fairq.queues for delete to fairq_api using (true)"),
        ),
        "P11",
    ),
    # search paths
    "claim goes by the caller's path": (sql(f"alter function {CLAIM} reset search_path"), "P10"),
    "cancel goes by the caller's path": (sql("alter function fairq.cancel_job(bigint) reset search_path"), "H01"),
    "cancel goes by an empty path": (sql("alter function fairq.cancel_job(bigint) set search_path = ''"), "H01"),
    "cancel goes by pg_catalog alone": (
        sql("alter function fairq.cancel_job(bigint) set search_path = pg_catalog"),
        "H01",
    ),
    "cancel takes the caller's operators": (sql("alter function fairq.cancel_job(bigint) reset search_path"), "H03"),
    "a helper goes by pg_catalog alone": (
        sql("alter function fairq._granted_tenants(text, text, text) set search_path = pg_catalog"),
        "H01",
    ),
    "a table is looked up by its bare name": (
        Edit("_granted_tenants", "from fairq.access_grants as a", "from access_grants as a", times=2),
        "00_conventions",
    ),
    # what callers can set
    "a body with a backslash": (Edit("_check_name", "p_value !~ '[^[:space:]]'", r"p_value !~ '\S'"), "H07"),
    "a body that asserts": (before_check_id("assert true;"), "00_conventions"),
    "a body that puts a statement together": (before_check_id("execute 'select 1';"), "H05"),
    # the log
    "rows of the log may be changed": (sql("alter table fairq.job_log disable trigger job_log_rows_stay"), "A01"),
    "the log may be emptied": (sql("alter table fairq.job_log_0 disable trigger job_log_table_stays"), "A01"),
    "a replica may change the log": (sql("alter table fairq.job_log enable trigger job_log_rows_stay"), "A01"),
    "a replica may empty the log": (sql("alter table fairq.job_log_0 enable trigger job_log_table_stays"), "A01"),
    "rows of the log may be deleted while their job is there": (
        Edit(
            "_refuse_log_change",
            "if not exists (select from fairq.jobs",
            "return old; if not exists (select from fairq.jobs",
        ),
        "A01",
    ),
    "a worker writes the log": (
        both(
            sql("grant insert on fairq.job_log to fairq_worker"),
            sql("grant usage on sequence fairq.job_log_log_id_seq to fairq_worker"),
            sql("grant select on sequence fairq.slot_seq to fairq_worker"),
            sql("create policy mine on fairq.job_log for insert to fairq_worker with check (true)"),
        ),
        "A02",
    ),
    "the log goes with the job": (
        sql("alter table fairq.job_log add foreign key (job_id) references fairq.jobs on delete cascade not valid"),
        "A03",
    ),
    # one tenant's use against another's
    "payloads of any size": (Edit("_check_job", PAYLOAD, "false"), "D04"),
    "payloads of any size, at once": (
        Edit("enqueue_job", "octet_length(p_payload::text) <= q.payload_limit", "true"),
        "D04",
    ),
    "payloads of any size, many at once": (
        Edit("_enqueue_plain_jobs", "octet_length(jj.payload::text) <= hh.payload_limit", "true"),
        "D04",
    ),
    "a job that costs no number, at once": (Edit("enqueue_job", "p_cost <= 1000000", "true"), "D09"),
    "a job that never falls due": (Edit("_check_run_at", "not isfinite(p_run_at)", "false"), "D09"),
    "a job that costs no number": (
        Edit(
            "_check_job",
            "if p_job.cost is null or not (p_job.cost > 0 and p_job.cost <= 1000000) then",
            "if p_job.cost is null or p_job.cost <= 0 then",
        ),
        "D09",
    ),
    "a key for all tenants": (sql("create unique index on fairq.job_keys (operation_key)"), "S07"),
    "a key is looked up whoever's it is": (Edit("_draw_id", "where k.tenant = p_job.tenant and", "where"), "D11"),
    # what is foreign
    "a trigger of another schema": (
        sql("""create schema other;
               create function other.f() returns trigger language plpgsql as 'begin return new; end';
               create trigger other before insert on fairq.jobs for each row execute function other.f()"""),
        "H04",
    ),
    "a rule": (sql("create rule other as on delete to fairq.flows do also notify other"), "H04"),
    # side channels
    "a notification names the queue": (
        Edit("_wake", "pg_notify(fairq.channel(p_queue), '')", "pg_notify(fairq.channel(p_queue), p_queue)"),
        "S01",
    ),
    "a notification names the queue, at once": (
        Edit("enqueue_job", "pg_notify(fairq.channel(p_queue), '')", "pg_notify(fairq.channel(p_queue), p_queue)"),
        "S01",
    ),
    "a notification that nobody asked for": (Edit("enqueue_job", "if v_notify then", "if true then"), "S01"),
    "nor of a job with a key": (Edit("enqueue_job", "if v_settings.notify and", "if"), "S01"),
    "nor of many": (Edit("enqueue_jobs", "if (fairq._queue_settings(v_queue)).notify then", "if true then"), "S01"),
    "an advisory lock": (before_check_id("perform pg_advisory_xact_lock_shared(1);"), "S02"),
}
