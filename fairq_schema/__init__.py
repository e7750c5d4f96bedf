"""
The schema of fairq, a fair multi-tenant job queue in PostgreSQL, and its way into a database.
"""

from fairq_schema._catalog import Fingerprint, fingerprint
from fairq_schema._check import Report, adopt, check
from fairq_schema._doctor import Hazard, doctor
from fairq_schema._maintain import Upkeep, maintain
from fairq_schema._migrate import MigrationStatus, Status, apply, rollback, status
from fairq_schema._plan import PlannedMigration, plan
from fairq_schema._tenant import set_tenant_provider
from fairq_schema.errors import FairqError

__all__ = [
    "FairqError",
    "Fingerprint",
    "Hazard",
    "MigrationStatus",
    "PlannedMigration",
    "Report",
    "Status",
    "Upkeep",
    "adopt",
    "apply",
    "check",
    "doctor",
    "fingerprint",
    "maintain",
    "plan",
    "rollback",
    "set_tenant_provider",
    "status",
]
