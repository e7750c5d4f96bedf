"""
The queues of our own that are measured, each by the SQL that installs, fills, claims from and completes it.

All do it in one shape: parameters are `tenant`, `payload`, `jobs`, `limit`, `owner`, `worker`, `ids` and `tokens`;
a claim gives (id, token, payload), the token as text, since nobody computes with it. The words in comments are how
pg_stat_statements tells claims from the rest. Where a queue knows no tenants, they are in the payload alone. What loads
many jobs takes `first` and `last`, and {tenant}, an expression over the number i of the job.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import psycopg

import fairq_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Who produces and consumes: no superuser, since it is not spared any check of rights.
LOGIN = "bench"
PAYLOAD = "jsonb_build_object('g', {tenant}, 'i', i, 't', 0, 'p', repeat('x', 64))"
# What `grant` of the peers comes to: they leave rights to the installer.
OPEN = """
    grant usage on schema {schema} to bench;
    grant all on all tables in schema {schema} to bench;
    grant all on all sequences in schema {schema} to bench;
    grant execute on all functions in schema {schema} to bench
"""


@dataclass(frozen=True, slots=True)
class Job:
    """A job to be enqueued."""

    tenant: str
    payload: dict[str, object]
    extra: dict[str, object] = field(default_factory=dict)  # what only fairq has: priority, delay


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue, in SQL."""

    name: str
    about: str
    version: str
    install: Callable[[str], None]
    setup: str  # after it: settings, and what LOGIN may do
    load: str
    enqueue_one: str
    enqueue_many: str
    pack: Callable[[Sequence[Job]], object]  # what enqueue_many gets as `jobs`
    claim: str
    complete_one: str
    complete_many: str
    waiting: str  # how many jobs are not completed
    load_at_once: int = 10_000
    hello: str = "select 0"  # what a worker says first; the answer is its `worker`
    channel: str | None = None
    fail: str | None = None
    finished: str | None = None  # loads jobs that have ended
    order: str | None = None  # for claimed ids: when each was dispatched
    history: tuple[str, ...] = ()  # tables of what has ended, and nothing else


def payloads(jobs: Sequence[Job]) -> list[str]:
    """Give what a queue that knows no tenants is to enqueue."""
    return [json.dumps(job.payload) for job in jobs]


# --- fairq ------------------------------------------------------------------------------------------------------------


def _pack_fairq(jobs: Sequence[Job]) -> str:
    head = {"queue": "bench", "task": "bench"}
    return json.dumps([{**head, "tenant": job.tenant, "payload": job.payload, **job.extra} for job in jobs])


def _install_fairq(dsn: str) -> None:
    fairq_schema.apply(dsn)


FAIRQ = Queue(
    name="fairq",
    about="fair, leased, history kept; `p_async_commit => true` in the claim, which is the product's own offer",
    version="this checkout",
    install=_install_fairq,
    setup=f"grant fairq_producer, fairq_worker to {LOGIN}",
    load=f"""
        select count(*) from fairq.enqueue_jobs((
            select jsonb_agg(jsonb_build_object(
                'queue', 'bench', 'task', 'bench', 'tenant', {{tenant}}, 'payload', {PAYLOAD}
            ) order by i)
            from generate_series(%(first)s::int, %(last)s::int) as i
        ))
    """,
    finished=f"""
        insert into fairq.finished_jobs (
            job_id, queue, tenant, task, payload, priority, state, attempts, max_attempts, run_at, cost, created_at,
            started_at, finished_at, lease_owner, token_hash
        )
        select
            nextval('fairq.jobs_job_id_seq'), 'bench', {{tenant}}, 'bench', {PAYLOAD}, 2, 'succeeded', 1, 5, now(), 1,
            now(), now(), now(), 'bench', sha256('')
        from generate_series(%(first)s::int, %(last)s::int) as i
    """,
    enqueue_one="""
        select /* enqueue */ job_id from fairq.enqueue_job(
            p_queue => 'bench', p_tenant => %(tenant)s, p_task => 'bench', p_payload => %(payload)s::jsonb
        )
    """,
    enqueue_many="select /* enqueue */ job_id from fairq.enqueue_jobs(%(jobs)s::jsonb)",
    pack=_pack_fairq,
    claim="""
        select /* claim */ job_id, lease_token::text, payload from fairq.claim_jobs(
            p_queue => 'bench', p_owner => %(owner)s, p_limit => %(limit)s::int, p_async_commit => true
        )
    """,
    complete_one="select /* complete */ 1 where fairq.complete_job(%(id)s::bigint, %(token)s::uuid)",
    complete_many="""
        select /* complete */ outcome from fairq.complete_jobs(%(ids)s::bigint[], %(tokens)s::uuid[])
        where outcome = 'succeeded'
    """,
    fail="select fairq.fail_job(%(id)s::bigint, %(token)s::uuid, 'on purpose', interval '1 second')",
    waiting="select count(*) from fairq.all_jobs where state in ('queued', 'scheduled', 'running')",
    order="select job_id, dispatch from fairq.leases where job_id = any(%(ids)s::bigint[])",
    history=("finished_jobs", "job_log"),
)
FAIRQ_SYNC = replace(
    FAIRQ,
    name="fairq-sync",
    about="as fairq, but a claim waits for the disk",
    claim=FAIRQ.claim.replace(", p_async_commit => true", ""),
)
FAIRQ_AHEAD = replace(
    FAIRQ,
    name="fairq-ahead",
    about="as fairq, with `read_ahead` 900: a claim picks up to 900 jobs more, for the claims that follow",
    setup=f"{FAIRQ.setup}; select fairq.set_queue(p_queue => 'bench', p_read_ahead => 900)",
)
FAIRQ_NOTIFY = replace(
    FAIRQ,
    name="fairq-notify",
    about="as fairq, with `notify` on",
    setup=f"{FAIRQ.setup}; select fairq.set_queue(p_queue => 'bench', p_notify => true)",
    channel="fairq:bench",
)
FAIRQ_MIXED = replace(
    FAIRQ,
    name="fairq-mixed",
    about="as fairq, with priorities, delays, failures and leases of two seconds that run out",
    setup=f"""{FAIRQ.setup};
        select fairq.set_queue(p_queue => 'bench', p_default_lease => '2 seconds', p_max_attempts => 1000)
    """,
)

# --- toy: the floor to read the others against ------------------------------------------------------------------------

_TOY = """
    create schema toy;
    create table toy.jobs (
        id bigint generated always as identity primary key, taken boolean not null default false, payload jsonb not null
    ) with (fillfactor = 90);
    create index on toy.jobs (id) where not taken
"""


def _install_toy(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_TOY)


TOY = Queue(
    name="toy",
    about="a bare table, SKIP LOCKED and DELETE: no tenants, no leases, no retries",
    version="this checkout",
    install=_install_toy,
    setup=OPEN.format(schema="toy"),
    load=f"""
        insert into toy.jobs (payload) select {PAYLOAD} from generate_series(%(first)s::int, %(last)s::int) as i
    """,
    enqueue_one="insert /* enqueue */ into toy.jobs (payload) values (%(payload)s::jsonb) returning id",
    enqueue_many="""
        insert /* enqueue */ into toy.jobs (payload)
        select u.payload::jsonb from unnest(%(jobs)s::text[]) as u(payload)
        returning id
    """,
    pack=payloads,
    claim="""
        with /* claim */ first as (
            select j.id from toy.jobs as j where not j.taken order by j.id limit %(limit)s::int for update skip locked
        )
        update toy.jobs as j set taken = true from first as f where j.id = f.id returning j.id, null, j.payload
    """,
    complete_one="delete /* complete */ from toy.jobs as j where j.id = %(id)s::bigint returning j.id",
    complete_many="delete /* complete */ from toy.jobs as j where j.id = any(%(ids)s::bigint[]) returning j.id",
    waiting="select count(*) from toy.jobs",
)

# --- toy-kept: the floor of what is leased by rows, and kept ----------------------------------------------------------

_TOY_KEPT = """
    create schema toy;
    create table toy.jobs (id bigint generated always as identity primary key, payload jsonb not null);
    create table toy.leases (
        id bigint primary key, owner text not null, token uuid not null, started_at timestamptz not null,
        expires_at timestamptz not null
    );
    create index on toy.leases (expires_at);
    create table toy.finished (
        id bigint primary key, payload jsonb not null, owner text not null, token uuid not null,
        started_at timestamptz not null, finished_at timestamptz not null
    );
    create index on toy.finished (finished_at)
"""
# A lease that is there is nobody else's, whatever the snapshot says.
_TOY_KEPT_CLAIM = """
    with /* claim */ first as materialized (
        select j.id, j.payload from toy.jobs as j
        where not exists (select from toy.leases as l where l.id = j.id)
        order by j.id limit %(limit)s::int
        for update skip locked
    ), leased as (
        insert into toy.leases (id, owner, token, started_at, expires_at)
        select f.id, %(owner)s::text, gen_random_uuid(), now(), now() + interval '30 seconds' from first as f
        on conflict (id) do nothing
        returning id, token
    )
    select l.id, l.token::text, f.payload from leased as l join first as f on f.id = l.id
"""
# The job's row before the lease's, as in the claim: or each might wait for the other.
_TOY_KEPT_COMPLETE = """
    with /* complete */ gone as (
        delete from toy.jobs as j
        where j.id = any(%(ids)s::bigint[]) and exists (
            select from toy.leases as l
            where l.id = j.id and l.token = any(%(tokens)s::uuid[]) and l.expires_at > clock_timestamp()
        )
        returning j.*
    ), taken as (
        delete from toy.leases as l where l.id = any(array(select g.id from gone as g)) returning l.*
    )
    insert into toy.finished (id, payload, owner, token, started_at, finished_at)
    select g.id, g.payload, t.owner, t.token, t.started_at, now() from gone as g join taken as t on t.id = g.id
    returning id
"""


def _install_toy_kept(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_TOY_KEPT)


TOY_KEPT = replace(
    TOY,
    name="toy-kept",
    about="as toy, but a lease is a row, with a token and a time to end, and what is done is kept",
    install=_install_toy_kept,
    # leases are none one moment and many the next: no plan may read them all
    hello="""
        select 0 from (
            select set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false) offset 0
        ) as s
    """,
    claim=_TOY_KEPT_CLAIM,
    complete_one=_TOY_KEPT_COMPLETE.replace("= any(%(ids)s::bigint[])", "= %(id)s::bigint").replace(
        "= any(%(tokens)s::uuid[])", "= %(token)s::uuid"
    ),
    complete_many=_TOY_KEPT_COMPLETE,
    history=("finished",),
)
