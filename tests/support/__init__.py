"""What tests are made of; `tests/README.md` is the list."""

from tests.support.database import Database, Session
from tests.support.databases import Databases, with_schema, with_test_verbs
from tests.support.mutants import (
    Both,
    Edit,
    StaleMutant,
    Statement,
    Survived,
    assert_fails_under,
    both,
    mutant,
    mutant_sql,
)
from tests.support.plans import buffers_of, explain, indexes, node_types, nodes, plans_inside, seq_scans
from tests.support.races import Background, Worker, in_background, is_blocked, storm, wait_until_blocked
from tests.support.waiting import NeverHappened, wait_until

__all__ = [
    "Background",
    "Both",
    "Database",
    "Databases",
    "Edit",
    "NeverHappened",
    "Session",
    "StaleMutant",
    "Statement",
    "Survived",
    "Worker",
    "assert_fails_under",
    "both",
    "buffers_of",
    "explain",
    "in_background",
    "indexes",
    "is_blocked",
    "mutant",
    "mutant_sql",
    "node_types",
    "nodes",
    "plans_inside",
    "seq_scans",
    "storm",
    "wait_until",
    "wait_until_blocked",
    "with_schema",
    "with_test_verbs",
]
