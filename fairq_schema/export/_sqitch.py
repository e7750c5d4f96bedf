"""
Sqitch: a script to deploy, one to revert, one to verify; `sqitch add` puts them into the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairq_schema.export._step import Step

# The catalog instead of a call: whoever deploys need not be one of fairq's users. At least, not exactly: Sqitch
# verifies old changes too, after newer ones.
_VERIFY = """\
do $fn$
declare
    v_version integer := (
        select substring(p.prosrc from '[0-9]+')
        from pg_catalog.pg_proc as p
        join pg_catalog.pg_namespace as n on n.oid = p.pronamespace
        where n.nspname = '{schema}'
          and p.proname = 'schema_version'
    );
begin
    if v_version >= {number} then
        return;
    end if;
    raise exception 'schema {schema} has version % of fairq, expected {number} or later', coalesce(v_version, 0);
end
$fn$;
"""


def sqitch(step: Step) -> dict[str, str]:
    """
    Write the three scripts of one change.
    """
    name = f"{step.name}.sql"
    return {
        f"deploy/{name}": _script(step, step.header() + step.forward),
        f"revert/{name}": _script(step, step.header_back() + step.backward),
        f"verify/{name}": f"{step.header()}begin;\n\n{_verify(step)}\nrollback;\n",
    }


def _script(step: Step, sql: str) -> str:
    # psql runs them, and each says itself whether it is one transaction
    return f"begin;\n\n{sql}\ncommit;\n" if step.in_transaction else sql


def _verify(step: Step) -> str:
    # a file that must not be a transaction has one statement, which is not the one that says the version
    number = step.migration.number if step.in_transaction else step.migration.number - 1
    return _VERIFY.format(schema=step.schema, number=number)
