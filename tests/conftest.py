"""What holds for all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Machines are busy: a deadline measures them, not us. And a change is judged by the same examples each time: who looks
# for new ones gives --hypothesis-profile explore.
settings.register_profile("house", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("house")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background so, and the commands that tests interrupt would inherit it.
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
