"""The PostgreSQL server of the tests: one for each process of pytest, with a new database for each test.

If it cannot be installed, the tests fail and say so, unless `PROCESSION_WITHOUT` names `postgres`.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from procession.chaos.postgres_server import PostgresServer

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "postgres"

is_left_out = "postgres" in os.environ.get("PROCESSION_WITHOUT", "").replace(" ", "").split(",")
needs_postgres = pytest.mark.skipif(is_left_out, reason="PROCESSION_WITHOUT names postgres")

_numbers = itertools.count()


def programs() -> Path:
    """Return the directory of PostgreSQL's programs, installed if they are missing."""
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return Path(done.stdout.strip())


@contextmanager
def running(**settings: str) -> Iterator[PostgresServer]:
    """Start a server. It does not sync, because a killed process loses none of its writes."""
    with PostgresServer({"fsync": "off", **settings}, programs=programs()) as server:
        yield server


@dataclass(frozen=True)
class Database:
    """A database for one test."""

    server: PostgresServer
    name: str

    @property
    def url(self) -> str:
        return self.server.url(self.name)

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url.replace("postgres://", "postgresql://"), autocommit=True)

    def execute(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Execute a statement, and return its rows, if any."""
        with self.connect() as connection:
            done = connection.execute(statement, parameters or None)  # type: ignore[arg-type]
            return done.fetchall() if done.description else []


def new_database(server: PostgresServer) -> Database:
    name = f"test_{os.getpid()}_{next(_numbers)}"
    Database(server, "postgres").execute(f"CREATE DATABASE {name}")
    return Database(server, name)
