"""What a driver asks a gateway at its side door, beside the words of `gateway/gateway_events`, and what it is answered.

The one rule: values only; each may be lost, late or doubled on its way. Before it: `simulated_driver` and
`simulated_spark`. After it: `simulated_gateway`.
"""

from __future__ import annotations

from dataclasses import dataclass

from procession.storage.log_ranges import Offset


@dataclass(frozen=True, slots=True)
class Offer:
    """What Spark's helper asks: the end of the next epoch from what it was offered on."""

    fence: int
    offered: Offset
    records_max: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """What a driver asks first: no earlier driver counts from now on, and this is how far it was offered records."""

    fence: int
    offered: Offset


@dataclass(frozen=True, slots=True)
class Told:
    """What a gateway answers: where its log ends, or the epoch in it; the leader says who there is, too."""

    end: Offset
    gateways: tuple[str, ...] = ()
