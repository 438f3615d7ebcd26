"""Errors of the database: some restart the connector, others wait for an operator."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from procession.connectors.postgres_connection import _is_permanent, connect, explained
from procession.errors import DiskError
from procession.exit_status import Status, status_of


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (psycopg.OperationalError("server closed the connection unexpectedly"), Status.UNCLEAN),
        (errors.AdminShutdown("terminating connection due to administrator command"), Status.UNCLEAN),
        (errors.CrashShutdown("terminating connection because of crash of another server process"), Status.UNCLEAN),
        (errors.DiskFull("could not extend file"), Status.ACT),
        (errors.InsufficientPrivilege("permission denied for table t"), Status.ACT),
        (errors.UniqueViolation("duplicate key"), Status.ACT),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_lost_connection_restarts_the_connector_and_a_refusal_waits_for_an_operator(
    error: psycopg.Error, status: Status
) -> None:
    assert status_of(explained(error, "PostgreSQL")) is status


def test_an_unreachable_server_causes_a_restart() -> None:
    with pytest.raises(DiskError, match="cannot be reached"):
        connect("postgres://procession@127.0.0.1:1/postgres", "test", patience_s=0)


@pytest.mark.parametrize(
    ("sentence", "is_hopeless"),
    [
        ("the database system is starting up", False),
        ("the database system is not yet accepting connections", False),
        ("the database system is not accepting connections", False),
        ("the database system is shutting down", False),
        ("sorry, too many clients already", False),
        ('password authentication failed for user "reader"', True),
        ('database "shop" does not exist', True),
    ],
)
def test_the_connector_waits_for_a_server_that_recovers_from_a_crash(sentence: str, is_hopeless: bool) -> None:
    """While connecting, libpq gives no code, only the server's message."""
    error = psycopg.OperationalError(f'connection to server at "127.0.0.1", port 5432 failed: FATAL:  {sentence}')
    assert _is_permanent(error) is is_hopeless
