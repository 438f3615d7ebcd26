"""Fixtures and settings of all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# No deadlines: they would measure a busy machine. Every run uses the same examples; --hypothesis-profile explore makes
# new ones.
settings.register_profile("house", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("house")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell ignores SIGINT in background jobs, and the commands that tests interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def kafka() -> Iterator[object]:
    """A Kafka broker that the tests of one process share."""
    from tests.systems.kafka_broker import running

    with running() as broker:
        yield broker


@pytest.fixture(scope="session")
def postgres() -> Iterator[object]:
    """A PostgreSQL server that the tests of one process share."""
    from tests.systems.postgres_server import running

    with running() as server:
        yield server


@pytest.fixture(scope="session")
def cluster_of_hosts() -> Iterator[object]:
    """A Spark cluster on network namespaces that the tests of one process share."""
    from tests.systems.namespace_cluster import running

    with running() as cluster:
        yield cluster
