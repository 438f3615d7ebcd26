"""Determines where an epoch ends at each of several gateways, with event-time order.

Invariant: an epoch contains everything up to one position in the order, at every gateway. So every gateway must
answer within one call, and the leader must have named all gateways. Each gateway gets the stream watermarks of the
others. The epoch then contains the records up to the position that all gateways have completed, within the size
limits of an epoch. Uses `driver/gateway_clients`; used by `driver/offsets`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

from procession.driver.gateway_clients import GatewayClients
from procession.driver.last_commit import LastCommit
from procession.gateway.control_client import ControlClient, EpochOffer, OfferShare, StreamWatermarks
from procession.gateway.members import Member
from procession.merge.stream_clocks import StreamClock
from procession.storage.log_ranges import FIRST_GATEWAY, LogOffset

Answer = TypeVar("Answer", EpochOffer, StreamWatermarks, OfferShare)


class EpochEndReply(NamedTuple):
    """A reply and the request that it belongs to. A late reply to an earlier request is ignored."""

    turn: int
    answer: EpochOffer | StreamWatermarks | OfferShare


class AgreedEnd(NamedTuple):
    ends: dict[str, LogOffset]
    gateways: list[Member]


class EpochEndAgreement:
    """Asks all gateways for the end of the next epoch. There is one per process."""

    def __init__(self, clients: GatewayClients[EpochEndReply]) -> None:
        self._clients = clients
        self._turns = itertools.count()

    def reach(
        self, last: LastCommit, starts: Mapping[str, LogOffset], records_max: int, bytes_max: int
    ) -> AgreedEnd | None:
        """Return the end of the next epoch, or None if not all gateways have replied."""
        if self._clients.names == [FIRST_GATEWAY]:
            return self._alone(last, starts.get(FIRST_GATEWAY, LogOffset()), records_max, bytes_max)
        names = self._clients.names
        reached = self._ask({name: lambda client: client.clocks(last.fence) for name in names}, StreamWatermarks)
        if FIRST_GATEWAY not in reached:
            return None
        gateways = reached[FIRST_GATEWAY].gateways
        self._clients.meet(gateways)  # also if a gateway has not answered: it may have left
        if self._clients.names != names or len(reached) < len(names):
            return None  # the set of gateways changed, or one is unreachable: ask all of them the next time
        watermarks = _merged(reply.clocks for reply in reached.values())
        limits = max(1, records_max // len(names)), max(1, bytes_max // len(names))
        ask = {
            name: partial(last.share, name, starts.get(name, LogOffset()), limits, watermarks, None) for name in names
        }
        shares = self._ask(ask, OfferShare)
        if len(shares) < len(names):
            return None
        complete = [share.complete for share in shares.values() if share.complete is not None]
        if len(complete) < len(shares):
            return AgreedEnd({}, gateways)  # a stream has no watermark yet
        upto = min(complete)
        over = [name for name, share in shares.items() if share.last is not None and share.last > upto]
        ask = {name: partial(last.share, name, starts.get(name, LogOffset()), limits, {}, upto) for name in over}
        cut = self._ask(ask, OfferShare)
        if len(cut) < len(over):
            return None
        return AgreedEnd({name: share.offset for name, share in (shares | cut).items()}, gateways)

    def _alone(self, last: LastCommit, start: LogOffset, records_max: int, bytes_max: int) -> AgreedEnd | None:
        """Ask the only gateway. If it names others, return None: the next call asks all of them."""
        names = [FIRST_GATEWAY]
        ask = partial(last.offer, FIRST_GATEWAY, start, records_max, bytes_max)
        offers = self._ask({FIRST_GATEWAY: ask}, EpochOffer)
        if not offers:
            return None
        offer = offers[FIRST_GATEWAY]
        self._clients.meet(offer.gateways)
        return AgreedEnd({FIRST_GATEWAY: offer.offset}, offer.gateways) if self._clients.names == names else None

    def _ask(self, questions: Mapping[str, Callable[[ControlClient], Answer]], kind: type[Answer]) -> dict[str, Answer]:
        """Return the replies to exactly these requests."""
        turn = next(self._turns)
        requests = {name: partial(_answered, turn, question) for name, question in questions.items()}
        answers = self._clients.ask(requests)
        now = {name: reply.answer for name, reply in answers.items() if reply.turn == turn}
        return {name: answer for name, answer in now.items() if isinstance(answer, kind)}


def _answered(
    turn: int, question: Callable[[ControlClient], EpochOffer | StreamWatermarks | OfferShare], client: ControlClient
) -> EpochEndReply:
    return EpochEndReply(turn, question(client))


def _merged(clocks: Iterable[Mapping[int, StreamClock]]) -> dict[int, StreamClock]:
    """Combine the gateways' watermarks: the latest per stream."""
    merged: dict[int, StreamClock] = {}
    for known in clocks:
        for stream_id, clock in known.items():
            merged[stream_id] = clock.later(merged.get(stream_id))
    return merged
