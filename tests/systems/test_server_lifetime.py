"""A test server ends with the process that started it, however that process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile import until
from tests.systems import postgres_server
from tests.systems.kafka_broker import needs_kafka
from tests.systems.postgres_server import needs_postgres
from tests.systems.s3_server import needs_s3

OWNER = """
import signal
from tests.systems.{module} import running
with running() as server:
    print(getattr(server, "server", server)._process.pid, flush=True)
    signal.pause()
"""


@pytest.mark.parametrize(
    "module",
    [
        pytest.param("postgres_server", marks=needs_postgres),
        pytest.param("kafka_broker", marks=[needs_kafka, pytest.mark.slow]),
        pytest.param("s3_file_server", marks=[needs_s3, pytest.mark.slow]),
    ],
)
def test_a_server_ends_when_its_owner_is_killed(module: str) -> None:
    arguments = [sys.executable, "-c", OWNER.format(module=module)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        server = int(owner.stdout.readline())
        os.kill(owner.pid, signal.SIGKILL)
    assert until(lambda: not os.path.exists(f"/proc/{server}")), "the server still runs"


@needs_postgres
def test_a_database_starts_again_although_some_of_its_processes_outlive_the_first() -> None:
    with postgres_server.running() as server:
        assert server._process is not None
        first = server._process
        children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
        survivor = int(children[0])
        os.kill(survivor, signal.SIGSTOP)
        first.kill()
        first.wait()
        with subprocess.Popen(server.command(), cwd=server.directory, stderr=subprocess.DEVNULL) as again:
            server._process = again
            assert until(lambda: _program_of(again.pid) == "flock"), "the start does not wait for the other processes"
            os.kill(survivor, signal.SIGCONT)
            assert until(server.is_ready)
            assert again.poll() is None
            server.kill()


def _program_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
