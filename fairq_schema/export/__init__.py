"""
The migrations in the form that another migration tool wants: what `fairq export` writes.

Every target is one function from a version to its files; the table of them is in `_targets`.
"""

from fairq_schema.export._targets import TARGETS, Target
from fairq_schema.export._write import Export, export

__all__ = ["TARGETS", "Export", "Target", "export"]
