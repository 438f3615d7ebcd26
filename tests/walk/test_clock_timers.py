"""Timers by the clock in a real run: a quiet key fires, although no record comes."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from procession.exit_status import Status
from tests.walk.cluster import wait_for
from tests.walk.commands import run, running

pytestmark = pytest.mark.slow  # tests/operators/test_clock_process.py has the rules

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


def test_a_quiet_key_fires_by_the_clock(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "devices.txt").write_text("".join(f"d{number}\n" for number in range(20)))

    def output() -> list[Any]:
        return [json.loads(line) for line in run("cat", "out", cwd=tmp_path).stdout.splitlines()]

    with running("run", "app.py", "--listen", "127.0.0.1:0", cwd=tmp_path) as pipeline:
        wait_for(lambda: (tmp_path / "out").exists() and len(output()) == 20, "timers", lambda: pipeline.said)
        pipeline.process.send_signal(signal.SIGINT)
        assert pipeline.wait() == Status.DONE, pipeline.said
    assert sorted(output()) == sorted([f"d{number}", True] for number in range(20))
