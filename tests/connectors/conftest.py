"""Databases with the table of orders, for the tests of the PostgreSQL connector."""

from __future__ import annotations

import pytest

from procession.chaos.postgres_server import PostgresServer
from tests.connectors.postgres_outputs import ORDERS
from tests.systems.postgres_server import Database, new_database


@pytest.fixture
def database(postgres: PostgresServer) -> Database:
    database = new_database(postgres)
    database.execute(ORDERS)
    return database


@pytest.fixture(scope="module")
def unchanged(postgres: PostgresServer) -> Database:
    """Return a database for tests that commit nothing."""
    database = new_database(postgres)
    database.execute(ORDERS)
    database.execute("CREATE TABLE strange (id int, wide int GENERATED ALWAYS AS (id * 2) STORED)")
    return database
