"""The cluster of the tests: four hosts from network namespaces, one cluster for each process of pytest.

If it cannot be created, the tests fail and say so, unless `PROCESSION_WITHOUT` names `cluster`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from procession.cluster.namespace_cluster import NamespaceCluster

is_left_out = "cluster" in os.environ.get("PROCESSION_WITHOUT", "").replace(" ", "").split(",")
needs_cluster = pytest.mark.skipif(is_left_out, reason="PROCESSION_WITHOUT names cluster")


@contextmanager
def running(*, has_replicas: bool = False) -> Iterator[NamespaceCluster]:
    """Start a cluster with a master, two workers and a host for gateways and sinks."""
    cluster = NamespaceCluster(f"test{os.getpid()}{'r' * has_replicas}", 4, has_replicas=has_replicas)
    try:
        cluster.up(lambda sentence: None)
        yield cluster
    finally:
        cluster.down()
