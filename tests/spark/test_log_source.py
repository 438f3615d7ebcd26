"""The helper process of the log source, as the JVM starts it. The test acts as the JVM."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from pyspark import cloudpickle
from pyspark.serializers import read_int, write_int, write_with_length
from pyspark.sql.streaming import python_streaming_source_runner as runner

from procession.commit.checkpoint import Checkpoint
from procession.driver.offsets import GatewayFeed
from procession.spark.data_source import IngressSource
from procession.spark.epoch_size import EpochPace
from procession.spark.log_source import Ranges

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
SCHEMA_JSON = json.dumps({"type": "struct", "fields": []})
FAILED = -2
"""PySpark's marker for an exception that follows."""


@contextmanager
def helper(feed: GatewayFeed) -> Iterator[tuple[subprocess.Popen[str], IO[bytes]]]:
    """Yield the helper process and the JVM's end of its connection, after its reader was created."""
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{directory}/jvm")
        server.listen()
        process = subprocess.Popen(
            [sys.executable, "-m", RUNNER],
            env={**os.environ, "PYTHON_WORKER_FACTORY_SOCK_PATH": f"{directory}/jvm"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            accepted, _ = server.accept()
            with accepted, accepted.makefile("rwb") as jvm:
                accepted.close()  # the file alone holds the connection
                assert read_int(jvm) == process.pid
                source: Any = IngressSource.bound(Ranges(None, feed, 1, EpochPace()))({})  # type: ignore[arg-type]
                write_with_length(f"{sys.version_info.major}.{sys.version_info.minor}".encode(), jvm)
                write_with_length(directory.encode(), jvm)
                write_int(0, jvm)
                write_with_length(cloudpickle.dumps(source), jvm)
                write_with_length(SCHEMA_JSON.encode(), jvm)
                write_int(1000, jvm)
                jvm.flush()
                assert read_int(jvm) == 0
                yield process, jvm
        finally:
            process.kill()
            process.wait()


def ask_for_latest(jvm: IO[bytes]) -> None:
    write_int(runner.LATEST_OFFSET_ADMISSION_CONTROL_FUNC_ID, jvm)
    write_with_length(b"{}", jvm)
    write_with_length(json.dumps({"_type": "ReadAllAvailable"}).encode(), jvm)
    jvm.flush()


@pytest.fixture
def replaced(tmp_path: Path) -> GatewayFeed:
    """Return the feed of a driver that was replaced."""
    old, _ = (Checkpoint.claim(tmp_path / "checkpoint", name="p", fingerprint="f") for _ in range(2))
    return GatewayFeed(tmp_path / "gateway", b"", old, 1, 1)


def test_a_replaced_drivers_jvm_gets_the_reason(replaced: GatewayFeed) -> None:
    with helper(replaced) as (process, jvm):
        ask_for_latest(jvm)
        assert read_int(jvm) == FAILED
        assert b"FencedError: driver 1 was replaced by driver 2 and stops" in jvm.read(read_int(jvm))
        assert process.communicate() == ("", None)


def test_nothing_is_printed_when_the_jvm_has_gone(replaced: GatewayFeed) -> None:
    with helper(replaced) as (process, jvm):
        process.send_signal(signal.SIGSTOP)
        ask_for_latest(jvm)
        jvm.close()
        process.send_signal(signal.SIGCONT)
        assert process.communicate() == ("", None)
