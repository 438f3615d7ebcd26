"""The end offsets of the next epoch, asked from the gateways; and the driver's messages to the gateways.

The one rule: nothing is offered while the previous epoch is undecided, to a driver that was replaced, or from a gateway
whose log location is not on disk. Pickles, because Spark starts the helper process that uses it. Uses
`gateway/control`; used by `spark/log_source` and the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from procession.commit.checkpoint import Checkpoint
from procession.commit.log_locations import Places
from procession.commit.round_record import Round
from procession.driver.epoch_end import Agreement
from procession.driver.gateway_clients import PATIENCE_S, Desks, place_of
from procession.errors import ConfigError, ProcessionError, RecordError, RoundError
from procession.gateway.control_client import ControlClient, Fence, Offer
from procession.gateway.members import Member
from procession.storage.log_ranges import FIRST_GATEWAY, Offset, Place, read_offsets
from procession.tls import ClientTls

NOTHING = Offset()
"""A gateway that was never asked: its log is read from its beginning, whichever log it is."""


@dataclass(frozen=True)
class GatewayFeed:
    """Offers the next epoch, limited in records and bytes: each gateway may have its equal share of both."""

    at: str | Path
    cookie: bytes = field(repr=False)
    checkpoint: Checkpoint
    records_max: int
    bytes_max: int
    is_alone: bool = False
    """Whether the plan can be fed by one gateway only."""
    is_ordered: bool = False
    """Whether records are put in the order of event time: then gateways must agree where an epoch ends."""

    tls: ClientTls | None = None

    def next_ends(self, starts: Mapping[str, Any]) -> dict[str, Any]:
        self.checkpoint.check_fence()
        self.checkpoint.log.await_decided(self.checkpoint.check_fence)
        known = read_offsets(starts)
        ends = known | (self._agreed_ends(known) if self.is_ordered else self._offered_ends(known))
        return {name: ends[name].as_json() for name in sorted(ends)}

    def _offered_ends(self, starts: Mapping[str, Offset]) -> dict[str, Offset]:
        """Where the epoch ends at the gateways that have something for it."""
        desks, places = _desks(self.at, self.cookie, self.tls), _places(self.checkpoint.root)
        names = desks.names
        limits = max(1, self.records_max // len(names)), max(1, self.bytes_max // len(names))
        fence = self.checkpoint.fence
        # A gateway whose answer comes late was asked from where it still starts: nothing was taken from it meanwhile.
        answers = desks.ask({name: partial(_offer, fence, starts.get(name, NOTHING), *limits) for name in names})
        offered = {
            name: offer.offset for name, offer in answers.items() if offer.end > starts.get(name, NOTHING).sequence
        }
        if FIRST_GATEWAY in answers:
            desks.meet(answers[FIRST_GATEWAY].gateways)
            self._check_alone(desks.names)
            keep_places(places, answers[FIRST_GATEWAY].gateways)
        return {name: end for name, end in offered.items() if name in places.all()}

    def _agreed_ends(self, starts: Mapping[str, Offset]) -> dict[str, Offset]:
        agreement, places = _agreement(self.at, self.cookie, self.tls), _places(self.checkpoint.root)
        agreed = agreement.reach(self.checkpoint.fence, starts, self.records_max, self.bytes_max)
        if agreed is None:
            return {}
        self._check_alone([member.name for member in agreed.gateways])
        keep_places(places, agreed.gateways)
        return {name: end for name, end in agreed.ends.items() if end.sequence > starts.get(name, NOTHING).sequence}

    def _check_alone(self, names: list[str]) -> None:
        if self.is_alone and len(names) > 1:
            raise ConfigError(
                'a pipeline with exchange="spark" takes one gateway: no task could name a record of another',
                next_step=f'use exchange="runs", or let {names[-1]} leave (procession gateways leave {names[-1]})',
            )

    def places(self) -> dict[str, Place]:
        return _places(self.checkpoint.root).all()


def _offer(fence: int, start: Offset, records_max: int, bytes_max: int, client: ControlClient) -> Offer:
    return client.offer(fence, start, records_max, bytes_max)


# One of each for the life of the helper process; the feed itself is pickled anew.


@cache
def _desks(at: str | Path, cookie: bytes, tls: ClientTls | None) -> Desks[Offer]:
    return Desks(at, cookie, tls)


@cache
def _agreement(at: str | Path, cookie: bytes, tls: ClientTls | None) -> Agreement:
    return Agreement(Desks(at, cookie, tls))


@cache
def _places(root: Path) -> Places:
    return Places(root)


def keep_places(places: Places, gateways: Iterable[Member]) -> None:
    for member in gateways:
        places.keep(member.name, place_of(member))


class GatewayWord:
    """What the driver tells the gateways. RoundError: one is away, and must be told again."""

    def __init__(self, at: str | Path, cookie: bytes, fence: int, tls: ClientTls | None = None) -> None:
        self._leader = ControlClient(at, cookie, PATIENCE_S, tls=tls)
        self._cookie = cookie
        self._tls = tls
        self._fences: Desks[Fence] = Desks(at, cookie, tls)
        self._commits: Desks[Round] = Desks(at, cookie, tls)
        self._told: dict[str, Round] = {}
        """The last word that each gateway has heard."""
        self._met: Mapping[str, int] = {}
        """How far the gateways were read when the leader last said who there is."""
        self._lock = threading.Lock()  # a new driver raises its fence while it repeats its predecessor's last word
        self._fence = fence

    def raise_fence(self, checkpoint: Checkpoint, order: str = "") -> None:
        """From now on no earlier driver is heard. A gateway that has less than it had offered is refused, and one that
        puts records in another order than this, in words."""
        places = checkpoint.places
        offsets = checkpoint.log.offsets
        with self._lock:
            leader = self._leader.fence(self._fence)
            self._meet(leader.gateways)
            keep_places(places, leader.gateways)
            names = self._fences.names
            fences = self._fences.ask(
                {name: partial(_raise, self._fence, offsets.get(name, NOTHING)) for name in names}
            )
        for name, found in fences.items():
            if found.order != order:
                raise ConfigError(
                    f"{name} orders by {found.order or 'arrival'}, but the app by {order or 'arrival'}",
                    next_step="start the gateway with --event-time-streams, --lateness-s and --idle-timeout-s as in the"
                    " app, or let `procession run` start both",
                )
        if missing := [name for name in self._fences.names if name not in fences]:
            raise _away(missing)

    def with_stream_name(self, error: ProcessionError) -> ProcessionError:
        """The same error, with the name that its stream was given beside the number; people know the name."""
        if not isinstance(error, RecordError):
            return error
        number = error.stream_id
        try:
            names = self._stream_names()
        except ProcessionError:
            return error
        sentence = error.sentence.replace(f"stream {number}", f"stream {number} ({names.get(number, 'no name')})")
        return RecordError(sentence, next_step=error.next_step, **error.fields)

    def _stream_names(self) -> dict[int, str]:
        """Names are given where a stream is opened; a gateway that only heard of it has none."""
        names: dict[int, str] = {}
        with self._lock:
            for member in self._leader.fence(self._fence).gateways:
                with ControlClient(member.control, self._cookie, PATIENCE_S, member.identity, self._tls) as client:
                    names |= {one["id"]: one["name"] for one in client.status()["streams"] if one["name"]}
        return names

    def acknowledge(self, record: Round) -> None:
        """Tell every gateway what is committed: of its own log, and of all streams."""
        with self._lock:
            strangers = [name for name in record.offsets if name not in self._commits.names]
            if any(record.offsets[name] != self._met.get(name) for name in strangers):
                self._meet(self._leader.fence(self._fence).gateways)  # one is new, or one that had left is back
                self._met = record.offsets
            untold = [name for name in self._commits.names if self._told.get(name) is not record]
            questions: dict[str, Callable[[ControlClient], Round]] = {
                name: partial(_commit, self._fence, record, record.offsets.get(name, 0)) for name in untold
            }
            self._told |= self._commits.ask(questions)
            missing = [name for name in untold if self._told.get(name) is not record]
            if not missing:
                return
            if FIRST_GATEWAY not in missing:
                self._meet(self._leader.fence(self._fence).gateways)  # who is away may have left
        raise _away(missing)

    def _meet(self, gateways: Iterable[Member]) -> None:
        there = list(gateways)
        self._fences.meet(there)
        self._commits.meet(there)


def _raise(fence: int, offered: Offset, client: ControlClient) -> Fence:
    return client.fence(fence, offered)


def _commit(fence: int, record: Round, end: int, client: ControlClient) -> Round:
    client.commit(fence, record.epoch, end, record.positions)
    return record


def _away(names: list[str]) -> RoundError:
    return RoundError(
        f"The gateway {', '.join(names)} does not answer." if len(names) == 1 else f"{', '.join(names)} do not answer.",
        next_step="Start it, or look at its log; what it was asked is asked again.",
    )
