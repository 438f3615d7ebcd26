"""What a driver asks a gateway at its side door, beside the words of `gateway/gateway_events`, and what it is answered.

The one rule: values only; each may be lost, late or doubled on its way. Before it: `simulated_driver` and
`simulated_spark`. After it: `simulated_gateway`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offer:
    """What Spark's helper asks: the end of the next epoch from `start` on."""

    fence: int
    start: int
    records_max: int


@dataclass(frozen=True, slots=True)
class Told:
    """What a gateway answers: where its log ends, or the epoch in it; the leader says who there is, too."""

    end: int
    gateways: tuple[str, ...] = ()
