"""docs/clients.md, docs/scale.md and docs/faq.md: what they show is in the examples, or runs."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.clients.gateway import gateway
from tests.clients.programs import EXAMPLES, PROGRAMS, Program, url
from tests.support import wait_until
from tests.support.binaries import psql

if TYPE_CHECKING:
    from tests.support import Database

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("clients", "scale", "faq")}


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """To a file of the repository, and to a heading in it."""
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", PAGES[page]):
        path = (ROOT / "docs" / (target or f"{page}.md")).resolve()
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


@pytest.mark.parametrize("language", ["bash", "python", "js", "postgres"])
def test_the_code_is_that_of_the_examples(language: str) -> None:
    """Each block stands in one of their files, line by line."""
    texts = [
        path.read_text(encoding="utf-8")
        for path in EXAMPLES.rglob("*.*")
        if path.suffix in {".py", ".sh", ".mjs", ".sql"} and "node_modules" not in path.parts
    ]
    found = blocks("clients", language)
    assert found
    for block in found:
        assert any(block in text for text in texts), block


def test_every_worker_is_in_the_table() -> None:
    """Which of them listen is in it, too."""
    for program in PROGRAMS:
        (row,) = re.findall(
            rf"^\|.*\(\.\./examples/{program.folder}/{program.file}\).*$", PAGES["clients"], re.MULTILINE
        )
        assert row.endswith("| yes |") is bool(program.hourly)


def command_of(program: Program) -> str:
    """The block that starts a worker."""
    name = "run_worker" if program.folder == "django" else f"examples/{program.folder}/{program.file}"
    (block,) = (block for block in blocks("clients", "sh") if name in block)
    return block


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_the_commands_start_the_workers(db: Database, program: Program, tmp_path: Path) -> None:
    """As they stand on the page, beside a copy of the examples; they do a job, and end on SIGTERM."""
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    if program.folder == "node":
        (tmp_path / "node_modules").symlink_to(program.modules())
    user = db.login("fairq_worker")
    db.execute((EXAMPLES / "tables.sql").read_text(encoding="utf-8"))
    db.execute(f"grant select, insert on sent to {user}")
    with gateway(db, worker=user) as served:
        job = db.enqueue("amber", task="send", payload={"letter": 1}, queue="mail").job_id
        environment = {
            "DATABASE_URL": url(db.dsn, user=user),
            "API_URL": served.url,
            "API_TOKEN": served.token(user),
            "PATH": os.pathsep.join([str(psql().parent), str(Path(sys.executable).parent), os.environ["PATH"]]),
        }
        command = ["bash", "-c", re.sub(r"^(cd .* && )?", r"\1exec env ", command_of(program))]
        with subprocess.Popen(
            command, cwd=tmp_path, env=os.environ | environment, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                wait_until(
                    lambda: process.poll() is not None or db.state(job) == "succeeded",
                    "the job to be done",
                    timeout=120,
                )
                assert process.poll() is None, process.stderr and process.stderr.read()
                process.send_signal(signal.SIGTERM)
                assert process.communicate(timeout=120)[1] == ""
                assert process.returncode == 0
            finally:
                process.kill()


def test_every_command_is_run() -> None:
    """By the test above, or for the tenant's by tests/clients."""
    others = [block for block in blocks("clients", "sh") if block not in map(command_of, PROGRAMS)]
    assert others == ["python examples/postgrest/tenant.py 7\n"]


def test_the_batch_of_the_page_on_scale(db: Database) -> None:
    """Twenty jobs in one claim, and ended in one call; and the setting for who cannot claim so many."""
    (ahead,) = (block for block in blocks("scale", "sql") if "p_read_ahead" in block)
    db.session(user=db.login("fairq_operator")).execute(ahead)
    assert db.value("select read_ahead from fairq.queues where queue = 'mail'") == 200
    db.given_jobs("amber", 25, queue="mail")
    worker = db.session(user=db.login("fairq_worker"))
    (block,) = (block for block in blocks("scale", "sql") if "claim_jobs" in block)
    claim, complete = block.split(";\n", 1)
    worker.execute(claim)
    statement, _, result = complete.rpartition("-- => ")
    assert " | ".join(map(str, worker.rows(statement)[0])) == result.strip()


def test_the_shards_of_the_page_on_scale(empty_db: str) -> None:
    """Two installs beside each other, made by the commands; the hash is what it will always be."""
    (block,) = blocks("scale", "sh")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(["bash", "-ec", block], env=os.environ | {"DSN": empty_db, "PATH": path}, check=True)
    (statement,) = (block for block in blocks("scale", "sql") if "md5" in block)
    with psycopg.connect(empty_db, autocommit=True) as conn:
        shards = conn.execute(statement).fetchall()
        assert {shard for _, shard in shards} == {0, 1}
        for tenant, shard in shards:
            assert int(hashlib.md5(tenant.encode()).hexdigest()[:7], 16) % 2 == shard  # noqa: S324
        for tenant, shard in shards:
            conn.execute(f"select fairq_{shard}.enqueue_job(p_tenant => %s, p_task => 'send')", [tenant])
        for shard in (0, 1):
            claimed = conn.execute(f"select tenant from fairq_{shard}.claim_jobs(p_owner => 'w', p_limit => 10)")
            assert {tenant for (tenant,) in claimed} == {tenant for tenant, where in shards if where == shard}
        channels = conn.execute("select fairq_0.channel('mail'), fairq_1.channel('mail')").fetchone()
        assert channels is not None
        assert channels[0] == channels[1]


def test_the_answers_in_sql_run(db: Database) -> None:
    """Each as it stands, for who may: operators or producers."""
    db.enqueue("birch", payload={}, queue="mail")
    user = db.login("fairq_operator", "fairq_producer")
    session = db.session(user=user)
    statements = re.findall(r"`(select [^`]*)`", PAGES["faq"])
    assert len(statements) >= 10
    for statement in statements:
        session.execute(statement)


def test_each_answer_is_one_line() -> None:
    """A question in bold, and a line."""
    questions = PAGES["faq"].split("\n## ")[0].split("\n\n")[2:]
    assert all(re.fullmatch(r"\*\*[^*\n]*\*\*\n[^\n]*\n?", question) for question in questions)
    for asked in (
        "One customer enqueues 100,000 jobs and everybody waits.",
        "A queue per tenant multiplies polling.",
        "Limits leave workers idle.",
        "Who do I bill?",
        "My DBA will not install an extension.",
        "The worker came back and finished somebody else's attempt.",
    ):
        assert f"\n**{asked}**\n" in PAGES["faq"]


def test_the_bill(db: Database) -> None:
    """Attempts that failed are in it, with the time they took, and jobs of others are not."""
    (statement,) = blocks("faq", "sql")
    operator = db.session(user=db.login("fairq_operator"))
    assert operator.rows(statement) == []
    db.given_jobs("amber", 3)
    db.given_jobs("birch", 1)
    jobs = db.claim(10)
    db.execute("update fairq.leases set started_at = started_at - interval '10 seconds'")
    for job, end in zip(
        jobs, (db.complete, db.complete, db.complete, lambda job: db.fail(job, retry=False)), strict=True
    ):
        end(job)
    bill = {row.tenant: (row.attempts, round(row.worker_seconds / row.attempts)) for row in operator.rows(statement)}
    assert bill == {"amber": (3, 10), "birch": (1, 10)}
