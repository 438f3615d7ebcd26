"""Heartbeats of Spark's process, and the errors that end a query."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

from procession.driver.spark_process import Heartbeat, descendants, processor_ns, query_error
from procession.errors import ConfigError


def test_missing_heartbeats_are_noticed_once() -> None:
    silent = threading.Semaphore(0)
    beat = Heartbeat(0.2, lambda: silent.release())
    beat.start()
    assert silent.acquire(timeout=10)
    assert not silent.acquire(timeout=0.5)


def test_heartbeats_reset_the_time_out_and_a_stop_ends_the_check() -> None:
    silent = threading.Event()
    beat = Heartbeat(2.0, silent.set)
    beat.start()
    ends = time.monotonic() + 3.0
    while time.monotonic() < ends:
        beat.received()
        time.sleep(0.05)
    assert not silent.is_set()
    beat.stop()


def test_processor_time_includes_all_processes_that_we_started() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, text=True) as process:
        while not (below := descendants(process.pid)):
            assert process.poll() is None
        assert {process.pid, *below} <= set(descendants(os.getpid()))
        assert processor_ns(process.pid) > 0
        process.communicate("\n")
    assert descendants(process.pid) == []
    assert processor_ns(process.pid) == 0


def test_an_executor_that_comes_later_and_has_another_python_stops_the_pipeline_with_a_sentence() -> None:
    mismatch = "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10 than that in driver: 3.11, x"
    found = query_error(Exception(mismatch))
    assert isinstance(found, ConfigError)
    assert found.sentence == "Executors run Python 3.10, the driver runs 3.11."
    assert str(query_error(Exception("java.io.FileNotFoundException: shuffle_1"))).endswith("shuffle_1"), "as it is"
