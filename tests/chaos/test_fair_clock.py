"""A deadline counts the time in which processes run or sleep, not the time in which they wait for a core."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from procession.chaos.fair_clock import SHARE_MIN, CpuTime, CpuTimeReader, FairClock


def test_a_second_in_which_all_threads_sleep_counts_in_full() -> None:
    clock = FairClock(0.0)
    for second in range(1, 11):
        clock.tick(float(second), CpuTime())
    assert clock.between(0.0, 10.0) == 10.0
    assert clock.between(2.5, 4.0) == 1.5


def test_a_second_in_which_threads_wait_for_a_core_counts_by_the_share_that_they_ran() -> None:
    clock = FairClock(0.0)
    clock.tick(10.0, CpuTime(ran_s=5.0, waited_s=15.0))
    clock.tick(20.0, CpuTime(ran_s=10.0, waited_s=0.0))
    assert clock.between(0.0, 10.0) == pytest.approx(2.5)
    assert clock.between(5.0, 10.0) == pytest.approx(1.25)
    assert clock.between(0.0, 20.0) == pytest.approx(12.5)
    assert clock.between(10.0, 23.0) == 13.0


def test_a_deadline_passes_even_on_the_busiest_machine_and_never_before_its_start() -> None:
    clock = FairClock(0.0)
    clock.tick(100.0, CpuTime(ran_s=0.1, waited_s=1000.0))
    assert clock.between(0.0, 100.0) == pytest.approx(100.0 * SHARE_MIN)
    assert clock.between(150.0, 100.0) == -50.0


def test_the_run_time_of_a_sessions_threads_is_read_from_the_kernel() -> None:
    cpu_times = CpuTimeReader()
    code = "print(1, flush=True); input(); sum(range(5_000_000)); print(2, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        start_new_session=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        assert cpu_times.measure({child.pid}) == CpuTime(), "the first measurement has nothing to compare with"
        child.stdin.write("go\n")
        child.stdout.readline()
        worked = cpu_times.measure({child.pid})
        slept = cpu_times.measure({child.pid})
        child.stdin.write("end\n")
    assert worked.ran_s > 0.01
    assert slept.ran_s < worked.ran_s
    assert cpu_times.measure({os.getpid() + 10_000_000}) == CpuTime()
