"""A gateway on another machine that is lost for good, with one real Spark: it is abandoned, its producers continue at
another gateway, and the output is that of a sequential run. When its directory comes back, it can do nothing.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.deployment.local_pipeline import COMMAND
from procession.deployment.part_arguments import gateway_arguments
from procession.deployment.settings import Settings
from procession.gateway.control_client import ControlClient
from procession.gateway.listen_address import ADDRESS_FILE, addresses
from procession.supervisor.part import Part
from tests.walk.cluster import Cluster
from tests.walk.commands import command, run

APP = """
from procession import Pipeline

pipeline = Pipeline("abandoned", parallelism=2)
pipeline.source("lines").map(bytes.upper).sink("out", to="file:out")
"""
LOST = "gateway-lost"
RECORDS = 2_500
SECONDS = 12


class Losing(Cluster):
    """Two gateways that are supervised, and one that nobody restarts."""

    def add(self) -> subprocess.Popen[bytes]:
        arguments = gateway_arguments(self.local.settings, self.directory, LOST, "127.0.0.1:0")
        with (self.directory / "logs" / f"{LOST}.log").open("ab") as log:
            return subprocess.Popen([*COMMAND, *arguments], stdout=log, stderr=log)

    def pass_through(self, gateways: list[str], lines: list[bytes], rate: float | None = None) -> str:
        """Start a source that sends to the first of these gateways, and knows the others."""
        number = len(self.inputs)
        path = self.directory / f"input-{number}.txt"
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        self.inputs.append(path)
        to = ",".join(str(addresses(self.directory / gateway)["listen"]) for gateway in gateways)
        argv = [*COMMAND, "source", "file", str(path), "--to", to, "--dir", str(self.directory)]
        argv += ["--rate", str(rate)] if rate else []
        self.supervisor.start(Part(f"source-{number}", tuple(argv)))
        return f"source-{number}"

    def of(self, number: int) -> bytes:
        """Return the committed lines of one input."""
        lines = self.committed("out").splitlines(keepends=True)
        return b"".join(line for line in lines if line.startswith(b"INPUT %d " % number))

    def standing(self) -> set[str]:
        with ControlClient(self.directory / "gateway", timeout_s=10.0) as client:
            return {gateway["name"] for gateway in client.gateways()}

    def is_linked(self) -> bool:
        with ControlClient(self.directory / "gateway", timeout_s=10.0) as client:
            return any(gateway["name"] == LOST and gateway["is_connected"] for gateway in client.gateways())


@pytest.fixture
def losing(tmp_path: Path) -> Iterator[Losing]:
    settings = Settings(epoch_interval_s=0.02, epoch_records_max=300, gateways=2)
    with Losing(tmp_path, APP, settings) as losing:
        assert losing.local.start()
        yield losing


def upper(lines: list[bytes]) -> bytes:
    return b"".join(line.upper() + b"\n" for line in lines)


def test_the_streams_of_a_gateway_that_is_lost_for_good_continue_elsewhere(losing: Losing, tmp_path: Path) -> None:
    gateway = losing.add()
    losing.until(lambda: (tmp_path / LOST / ADDRESS_FILE).exists(), "the gateway's addresses")
    losing.until(lambda: LOST in losing.standing(), "the gateway to join")
    moving, staying = losing.numbered(RECORDS), [b"input 1 record %d" % number for number in range(RECORDS)]
    moved = losing.pass_through([LOST, "gateway-1", "gateway"], moving, rate=RECORDS / SECONDS)
    stayed = losing.pass_through(["gateway"], staying, rate=RECORDS / SECONDS)
    losing.until(lambda: len(losing.of(0)) > len(upper(moving)) // 5, "some output")
    refused = run("gateways", "abandon", LOST, "--dir", tmp_path, cwd=tmp_path)
    assert refused.returncode != 0
    assert "is connected, so it is not lost" in refused.stderr
    gateway.kill()
    gateway.wait()
    shutil.move(tmp_path / LOST, tmp_path / "kept")
    fence = losing.fence
    losing.until(lambda: not losing.is_linked(), "the leader to notice")
    abandoning = subprocess.Popen(
        command("gateways", "abandon", LOST, "--dir", tmp_path), stdout=subprocess.PIPE, text=True
    )
    try:
        losing.until(lambda: abandoning.poll() is not None, "the command")
        assert abandoning.stdout is not None
        assert "a driver continues without it" in abandoning.stdout.read()
        assert abandoning.returncode == 0
    finally:
        abandoning.kill()
        abandoning.wait()
    assert losing.fence > fence
    losing.until_done(moved)
    losing.until_done(stayed)
    assert losing.of(0) == upper(moving)
    assert losing.of(1) == upper(staying)
    assert losing.standing() == {"gateway-0", "gateway-1"}
    # The directory comes back, and its gateway starts as if nothing had happened.
    shutil.move(tmp_path / "kept", tmp_path / LOST)
    zombie = losing.add()
    try:
        losing.until(lambda: zombie.poll() is not None, "the end of the gateway that came back")
    finally:
        zombie.kill()
        zombie.wait()
    assert zombie.returncode != 0
    assert "was abandoned" in (tmp_path / "logs" / f"{LOST}.log").read_text()
    assert losing.standing() == {"gateway-0", "gateway-1"}
