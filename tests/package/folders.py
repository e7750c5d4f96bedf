"""
Folders of migrations that tests write: the tests of the runner must not depend on what it will run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# The number of the advisory lock that a test holds while a migration must not get on.
BARRIER = 4242

WAIT_AT_BARRIER = f"set local lock_timeout = 0;\ndo $fn$ begin perform pg_advisory_xact_lock({BARRIER}); end $fn$;\n"

INITIAL = """\
do $fn$
begin
    if to_regnamespace('fairq') is null then
        create schema fairq;
    end if;
end
$fn$;
create table fairq.jobs (job_id bigint primary key, tenant text not null);
comment on table fairq.jobs is 'It''s a table: of jobs; and of fairq.jobs.';
create function fairq.count_jobs() returns bigint language sql set search_path = pg_catalog, pg_temp as $fn$
    select count(*) from fairq.jobs as j -- don't count others
$fn$;
"""
INITIAL_BACK = """\
do $fn$
begin
    if current_setting('fairq_rollback.lose_jobs', true) <> 'yes' and fairq.count_jobs() > 0 then
        raise exception 'rolling back would lose % jobs', fairq.count_jobs() using errcode = 'QF003', hint = 'ask';
    end if;
end
$fn$;
drop function fairq.count_jobs();
drop table fairq.jobs;
"""


class Folder:
    """
    A folder of migrations, numbered and chained in the order in which a test adds them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ids: list[str] = []
        path.mkdir(parents=True)

    def add(self, slug: str, forward: str, backward: str = "", header: str = "") -> Path:
        """
        Write the next migration, and return the path of its forward file.
        """
        depends = f" {self.ids[-1]}" if self.ids else ""
        name = f"fairq_{len(self.ids) + 1:04}_{slug}"
        self.ids.append(name)
        (self.path / f"{name}.rollback.sql").write_text(backward, "ascii")
        forward_file = self.path / f"{name}.sql"
        forward_file.write_text(f"-- depends:{depends}\n{header}{forward}", "ascii")
        return forward_file


def two_versions(path: Path) -> Folder:
    """
    A folder with a first version and a second.
    """
    folder = Folder(path)
    folder.add("initial", INITIAL, INITIAL_BACK)
    folder.add(
        "tenant_index",
        "create index jobs_tenant_idx on fairq.jobs (tenant);\n",
        "drop index fairq.jobs_tenant_idx;\n",
    )
    return folder


class ApplyProcess:
    """
    `fairq_schema.apply()` in a process of its own, for tests about several of them and about their death.
    """

    def __init__(self, dsn: str, folder: Folder) -> None:
        program = (
            "import json, pathlib, sys, fairq_schema\n"
            "print(json.dumps(fairq_schema.apply(sys.argv[1], migrations=pathlib.Path(sys.argv[2]))))"
        )
        command = [sys.executable, "-c", program, dsn, str(folder.path)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def applied(self) -> list[str]:
        """
        The ids that this process applied, once it has ended well.
        """
        out, errors = self.process.communicate(timeout=180)
        assert self.process.returncode == 0, errors
        ids: list[str] = json.loads(out)
        return ids

    def kill(self) -> None:
        """
        Kill it as the kernel would, and collect it.
        """
        self.process.kill()
        self.process.communicate()
