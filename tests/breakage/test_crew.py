"""What the crew says of a server that nothing happens to, and of schemas that lose, repeat or overdo something."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.races.helpers import check
from tests.support import Edit, Statement

from .crew import Crew, account, is_one_gap, prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Database
    from tests.support.mutants import Mutation

pytestmark = pytest.mark.once

ONE_IN_TEN = """
    create function public.bad() returns trigger language plpgsql as $$
    begin
        if new.job_id % 10 <> 0 or pg_trigger_depth() > 1 then
            return new;
        end if;
        {}
    end
    $$;
    create trigger bad before insert on {} for each row execute function public.bad();
"""
LOST = ONE_IN_TEN.format("return null;", "fairq.finished_jobs_0")
TWICE = ONE_IN_TEN.format(
    "insert into fairq.jobs (queue, tenant, task, operation_key)"
    " values (new.queue, new.tenant, new.task, new.operation_key); return new;",
    "fairq.jobs",
)


@check
def check_a_quiet_storm(db: Database) -> None:
    """Nothing breaks."""
    prepare(db)
    with Crew(db.dsn) as crew:
        crew.complete_more(60)
    account(db, crew)


def test_a_quiet_storm_is_accounted_for(db: Database) -> None:
    """Every job."""
    check_a_quiet_storm(db)


@pytest.mark.parametrize(
    "mutation",
    [
        Statement(LOST),
        Statement(TWICE),
        Edit("_wished", "p_flow.max_running := p_wish.max_running;", ""),
        # a failed attempt is not settled
        Edit("_fail", "perform fairq._settle(v_lease.queue, fairq._ending(v_lease, 'held', v_now));"),
    ],
    ids=["lost", "twice", "cap", "count"],
)
def test_a_schema_that_does_wrong_is_noticed(assert_killed: Callable[..., None], mutation: Mutation) -> None:
    """A lost job, one that is there twice, a cap that does not hold, a count that is wrong."""
    assert_killed(check_a_quiet_storm, mutation, tries=10)


def test_a_gap_is_one() -> None:
    """What asynchronous replication loses is one piece."""
    assert is_one_gap([True, False, False, True])
    assert is_one_gap([True, True])
    assert not is_one_gap([True, False, True, False])
