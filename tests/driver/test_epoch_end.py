"""Where an epoch ends at several gateways with event-time order, also when a gateway joins or leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from procession.driver.epoch_end import EpochEndAgreement, EpochEndReply
from procession.driver.last_commit import LastCommit
from procession.gateway.confirmation import KnownGateway
from procession.gateway.control_client import EpochOffer, OfferShare, StreamWatermarks
from procession.gateway.members import Member
from procession.merge.waiting_rows import Key
from procession.storage.log_ranges import FIRST_GATEWAY, LogOffset

COMPLETE = Key(100, 1, 7)


class Gateways:
    """Gateways that answer for themselves unless they are away. The first one lists the members."""

    def __init__(self, *names: str) -> None:
        self.members = [Member(name, name, "", name, "") for name in names]
        self.away: set[str] = set()

    def offer(self, fence: int, start: LogOffset, records_max: int, bytes_max: int, known: KnownGateway) -> EpochOffer:
        end = start.sequence + 1
        return EpochOffer(end, LogOffset(end), 0, self.members)

    def clocks(self, fence: int) -> StreamWatermarks:
        return StreamWatermarks({}, self.members)

    def offer_among(
        self, fence: int, start: LogOffset, limits: Any, shares: Any, upto: Key | None, known: KnownGateway
    ) -> OfferShare:
        end = start.sequence + 1
        return OfferShare(end, LogOffset(end), COMPLETE, COMPLETE)


class Desks:
    def __init__(self, gateways: Gateways) -> None:
        self.gateways = gateways
        self.names = [FIRST_GATEWAY]

    def meet(self, gateways: Iterable[Member]) -> None:
        self.names = sorted(member.name for member in gateways)

    def ask(self, questions: Mapping[str, Callable[[Any], EpochEndReply]]) -> dict[str, EpochEndReply]:
        there = {member.name for member in self.gateways.members} - self.gateways.away
        return {name: question(self.gateways) for name, question in questions.items() if name in there}


@pytest.fixture
def gateways() -> Gateways:
    return Gateways(FIRST_GATEWAY, "gateway-1")


@pytest.fixture
def agreement(gateways: Gateways) -> EpochEndAgreement:
    agreement = EpochEndAgreement(Desks(gateways))  # type: ignore[arg-type]
    assert ends(agreement) is None, "the first reports that there are others"
    assert ends(agreement) == {FIRST_GATEWAY: 1, "gateway-1": 1}
    return agreement


def ends(agreement: EpochEndAgreement) -> dict[str, int] | None:
    agreed = agreement.reach(LastCommit(1), {}, 100, 100)
    return None if agreed is None else {name: end.sequence for name, end in agreed.ends.items()}


def test_a_gateway_that_has_left_does_not_delay_an_epoch(gateways: Gateways, agreement: EpochEndAgreement) -> None:
    del gateways.members[1]
    assert ends(agreement) is None
    assert ends(agreement) == {FIRST_GATEWAY: 1}


def test_a_gateway_that_is_away_delays_an_epoch(gateways: Gateways, agreement: EpochEndAgreement) -> None:
    gateways.away = {"gateway-1"}
    assert ends(agreement) is None
    assert ends(agreement) is None
    gateways.away = set()
    assert ends(agreement) == {FIRST_GATEWAY: 1, "gateway-1": 1}


def test_while_the_first_gateway_is_away_no_epoch_ends(gateways: Gateways, agreement: EpochEndAgreement) -> None:
    gateways.away = {FIRST_GATEWAY}
    assert ends(agreement) is None
    gateways.away = set()
    assert ends(agreement) == {FIRST_GATEWAY: 1, "gateway-1": 1}


def test_a_gateway_that_joined_is_in_the_next_epoch(gateways: Gateways, agreement: EpochEndAgreement) -> None:
    gateways.members.append(Member("gateway-2", "gateway-2", "", "gateway-2", ""))
    assert ends(agreement) is None
    assert ends(agreement) == {FIRST_GATEWAY: 1, "gateway-1": 1, "gateway-2": 1}
