"""Where an epoch ends at each of several gateways, with event-time order.

The one rule: an epoch contains everything up to one position in the order, at every gateway. So every gateway must
answer within one call, and the leader must have named all gateways. Each gateway is told how far the streams have come
at the others. The epoch is what is then complete at all of them, within the limits of an epoch. Uses
`driver/gateway_clients`; used by `driver/offsets`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

from procession.driver.gateway_clients import Desks
from procession.gateway.control_client import ControlClient, Offer, Reached, Share
from procession.gateway.members import Member
from procession.merge.stream_clocks import Clock
from procession.merge.waiting_rows import Key
from procession.storage.log_ranges import FIRST_GATEWAY, Offset

Answer = TypeVar("Answer", Offer, Reached, Share)


class Answered(NamedTuple):
    """A reply and the request that it belongs to. A late reply to an earlier request is ignored."""

    turn: int
    answer: Offer | Reached | Share


class Agreed(NamedTuple):
    ends: dict[str, Offset]
    gateways: list[Member]


class Agreement:
    """One per process that asks."""

    def __init__(self, desks: Desks[Answered]) -> None:
        self._desks = desks
        self._turns = itertools.count()

    def reach(self, fence: int, starts: Mapping[str, Offset], records_max: int, bytes_max: int) -> Agreed | None:
        """The end of the next epoch. None if not all gateways have replied."""
        if self._desks.names == [FIRST_GATEWAY]:
            return self._alone(fence, starts.get(FIRST_GATEWAY, Offset()), records_max, bytes_max)
        names = self._desks.names
        reached = self._ask({name: lambda client: client.clocks(fence) for name in names}, Reached)
        if FIRST_GATEWAY not in reached:
            return None
        there = reached[FIRST_GATEWAY].gateways
        self._desks.meet(there)  # also if one has not answered: it may have left, and would be asked for ever
        if self._desks.names != names or len(reached) < len(names):
            return None  # somebody has come, or gone, or is away: all of them are asked next time
        told = _merged(one.clocks for one in reached.values())
        limits = max(1, records_max // len(names)), max(1, bytes_max // len(names))
        ask = {name: partial(_share, fence, starts.get(name, Offset()), limits, told, None) for name in names}
        shares = self._ask(ask, Share)
        if len(shares) < len(names):
            return None
        complete = [one.complete for one in shares.values() if one.complete is not None]
        if len(complete) < len(shares):
            return Agreed({}, there)  # a stream has said nothing yet
        upto = min(complete)
        over = [name for name, one in shares.items() if one.last is not None and one.last > upto]
        ask = {name: partial(_share, fence, starts.get(name, Offset()), limits, {}, upto) for name in over}
        cut = self._ask(ask, Share)
        if len(cut) < len(over):
            return None
        return Agreed({name: one.offset for name, one in (shares | cut).items()}, there)

    def _alone(self, fence: int, start: Offset, records_max: int, bytes_max: int) -> Agreed | None:
        """A single gateway decides alone. If there are others, they are asked the next time."""
        names = [FIRST_GATEWAY]
        offers = self._ask({FIRST_GATEWAY: partial(_offer, fence, start, records_max, bytes_max)}, Offer)
        if not offers:
            return None
        offer = offers[FIRST_GATEWAY]
        self._desks.meet(offer.gateways)
        return Agreed({FIRST_GATEWAY: offer.offset}, offer.gateways) if self._desks.names == names else None

    def _ask(self, questions: Mapping[str, Callable[[ControlClient], Answer]], kind: type[Answer]) -> dict[str, Answer]:
        """The replies to exactly these requests."""
        turn = next(self._turns)
        asked = {name: partial(_answered, turn, question) for name, question in questions.items()}
        answers = self._desks.ask(asked)
        now = {name: one.answer for name, one in answers.items() if one.turn == turn}
        return {name: answer for name, answer in now.items() if isinstance(answer, kind)}


def _answered(
    turn: int, question: Callable[[ControlClient], Offer | Reached | Share], client: ControlClient
) -> Answered:
    return Answered(turn, question(client))


def _offer(fence: int, start: Offset, records_max: int, bytes_max: int, client: ControlClient) -> Offer:
    return client.offer(fence, start, records_max, bytes_max)


def _share(
    fence: int,
    start: Offset,
    limits: tuple[int, int],
    told: Mapping[int, Clock],
    upto: Key | None,
    client: ControlClient,
) -> Share:
    return client.offer_among(fence, start, limits, told, upto)


def _merged(clocks: Iterable[Mapping[int, Clock]]) -> dict[int, Clock]:
    """What all gateways together know of each stream."""
    merged: dict[int, Clock] = {}
    for known in clocks:
        for stream_id, clock in known.items():
            merged[stream_id] = clock.later(merged.get(stream_id))
    return merged
