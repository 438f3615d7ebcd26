"""Runs `procession doctor`: checks whether this machine can run a pipeline, before any process is started.

Invariant: the command changes nothing and starts nothing. Each finding has a sentence; a finding that is not good
also has a next step. `check_start` makes the checks that a pipeline needs to start; `procession run` and `demo` call
it before they write a file. The other checks are for limits that a pipeline reaches only later.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from procession.address import check_free, parse_address
from procession.cache import VARIABLE, cache_directory
from procession.deployment.local_pipeline import HERE
from procession.deployment.pipeline_replicas import replica_options
from procession.deployment.settings import Settings
from procession.driver.epoch_log import TAIL_BYTES, EpochTail
from procession.errors import ConfigError, ProcessionError
from procession.planner.connector import Connector
from procession.planner.connector_registry import check_installed, connectors
from procession.spark.java import check_java
from procession.spark.master import check_master
from procession.spark.spark_conf import check_properties

OPEN_FILES_MIN = 4096
"""Minimum limit of open files. A gateway needs a descriptor for each session, and Spark several hundred."""

MEMORY_BYTES_MIN = 2 * 1024**3
CLOCK_AHEAD_MAX_S = 60.0


class Health(StrEnum):
    GOOD = "good"
    WARNING = "warning"
    """A pipeline can start, but may reach a limit later."""
    BAD = "bad"
    """A pipeline cannot start."""


@dataclass(frozen=True)
class MachineCheck:
    """The finding of one check."""

    name: str
    health: Health
    sentence: str
    next_step: str = ""


def check_start(settings: Settings, listen: str = HERE) -> None:
    """Raise ConfigError, before anything is started or written, if Java is missing, the master is invalid, or an
    address is in use."""
    for _, check in start_checks(settings, listen):
        check()


def start_checks(settings: Settings, listen: str = HERE) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what is checked before a start: names, and functions that raise an error if a pipeline cannot start."""
    yield "master", partial(check_master, settings.master)
    yield "conf", partial(check_properties, settings.conf or {})
    yield "java", check_java
    if settings.replicas:
        yield "replicas", partial(replica_options, settings)
    for address in filter(None, (listen, settings.control, settings.metrics)):
        yield f"port {address}", partial(check_free, parse_address(address))


def examine(directory: Path, listen: str, settings: Settings) -> Iterator[MachineCheck]:
    """Check everything. `directory` is the pipeline's directory, which need not exist yet."""
    yield _python()
    good = {
        "master": f"Spark runs on {settings.master or 'threads of the driver'}",
        "conf": "no Spark property that Procession sets itself is given",
        "java": "Spark finds a Java that it can use",
        "replicas": "their number, quorum and secret can be used",
    }
    for name, check in start_checks(settings, listen):
        yield _checked(name, good.get(name, "it is free"), check)
    yield from _disk(directory, settings.disk_free_bytes_min)
    yield _cache()
    yield _open_files()
    yield _file_size()
    yield _memory()
    yield _clock(directory)
    yield from (_connector(connector) for connector in connectors() if connector.modules)


def _checked(name: str, good: str, check: Callable[[], object]) -> MachineCheck:
    try:
        check()
    except ProcessionError as error:
        return MachineCheck(name, Health.BAD, error.sentence, error.next_step or "")
    return MachineCheck(name, Health.GOOD, good)


def _python() -> MachineCheck:
    versions = [f"{name} {version(name)}" for name in ("procession", "pyspark", "pyarrow")]
    return MachineCheck("python", Health.GOOD, ", ".join([f"Python {sys.version.split()[0]}", *versions]))


def _disk(directory: Path, least: int) -> Iterator[MachineCheck]:
    place = directory.absolute()
    while not place.exists():
        place = place.parent
    name = f"disk of {directory}"
    if not os.access(place, os.W_OK | os.X_OK):
        yield MachineCheck(name, Health.BAD, f"this user may not write to {place}", "give --dir another directory")
        return
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    sentence = f"{_size(free)} are free"
    if free < least:
        step = f"free space: below {_size(least)} (disk_free_bytes_min) producers wait"
        yield MachineCheck(name, Health.BAD, sentence, step)
    elif found.f_files and not found.f_favail:
        yield MachineCheck(name, Health.BAD, "it has no free inodes", "delete files on this disk")
    else:
        yield MachineCheck(name, Health.GOOD, sentence)


def _cache() -> MachineCheck:
    place = cache_directory()
    if place is None:
        step = f"set {VARIABLE} to a writable directory that is kept, so that later starts are faster"
        return MachineCheck("cache", Health.WARNING, "no cache directory is writable: the pipeline's own is used", step)
    return MachineCheck("cache", Health.GOOD, f"{place} is writable")


def _open_files() -> MachineCheck:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES_MIN:
        limit = "" if hard == resource.RLIM_INFINITY or hard >= OPEN_FILES_MIN else ", as root"
        step = f"run `ulimit -n {OPEN_FILES_MIN}` before the start{limit}"
        return MachineCheck("open files", Health.WARNING, f"a process may open {soft:,} files", step)
    return MachineCheck("open files", Health.GOOD, f"a process may open {_limit(soft)} files")


def _file_size() -> MachineCheck:
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft == resource.RLIM_INFINITY:
        return MachineCheck("file size", Health.GOOD, "files may grow without a limit")
    step = "run `ulimit -f unlimited` before the start"
    return MachineCheck("file size", Health.WARNING, f"a file may have at most {_size(soft)}", step)


def _memory() -> MachineCheck:
    available = _meminfo().get("MemAvailable", 0) * 1024
    sentence = f"{_size(available)} are available"
    if available < MEMORY_BYTES_MIN:
        step = f"end other programs: Spark and its workers need about {_size(MEMORY_BYTES_MIN)}"
        return MachineCheck("memory", Health.WARNING, sentence, step)
    return MachineCheck("memory", Health.GOOD, sentence)


def _meminfo() -> Mapping[str, int]:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {fields[0].rstrip(":"): int(fields[1]) for fields in lines}


def _clock(directory: Path) -> MachineCheck:
    """Check that the clock is not behind the last commit of the pipeline."""
    last = max((line["committed_ns"] for line in EpochTail(directory / "epochs.jsonl", TAIL_BYTES).new()), default=0)
    behind_s = (last - time.time_ns()) / 1e9
    if behind_s > CLOCK_AHEAD_MAX_S:
        sentence = f"the clock is {behind_s:,.0f} seconds behind the last commit of this pipeline"
        return MachineCheck("clock", Health.WARNING, sentence, "set the clock, or start its synchronization (NTP)")
    return MachineCheck("clock", Health.GOOD, "the clock is not behind the last commit")


def _connector(connector: Connector) -> MachineCheck:
    name = f"connector {connector.name}"
    try:
        check_installed(connector, f"scheme {connector.name!r}")
    except ConfigError as error:
        return MachineCheck(name, Health.WARNING, error.sentence, error.next_step or "")
    return MachineCheck(name, Health.GOOD, "its packages are installed")


def _limit(number: int) -> str:
    return "any number of" if number == resource.RLIM_INFINITY else f"{number:,}"


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"


def report(findings: list[MachineCheck]) -> Iterator[str]:
    """Yield the findings as text, with their next steps."""
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        yield f"{finding.health:<8} {finding.name:<{width}}  {finding.sentence}"
        if finding.next_step:
            yield f"{'':<8} {'':<{width}}  Next: {finding.next_step}"


def summary(findings: list[MachineCheck]) -> dict[str, Any]:
    """Return the findings for scripts."""
    return {"is_ready": is_ready(findings), "findings": list(map(asdict, findings))}


def is_ready(findings: list[MachineCheck]) -> bool:
    """Return whether a pipeline can start."""
    return all(finding.health is not Health.BAD for finding in findings)
