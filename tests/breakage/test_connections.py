"""More clients than the server has room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import make_conninfo

from .crew import Crew, account, prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.servers import LocalServer

pytestmark = pytest.mark.once

TOO_MANY = "53300"


def test_a_storm_of_connections(start_server: Callable[..., LocalServer]) -> None:
    """
    Fourteen clients and room for five: who is in works on, who is not tries again, and all that was begun is finished.

    An operator still gets in, by the connections that are kept for superusers.
    """
    server = start_server(durable=True, max_connections="8", superuser_reserved_connections="3")
    with server.databases.clone() as db:
        prepare(db)
        user = db.login("fairq_worker", "fairq_producer")
        # the crew counts what runs
        db.execute(f"create policy test_reads on fairq.leases for select to {user} using (true)")
        db.execute(f"grant select on fairq.leases to {user}")
        with Crew(make_conninfo(db.dsn, user=user), clients=14, turns=4) as crew:
            crew.complete_more()
            assert db.session().value("select count(*) from pg_stat_activity where usename = %s", user) <= 5
            crew.all_turn()
        assert crew.errors["connection"] > 0
        account(db, crew)
