"""Enqueueing in the caller's transaction, with SQLAlchemy and with Django; and a tenant behind PostgREST."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.pooler import pooled

from .gateway import gateway
from .programs import EXAMPLES, url

if TYPE_CHECKING:
    from tests.support import Database

    from .gateway import Served

# Places one order, says so, and commits or not as it is told: what the example's application does with its session.
STORIES = {
    "sqlalchemy": """
import sys
from letters import Order, Session, place
with Session() as session:
    for answer, letter in (("rollback", 1), ("commit", 2)):
        print(place(session, "amber", letter), flush=True)
        sys.stdin.readline()
        getattr(session, answer)()
        print(answer, flush=True)
        sys.stdin.readline()
""",
    "django": """
import django, sys
django.setup()
from django.db import transaction
from letters.models import place
for answer, letter in (("rollback", 1), ("commit", 2)):
    with transaction.atomic():
        print(place("amber", letter), flush=True)
        sys.stdin.readline()
        transaction.set_rollback(answer == "rollback")
    print(answer, flush=True)
    sys.stdin.readline()
""",
}


# drivers and poolers do not differ with the server: on one version
pytestmark = pytest.mark.once


@pytest.mark.parametrize("pooler", [False, True], ids=["direct", "pooler"])
@pytest.mark.parametrize("folder", STORIES)
def test_a_job_is_there_when_its_order_is(db: Database, folder: str, pooler: bool) -> None:
    """Neither while the caller's transaction is open, nor after a rollback; both after a commit."""
    user = db.login("fairq_producer")
    db.execute((EXAMPLES / "tables.sql").read_text(encoding="utf-8"))
    db.execute(f"grant select, insert on orders to {user}")
    if pooler:
        with pooled(db.dsn, user=user) as through:
            _places_orders(db, folder, url(through, user=user))
    else:
        _places_orders(db, folder, url(db.dsn, user=user))


def _places_orders(db: Database, folder: str, address: str) -> None:
    environment = {"DATABASE_URL": address, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", STORIES[folder]],
        cwd=EXAMPLES / folder,
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout  # noqa: PT018

        def goes_on() -> str:
            process.stdin.write("\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            return process.stdout.readline().strip()  # type: ignore[union-attr]

        int(process.stdout.readline())
        assert _seen(db) == (0, [])
        assert goes_on() == "rollback"
        assert _seen(db) == (0, [])
        job = int(goes_on())
        assert _seen(db) == (0, [])
        assert goes_on() == "commit"
        assert _seen(db) == (1, [(job, {"letter": 2})])
        process.stdin.write("\n")
    assert process.returncode == 0


def _seen(db: Database) -> tuple[int, list[Any]]:
    """How many orders others see, and which jobs a worker gets."""
    jobs = [(job.job_id, job.payload) for job in db.claim(10, queue="mail")]
    return db.value("select count(*) from orders"), jobs


def test_a_tenant_behind_postgrest_enqueues_for_itself(db: Database) -> None:
    """By named arguments, as whom its token names; the same letter twice is one job; it sees its own alone."""
    with gateway(db, worker=db.login("fairq_worker")) as served:
        amber, birch = (served.token(served.tenant, tenant) for tenant in ("amber", "birch"))
        first = _tenant(served, amber)
        assert (first["tenant"], first["state"], first["payload"]) == ("amber", "queued", {"letter": 7})
        assert _tenant(served, amber)["job_id"] == first["job_id"]
        assert _tenant(served, birch)["job_id"] != first["job_id"]
        assert _rpc(served, birch, "get_job", p_job_id=first["job_id"]) == (200, [])


@pytest.mark.parametrize(
    ("who", "function", "arguments", "answer"),
    [
        ("amber", "enqueue_job", {"p_tenant": "birch", "p_task": "send"}, (403, "42501")),
        ("amber", "claim_jobs", {"p_owner": "me"}, (403, "42501")),
        (None, "enqueue_job", {"p_task": "send"}, (403, "42501")),
        ("amber", "enqueue_job", {"p_task": "send", "p_priority": 99}, (400, "22023")),
    ],
)
def test_a_tenant_behind_postgrest_is_refused(
    db: Database, who: str | None, function: str, arguments: dict[str, Any], answer: tuple[int, str]
) -> None:
    """What is not its own, and what is out of range, with the SQLSTATE in the body."""
    with gateway(db, worker=db.login("fairq_worker")) as served:
        token = served.token(served.tenant, who)
        status, body = _rpc(served, token, function, **arguments)
        assert (status, body["code"]) == answer
        forged = f"{token.rpartition('.')[0]}.{token.rpartition('.')[2][::-1]}"
        assert _rpc(served, forged, function, **arguments)[0] == 401


def _tenant(served: Served, token: str) -> Any:
    """What the example prints."""
    done = subprocess.run(
        [sys.executable, "tenant.py", "7"],
        cwd=EXAMPLES / "postgrest",
        env=os.environ | {"API_URL": served.url, "API_TOKEN": token},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def _rpc(served: Served, token: str, function: str, **arguments: Any) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Content-Profile": "fairq"}
    request = Request(f"{served.url}/rpc/{function}", json.dumps(arguments).encode(), headers)  # noqa: S310
    try:
        with urlopen(request, timeout=60) as answer:  # noqa: S310
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)
