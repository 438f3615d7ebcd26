"""A test server ends with the process that started it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.hostile import until
from tests.systems.kafka_broker import needs_kafka
from tests.systems.postgres_server import needs_postgres

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
    ],
)
def test_a_server_ends_when_its_owner_is_killed(module: str) -> None:
    words = [sys.executable, "-c", OWNER.format(module=module)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        server = int(owner.stdout.readline())
        os.kill(owner.pid, signal.SIGKILL)
    assert until(lambda: not os.path.exists(f"/proc/{server}")), "the server runs on"
