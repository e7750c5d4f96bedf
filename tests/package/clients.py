"""
Clients in three drivers, each with statements that the server has prepared and that are held as long as it lives.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import asyncpg
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from tests.package.upgrades import Rows

CHECKOUT = Path(__file__).resolve().parents[2]
NODE_MODULES = CHECKOUT / ".cache/node-pg/node_modules"

# A line in is a statement with its arguments, a line out its rows, or the SQLSTATE of its error.
_NODE = """\
const { Client } = require("pg");
const client = new Client(JSON.parse(process.argv[1]));
(async () => {
  await client.connect();
  // only now: lines that come before somebody iterates are lost
  for await (const line of require("readline").createInterface({ input: process.stdin })) {
    const { name, text, values } = JSON.parse(line);
    try {
      const { rows } = await client.query({ name, text, values, rowMode: "array" });
      console.log(JSON.stringify({ rows }));
    } catch (error) {
      console.log(JSON.stringify({ code: error.code, message: error.message }));
    }
  }
  await client.end();
})();
"""


class RefusedError(Exception):
    """
    The server's error; its SQLSTATE is what a client goes by.
    """

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(f"{sqlstate}: {message}")
        self.sqlstate = sqlstate


class Client(Protocol):
    """
    A session that prepares a statement when it first meets it, and then goes on with what is prepared.
    """

    def __enter__(self) -> Self:
        """
        Connect.
        """

    def __exit__(self, *exception: object) -> None:
        """
        Disconnect.
        """

    def run(self, statement: str, arguments: tuple[str, ...] = ()) -> Rows:
        """
        Return the rows, as text.
        """


class Psycopg:
    """
    psycopg, told to prepare at once.
    """

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)

    def __enter__(self) -> Self:
        """
        As it is.
        """
        return self

    def __exit__(self, *exception: object) -> None:
        """
        Close it.
        """
        self.connection.close()

    def run(self, statement: str, arguments: tuple[str, ...] = ()) -> Rows:
        """
        Run it as the client library runs what it has prepared.
        """
        cursor = psycopg.RawCursor(self.connection)
        try:
            return cursor.execute(statement.encode(), arguments, prepare=True).fetchall()
        except psycopg.Error as error:
            raise RefusedError(error.sqlstate or "", str(error)) from error


class Asyncpg:
    """
    asyncpg, with its prepared statements as objects.
    """

    def __init__(self, dsn: str) -> None:
        self.loop = asyncio.new_event_loop()
        where = conninfo_to_dict(dsn)
        how = {"host": where["host"], "port": where.get("port"), "user": where.get("user"), "database": where["dbname"]}
        self.connection: Any = self.loop.run_until_complete(asyncpg.connect(**how))
        self.prepared: dict[str, Any] = {}

    def __enter__(self) -> Self:
        """
        As it is.
        """
        return self

    def __exit__(self, *exception: object) -> None:
        """
        Close it, and its loop.
        """
        self.loop.run_until_complete(self.connection.close())
        self.loop.close()

    def run(self, statement: str, arguments: tuple[str, ...] = ()) -> Rows:
        """
        Run what is prepared.
        """
        try:
            if statement not in self.prepared:
                self.prepared[statement] = self.loop.run_until_complete(self.connection.prepare(statement))
            rows = self.loop.run_until_complete(self.prepared[statement].fetch(*arguments))
        except asyncpg.PostgresError as error:
            raise RefusedError(str(error.sqlstate), str(error)) from error
        return [tuple(row) for row in rows]


class NodePostgres:
    """
    node-postgres, with named statements, in a process of its own.
    """

    def __init__(self, dsn: str) -> None:
        if not (NODE_MODULES / "pg").is_dir():
            pytest.fail("node-postgres is not here: ci/fetch node-pg", pytrace=False)
        where = conninfo_to_dict(dsn)
        how = {"host": where["host"], "port": where.get("port"), "user": where.get("user"), "database": where["dbname"]}
        self.process = subprocess.Popen(
            ["node", "-e", _NODE, json.dumps(how)],
            env={"NODE_PATH": str(NODE_MODULES), "PATH": "/usr/bin:/bin"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.names: dict[str, str] = {}

    def __enter__(self) -> Self:
        """
        As it is.
        """
        return self

    def __exit__(self, *exception: object) -> None:
        """
        Let it end.
        """
        self.process.communicate(timeout=60)

    def run(self, statement: str, arguments: tuple[str, ...] = ()) -> Rows:
        """
        Send one line, and read one.
        """
        assert self.process.stdin
        assert self.process.stdout
        name = self.names.setdefault(statement, f"s{len(self.names)}")
        self.process.stdin.write(json.dumps({"name": name, "text": statement, "values": arguments}) + "\n")
        self.process.stdin.flush()
        patience = threading.Timer(120, self.process.kill)
        patience.start()
        line = self.process.stdout.readline()
        patience.cancel()
        assert line, f"no answer to {statement}"
        said = json.loads(line)
        if "rows" not in said:
            raise RefusedError(said.get("code") or "", said["message"])
        return [tuple(row) for row in said["rows"]]


DRIVERS: dict[str, Callable[[str], Client]] = {
    "psycopg": Psycopg,
    "asyncpg": Asyncpg,
    "node-postgres": NodePostgres,
}
