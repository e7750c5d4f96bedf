"""
Versions to go between: those that we ship, and one more that is made up; and all that a client may call meanwhile.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fairq_schema
from fairq_schema import _files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support import Session

CHECKOUT = Path(__file__).resolve().parents[2]
OURS = CHECKOUT / "migrations"
SHIPPED = [file.number for file in _files.load(OURS)]
MADE_UP = "made up"

# From each shipped version to the newest, and from that one to a version that is made up.
WAYS = [*(f"{number} to {SHIPPED[-1]}" for number in SHIPPED[:-1]), MADE_UP]

# Tables that nearly every call reads or writes, and whose rows are read and written as a whole; and those beside them
# that have triggers, which are made again with their functions.
TABLES = ("queues", "tenants", "jobs", "leases")
LOCKED = (*TABLES, "job_log")
_LOCK = f"""\
do $fn$
begin
    lock table {", ".join(f"fairq.{table}" for table in LOCKED)} in access exclusive mode;
end
$fn$;
"""
FORWARD = (
    "set local role fairq_owner;\n"
    + _LOCK
    + "alter table fairq.queues add column made_up text not null default 'yes';\n"
    + "".join(f"alter table fairq.{table} add column made_up text default 'yes';\n" for table in TABLES[1:])
)
BACKWARD = (
    "set local role fairq_owner;\n"
    + _LOCK
    + "".join(f"alter table fairq.{table} drop column made_up;\n" for table in TABLES)
)

# Another way to know the tenant, in a file that people run beside the migrations.
VARIANT = """\
set local role fairq_owner;
create or replace function fairq.current_tenant_id()
    returns text
    language sql
    stable
    parallel safe
    set search_path = pg_catalog, pg_temp
as $fn$ select 'made up'::text $fn$;
create table fairq.made_up (id integer);
"""


@dataclass(frozen=True, slots=True)
class Way:
    """
    From one version of a folder to another, one or more further.
    """

    folder: Path
    old: int
    new: int

    def up(self, dsn: str) -> None:
        """
        Upgrade, as users do.
        """
        fairq_schema.apply(dsn, to=self.new, migrations=self.folder)

    def down(self, dsn: str) -> None:
        """
        Downgrade, as users do.
        """
        fairq_schema.rollback(dsn, to=self.old, migrations=self.folder)

    def texts(self, *, forward: bool) -> list[str]:
        """
        Return the files of one direction, in their order.
        """
        between = _files.load(self.folder)[self.old : self.new]
        return [file.forward for file in between] if forward else [file.backward for file in between[::-1]]


def make_up(folder: Path, dsn: str, forward: str = FORWARD, backward: str = BACKWARD) -> Path:
    """
    Fill a folder with our migrations, as if all were released, and the next one: every function in plpgsql is replaced.

    `forward` and `backward` are what is written by hand; the machinery of releases does the rest.
    """
    shutil.copytree(OURS, folder)
    names = [path.name for path in sorted(folder.glob("fairq_*.sql"))]
    (folder / "CHECKSUMS").write_text("".join(f"{'0' * 64}  {name}\n" for name in names))
    for path in (folder / "schema/functions").glob("*.sql"):
        path.write_text(path.read_text().replace("\nbegin\n", "\nbegin\n    -- made up\n"))
    (folder / "tenant/made_up.sql").write_text(VARIANT)
    compile_migration(folder, dsn, "made_up")
    newest = _files.load(folder)[-1].id
    for ending, change in ((".sql", forward), (".rollback.sql", backward)):
        edit(folder / f"{newest}{ending}", "-- changes\n--\n", f"-- changes\n--\n\n{change}")
    compile_migration(folder, dsn)
    return folder


def compile_migration(folder: Path, dsn: str, *slug: str) -> None:
    """
    Run ci/new_migration, which must succeed.
    """
    command: list[str | Path] = [
        sys.executable,
        CHECKOUT / "ci/new_migration",
        *slug,
        "--migrations",
        folder,
        "--dsn",
        dsn,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def edit(path: Path, before: str, after: str) -> None:
    """
    Replace a text that must be there, once.
    """
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


# --- what clients call -------------------------------------------------------------------------------------


Rows = list[tuple[str | None, ...]]


@dataclass(frozen=True, slots=True)
class Call:
    """
    One statement of a client, and its answer; everything goes in and comes out as text, the same for every driver.
    """

    statement: str
    arguments: tuple[str, ...]
    answer: Rows

    @property
    def function(self) -> str:
        """
        Return the name of what is called.
        """
        return self.statement.split(" from fairq.")[1].split("(")[0].split(" ")[0]


_HELD = "p_job_id => $1::text::bigint, p_token => $2::text::uuid"
_HELD_ALL = "p_job_ids => $1::text::bigint[], p_tokens => $2::text::uuid[]"


def calls(db: Session, name: str) -> list[Call]:
    """
    Return a call of every function of the first version that a client may call, with the jobs that they are about.

    They do not meet each other: in any order, at the same time, or one by one, each has its answer. `name` is for
    queues and tenants, and is new each time; leases belong to who claims, so `db` is of the login that is to call.
    """
    queue, tenant = f"{name}-work", f"{name}-tenant"
    db.given_jobs(tenant, 9, queue=queue)
    renewed, completed, failed, released, stopped, *several = db.claim(9, queue=queue)
    pairs = [several[n : n + 1] for n in range(4)]
    first, later, shown, waits = db.given_jobs(tenant, 4, queue=f"{name}-calm")
    dead = db.given_jobs(tenant, queue=f"{name}-dead")[0]
    db.fail(db.claim(1, queue=f"{name}-dead")[0], retry=False)
    db.given_jobs(tenant, 3, queue=f"{name}-claim")
    db.given_jobs(f"{name}-purged", 2, queue=f"{name}-purge")
    db.claim(1, queue=f"{name}-stats")
    db.call("pause_tenant", p_queue=f"{name}-wishes", p_tenant="resumed")
    db.given_jobs(tenant, 1, queue=f"{name}-due", delay=timedelta(milliseconds=1))

    def held(job: Any) -> tuple[str, str]:
        return str(job.job_id), str(job.lease_token)

    def held_all(jobs: Sequence[Any]) -> tuple[str, str]:
        return f"{{{jobs[0].job_id}}}", f"{{{jobs[0].lease_token}}}"

    return [
        Call(
            "select created::text from fairq.enqueue_job(p_tenant => $1::text, p_task => $2::text, p_payload => "
            "$3::text::jsonb, p_queue => $4::text, p_key => $5::text)",
            (tenant, "mail", '{"n": 1}', f"{name}-new", "k"),
            [("true",)],
        ),
        Call(
            "select outcome from fairq.enqueue_jobs($1::text::jsonb)",
            (json.dumps([{"tenant": tenant, "task": "mail", "queue": f"{name}-more"}] * 2),),
            [("created",), ("created",)],
        ),
        Call(
            "select tenant, task, attempt::text from fairq.claim_jobs(p_queue => $1::text, p_owner => $2::text, "
            "p_limit => $3::text::integer)",
            (f"{name}-claim", "w", "2"),
            [(tenant, "work", "1")] * 2,
        ),
        Call(f"select r::text from fairq.renew_job_lease({_HELD}) as r", held(renewed), [("true",)]),
        Call(f"select r::text from fairq.complete_job({_HELD}) as r", held(completed), [("true",)]),
        Call(f"select r from fairq.fail_job({_HELD}, p_error => 'so') as r", held(failed), [("scheduled",)]),
        Call(f"select r from fairq.release_job({_HELD}) as r", held(released), [("queued",)]),
        Call("select r from fairq.cancel_job($1::text::bigint) as r", (str(stopped.job_id),), [("cancel_requested",)]),
        Call(f"select outcome from fairq.renew_job_leases({_HELD_ALL})", held_all(pairs[0]), [("renewed",)]),
        Call(f"select outcome from fairq.complete_jobs({_HELD_ALL})", held_all(pairs[1]), [("succeeded",)]),
        Call(f"select outcome from fairq.fail_jobs({_HELD_ALL})", held_all(pairs[2]), [("scheduled",)]),
        Call(f"select outcome from fairq.release_jobs({_HELD_ALL})", held_all(pairs[3]), [("queued",)]),
        Call("select r from fairq.cancel_job($1::text::bigint) as r", (str(first),), [("cancelled",)]),
        Call(
            "select r from fairq.reschedule_job(p_job_id => $1::text::bigint, p_delay => $2::text::interval) as r",
            (str(later), "1 hour"),
            [("scheduled",)],
        ),
        Call("select r from fairq.retry_job($1::text::bigint) as r", (str(dead),), [("queued",)]),
        Call("select state, queue from fairq.get_job($1::text::bigint)", (str(shown),), [("queued", f"{name}-calm")]),
        Call("select reason from fairq.explain_wait($1::text::bigint)", (str(waits),), [("not_looked_at",)]),
        Call("select queue, charge from fairq.queue_stats($1::text)", (f"{name}-stats",), [(f"{name}-stats", "time")]),
        Call("select tenant from fairq.tenant_stats(p_queue => $1::text)", (f"{name}-stats",), []),
        Call("select r::text from fairq.set_tenant($1::text, $2::text) as r", (f"{name}-wishes", "set"), [("",)]),
        Call("select r::text from fairq.pause_tenant($1::text, $2::text) as r", (f"{name}-wishes", "paused"), [("",)]),
        Call(
            "select r::text from fairq.resume_tenant($1::text, $2::text) as r", (f"{name}-wishes", "resumed"), [("",)]
        ),
        Call(
            "select r::text from fairq.set_queue(p_queue => $1::text, p_max_running => 7) as r",
            (f"{name}-settings",),
            [("",)],
        ),
        Call(
            "select r::text from fairq.purge_tenant($1::text, $2::text) as r",
            (f"{name}-purge", f"{name}-purged"),
            [("2",)],
        ),
        Call("select r::text from fairq.promote_due_jobs(p_queue => $1::text) as r", (f"{name}-due",), [("1",)]),
        Call("select r::text from fairq.release_expired_jobs(p_queue => $1::text) as r", (f"{name}-due",), [("0",)]),
        Call("select r::text from fairq.prune() as r", (), [("0",)]),
        Call(
            "select state, queue from fairq.all_jobs where job_id = $1::text::bigint",
            (str(shown),),
            [("queued", f"{name}-calm")],
        ),
        Call("select event_type from fairq.job_events where job_id = $1::text::bigint", (str(shown),), [("created",)]),
    ]
