"""Signs of life of Spark's process."""

from __future__ import annotations

import threading
import time

from procession.driver.spark_process import Beat


def test_silence_is_noticed_once() -> None:
    silent = threading.Semaphore(0)
    beat = Beat(0.2, lambda: silent.release())
    beat.start()
    assert silent.acquire(timeout=10)
    assert not silent.acquire(timeout=0.5)


def test_who_is_heard_is_not_silent_and_a_stop_ends_it() -> None:
    silent = threading.Event()
    beat = Beat(2.0, silent.set)
    beat.start()
    ends = time.monotonic() + 3.0
    while time.monotonic() < ends:
        beat.heard()
        time.sleep(0.05)
    assert not silent.is_set()
    beat.stop()
