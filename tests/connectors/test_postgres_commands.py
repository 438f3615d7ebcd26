"""The PostgreSQL connectors as commands, on a real server: killed, disconnected, with a pooler, with a wrong
password."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from procession.chaos.postgres_server import PostgresServer
from procession.connectors.postgres_connection import connect
from procession.errors import ConfigError
from procession.sdk.source_records import Stream
from tests.connectors.commands import command, until
from tests.sdk.gateways import LivingGateway, living_gateway
from tests.systems.postgres_server import Database, needs_postgres, new_database

pytestmark = needs_postgres


@pytest.fixture
def database(postgres: PostgresServer) -> Database:
    database = new_database(postgres)
    database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, item text)")
    return database


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[LivingGateway]:
    with living_gateway(tmp_path) as living:
        yield living


def test_a_source_that_is_killed_and_disconnected_sends_every_change_once(
    database: Database, tmp_path: Path, gateway: LivingGateway
) -> None:
    slot = database.name
    arguments = [
        "postgres",
        database.url,
        str(tmp_path / "state"),
        "--table",
        "orders",
        "--slot",
        slot,
        "--poll-s",
        "0.02",
    ]
    stream = Stream.named(slot).id

    def ids() -> list[int]:
        return [json.loads(payload)["key"]["id"] for payload in gateway.payloads(stream)]

    def insert(first: int) -> None:
        database.execute("INSERT INTO orders SELECT generate_series(%s::int, %s::int)", first, first + 99)

    with command(*arguments, "--to", gateway.listen) as source:
        source.wait_for("slot_created")
        insert(0)
        until(lambda: len(ids()) >= 1)
        source.signal(signal.SIGKILL)
        source.status()
    insert(100)
    with command(*arguments, "--to", gateway.listen) as source:
        until(lambda: len(ids()) >= 200)
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'procession source%%'"
        )
        source.wait_for("connection_lost")
        insert(200)
        until(lambda: len(ids()) >= 300)
    database.execute("SELECT pg_drop_replication_slot(%s)", slot)
    assert ids() == list(range(300))


def test_a_source_that_lost_its_directory_stops_and_skips_no_change(
    database: Database, tmp_path: Path, gateway: LivingGateway
) -> None:
    slot, state = database.name, tmp_path / "state"
    arguments = ["postgres", database.url, str(state), "--table", "orders", "--slot", slot, "--poll-s", "0.02"]
    with command(*arguments, "--to", gateway.listen) as source:
        source.wait_for("slot_created")
        database.execute("INSERT INTO orders SELECT generate_series(0, 99)")
        until(lambda: len(gateway.payloads(Stream.named(slot).id)) >= 100)
    shutil.rmtree(state)
    database.execute("INSERT INTO orders SELECT generate_series(100, 999)")
    with command(*arguments, "--to", gateway.listen) as source:
        source.wait_for("Put back the spool that this stream was sent from")
        source.status()
    database.execute("SELECT pg_drop_replication_slot(%s)", slot)
    assert len(gateway.payloads(Stream.named(slot).id)) == 100


@pytest.mark.parametrize(
    ("kind", "arguments", "sentence"),
    [
        ("sink", ["--table", "nothing"], "There is no table nothing in the database."),
        ("sink", ["--table", "orders", "--column", "item=$position"], "cannot hold $position"),
        ("source", ["--table", "nothing"], "There is no table nothing in the database."),
    ],
)
def test_a_command_that_cannot_work_ends_with_one_sentence(
    database: Database, tmp_path: Path, kind: str, arguments: list[str], sentence: str
) -> None:
    place = ["--listen", "127.0.0.1:0"] if kind == "sink" else ["--to", "127.0.0.1:1"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "procession",
            kind,
            "postgres",
            database.url,
            str(tmp_path / "state"),
            *arguments,
            *place,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (2, 3), done.stderr
    assert sentence in done.stderr
    assert "Next:" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_database_is_reported_at_once(database: Database) -> None:
    with pytest.raises(ConfigError, match="refuses the connection"):
        connect(database.server.url("nowhere"), "test", patience_s=60.0)


def test_a_pooler_is_refused_unless_it_pools_sessions(database: Database) -> None:
    with pooler(database.server.port) as port:
        url = database.url.replace(str(database.server.port), str(port))
        with pytest.raises(ConfigError) as error:
            connect(url, "test")
        assert "--session-pooler" in error.value.explain()
        with connect(url, "test", is_pooler_allowed=True) as session:
            assert session.execute("SELECT 1").fetchone() == (1,)


@contextmanager
def pooler(server_port: int) -> Iterator[int]:
    """Serve a pooler: it forwards one connection after the other, and gives clients process ids of its own."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    def serve(client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", server_port)) as server:
            back = threading.Thread(target=answer, args=(server, client), daemon=True)
            back.start()
            copy(client, server, lambda data: data)
            back.join()

    def answer(server: socket.socket, client: socket.socket) -> None:
        # BackendKeyData: its kind, its length of 12, the process id, the secret.
        def disguised(data: bytes) -> bytes:
            at = data.find(b"K\x00\x00\x00\x0c")
            return data if at < 0 else data[: at + 5] + (77).to_bytes(4) + data[at + 9 :]

        copy(server, client, disguised)

    def copy(one: socket.socket, other: socket.socket, change: object) -> None:
        assert callable(change)
        try:
            while data := one.recv(65536):
                other.sendall(change(data))
            other.shutdown(socket.SHUT_WR)
        except OSError:
            return

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
