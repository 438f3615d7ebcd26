"""Where an epoch ends at several gateways that order by event time, and what becomes of it when one comes or goes."""

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
    """They answer, each for itself, unless they are away; the first says who there is."""

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
    assert ends(agreement) is None, "the first says that it is not the only one"
    assert ends(agreement) == {FIRST_GATEWAY: 1, "gateway-1": 1}
    return agreement


def ends(agreement: EpochEndAgreement) -> dict[str, int] | None:
    agreed = agreement.reach(LastCommit(1), {}, 100, 100)
    return None if agreed is None else {name: end.sequence for name, end in agreed.ends.items()}


def test_one_that_has_left_is_not_waited_for(gateways: Gateways, agreement: EpochEndAgreement) -> None:
    del gateways.members[1]
    assert ends(agreement) is None
    assert ends(agreement) == {FIRST_GATEWAY: 1}


def test_one_that_is_merely_away_is_waited_for(gateways: Gateways, agreement: EpochEndAgreement) -> None:
    gateways.away = {"gateway-1"}
    assert ends(agreement) is None
    assert ends(agreement) is None
    gateways.away = set()
    assert ends(agreement) == {FIRST_GATEWAY: 1, "gateway-1": 1}


def test_while_the_first_is_away_nothing_is_agreed(gateways: Gateways, agreement: EpochEndAgreement) -> None:
    gateways.away = {FIRST_GATEWAY}
    assert ends(agreement) is None
    gateways.away = set()
    assert ends(agreement) == {FIRST_GATEWAY: 1, "gateway-1": 1}


def test_one_that_has_come_is_in_the_next_epoch(gateways: Gateways, agreement: EpochEndAgreement) -> None:
    gateways.members.append(Member("gateway-2", "gateway-2", "", "gateway-2", ""))
    assert ends(agreement) is None
    assert ends(agreement) == {FIRST_GATEWAY: 1, "gateway-1": 1, "gateway-2": 1}
