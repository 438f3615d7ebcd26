"""A cluster with systems is stopped while the systems start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from procession.chaos.system_cluster import StoppedEarly, SystemCluster
from procession.chaos.system_server import SystemServer


class NeverReady(SystemServer):
    """A system that runs and never answers. At the second question the user presses Ctrl-C."""

    title = "The silent system"
    start_timeout_s = 60.0

    def __init__(self, cluster: SystemCluster) -> None:
        super().__init__("silent", {})
        self._cluster = cluster
        self._asked = 0

    def _make(self) -> None:
        pass

    def _program(self) -> list[str]:
        return [sys.executable, "-c", "import signal; signal.pause()"]

    def is_ready(self, pid: int = 0) -> bool:
        self._asked += 1
        if self._asked == 2:
            self._cluster.supervisor.ask_to_stop()
        return False


def test_an_interrupt_while_systems_start_ends_the_run_before_it_uses_them(tmp_path: Path) -> None:
    with SystemCluster(tmp_path, {}, ()) as cluster:
        cluster.add_server("silent", NeverReady(cluster))
        with pytest.raises(StoppedEarly):
            cluster.start_servers()
