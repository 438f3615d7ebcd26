"""Measures how long each process takes to recover from SIGKILL, from the signal to its first useful work.

A demo's parts run under a steady source; each is killed in turn, several rounds; the driver also with a warm
spare. Useful work is, for source and gateway, the first record that arrives after the signal; for sink and driver,
the first epoch that is committed after it.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from procession.deployment.local_pipeline import DRIVER, SOURCE, LocalPipeline
from procession.deployment.part_arguments import GATEWAY
from procession.deployment.settings import load_settings
from procession.driver.app_file import load_app
from procession.driver.driver import SPARE_READY
from procession.jobs.demo import APP, SINK, write_input
from procession.monitoring.progress import PipelineProgress
from procession.supervisor.restart_policy import RestartPolicy
from procession.supervisor.supervisor import Supervisor

RATE = 5_000
RECORDS = 5_000_000
POLL_INTERVAL_S = 0.02
STEADY_S = 2.0
PATIENCE_S = 120.0


def measure(rounds: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="procession-bench-") as work:
        seconds = measure_parts(Path(work) / "alone", rounds, (SOURCE, GATEWAY, SINK, DRIVER))
        seconds["driver with a spare"] = measure_parts(Path(work) / "spare", rounds, (DRIVER,))[DRIVER]
    return {part: {"median_s": statistics.median(times), "worst_s": max(times)} for part, times in seconds.items()}


def report_lines(figures: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    for part, times in figures.items():
        yield f"{part:20} recovers in {times['median_s']:5.1f} s (worst {times['worst_s']:5.1f} s)"


def measure_parts(work: Path, rounds: int, parts: Sequence[str]) -> dict[str, list[float]]:
    has_spare = parts == (DRIVER,)
    work.mkdir()
    write_input(work / "input.txt", range(RECORDS))
    policy = RestartPolicy(kills_max=10_000)
    seconds: dict[str, list[float]] = defaultdict(list)
    with Supervisor(work / "logs", policy) as supervisor:
        local = LocalPipeline(supervisor, APP, load_app(APP).graph, work, work, load_settings(spare_driver=has_spare))
        progress = PipelineProgress(work)

        def until(is_reached: Callable[[], bool]) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not is_reached():
                if time.monotonic() > deadline or not supervisor.watch(POLL_INTERVAL_S):
                    raise SystemExit(f"no progress within {PATIENCE_S:g} s; logs are in {work / 'logs'}")
                progress.poll()

        local.start()
        local.start_source([work / "input.txt"], rate=RATE)
        until(lambda: progress.committed > 0)
        for _ in range(rounds):
            for part in parts:
                if has_spare:
                    until(lambda: _is_warm(work, supervisor.spare_pid(DRIVER)))
                steady = time.monotonic() + STEADY_S
                until(lambda steady=steady: time.monotonic() > steady)  # type: ignore[misc]
                # Records and epochs that were in flight at the signal do not count.
                supervisor.kill(part)
                began = time.monotonic()
                before = progress.poll().records_in, progress.epochs
                if part in (SOURCE, GATEWAY):
                    until(lambda before=before: progress.records_in > before[0] + RATE // 10)  # type: ignore[misc]
                else:
                    until(lambda before=before: progress.epochs > before[1] + 1)  # type: ignore[misc]
                seconds[part].append(time.monotonic() - began)
    return seconds


def _is_warm(work: Path, pid: int | None) -> bool:
    announcement = work / SPARE_READY
    return pid is not None and announcement.exists() and bool(json.loads(announcement.read_text())["pid"] == pid)
