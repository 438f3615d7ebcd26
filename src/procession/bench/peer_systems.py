"""Bytewax, PyFlink, Pathway and plain PySpark beside Procession: the same functions, from a file to files.

Each program runs by turns with few and with many records. The difference in time is what the additional records took,
so the start of a program does not count; it is reported separately. Every program writes a checkpoint, and every output
is compared with that of a plain loop: byte for byte where a program keeps the order, and as a set of lines where it
does not. Processor time is that of a program with all its descendants. `scripts/peers` installs the peers.
"""

from __future__ import annotations

import csv
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from procession.bench.loop import FORMS, plain_loop
from procession.bench.peers import fields
from procession.bench.processes import cpu_total_s
from procession.deployment.local_pipeline import COMMAND, HERE
from procession.errors import ConfigError, ProcessionError, StorageError, UsageError
from procession.jobs.demo import write_input
from procession.supervisor.cleanup import adopt_orphans, processes
from procession.verify.sink_outputs import committed_output

SCRIPTS = Path(__file__).with_name("peers")
TIMEOUT_S = 1800.0
FEW = 10
"""The short runs have this part of the records."""
OURS = "procession"
LOG_BYTES = 2000


@dataclass(frozen=True)
class Job:
    """One run: its input, and the directory in which the program runs."""

    source: Path
    work: Path

    @property
    def target(self) -> Path:
        """The output: a file or a directory, as the program writes it."""
        return self.work / "output"

    @property
    def state(self) -> Path:
        """The directory of the program's checkpoint."""
        return self.work / "state"


@dataclass(frozen=True)
class PeerSystem:
    """A stream processor, and what its program guarantees when processes are killed."""

    guarantee: str
    order: str
    lines: Callable[[Path], Iterable[bytes]]
    """The committed lines of its output."""
    keeps_order: bool = True
    is_installed_apart: bool = True
    """It has an environment of its own; otherwise it runs in ours."""


def _file_lines(target: Path) -> Iterable[bytes]:
    return target.read_bytes().splitlines()


def _directory_lines(target: Path) -> Iterable[bytes]:
    """The lines of all files that are neither hidden nor metadata."""
    for path in sorted(target.rglob("*")):
        if path.is_file() and not path.name.startswith((".", "_")) and "_spark_metadata" not in path.parts:
            yield from path.read_bytes().splitlines()


def _table_lines(target: Path) -> Iterable[bytes]:
    """The first column of Pathway's log of changes, which only adds rows here."""
    with target.open(newline="") as file:
        rows = csv.DictReader(file)
        yield from (row["record"].encode() for row in rows)


def _committed_lines(target: Path) -> Iterable[bytes]:
    return b"".join(committed_output(target, None)).splitlines()


PEERS: Mapping[str, PeerSystem] = {
    OURS: PeerSystem("exactly once", "total", _committed_lines, is_installed_apart=False),
    "bytewax": PeerSystem(
        "exactly once, if nobody reads the file before the end", "total, with one worker", _file_lines
    ),
    "pathway": PeerSystem("at least once", "none", _table_lines, keeps_order=False),
    "pyflink": PeerSystem("exactly once", "total, with one task", _directory_lines),
    "pyspark": PeerSystem("exactly once", "none", _directory_lines, keeps_order=False, is_installed_apart=False),
}


@dataclass
class ProgramRuns:
    """The runs of one program."""

    short_s: list[float] = field(default_factory=list)
    long_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """Processor time of a long run without that of the short one before it."""

    def figures(self, records: int) -> dict[str, float | None]:
        added_s = statistics.median(long - short for short, long in zip(self.short_s, self.long_s, strict=True))
        return {
            # None: the time of a start varies by more than the additional records take.
            "records_per_second": records / added_s if added_s > 0 else None,
            "cpu_us_per_record": statistics.median(self.cpu_s) / records * 1e6,
            "short_run_s": statistics.median(self.short_s),
        }


def measure(records: int, rounds: int, names: Sequence[str], environments: Path) -> dict[str, Any]:
    """Run each of these programs in turn. Raises ConfigError if one is not installed, StorageError if an output is
    not that of the loop."""
    if unknown := [name for name in names if name not in PEERS]:
        raise UsageError(f"There is no program {unknown[0]!r}.", next_step=f"Choose from: {', '.join(PEERS)}.")
    programs = {name: _program(name, environments) for name in names}
    few = max(1, records // FEW)
    found = {name: ProgramRuns() for name in names}
    with tempfile.TemporaryDirectory(prefix="procession-bench-") as given:
        work = Path(given)
        sources = {count: _input(work, count) for count in (few, few + records)}
        expected = {}
        for count, source in sources.items():
            target = work / f"expected-{count}"
            plain_loop(source, target, fields)
            expected[count] = target.read_bytes().splitlines()
        for number in range(rounds):
            for place in range(len(names)):
                name = names[(number + place) % len(names)]
                used: list[float] = []
                for count, seconds in ((few, found[name].short_s), (few + records, found[name].long_s)):
                    run = Job(sources[count], work / f"{name}-{number}-{count}")
                    took_s, cpu_s = _timed(name, programs[name], run)
                    _check(name, run.target, expected[count])
                    seconds.append(took_s)
                    used.append(cpu_s)
                found[name].cpu_s.append(used[1] - used[0])
    return {
        "records": records,
        "rounds": rounds,
        "peers": {
            name: {**runs.figures(records), "guarantee": PEERS[name].guarantee, "order": PEERS[name].order}
            for name, runs in found.items()
        },
    }


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    for name, row in figures["peers"].items():
        rate = row["records_per_second"]
        speed = "too few records to tell  " if rate is None else f"{rate:15,.0f} records/s"
        yield (
            f"{name:11} {speed}, processor time {row['cpu_us_per_record']:6.2f} µs/record,"
            f" a short run {row['short_run_s']:5.1f} s; {row['guarantee']}; order: {row['order']}"
        )


def _input(work: Path, count: int) -> Path:
    """An input file, alone in its directory: Spark reads directories."""
    source = work / f"input-{count}" / "lines.txt"
    source.parent.mkdir()
    write_input(source, range(count))
    return source


def _program(name: str, environments: Path) -> tuple[str, ...]:
    """The command of a peer's program, or of ours."""
    if name == OURS:
        return (*COMMAND, "run", str(FORMS["by_fields"]))
    script = str(SCRIPTS / f"{name}_job.py")
    if not PEERS[name].is_installed_apart:
        return (sys.executable, script)
    python = environments / name / "bin" / "python"
    if not python.exists():
        raise ConfigError(f"{name} is not installed in {environments}.", next_step=f"Run scripts/peers {name}.")
    return (str(python.absolute()), script)


def _arguments(name: str, run: Job) -> tuple[str, ...]:
    if name == OURS:
        return ("--input", str(run.source), "--dir", str(run.state), "--listen", HERE)
    return (str(run.source), str(run.target), str(run.state))


def _timed(name: str, program: Sequence[str], run: Job) -> tuple[float, float]:
    """The seconds that a run takes, and its processor time."""
    run.work.mkdir()
    # Python workers find the functions of the peers in the module beside their programs.
    path = os.pathsep.join(filter(None, [str(SCRIPTS), os.environ.get("PYTHONPATH")]))
    programs = f"{Path(program[0]).parent}{os.pathsep}{os.environ['PATH']}"
    adopt_orphans(True)
    try:
        with (run.work / "log").open("w+b") as log:
            used_before, began = cpu_total_s(), time.monotonic()
            with subprocess.Popen(
                [*program, *_arguments(name, run)],
                cwd=run.work,
                env={**os.environ, "PATH": programs, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as process:
                try:
                    process.wait(TIMEOUT_S)
                except BaseException:
                    os.killpg(process.pid, signal.SIGINT)
                    raise
            took_s = time.monotonic() - began
            _reap(process.pid)
            if process.returncode:
                log.seek(0)
                raise ProcessionError(f"{name} failed: {log.read()[-LOG_BYTES:].decode(errors='replace')}")
        return took_s, cpu_total_s() - used_before
    finally:
        adopt_orphans(False)


def _reap(session: int) -> None:
    """Wait for the processes of a session that a program has left behind, so that their processor time counts."""
    while left := [entry for entry in processes() if entry.session == session]:
        for entry in left:
            if entry.parent == os.getpid():
                os.waitpid(entry.pid, 0)


def _check(name: str, target: Path, expected: list[bytes]) -> None:
    peer = PEERS[name]
    found = list(peer.lines(target))
    if not peer.keeps_order:
        found, expected = sorted(found), sorted(expected)
    if found != expected:
        raise StorageError(f"the output of {name} is not that of the loop: {len(found):,} lines, not {len(expected):,}")
