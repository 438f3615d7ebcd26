"""Signs of life of Spark's process, and what is said of a cluster that does not answer."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing

from procession.driver.spark_process import Beat, _unreachable


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


def test_a_master_at_whose_address_nobody_listens_is_told_with_the_reason() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        assert _unreachable(f"spark://127.0.0.1:{port}") is None
        assert _unreachable(f"spark://127.0.0.1:1,127.0.0.1:{port}") is None, "one of them is enough"
    assert _unreachable(f"spark://127.0.0.1:{port}") == "Connection refused"
    assert _unreachable("spark://nowhere")
