"""Sends the last commit to each gateway before the gateway admits producers.

Invariant: a gateway must still have everything that it has reported to a driver as durable. A restarted gateway
receives the last commit before any producer opens a stream, and before the driver reads from it. The gateway may have
missed that commit, or its directory may be an older copy with a complete log and older committed positions. If the
round record of the last commit does not have all that is missing, the gateway refuses the driver
(`gateway/confirmation`). The driver checks its fence between the start of a gateway and the confirmation of its log.
Used by `driver/offsets` and `driver/epoch_end`; uses `gateway/control_client`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from procession.commit.checkpoint import Checkpoint
from procession.commit.round_files import RoundRecords
from procession.commit.round_record import RoundRecord
from procession.gateway.confirmation import KnownGateway
from procession.gateway.control_client import ControlClient, EpochOffer, FenceReply, OfferShare
from procession.merge.stream_clocks import StreamClock
from procession.merge.waiting_rows import Key
from procession.storage.log_ranges import FIRST_GATEWAY, LogLocation, LogOffset

Answer = TypeVar("Answer", EpochOffer, OfferShare, FenceReply)


def epochs_kept(record: RoundRecord, name: str) -> int:
    """Return the number of committed epochs that the gateway must have on disk when it receives this record. Only the
    leader must have the committed positions of all streams: the other gateways ask the leader before they open a
    stream."""
    return record.acknowledged + 1 if name == FIRST_GATEWAY else 0


def known_members(names: Iterable[str]) -> KnownGateway:
    """Return the gateways that the leader's list must contain. If the leader runs with an older copy of its
    directory, its list may lack some."""
    return KnownGateway(gateways=tuple(sorted(set(names) - {FIRST_GATEWAY})))


def known_gateway(record: RoundRecord | None, name: str, identity: str, gateways: Iterable[str]) -> KnownGateway:
    """Return the state that this gateway must have. `record` is the round record of the last committed epoch, None
    before the first commit. `gateways` are all gateways that ever joined."""
    others = tuple(sorted(set(gateways) - {name})) if name == FIRST_GATEWAY else ()
    if record is None:
        return KnownGateway(identity=identity, gateways=others)
    return KnownGateway(record.epoch + 1, epochs_kept(record, name), identity, others)


@dataclass(frozen=True)
class LastCommit:
    fence: int
    record: RoundRecord | None = None
    """The round record of the last committed epoch; None before the first commit, or if the guarantee needs no
    records."""
    places: Mapping[str, LogLocation] = field(default_factory=dict)
    """The log locations of all gateways that the leader has ever listed."""
    check_fence: Callable[[], None] = lambda: None
    """Raises FencedError if another driver has taken over."""

    @property
    def epochs(self) -> int:
        """Number of committed epochs."""
        return 0 if self.record is None else self.record.epoch + 1

    def known(self, name: str) -> KnownGateway:
        """Return the identity and the state that the gateway must have."""
        place = self.places.get(name)
        return known_gateway(self.record, name, "" if place is None else place.identity, self.places)

    def raise_fence(self, name: str, offered: LogOffset, client: ControlClient) -> FenceReply:
        return self._confirmed_ask(name, client, partial(client.fence, self.fence, offered))

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
        """Send a request and return the answer. First make sure that the gateway has the last commit, and that no
        other driver has taken over since the gateway started."""
        known = self.known(name)
        answer = ask(known)
        lacks_commit = answer.is_behind and self.record is not None
        if lacks_commit and self.record is not None:
            send_commit(self.fence, self.record, name, client)
        if answer.start:
            self.check_fence()
            known = known._replace(start=answer.start)
        return ask(known) if lacks_commit or answer.start else answer


def send_commit(fence: int, record: RoundRecord, name: str, client: ControlClient) -> RoundRecord:
    client.commit(fence, record.epoch, record.offsets.get(name, 0), record.positions, epochs_kept(record, name))
    return record


class DecidedRecords:
    """Reads the round records of decided epochs, which never change. Keeps the last record, so each is read once."""

    def __init__(self, records: RoundRecords) -> None:
        self._records = records
        self._epoch = -1
        self._last: RoundRecord | None = None

    def of(self, epoch: int) -> RoundRecord | None:
        """Return the record of this epoch; None for -1, or if the guarantee keeps no records."""
        if epoch != self._epoch:
            self._last = self._records.read(epoch) if epoch >= 0 else None
            self._epoch = epoch
        return self._last


def last_commit(checkpoint: Checkpoint, record: RoundRecord | None, places: Mapping[str, LogLocation]) -> LastCommit:
    """Return the last commit with this round record, under this driver's fence."""
    return LastCommit(checkpoint.fence, record, places, checkpoint.check_fence)
