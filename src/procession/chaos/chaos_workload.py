"""Runs the workload of a chaos run: producers that send files of records, one after another.

Invariant: every record is written to an input file, and expected at the outputs, before it is sent. At the end of a
scenario the remaining records are sent at full speed. The harness feeds the workload at every poll.
`chaos/kafka_workload` publishes to a topic instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from procession.chaos.chaos_records import records, tag
from procession.chaos.cluster_view import Cluster
from procession.chaos.monitor import Monitor
from procession.chaos.output_monitor import MonitoredStream


@dataclass(frozen=True, slots=True)
class Load:
    """The load. A source sends its file at `rate`, then the next file. At the end of a scenario the remaining records
    are sent at full speed."""

    rate: float = 250.0
    seconds: float = 30.0
    faulty_producer_records: int = 2_000

    @property
    def records(self) -> int:
        return int(self.rate * self.seconds)


class Workload(Protocol):
    """The records that are sent into the pipeline."""

    def feed(self) -> None:
        """Send the records that are due. Called at every poll."""

    def drain(self) -> None:
        """Send the remaining records, and no new ones until `feed` is called again."""

    @property
    def is_over(self) -> bool:
        """Whether all records are sent, after `drain`."""

    def forget(self) -> None:
        """Remove producers that have ended, because everything is committed."""

    def move(self, source: str, gateway: str) -> None:
        """Make a producer send to this gateway from its next start on."""

    def start_faulty_producer(self, fault: str) -> str:
        """Start a producer that misbehaves. Return its name."""


MakeWorkload = Callable[[Cluster, Monitor, Load], Workload]


class FileWorkload:
    """Producers that send files. A producer gets a new file when its last file is committed."""

    def __init__(self, cluster: Cluster, monitor: Monitor, load: Load) -> None:
        self._cluster = cluster
        self._monitor = monitor
        self._load = load
        self._homes = monitor.parts.homes
        self._faulty_producers: list[str] = []

    def feed(self) -> None:
        supervisor = self._cluster.supervisor
        for name, (home, *_) in self._homes.items():
            if not supervisor.has(name) or (supervisor.is_done(name) and name not in supervisor.held):
                path = self._write(self._load.records)
                self._monitor.streams[name] = path.name
                self._cluster.start_source(name, path, self._load.rate, (home,))

    def _write(self, count: int) -> Path:
        name = tag(len(self._monitor.outputs.streams))
        path = self._cluster.directory / f"{name}.txt"
        path.write_bytes(b"".join(line + b"\n" for line in records(name, count)))
        self._monitor.outputs.expect(MonitoredStream(name, path, count))
        return path

    def drain(self) -> None:
        """Send the rest of all files at full speed, to another gateway if there is one."""
        supervisor = self._cluster.supervisor
        for name, (home, *others) in self._homes.items():
            if not supervisor.is_done(name):
                self._cluster.start_source(name, self._path(name), None, (*others, home))

    @property
    def is_over(self) -> bool:
        return all(self._cluster.supervisor.is_done(name) for name in (*self._homes, *self._faulty_producers))

    def forget(self) -> None:
        for name in (*self._homes, *self._faulty_producers):
            self._cluster.supervisor.forget(name)
        self._faulty_producers.clear()

    def move(self, source: str, gateway: str) -> None:
        home, *_ = self._homes[source]
        self._cluster.move_source(source, self._path(source), self._load.rate, (gateway, home))

    def _path(self, source: str) -> Path:
        return self._cluster.directory / self._monitor.streams[source]

    def start_faulty_producer(self, fault: str) -> str:
        path = self._write(self._load.faulty_producer_records)
        name = f"rogue-{path.stem}"
        self._monitor.streams[name] = path.name
        self._cluster.start_faulty_producer(name, path, fault)
        self._faulty_producers.append(name)
        return name
