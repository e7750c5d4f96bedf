"""
Everything that the functions of this package refuse to do, one class for each reason.
"""

from __future__ import annotations


class FairqError(Exception):
    """
    Catch this to handle every refusal of fairq itself; errors of the database keep their psycopg class.
    """


class BadConnectionError(FairqError):
    """
    Give a libpq connection string, or an idle synchronous psycopg connection.
    """


class BadSchemaNameError(FairqError):
    """
    Choose another name for the schema.
    """


class BadRolesError(FairqError):
    """
    Name each part once, by a role that may play it; the roles of an installation are chosen when it is made.
    """


class FilesError(FairqError):
    """
    Install the package again: its migration files are missing or do not form one chain.
    """


class UnknownTargetError(FairqError):
    """
    Name a migration that this package ships, by number or by id.
    """


class ExportError(FairqError):
    """
    Correct what was asked of the export, or remove the file that is in its way.
    """


class ChangedFileError(FairqError):
    """
    Restore the file that was applied, and put the change into a new migration.
    """


class HistoryError(FairqError):
    """
    The database was migrated by a newer package or by another tool: use that one, or adopt() what it did.
    """


class NotInstalledError(FairqError):
    """
    There is no fairq in this schema: apply() makes it, and another name may be meant.
    """


class DriftError(FairqError):
    """
    The database is not what its version should be: undo what the message names, or apply the files again.
    """


class ReadOnlyError(FairqError):
    """
    Connect to the primary, in a session that may write.
    """


class PooledError(FairqError):
    """
    Connect without the pooler: this migration runs outside of a transaction.
    """


class BusyError(FairqError):
    """
    Wait for the other migration to end, and try again.
    """


class NotPermittedError(FairqError):
    """
    Connect as the role that the message asks for.
    """


class MigrationFailedError(FairqError):
    """
    Nothing of the named migration was kept; the cause is the error of the database.
    """


class WouldLoseJobsError(FairqError):
    """
    Drain or export the jobs first, or say that they may be lost.
    """


class TenantProviderWarning(UserWarning):
    """
    A queue that has had jobs knows its tenants in another way from now on: sessions have to follow.
    """


class MissingExtraError(FairqError):
    """
    Install the extra that the message names.
    """


class NewerDatabaseWarning(UserWarning):
    """
    A newer package has migrated the database, and says that this one can go on working with it.
    """
