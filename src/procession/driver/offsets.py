"""Requests the end offsets of the next epoch from the gateways, and sends them fences and commits.

Invariant: no epoch is offered while the previous epoch is undecided, to a driver that was replaced, or from a gateway
whose log location is not on disk. `GatewayFeed` can be pickled, because it is used in a helper process that Spark
starts. Uses `gateway/control`; used by `spark/log_source` and the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from procession.commit.abandoned_gateways import Abandoned, abandoned_before
from procession.commit.checkpoint import Checkpoint
from procession.commit.log_locations import LogLocations
from procession.commit.round_files import RoundRecords
from procession.commit.round_record import RoundRecord
from procession.commit.spark_log import DECISION_TIMEOUT_S
from procession.driver.abandonment import remaining, report_abandoned
from procession.driver.epoch_end import EpochEndAgreement
from procession.driver.gateway_clients import PATIENCE_S, GatewayClients, place_of
from procession.driver.last_commit import DecidedRecords, LastCommit, known_members, last_commit, send_commit
from procession.errors import ConfigError, ProcessionError, RecordError, RoundError
from procession.gateway.control_client import ControlClient, EpochOffer, FenceReply
from procession.gateway.members import Member
from procession.storage.log_ranges import FIRST_GATEWAY, NOTHING, LogLocation, LogOffset, read_offsets
from procession.tls import ClientTls


@dataclass(frozen=True)
class GatewayFeed:
    """Offers the next epoch. Its limits in records and bytes are divided equally among the gateways."""

    at: str | Path
    cookie: bytes = field(repr=False)
    checkpoint: Checkpoint
    records_max: int
    bytes_max: int
    is_alone: bool = False
    """Whether the plan supports only one gateway."""
    is_ordered: bool = False
    """Whether records are in event-time order. If so, the gateways must agree on the end of an epoch."""

    tls: ClientTls | None = None
    decision_timeout_s: float = DECISION_TIMEOUT_S
    """Time that the driver has to make a commit durable."""

    def next_ends(self, starts: Mapping[str, Any], records_max: int) -> dict[str, Any]:
        self.checkpoint.check_fence()
        epoch = self.checkpoint.log.await_decided(self.checkpoint.check_fence, self.decision_timeout_s)
        self.checkpoint.check_fence()  # a successor knows all commits that were on disk before it took over
        last = last_commit(self.checkpoint, self._kept.records.of(epoch), self.places())
        known, limit = read_offsets(starts), min(records_max, self.records_max)
        find_ends = self._agreed_ends if self.is_ordered else self._offered_ends
        ends = known | find_ends(last, known, limit)
        return {name: ends[name].as_json() for name in sorted(ends)}

    def _offered_ends(
        self, last: LastCommit, starts: Mapping[str, LogOffset], records_max: int
    ) -> dict[str, LogOffset]:
        """Return the epoch's end at the gateways that have new records."""
        clients, places = self._kept.clients, self._kept.places
        names = clients.names
        limits = max(1, records_max // len(names)), max(1, self.bytes_max // len(names))
        # A late reply is still valid: no records were read from that gateway since, so its start offset has not
        # changed.
        answers = clients.ask({name: partial(last.offer, name, starts.get(name, NOTHING), *limits) for name in names})
        offered = {
            name: offer.offset for name, offer in answers.items() if offer.end > starts.get(name, NOTHING).sequence
        }
        if FIRST_GATEWAY in answers:
            gateways = self._remaining(last, answers[FIRST_GATEWAY].gateways)
            clients.meet(gateways)
            self._check_alone(clients.names)
            keep_places(places, gateways)
        known = places.all()
        return {name: end for name, end in offered.items() if name in known}

    def _agreed_ends(self, last: LastCommit, starts: Mapping[str, LogOffset], records_max: int) -> dict[str, LogOffset]:
        agreed = self._kept.agreement.reach(last, starts, records_max, self.bytes_max)
        if agreed is None:
            return {}
        self._check_alone([member.name for member in agreed.gateways])
        keep_places(self._kept.places, agreed.gateways)
        return {name: end for name, end in agreed.ends.items() if end.sequence > starts.get(name, NOTHING).sequence}

    def _remaining(self, last: LastCommit, listed: list[Member]) -> list[Member]:
        """Return the gateways of the leader's list that were not abandoned. Inform the leader of the others."""
        abandoned = abandoned_before(self._kept.places.abandoned, last.fence)
        report_abandoned(last, listed, abandoned, self._kept.leader)
        return remaining(listed, abandoned)

    def _check_alone(self, names: list[str]) -> None:
        if self.is_alone and len(names) > 1:
            raise ConfigError(
                'a pipeline with exchange="spark" supports one gateway: tasks could not name the record of another in'
                " an error",
                next_step=f'use exchange="runs", or remove {names[-1]} (procession gateways leave {names[-1]})',
            )

    def places(self) -> dict[str, LogLocation]:
        return self._kept.places.all()

    @property
    def _kept(self) -> KeptByHelper:
        return _kept(self.at, self.cookie, self.tls, self.checkpoint.root, self.checkpoint.rounds.directory)


class KeptByHelper:
    """The data that the helper process keeps from one epoch to the next."""

    def __init__(self, at: str | Path, cookie: bytes, tls: ClientTls | None, root: Path, rounds: Path) -> None:
        self._new_clients = partial(GatewayClients[Any], at, cookie, tls)
        self._new_leader = partial(ControlClient, at, cookie, PATIENCE_S, tls=tls)
        self.places = LogLocations(root)
        self.records = DecidedRecords(RoundRecords(rounds))

    @cached_property
    def leader(self) -> ControlClient:
        return self._new_leader()

    @cached_property
    def clients(self) -> GatewayClients[EpochOffer]:
        return self._new_clients()

    @cached_property
    def agreement(self) -> EpochEndAgreement:
        return EpochEndAgreement(self._new_clients())


@cache
def _kept(at: str | Path, cookie: bytes, tls: ClientTls | None, root: Path, rounds: Path) -> KeptByHelper:
    # Cached for the lifetime of the helper process, because the feed itself is unpickled repeatedly.
    return KeptByHelper(at, cookie, tls, root, rounds)


def keep_places(places: LogLocations, gateways: Iterable[Member]) -> None:
    for member in gateways:
        places.keep(member.name, place_of(member))


class GatewayNotifier:
    """Sends fences and commits to the gateways. Raises RoundError if one is unreachable; the caller retries."""

    def __init__(
        self,
        at: str | Path,
        cookie: bytes,
        fence: int,
        tls: ClientTls | None = None,
        abandoned: Abandoned | None = None,
    ) -> None:
        self._leader = ControlClient(at, cookie, PATIENCE_S, tls=tls)
        self._abandoned = abandoned or {}
        self._cookie = cookie
        self._tls = tls
        self._fences: GatewayClients[FenceReply] = GatewayClients(at, cookie, tls)
        self._commits: GatewayClients[RoundRecord] = GatewayClients(at, cookie, tls)
        self._notified: dict[str, RoundRecord] = {}
        """The last round record that each gateway has acknowledged."""
        self._listed_at: Mapping[str, int] = {}
        """The offsets at which the leader last listed the gateways."""
        self._lock = (
            threading.Lock()
        )  # a new driver raises its fence at the gateways while it repeats the previous driver's last commit
        self._fence = fence

    def raise_fence(self, checkpoint: Checkpoint, order: str = "") -> None:
        """Make the gateways ignore earlier drivers.

        Raises an error for a gateway whose log is shorter than it offered, or that declares another order."""
        places = checkpoint.places
        offsets = checkpoint.log.offsets
        with self._lock:
            listed = self._leader.fence(self._fence, known=known_members(places.all())).gateways
            self._meet(listed)
            keep_places(places, remaining(listed, self._abandoned))
            record = DecidedRecords(checkpoint.rounds).of(checkpoint.log.committed)
            last = last_commit(checkpoint, record, places.all())
            names = self._fences.names
            fences = self._fences.ask(
                {name: partial(last.raise_fence, name, offsets.get(name, NOTHING)) for name in names}
            )
            if FIRST_GATEWAY in fences:
                report_abandoned(last, listed, self._abandoned, self._leader)
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
        """Return the error with the name of its stream next to the number."""
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
        """Collect stream names from all gateways. Only the gateway where a stream was opened knows its name."""
        names: dict[int, str] = {}
        with self._lock:
            for member in remaining(self._leader.fence(self._fence).gateways, self._abandoned):
                with ControlClient(member.control, self._cookie, PATIENCE_S, member.identity, self._tls) as client:
                    names |= {stream["id"]: stream["name"] for stream in client.status()["streams"] if stream["name"]}
        return names

    def acknowledge(self, record: RoundRecord) -> None:
        """Send every gateway the committed position of its log and of all streams."""
        with self._lock:
            unknown = [name for name in record.offsets if name not in self._commits.names]
            if any(record.offsets[name] != self._listed_at.get(name) for name in unknown):
                self._list_gateways(record)  # a gateway is new, or is reachable again
                self._listed_at = record.offsets
            pending = [name for name in self._commits.names if self._notified.get(name) is not record]
            requests: dict[str, Callable[[ControlClient], RoundRecord]] = {
                name: partial(send_commit, self._fence, record, name) for name in pending
            }
            self._notified |= self._commits.ask(requests)
            missing = [name for name in pending if self._notified.get(name) is not record]
            if not missing:
                return
            if FIRST_GATEWAY not in missing:
                self._list_gateways(record)  # a missing gateway may have left
        raise _away(missing)

    def _list_gateways(self, record: RoundRecord) -> None:
        self._meet(self._leader.fence(self._fence, known=known_members(record.offsets)).gateways)

    def _meet(self, gateways: Iterable[Member]) -> None:
        members = remaining(gateways, self._abandoned)
        self._fences.meet(members)
        self._commits.meet(members)


def _away(names: list[str]) -> RoundError:
    return RoundError(
        f"The gateway {', '.join(names)} does not answer." if len(names) == 1 else f"{', '.join(names)} do not answer.",
        next_step="Start it, or look at its log; the request is repeated. If its machine is lost: restore the gateway"
        f" from its replicas (procession restore), or give it up (procession gateways abandon {names[0]}).",
    )
