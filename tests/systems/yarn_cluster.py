"""A YARN cluster of one resource manager and one node manager on this machine, with its files in temporary directories.

If it cannot be installed, the tests fail and say so, unless `PROCESSION_WITHOUT` names `yarn`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest

from procession.chaos.system_server import HOST, SystemServer, free_port
from procession.spark.java import java

ROOT = Path(__file__).resolve().parents[2]
LIBS = ROOT / ".make" / "yarn" / "libs"
JAVA_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
PACKAGE = "org.apache.hadoop.yarn.server"
SETTINGS = {
    "yarn.resourcemanager.hostname": HOST,
    "yarn.resourcemanager.scheduler.class": f"{PACKAGE}.resourcemanager.scheduler.fifo.FifoScheduler",
    "yarn.scheduler.minimum-allocation-mb": "256",
    "yarn.nodemanager.hostname": HOST,
    "yarn.nodemanager.resource.memory-mb": "4096",
    "yarn.nodemanager.resource.cpu-vcores": "4",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
}
MANAGER_PORTS = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
NODE_PORTS = ("address", "localizer.address", "webapp.address")
LOGGING = """log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c: %m%n
"""

is_left_out = "yarn" in os.environ.get("PROCESSION_WITHOUT", "").replace(" ", "").split(",")
needs_yarn = pytest.mark.skipif(is_left_out, reason="PROCESSION_WITHOUT names yarn")


class Daemon(SystemServer):
    """One of YARN's programs. It is ready when the resource manager has as many nodes as are expected then."""

    title = "YARN"
    start_timeout_s = 180.0

    def __init__(self, main: str, conf: Path, web_port: int, nodes: int) -> None:
        self._main = main
        self._conf = conf
        self._web_port = web_port
        self._nodes = nodes
        super().__init__("yarn", {})

    def _make(self) -> None:
        pass

    def _program(self) -> list[str]:
        return [java(), *JAVA_OPTIONS, "-cp", f"{self._conf}:{LIBS}/*", f"{PACKAGE}.{self._main}"]

    def is_ready(self, pid: int = 0) -> bool:
        try:
            with urlopen(f"http://{HOST}:{self._web_port}/ws/v1/cluster/metrics", timeout=5) as answer:
                return int(json.load(answer)["clusterMetrics"]["activeNodes"]) == self._nodes
        except (OSError, ValueError, KeyError):
            return False


@dataclass(frozen=True)
class YarnCluster:
    conf: Path
    """The directory for HADOOP_CONF_DIR."""
    local: Path
    """The directory with the files of applications and their containers."""


@contextmanager
def running(directory: Path) -> Iterator[YarnCluster]:
    """Start a cluster with its configuration and files in this directory."""
    done = subprocess.run([str(ROOT / "scripts" / "yarn")], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    conf, local, web_port = directory / "conf", directory / "local", free_port()
    conf.mkdir(parents=True)
    ports = {f"yarn.resourcemanager.{name}": f"{HOST}:{free_port()}" for name in MANAGER_PORTS}
    ports |= {f"yarn.nodemanager.{name}": f"{HOST}:{free_port()}" for name in NODE_PORTS}
    ports["yarn.resourcemanager.webapp.address"] = f"{HOST}:{web_port}"
    directories = {"yarn.nodemanager.local-dirs": str(local), "yarn.nodemanager.log-dirs": str(directory / "logs")}
    _write(conf / "yarn-site.xml", SETTINGS | ports | directories)
    _write(conf / "core-site.xml", {"hadoop.tmp.dir": str(directory / "tmp")})
    (conf / "log4j.properties").write_text(LOGGING)
    with (
        Daemon("resourcemanager.ResourceManager", conf, web_port, 0),
        Daemon("nodemanager.NodeManager", conf, web_port, 1),
    ):
        yield YarnCluster(conf, local)


def _write(path: Path, properties: Mapping[str, str]) -> None:
    rows = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in properties.items())
    path.write_text(f"<configuration>{''.join(rows)}</configuration>")
