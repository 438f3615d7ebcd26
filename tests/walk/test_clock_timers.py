"""Timers by the clock in real runs: an idle key fires although no record comes, and a replay fires at the same
positions. The example runs in this process."""

from __future__ import annotations

import json
import os
import random
import runpy
import signal
from pathlib import Path
from typing import Any

import pytest

from procession import Pipeline
from procession.exit_status import Status
from procession.testing import run as run_in_process
from tests.walk.cluster import wait_for
from tests.walk.commands import pids, run, running

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "silent_devices.py"
APP = """
from procession import Pipeline


def seen(state, device, context):
    context.timer_after_s(0.5)
    return context.time, []


def silent(state, context):
    return None, [[context.key, context.time - state >= 0.5]]


pipeline = Pipeline("silent", parallelism=2)
devices = pipeline.source("devices", from_="file:devices.txt", codec="text")
clock = pipeline.clock(interval_s=0.1)
devices.process(seen, on_timer=silent, key=str, clock=clock).sink("out", to="file:out", codec="json")
"""
REPLAYED = """
from procession import Pipeline


def seen(count, device, context):
    context.timer_after_s(int(device[1:]) % 5 / 10 + 0.1)
    return count + 1, [[device, "seen", context.time]]


def silent(count, context):
    if count % 3 == 2:
        context.timer_after_s(0.3)
    return count + 1, [[context.key, count, context.time]]


pipeline = Pipeline("replayed", parallelism=TASKS)
devices = pipeline.source("devices", from_="file:devices-*.txt", codec="text", ends=False)
clock = pipeline.clock(interval_s=0.25)
devices.process(seen, on_timer=silent, key=str, initial=0, clock=clock).sink("out", to="file:out", codec="json")
arrived = devices.map(lambda device: ["devices", device]).merge(clock.map(lambda time: ["clock", time]))
arrived.sink("arrived", to="file:arrived", codec="json")
"""


def lines_of(directory: Path, sink: str) -> list[Any]:
    return [json.loads(line) for line in run("cat", sink, cwd=directory).stdout.splitlines()]


@pytest.mark.slow
def test_a_quiet_key_fires_by_the_clock(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "devices.txt").write_text("".join(f"d{number}\n" for number in range(20)))

    def output() -> list[Any]:
        return lines_of(tmp_path, "out")

    with running("run", "app.py", "--listen", "127.0.0.1:0", cwd=tmp_path) as pipeline:
        wait_for(lambda: (tmp_path / "out").exists() and len(output()) == 20, "timers", lambda: pipeline.said)
        pipeline.process.send_signal(signal.SIGINT)
        assert pipeline.wait() == Status.DONE, pipeline.said
    assert sorted(output()) == sorted([f"d{number}", True] for number in range(20))


@pytest.mark.slow
@pytest.mark.parametrize(("epoch_records_max", "tasks"), [(3, 4), (50, 3), (1_000, 1)])
def test_i11_an_epoch_that_is_run_again_fires_the_timers_of_the_clock_at_the_same_place(
    tmp_path: Path, epoch_records_max: int, tasks: int
) -> None:
    """The second sink has the order in which records and ticks are in the log. One task in this process computes, from
    that order, the output that was committed despite all kills."""
    app = tmp_path / "app.py"
    app.write_text(REPLAYED.replace("TASKS", str(tasks)))
    arguments = ["--listen", "127.0.0.1:0", "--epoch-records-max", str(epoch_records_max)]
    with running("run", "app.py", *arguments, cwd=tmp_path) as pipeline:
        for day, victim in enumerate(("driver", "source", "gateway", "sink", "driver")):
            names = "".join(f"d{number * number % 13}\n" for number in range(day * 10, day * 10 + 10))
            draft = tmp_path / "draft"
            draft.write_text(names)
            draft.rename(tmp_path / f"devices-{day}.txt")

            def has_come(day: int = day) -> bool:
                found = lines_of(tmp_path, "arrived") if (tmp_path / "arrived").exists() else []
                return sum(source == "devices" for source, _ in found) == 10 * (day + 1)

            wait_for(has_come, f"the records of day {day}", lambda: pipeline.said)
            before = len(lines_of(tmp_path, "arrived"))
            for pid in pids(pipeline.mark, victim):
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda before=before: len(lines_of(tmp_path, "arrived")) > before + 4, "ticks")  # type: ignore[misc]
        pipeline.process.send_signal(signal.SIGINT)
        assert pipeline.wait() == Status.DONE, pipeline.said
    arrived = [(source, value) for source, value in lines_of(tmp_path, "arrived")]
    found = lines_of(tmp_path, "out")
    assert found == run_in_process(runpy.run_path(str(app))["pipeline"], arrived, parallelism=1, ends=False)["out"]
    assert sum(line[1] != "seen" for line in found) > 20, "timers fired"


def silences(arrived: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Compute who was last heard when, counted from the tick after the message."""
    found: list[dict[str, Any]] = []
    due: dict[str, float | None] = {}
    last: dict[str, float] = {}
    silent: set[str] = set()
    now = 0.0
    for source, value in arrived:
        if source == "clock":
            now = value
            due = {device: now + 30 if at is None else at for device, at in due.items()}
            for at, device in sorted((at, device) for device, at in due.items() if at is not None and at <= now):
                del due[device]
                silent.add(device)
                found.append({"device": device, "is_silent": True, "at": at})
        else:
            device = value["device"]
            if device in silent:
                silent.discard(device)
                found.append({"device": device, "is_silent": False, "seconds": now - last[device]})
            due[device], last[device] = None, now
    return found


def test_the_example_reports_silent_devices_and_those_that_are_back() -> None:
    chance = random.Random(22)
    arrived: list[tuple[str, Any]] = []
    for second in range(1_000, 1_300):
        arrived.append(("clock", second))
        arrived += [("messages", {"device": name}) for name in ("d1", "d2", "d3") if chance.random() < 0.05]
    expected = silences(arrived)
    assert {line["is_silent"] for line in expected} == {True, False}
    pipeline: Pipeline = runpy.run_path(str(EXAMPLE))["pipeline"]
    for epochs, tasks in ((None, 1), (7, 2), (40, 3), (100, 4)):
        assert run_in_process(pipeline, arrived, epochs=epochs, parallelism=tasks)["alerts"] == expected
