"""Measures the driver's processor time for a sink with several connections: without emitters, with emitter processes,
and with emitters at addresses that fetch from a host service.

The same pipeline runs in each form, on this machine. The processor time between the commits of an early epoch and the
last epoch is divided by the number of records between them, so the start does not count. The driver's time with
emitters limits a pipeline whose emitters are on other machines.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from procession.bench.processes import cpu_s, cpu_tree_s
from procession.commit.emitter_server import announced_address
from procession.deployment.local_pipeline import COMMAND, announced_in
from procession.driver.epoch_log import EpochTail
from procession.errors import ProcessionError
from procession.jobs.demo import write_input
from procession.storage.host_runs import DIRECTORY_VARIABLE

APP = """
from procession import Pipeline

pipeline = Pipeline("sent", parallelism=2)
lines = pipeline.source("lines").key_by(lambda line: line[:10])
lines.sink("output", to="file:output", order="key", connections={connections})
"""
CONNECTIONS = 4
EPOCHS = 6
"""Number of epochs of a run. The first epochs do not count, because programs and functions are loaded then."""
WARM_EPOCHS = 1
POLL_S = 0.1
START_TIMEOUT_S = 60.0
AT_ADDRESSES = "at addresses"


def measure(records: int, emitters: int, rounds: int) -> dict[str, Any]:
    """Return for each form the processor time a record by part, as the least of the rounds."""
    forms = {"0": 0, f"{emitters}": emitters, f"{emitters} {AT_ADDRESSES}": emitters}
    found: dict[str, list[dict[str, float]]] = {form: [] for form in forms}
    with tempfile.TemporaryDirectory(prefix="procession-bench-") as name:
        work = Path(name)
        write_input(work / "input.txt", range(records))
        for number in range(rounds):
            for form, count in forms.items():
                place = work / f"{number}-{form}"
                place.mkdir()
                with ExitStack() as started:
                    ends = _ends(place, count, started) if AT_ADDRESSES in form else Ends(("--emitters", str(count)))
                    found[form].append(_measure_run(place, work / "input.txt", records, ends))
    return {
        "records": records,
        "connections": CONNECTIONS,
        "cpu_us_per_record": {
            form: {part: min(each[part] for each in costs if part in each) for part in sorted(set().union(*costs))}
            for form, costs in found.items()
        },
    }


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was measured, and a line for each form."""
    connections = figures["connections"]
    yield f"{figures['records']:,} records a run, {connections} connections; epoch 1 of {EPOCHS} does not count"
    for form, parts in figures["cpu_us_per_record"].items():
        used = ", ".join(f"{part} {us:.3f}" for part, us in parts.items())
        count, _, where = form.partition(" ")
        yield f"{count} emitters{' ' if where else ''}{where}: processor time, µs a record: {used}"


@dataclass(frozen=True)
class Ends:
    """The emitters of a run, and the host service that they need."""

    arguments: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    processes: tuple[tuple[str, int], ...] = ()
    """The part and the process id of each process that `run` has not started."""

    def cpu_s(self, root: int) -> dict[str, float]:
        """Return the processor time of the parts of a run."""
        used = defaultdict(float, cpu_s(root))
        for part, pid in self.processes:
            used[part] += cpu_tree_s(pid)
        return dict(used)


def _ends(place: Path, emitters: int, started: ExitStack) -> Ends:
    """Start a host service and these emitters. They end with the stack."""
    secret = place / "secret"
    secret.write_text(secrets.token_hex(16))
    shown = ("--listen", "127.0.0.1:0", "--control-cookie-file", str(secret))
    processes: list[tuple[str, int]] = []

    def start(part: str, command: str, directory: Path) -> None:
        log = started.enter_context((place / f"{directory.name}.log").open("wb"))
        argv = [*COMMAND, command, "--dir", str(directory), *shown]
        process = started.enter_context(subprocess.Popen(argv, stdout=log, stderr=log))
        started.callback(process.terminate)
        processes.append((part, process.pid))
        is_ready, deadline = announced_in(directory / f"{command}.json"), time.monotonic() + START_TIMEOUT_S
        while not is_ready(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ProcessionError(f"the {part} did not start: {(place / f'{directory.name}.log').read_text()}")
            time.sleep(POLL_S)

    start("host service", "host", place / "host")
    for number in range(emitters):
        start("emitters", "emitter", place / f"emitter-{number}")
    at = ",".join(str(announced_address(place / f"emitter-{number}")) for number in range(emitters))
    arguments = ("--host-services", "--emitters-at", at, "--control-cookie-file", str(secret))
    return Ends(arguments, {DIRECTORY_VARIABLE: str(place / "host")}, tuple(processes))


def _measure_run(place: Path, source: Path, records: int, ends: Ends) -> dict[str, float]:
    (place / "app.py").write_text(APP.format(connections=CONNECTIONS))
    argv = [*COMMAND, "run", "app.py", "--input", str(source), "--dir", "d", "--listen", "127.0.0.1:0", "--json"]
    argv += ["--no-dashboard", *ends.arguments]
    # Without adaptive epochs, so that all runs have the same epochs.
    argv += ["--epoch-records-max", str(records // EPOCHS), "--epoch-target-s", "0"]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=place, env={**os.environ, **ends.env})
    try:
        first, last = _watched(process, ends, EpochTail(place / "d" / "epochs.jsonl"), records)
    finally:
        process.terminate()
        process.wait()
    if first is None or last is None:
        said = (place / "log").read_text(errors="replace").strip().splitlines()
        raise ProcessionError(f"the run ended too early: {said[-1] if said else 'no output'}")
    return costs_between(first, last)


Reading = tuple[dict[str, float], int]
"""The processor time that the parts had used, and the number of records committed."""


def costs_between(first: Reading, last: Reading) -> dict[str, float]:
    """Return the processor time a record, in µs, by part."""
    (before, began), (after, ended) = first, last
    if ended <= began:
        raise ProcessionError("all epochs were committed at once: give more --records")
    return {part: (used - before.get(part, 0.0)) / (ended - began) * 1e6 for part, used in after.items()}


def _watched(
    process: subprocess.Popen[bytes], ends: Ends, tail: EpochTail, records: int
) -> tuple[Reading | None, Reading | None]:
    """Return what the parts had used, with the records committed, after the first epochs and at the end."""
    first: Reading | None = None
    committed = 0
    while process.poll() is None:
        for line in tail.new():
            committed = line["records_in"]
        if first is None and committed >= WARM_EPOCHS * (records // EPOCHS):
            first = ends.cpu_s(process.pid), committed
        if committed >= records:
            return first, (ends.cpu_s(process.pid), committed)
        time.sleep(POLL_S)
    return first, None
