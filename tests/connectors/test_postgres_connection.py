"""Connections to PostgreSQL that fail permanently are reported at once, in one sentence with a next step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from procession.chaos.postgres_server import PostgresServer
from procession.connectors.postgres_connection import connect, value
from procession.errors import ConfigError, StorageError
from tests.certificates import EXPIRED, Authority, Pair
from tests.connectors.postgres_outputs import sentence
from tests.systems.postgres_server import needs_postgres, programs

pytestmark = needs_postgres

PATIENCE_S = 30.0
"""Long enough for retries. A permanent refusal must be reported sooner, because it is not retried."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls_server(authority: Authority) -> Iterator[PostgresServer]:
    """Start a server with a certificate for another host, and one user who needs a password."""
    server = PostgresServer({"fsync": "off", "ssl": "on"}, programs=programs())
    try:
        rules = server._data / "pg_hba.conf"
        rules.write_text(f"host all clerk 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        _show(server, authority.issue("db.example"))
        server.start()
        yield server
    finally:
        server.close()


def _show(server: PostgresServer, pair: Pair) -> None:
    """Make the server use this certificate from its next start on."""
    for name, path in zip(("ssl_cert_file", "ssl_key_file"), pair, strict=True):
        copy = server.directory / path.name
        copy.write_bytes(path.read_bytes())
        copy.chmod(0o600)
        owner = server.directory.stat()
        os.chown(copy, owner.st_uid, owner.st_gid)
        server._settings[name] = str(copy)


def url(server: PostgresServer, parameters: str, host: str = "db.example") -> str:
    return f"postgres://procession@{host}:{server.port}/postgres?hostaddr=127.0.0.1&{parameters}"


def test_a_certificate_of_the_right_authority_and_host_is_accepted(
    tls_server: PostgresServer, authority: Authority
) -> None:
    parameters = f"sslmode=verify-full&sslrootcert={authority.ca}"
    with connect(url(tls_server, parameters), "test", patience_s=PATIENCE_S) as session:
        assert value(session, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")


def test_a_wrong_certificate_is_reported_at_once(
    tls_server: PostgresServer, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "stranger")
    for parameters, host, message in (
        (f"sslmode=verify-full&sslrootcert={stranger.ca}", "db.example", "certificate verify failed"),
        (f"sslmode=verify-full&sslrootcert={authority.ca}", "other.example", "does not match host name"),
        ("sslmode=verify-full&sslrootcert=/nowhere/ca.pem", "db.example", "does not exist"),
        (
            f"sslmode=require&sslcert={stranger.ca}&sslkey=/nowhere/client.key",
            "db.example",
            "/nowhere/client.key",
        ),
    ):
        with pytest.raises(ConfigError) as error:
            connect(url(tls_server, parameters, host), "test", patience_s=PATIENCE_S)
        assert message in sentence(error)
        assert "sslrootcert" in sentence(error)
        assert "clock" in sentence(error)


def test_an_expired_certificate_is_reported_at_once(tls_server: PostgresServer, authority: Authority) -> None:
    tls_server.stop()
    _show(tls_server, authority.issue("db.example", not_after=EXPIRED))
    tls_server.start()
    try:
        with pytest.raises(ConfigError) as error:
            connect(url(tls_server, f"sslmode=verify-full&sslrootcert={authority.ca}"), "test", patience_s=PATIENCE_S)
    finally:
        tls_server.stop()
        _show(tls_server, authority.issue("db.example"))
        tls_server.start()
    assert "certificate verify failed" in sentence(error)
    assert "a clock that is wrong" in sentence(error)


def test_a_server_without_tls_is_reported_at_once(postgres: PostgresServer, authority: Authority) -> None:
    with pytest.raises(ConfigError) as error:
        connect(url(postgres, f"sslmode=verify-full&sslrootcert={authority.ca}"), "test", patience_s=PATIENCE_S)
    assert "does not support SSL" in sentence(error)
    assert "Correct sslmode" in sentence(error)


def test_a_database_or_user_that_is_not_there_is_reported_at_once(postgres: PostgresServer) -> None:
    for wrong, message in ((postgres.url("shop"), '"shop" does not exist'), (postgres.url(user="nobody"), '"nobody"')):
        with pytest.raises(ConfigError) as error:
            connect(wrong, "test", patience_s=PATIENCE_S)
        assert message in sentence(error)


def test_a_wrong_or_missing_password_is_reported_at_once(
    tls_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(tls_server.url(), "test", patience_s=PATIENCE_S) as session:
        session.execute("CREATE ROLE clerk LOGIN PASSWORD 'right'")
    for password, said in ((None, "no password supplied"), ("wrong", 'authentication failed for user "clerk"')):
        if password:
            monkeypatch.setenv("PGPASSWORD", password)
        with pytest.raises(ConfigError) as error:
            connect(tls_server.url(user="clerk"), "test", patience_s=PATIENCE_S)
        assert said in sentence(error)
        assert "PGPASSWORD" in sentence(error)
    monkeypatch.setenv("PGPASSWORD", "right")
    connect(tls_server.url(user="clerk"), "test", patience_s=PATIENCE_S).close()


def test_a_server_that_is_away_is_retried_for_the_given_time() -> None:
    with pytest.raises(StorageError) as error:
        connect("postgres://procession@127.0.0.1:1/postgres", "test", patience_s=0.0)
    assert "PostgreSQL at 127.0.0.1:1/postgres cannot be reached: connection to server at" in sentence(error)
    assert "Connection refused.\n" in sentence(error)
    assert "nothing is lost" in sentence(error)


@pytest.mark.parametrize(
    "message",
    [
        "the database system is starting up",
        "the database system is not yet accepting connections",
        "the database system is not accepting connections",
        "the database system is shutting down",
        "the database system is in recovery mode",
        "sorry, too many clients already",
        "remaining connection slots are reserved for roles with the SUPERUSER attribute",
    ],
)
def test_a_server_that_starts_or_is_full_is_retried(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    """libpq gives no SQLSTATE for a refused connection, so the connector compares the text."""

    def refuse(*_: object, **__: object) -> None:
        raise psycopg.OperationalError(f'connection to server at "127.0.0.1", port 5432 failed: FATAL:  {message}')

    monkeypatch.setattr("procession.connectors.postgres_connection.psycopg.connect", refuse)
    with pytest.raises(StorageError, match="cannot be reached"):
        connect("postgres://procession@127.0.0.1/postgres", "test", patience_s=0.0)
