"""Measures the cost of a step of the control plane at one size. Used by `bench/control_plane` and
`bench/exchange_costs`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PATHS_OF_A_GATEWAY = 10


@dataclass(frozen=True)
class ControlSize:
    """The size of a pipeline. It has as many sink connections and tasks as gateways."""

    gateways: int

    @property
    def paths(self) -> int:
        return self.gateways * PATHS_OF_A_GATEWAY


@dataclass(frozen=True)
class Step:
    """The cost of one step of the control plane at one size."""

    name: str
    unit: str
    units: int
    cpu_s: float
    size_bytes: int = 0
    """Bytes that are written or sent."""
    is_of_epoch: bool = False
    """Whether every epoch takes this step once."""

    @property
    def unit_us(self) -> float:
        return self.cpu_s / self.units * 1e6


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the processor time of a call, and its result."""
    began = time.process_time()
    result = work()
    return max(time.process_time() - began, 1e-9), result
