"""A gateway with replicas, as a process: its machine is lost with its disk, and a new directory continues."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.address import parse_address, reserved_socket
from procession.connectors.generator_source import GeneratorSource, Recipe
from procession.sdk.source_client import SourceClient
from procession.sdk.source_options import SourceOptions
from tests.gateway.epoch_reader import EpochReader
from tests.sos.test_replicated_files import ServiceThread
from tests.sos.test_replicated_volume import SECRET

COMMAND = (sys.executable, "-m", "procession")
PATIENCE_S = 60.0
STREAMS = 4


class ReplicatedGateway:
    """A gateway and its machines, one after the other."""

    def __init__(self, work: Path, replicas: ServiceThread) -> None:
        self.work = work
        self.replicas = replicas
        self.number = 0
        self.listen = "127.0.0.1:0"
        self.process: subprocess.Popen[bytes]
        (work / "secret").write_bytes(SECRET)

    @property
    def directory(self) -> Path:
        return self.work / f"machine-{self.number}" / "gateway"

    @property
    def addresses(self) -> str:
        return ",".join(map(str, self.replicas.services.addresses))

    def _replicas(self) -> list[str]:
        return ["--replica-cookie-file", str(self.work / "secret")]

    def start(self, *more: str) -> None:
        command = [*COMMAND, "gateway", "--dir", str(self.directory), "--listen", self.listen, "--open-producers"]
        command += ["--replicas", self.addresses, "--replica-volume", "gateway", *self._replicas()]
        command += ["--checkpoint", str(self.work / "checkpoint"), *more]
        self.log = self.work / f"log-{self.number}"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log)
        deadline = time.monotonic() + PATIENCE_S
        while self._announced().get("pid") != self.process.pid:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.01)
        self.listen = str(self._announced()["listen"])

    def _announced(self) -> dict[str, object]:
        try:
            return dict(json.loads((self.directory / "gateway.json").read_text()))
        except FileNotFoundError:
            return {}

    def lose(self) -> None:
        """Kill the gateway and delete its disk. No other process gets its address in the meantime."""
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.directory)

    def restore(self, *, by_itself: bool) -> None:
        """Restore the gateway on another machine at the same address: by command, or at its start."""
        self.number += 1
        if by_itself:
            self.start("--restore")
            return
        source = f"sos://{self.addresses}/gateway"
        command = [*COMMAND, "restore", "--from", source, "--dir", str(self.directory), *self._replicas()]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
        self.start()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[ReplicatedGateway]:
    replicas = ServiceThread(tmp_path / "replicas")
    made = ReplicatedGateway(tmp_path, replicas)
    made.start("--restore")  # the replicas have nothing yet
    yield made
    if made.process.poll() is None:
        made.process.kill()
        made.process.wait()
    replicas.close()


class MovedEpochReader(EpochReader):
    """A driver that continues with a gateway in another directory."""

    def continue_from(self, other: EpochReader) -> None:
        self.epoch, self.offsets = other.epoch, dict(other.offsets)
        self.positions, self.ids, self.pieces, self._untold = other.positions, other.ids, other.pieces, other._untold
        self._acknowledged = other._acknowledged


@pytest.mark.parametrize("losses", [2, pytest.param(25, marks=pytest.mark.slow)])
def test_a_gateway_whose_machine_is_lost_continues_on_another_one(gateway: ReplicatedGateway, losses: int) -> None:
    chance = random.Random(losses)
    count = 1500 * losses
    source = GeneratorSource(Recipe(count, size=24, seed=1, streams=STREAMS))
    options = SourceOptions("lost", "producer", rate=4000.0, backoff_limit_s=0.1, complaints_max=100_000)
    client = SourceClient(source, gateway.listen, options)
    producing = threading.Thread(target=lambda: asyncio.run(client.run()), daemon=True)
    producing.start()
    driver = MovedEpochReader(gateway.work / "checkpoint", gateway.directory)
    driver.begin()
    for number in range(losses):
        time.sleep(0.3 + 0.7 * chance.random())  # producers and driver work meanwhile
        driver.finish()
        gateway.lose()
        with reserved_socket(parse_address(gateway.listen)):
            if chance.random() < 0.5:
                replica = chance.randrange(3)
                gateway.replicas.stop(replica)
                gateway.replicas.start(replica)
            gateway.restore(by_itself=number % 2 == 1)
        before, driver = driver, MovedEpochReader(gateway.work / "checkpoint", gateway.directory)
        driver.continue_from(before)
        driver.begin()
    deadline = time.monotonic() + PATIENCE_S
    while producing.is_alive():
        assert time.monotonic() < deadline, (client.report(), gateway.log.read_text()[-3000:])
        assert driver.error is None
        time.sleep(0.05)
    driver.finish()
    assert len(driver.ids) == STREAMS
    for found in driver.ids.values():
        assert found == sorted(set(found)), "nothing is duplicated or out of order"
        assert len(found) == count, "nothing is lost"
