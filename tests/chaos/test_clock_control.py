"""Clocks that can be set from outside: the time of day of a real process jumps, and its waits do not change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from procession.chaos.clock_control import ProcessClocks

HOUR_S = 3600
PROGRAM = """
import sys, time
for line in sys.stdin:
    began = time.monotonic()
    time.sleep(0.01)
    print(time.time_ns() // 10**9, int(time.time()), time.monotonic() - began < 60, flush=True)
"""


def test_the_time_of_day_of_a_process_jumps_while_it_runs_and_its_waits_do_not(tmp_path: Path) -> None:
    clocks = ProcessClocks(tmp_path / "clocks")
    clocks.make()
    assert not clocks.why_not
    environment = os.environ | clocks.environment("one")
    command = [sys.executable, "-c", PROGRAM]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def lines() -> list[str]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("?\n")
            process.stdin.flush()
            return process.stdout.readline().split()

        first = int(lines()[0])
        for off_s in (HOUR_S, -HOUR_S, 0):
            clocks.set("two", 7 * HOUR_S)  # another part's clock does not change
            clocks.set("one", off_s)
            now, as_float, is_steady = lines()
            assert off_s <= int(now) - first < off_s + HOUR_S // 2
            assert abs(int(as_float) - int(now)) <= 1
            assert is_steady == "True"


def test_without_a_compiler_no_clock_is_set_and_the_reason_is_reported(tmp_path: Path) -> None:
    clocks = ProcessClocks(tmp_path)
    clocks.why_not = "there is no C compiler"
    clocks.make()
    assert clocks.environment("one") == {}
    assert list(tmp_path.iterdir()) == []
