"""The driver's requests to a gateway's control port, besides those of `gateway/gateway_events`, and their replies.

Invariant: they are values; each may be lost, delayed or duplicated by the network. `simulated_driver` and
`simulated_spark` send them to `simulated_gateway`.
"""

from __future__ import annotations

from dataclasses import dataclass

from procession.gateway.confirmation import KnownGateway
from procession.storage.log_ranges import LogOffset


@dataclass(frozen=True, slots=True)
class OfferRequest:
    """Request of Spark's helper for the end of the next epoch, with the last offered offsets."""

    fence: int
    offered: LogOffset
    known: KnownGateway
    records_max: int


@dataclass(frozen=True, slots=True)
class ConfirmRequest:
    """A driver's first request: fence earlier drivers, with the last offered offset."""

    fence: int
    offered: LogOffset
    known: KnownGateway


@dataclass(frozen=True, slots=True)
class GatewayReply:
    """A gateway's reply: the end of its log or of the epoch. The leader adds the members."""

    end: LogOffset
    gateways: tuple[str, ...] = ()
    is_behind: bool = False
    """Whether the gateway admits producers only after it knows the last commit."""
