"""Provides gateway processes that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.gateway_process import GatewayProcess


@pytest.fixture
def gateway_process(tmp_path: Path) -> Iterator[Callable[..., GatewayProcess]]:
    started: list[GatewayProcess] = []

    def make(**settings: Any) -> GatewayProcess:
        started.append(GatewayProcess(tmp_path / "gateway", settings))
        return started[-1]

    yield make
    for gateway in started:
        if gateway.process.poll() is None:
            gateway.kill()
