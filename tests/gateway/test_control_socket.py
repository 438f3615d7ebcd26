"""A gateway is reached through a socket file in its directory, however long the directory's path is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from procession.errors import ConfigError
from procession.gateway.control_client import ControlClient
from procession.storage.secret import Secret, find_secret


@pytest.mark.parametrize("name_chars", [1, 150], ids=["short", "longer than a socket's name may be"])
def test_a_gateway_is_reached_by_its_directory_and_another_one_joins_it(tmp_path: Path, name_chars: int) -> None:
    pipeline = tmp_path / ("p" * name_chars)
    command = [sys.executable, "-m", "procession", "gateway", "--listen", "127.0.0.1:0"]
    leader = pipeline / "gateway"
    with subprocess.Popen([*command, "--dir", str(leader)]) as first:
        try:
            with ControlClient(leader, timeout_s=60.0) as control:
                assert control.status()["sessions"] == 0
                other = [*command, "--dir", str(pipeline / "gateway-1"), "--join", str(leader), "--name", "gateway-1"]
                with subprocess.Popen(other) as second:
                    try:
                        while [gateway["is_connected"] for gateway in control.gateways()] != [True, True]:
                            assert second.poll() is None
                        at = control.gateways()[1]["control"]
                        assert at == f"unix:{pipeline}/gateway-1/control.sock"
                        with ControlClient(at, find_secret(pipeline, Secret.CONTROL)) as driver:
                            assert driver.status()["next_sequence"] == 0
                    finally:
                        second.send_signal(signal.SIGTERM)
            with ControlClient(leader, b"guess") as stranger, pytest.raises(ConfigError, match="wrong secret"):
                stranger.status()
            assert json.loads((leader / "gateway.json").read_text())["control"] == f"unix:{leader}/control.sock"
        finally:
            first.send_signal(signal.SIGTERM)
