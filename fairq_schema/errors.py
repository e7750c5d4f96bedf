"""
Everything that apply(), status() and rollback() refuse to do, one class for each reason.
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
    The database was migrated by a newer package or by another tool: use that one.
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
