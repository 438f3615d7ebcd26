"""Runs several real gateway processes, with a driver without Spark that reads epochs from all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from procession.errors import ProcessionError
from tests.gateway.epoch_reader import EpochReader
from tests.gateway.gateway_process import PATIENCE_S, GatewayProcess

POLL_INTERVAL_S = 0.01


class Gateways:
    """Gateway processes, of which the first leads. As a context manager it ends all of them."""

    def __init__(self, work: Path, count: int, **settings: Any) -> None:
        self.work = work
        self.settings = settings
        self.all = [self.make(number) for number in range(count)]
        self.epoch_readers: list[EpochReader] = []

    def make(self, number: int, **more: Any) -> GatewayProcess:
        joins = {} if number == 0 else {"join": self.work / "gateway-0", "name": f"gateway-{number}"}
        return GatewayProcess(self.work / f"gateway-{number}", {**self.settings, **joins, **more})

    def __enter__(self) -> Gateways:
        for gateway in self.all:
            gateway.start()
        self.until(lambda: len(self.connected()) == len(self.all), "all gateways to be linked")
        return self

    def __exit__(self, *_: object) -> None:
        for epoch_reader in self.epoch_readers:
            epoch_reader.finish()
        for gateway in self.all:
            if gateway.process.poll() is None:
                gateway.kill()

    def __getitem__(self, number: int) -> GatewayProcess:
        return self.all[number]

    def epoch_reader(self) -> EpochReader:
        self.epoch_readers.append(EpochReader(self.work / "checkpoint", self.work / "gateway-0"))
        return self.epoch_readers[-1]

    def listed(self) -> list[dict[str, Any]]:
        try:
            with self[0].client(1.0) as client:
                return client.gateways()
        except ProcessionError:
            return []

    def connected(self) -> list[str]:
        return [gateway["name"] for gateway in self.listed() if gateway["is_connected"]]

    def held(self) -> dict[str, int]:
        return {gateway["name"]: gateway["streams"] for gateway in self.listed()}

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"timed out waiting for {what}\n{self.describe()}"
            time.sleep(POLL_INTERVAL_S)

    def describe(self) -> str:
        return "\n".join(f"--- {gateway.directory.name}\n{gateway.log.read_text()[-1500:]}" for gateway in self.all)
