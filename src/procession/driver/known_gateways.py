"""What a driver knows of its gateways from the round record of the last commit. Pure.

Invariant: a gateway must have on disk what it has reported to a driver as on disk. Upstream: `commit/round_record`.
Downstream: `driver/last_commit`, which sends it to the gateways, and `gateway/confirmation`, which compares.
"""

from __future__ import annotations

from collections.abc import Iterable

from procession.commit.round_record import RoundRecord
from procession.gateway.confirmation import KnownGateway
from procession.storage.log_ranges import FIRST_GATEWAY


def epochs_kept(record: RoundRecord, name: str) -> int:
    """Number of committed epochs that the gateway must have on disk when it receives this record. Only the leader must
    have the committed positions of all streams: the other gateways ask it before they open a stream."""
    return record.acknowledged + 1 if name == FIRST_GATEWAY else 0


def known_gateway(record: RoundRecord | None, name: str, identity: str, gateways: Iterable[str]) -> KnownGateway:
    """`record` is that of the last committed epoch; None: nothing is committed. `gateways` are all that ever joined."""
    others = tuple(sorted(set(gateways) - {name})) if name == FIRST_GATEWAY else ()
    if record is None:
        return KnownGateway(identity=identity, gateways=others)
    return KnownGateway(record.epoch + 1, epochs_kept(record, name), identity, others)
