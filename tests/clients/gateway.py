"""
A stand-in for PostgREST, which tests do not install.

For `POST /rpc/NAME` it runs what PostgREST runs for one: a transaction in which the role and the claims of a verified
token are set, and one call of the function with the fields of the JSON body as named arguments of their SQL types.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import threading
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

import fairq_schema
from tests.support.pooler import pooled

from .programs import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support import Database

SECRET = b"a secret of at least thirty-two bytes"
# what PostgREST keeps in its cache of the schema
SIGNATURE = """
    select p.proargnames as names, p.proargtypes::oid[]::regtype[]::text[] as types, p.proretset as many,
        t.typtype = 'c' as composite
    from pg_proc as p join pg_type as t on t.oid = p.prorettype
    where p.pronamespace = %s::regnamespace and p.proname = %s
"""
SETTINGS = """
    select set_config('search_path', %(schema)s, true), set_config('role', %(role)s, true),
        set_config('request.jwt.claims', %(claims)s, true), set_config('request.method', 'POST', true),
        set_config('request.path', %(path)s, true)
"""


class Served:
    """Where the gateway is, and tokens for it."""

    def __init__(self, url: str, worker: str, tenant: str) -> None:
        self.url = url
        self.worker = worker
        self.tenant = tenant

    def token(self, role: str, tenant: str | None = None) -> str:
        """A signed token for a role, and for a tenant."""
        claims = {"role": role} | ({"app_metadata": {"tenant_id": tenant}} if tenant else {})
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in ({"alg": "HS256", "typ": "JWT"}, claims))
        return f"{signed}.{_encoded(hmac.digest(SECRET, signed.encode(), hashlib.sha256))}"


@contextmanager
def gateway(db: Database, *, worker: str, pooler: bool = False) -> Iterator[Served]:
    """The gateway in front of a database, set up as examples/postgrest says, with `worker` for mail_worker."""
    fairq_schema.set_tenant_provider(db.dsn, "jwt")
    authenticator, tenant = db.login(), db.login("fairq_tenant")
    db.execute(f"alter role {authenticator} noinherit; grant {worker}, {tenant} to {authenticator}")
    setup = (EXAMPLES / "postgrest/setup.sql").read_text(encoding="utf-8")
    db.execute(setup.replace("mail_worker", worker))
    # a mistake that a test is to notice: the same without the fence
    db.execute(
        re.sub(r"(?s)    if not (.*?) then.*?end if;", r"    perform \1;", setup[setup.index("create function") :])
        .replace("finish_letter", "forgetful")
        .replace("mail_worker", worker)
    )
    with ExitStack() as stack:
        if pooler:
            dsn = stack.enter_context(pooled(db.dsn, user=authenticator))
        else:
            dsn = make_conninfo(db.dsn, user=authenticator)
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(dsn))
        stack.callback(server.server_close)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        stack.callback(server.shutdown)
        yield Served(f"http://127.0.0.1:{server.server_port}", worker, tenant)


def _handler(dsn: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            claims = _verified(self.headers["Authorization"].removeprefix("Bearer "))
            try:
                if claims is None:
                    status, answer = 401, {"message": "JWSError"}
                else:
                    status, answer = 200, _called(dsn, self.path, self.headers["Content-Profile"], claims, body)
            except psycopg.Error as error:
                status, answer = _refused(error)
            content = json.dumps(answer, default=str).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Nothing is written down."""

    return Handler


def _called(dsn: str, path: str, schema: str, claims: dict[str, Any], body: dict[str, Any]) -> Any:
    name = path.removeprefix("/rpc/")
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as conn:
        names, types, many, composite = conn.execute(SIGNATURE, [schema, name]).fetchone()  # type: ignore[misc]
        known = dict(zip(names, types, strict=False))
        fields = [sql.SQL("{} {}").format(sql.Identifier(key), sql.SQL(known[key])) for key in body]
        arguments = [sql.SQL("{0} := body.{0}").format(sql.Identifier(key)) for key in body]
        call = sql.SQL("{}({})").format(sql.Identifier(schema, name), sql.SQL(", ").join(arguments))
        query = sql.SQL("select to_json({}) from json_to_record(%s) as body({}), lateral {} as called").format(
            sql.SQL("called"),
            sql.SQL(", ").join(fields),
            call if composite else sql.SQL("(select {} as value)").format(call),
        )
        conn.execute("begin isolation level read committed read write")
        settings = {"schema": schema, "role": claims["role"], "claims": json.dumps(claims), "path": path}
        conn.execute(SETTINGS, settings)
        rows = [row[0] for row in conn.execute(query, [json.dumps(body)])]
        conn.execute("commit")
    if not composite:
        rows = [row["value"] for row in rows]
    return rows if many else rows[0]


def _refused(error: psycopg.Error) -> tuple[int, dict[str, Any]]:
    """The status that PostgREST gives an SQLSTATE: PTxyz is xyz, a right that is missing is 403, most are 400."""
    code = str(error.sqlstate)
    status = int(code[2:]) if code.startswith("PT") else 403 if code == "42501" else 400
    return status, {"code": code, "message": error.diag.message_primary, "hint": error.diag.message_hint}


def _verified(token: str) -> dict[str, Any] | None:
    signed, _, signature = token.rpartition(".")
    if not hmac.compare_digest(_encoded(hmac.digest(SECRET, signed.encode(), hashlib.sha256)), signature):
        return None
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(signed.split(".")[1] + "=="))
    return claims


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
