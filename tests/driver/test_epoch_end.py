"""Where an epoch ends at several gateways that order by event time, and what becomes of it when one comes or goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from procession.driver.epoch_end import Agreement, Answered
from procession.gateway.control_client import Offer, Reached, Share
from procession.gateway.members import Member
from procession.merge.waiting_rows import Key
from procession.storage.log_ranges import FIRST_GATEWAY, Offset

COMPLETE = Key(100, 1, 7)


class Gateways:
    """They answer, each for itself, unless they are away; the first says who there is."""

    def __init__(self, *names: str) -> None:
        self.members = [Member(name, name, "", name, "") for name in names]
        self.away: set[str] = set()

    def offer(self, fence: int, start: Offset, records_max: int, bytes_max: int) -> Offer:
        end = start.sequence + 1
        return Offer(end, Offset(end), 0, self.members)

    def clocks(self, fence: int) -> Reached:
        return Reached({}, self.members)

    def offer_among(self, fence: int, start: Offset, limits: Any, told: Any, upto: Key | None) -> Share:
        end = start.sequence + 1
        return Share(end, Offset(end), COMPLETE, COMPLETE)


class Desks:
    def __init__(self, gateways: Gateways) -> None:
        self.gateways = gateways
        self.names = [FIRST_GATEWAY]

    def meet(self, gateways: Iterable[Member]) -> None:
        self.names = sorted(member.name for member in gateways)

    def ask(self, questions: Mapping[str, Callable[[Any], Answered]]) -> dict[str, Answered]:
        there = {member.name for member in self.gateways.members} - self.gateways.away
        return {name: question(self.gateways) for name, question in questions.items() if name in there}


@pytest.fixture
def gateways() -> Gateways:
    return Gateways(FIRST_GATEWAY, "gateway-1")


@pytest.fixture
def agreement(gateways: Gateways) -> Agreement:
    agreement = Agreement(Desks(gateways))  # type: ignore[arg-type]
    assert ends(agreement) is None, "the first says that it is not the only one"
    assert ends(agreement) == {FIRST_GATEWAY: 1, "gateway-1": 1}
    return agreement


def ends(agreement: Agreement) -> dict[str, int] | None:
    agreed = agreement.reach(1, {}, 100, 100)
    return None if agreed is None else {name: end.sequence for name, end in agreed.ends.items()}


def test_one_that_has_left_is_not_waited_for(gateways: Gateways, agreement: Agreement) -> None:
    del gateways.members[1]
    assert ends(agreement) is None
    assert ends(agreement) == {FIRST_GATEWAY: 1}


def test_one_that_is_merely_away_is_waited_for(gateways: Gateways, agreement: Agreement) -> None:
    gateways.away = {"gateway-1"}
    assert ends(agreement) is None
    assert ends(agreement) is None
    gateways.away = set()
    assert ends(agreement) == {FIRST_GATEWAY: 1, "gateway-1": 1}


def test_while_the_first_is_away_nothing_is_agreed(gateways: Gateways, agreement: Agreement) -> None:
    gateways.away = {FIRST_GATEWAY}
    assert ends(agreement) is None
    gateways.away = set()
    assert ends(agreement) == {FIRST_GATEWAY: 1, "gateway-1": 1}


def test_one_that_has_come_is_in_the_next_epoch(gateways: Gateways, agreement: Agreement) -> None:
    gateways.members.append(Member("gateway-2", "gateway-2", "", "gateway-2", ""))
    assert ends(agreement) is None
    assert ends(agreement) == {FIRST_GATEWAY: 1, "gateway-1": 1, "gateway-2": 1}
