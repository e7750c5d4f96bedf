"""docs/security.md: its table of rights is the catalog's, its statements run, its hazards are the doctor's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import fairq_schema
from tests.attacks.cast import NOT_ALLOWED, code, seen, world

if TYPE_CHECKING:
    from tests.support.database import Database

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
ROLES = ("fairq_api", "fairq_tenant", "fairq_operator")
VERBS = {"select": "r", "insert": "a", "update": "w", "delete": "d"}


def rows(heading: str) -> list[list[str]]:
    """The cells of the table after a heading, without its head."""
    part = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def right(db: Database, table: str, role: str) -> str:
    """What a role may do to a table, in the words of the page."""
    words = []
    for verb, letter in VERBS.items():
        whole = db.value("select has_table_privilege(%s, %s, %s)", role, table, verb)
        some = verb != "delete" and db.value("select has_any_column_privilege(%s, %s, %s)", role, table, verb)
        if not (whole or some):
            continue
        policy = """
            select coalesce(bool_or(pg_get_expr(p.polwithcheck, p.polrelid) = 'false'), false) from pg_policy as p
            where p.polrelid = %s::regclass and %s::regrole = any (p.polroles) and p.polcmd::text in ('*', %s)
        """
        words.append("lock" if db.value(policy, table, role, letter) else verb if whole else f"{verb}*")
    fenced = """
        select count(*) from pg_policy as p
        where p.polrelid = %s::regclass and %s::regrole = any (p.polroles) and not p.polpermissive
    """
    return " ".join([*words, *(["own"] if db.value(fenced, table, role) else [])])


def test_the_table_of_rights_is_the_catalogs(db: Database) -> None:
    """Each table of the schema, each role that has a right on one; no other role has any."""
    tables = """
        select relname::text, relispartition from pg_class
        where relnamespace = 'fairq'::regnamespace and relkind in ('r', 'p')
    """
    said = {row[0].strip("`"): row[1:] for row in rows("Who may do what")}
    assert set(said) == {row.relname for row in db.rows(tables) if not row.relispartition}
    partitions = [row.relname for row in db.rows(tables) if row.relispartition]
    assert len(partitions) == 8
    for partition in partitions:
        for role in ("fairq_api", "fairq_worker", "fairq_producer", "fairq_tenant", "fairq_operator"):
            assert right(db, f"fairq.{partition}", role) == "", partition
    for table, cells in said.items():
        assert cells == [right(db, f"fairq.{table}", role) for role in ROLES], table
        for other in ("fairq_worker", "fairq_producer"):
            assert right(db, f"fairq.{table}", other) == "", table


def test_the_hazards_are_the_doctors() -> None:
    """Each number is in the query, and the other way round."""
    query = (Path(fairq_schema.__file__).parent / "doctor.sql").read_text("ascii")
    numbers = set(re.findall(r"'(H\d+)'", query)) - {"H0"}
    assert set(re.findall(r"^\| (H\d+) \|", PAGE, re.MULTILINE)) == numbers == {f"H{n}" for n in range(1, 17)}


def statements(word: str) -> str:
    """The block of SQL that has this word in it."""
    (found,) = (block for block in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL) if word in block)
    return str(found)


def test_an_analyst_reads_and_no_more(db: Database) -> None:
    """As the page says: his tenant's rows alone, whatever he sets; nothing is enqueued or cancelled."""
    fairq_schema.set_tenant_provider(db.dsn, "role")
    w = world(db)
    names = {"birch_analyst": db.login(), "birch_reader": db.login()}
    for word, name in names.items():
        text = statements(word)
        for line in re.sub(r"create role[^;]*;", "", text).replace(word, name).replace("'birch'", "'a'").split(";\n"):
            db.execute(line)
    analyst, reader = (db.session(user=name) for name in names.values())
    for session in (analyst, reader):
        session.execute("set app.tenant_id = 'b'")
    assert seen(analyst) == {"a"}
    for call in ("enqueue_job(p_task => 't')", f"cancel_job({w.running['a'].job_id})"):
        assert code(reader, f"select fairq.{call}") == NOT_ALLOWED
    assert analyst.cancel(w.running["a"].job_id) == "not_found"
    assert code(analyst, "select fairq.enqueue_job(p_task => 't')") == NOT_ALLOWED
    assert code(reader, "select count(*) from fairq.all_jobs") == NOT_ALLOWED
    for tenant, rows_of in (("a", 1), ("b", 0)):
        assert len(reader.rows("select * from fairq.get_job(%s)", w.running[tenant].job_id)) == rows_of


def test_tokens_are_made_as_the_page_says(db: Database) -> None:
    """A key, a token, and a rotation."""
    fairq_schema.set_tenant_provider(db.dsn, "token")
    w = world(db)
    make, issue = statements("set_tenant_key(p_kid").replace("birch", "a").splitlines()
    operator, tenant = w.operator(), w.tenant(None)
    operator.execute(make)
    token = operator.value(issue)
    rotate = re.search(r"`(select fairq\.set_tenant_key\([^`]*;)`", PAGE)
    assert rotate is not None
    operator.execute(rotate[1])
    with tenant.conn.transaction():
        tenant.execute("select set_config('app.tenant_token', %s, true)", token)
        assert seen(tenant) == {"a"}


def test_links_lead_to_files() -> None:
    """A relative link names a file of the repository."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
