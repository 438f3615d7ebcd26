"""The last commit, as a gateway must have it before it admits producers.

Invariant: a restarted gateway receives the last commit before any producer opens a stream, and before the driver reads
from it. It may have missed that commit; or its directory is an older copy with a complete log and older committed
positions. If the round record of the last commit cannot fill the gap, the gateway refuses (`gateway/confirmation`).
Used by `driver/offsets` and `driver/epoch_end`; uses `gateway/control_client`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

from procession.commit.checkpoint import Checkpoint
from procession.commit.round_files import RoundRecords
from procession.commit.round_record import RoundRecord
from procession.driver.known_gateways import epochs_kept, known_gateway
from procession.gateway.confirmation import KnownGateway
from procession.gateway.control_client import ControlClient, EpochOffer, OfferShare
from procession.merge.stream_clocks import StreamClock
from procession.merge.waiting_rows import Key
from procession.storage.log_ranges import LogLocation, LogOffset

Answer = TypeVar("Answer", EpochOffer, OfferShare)


@dataclass(frozen=True)
class LastCommit:
    fence: int
    record: RoundRecord | None = None
    """Of the last committed epoch; None: nothing is committed, or the guarantee keeps no records."""
    places: Mapping[str, LogLocation] = field(default_factory=dict)
    """Of all gateways that the leader has ever listed."""

    def known(self, name: str) -> KnownGateway:
        """What the gateway must be, and have."""
        place = self.places.get(name)
        return known_gateway(self.record, name, "" if place is None else place.identity, self.places)

    def offer(self, name: str, start: LogOffset, records_max: int, bytes_max: int, client: ControlClient) -> EpochOffer:
        return self._confirmed_ask(name, client, partial(client.offer, self.fence, start, records_max, bytes_max))

    def share(
        self,
        name: str,
        start: LogOffset,
        limits: tuple[int, int],
        clocks: Mapping[int, StreamClock],
        upto: Key | None,
        client: ControlClient,
    ) -> OfferShare:
        return self._confirmed_ask(name, client, partial(client.offer_among, self.fence, start, limits, clocks, upto))

    def _confirmed_ask(self, name: str, client: ControlClient, ask: Callable[..., Answer]) -> Answer:
        """The answer, when the gateway has the last commit."""
        known = self.known(name)
        answer = ask(known)
        if not answer.is_behind or self.record is None:
            return answer
        send_commit(self.fence, self.record, name, client)
        return ask(known)


def send_commit(fence: int, record: RoundRecord, name: str, client: ControlClient) -> RoundRecord:
    client.commit(fence, record.epoch, record.offsets.get(name, 0), record.positions, epochs_kept(record, name))
    return record


def last_commit(checkpoint: Checkpoint, epoch: int, places: Mapping[str, LogLocation]) -> LastCommit:
    """The commit of this epoch, which is decided under this driver's fence. -1: there is none."""
    return LastCommit(checkpoint.fence, _record(checkpoint.rounds.directory, epoch) if epoch >= 0 else None, places)


@lru_cache(maxsize=1)
def _record(directory: Path, epoch: int) -> RoundRecord | None:
    return RoundRecords(directory).read(epoch)
