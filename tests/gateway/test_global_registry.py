"""The registries of several gateways: the sequences of the protocol's specification, by name, and events in between."""

from __future__ import annotations

import pytest

from procession.errors import ConfigError
from procession.gateway.global_registry import GlobalRegistry, Grant, Refusal
from procession.gateway.stream_leases import LeaseState
from procession.wire.messages import NOTHING_COMMITTED, NotifyAck
from tests.gateway.several import Producer, Several

S = 7


@pytest.fixture
def several() -> Several:
    return Several(3)


def claim(several: Several, number: int, stream_id: int = S) -> LeaseState | None:
    claims = several[number].state.claims
    assert claims is not None
    return claims[stream_id]


def opened(several: Several, number: int, stream_id: int = S) -> Producer:
    producer = several[number].open(stream_id)
    several.settle()
    return producer


# The sequences of the text


def test_notify_requests_a_new_stream_from_the_leader_and_makes_it_active(several: Several) -> None:
    producer = several[1].open(S)
    assert claim(several, 1) is LeaseState.PENDING_NOTIFY
    assert producer.answers == []
    several.settle()
    assert claim(several, 1) is LeaseState.ACTIVE
    assert several.registry.active == {S: "gateway-1"}
    assert producer.answers == [NotifyAck(True, S, NOTHING_COMMITTED)]


def test_notify_is_rejected_while_the_stream_is_pending_in_another_session_of_the_gateway(several: Several) -> None:
    several[1].open(S)
    other = several[1].open(S)
    assert other.answers == [NotifyAck(False, S, 0)]


def test_notify_is_rejected_by_the_local_registry_if_another_session_has_the_stream(several: Several) -> None:
    opened(several, 1)
    other = several[1].open(S)
    assert other.answers == [NotifyAck(False, S, 0)]
    assert not several[1].outbox, "no request to the leader is needed"


def test_notify_is_rejected_by_the_global_registry_if_another_gateway_has_the_stream(several: Several) -> None:
    opened(several, 1)
    assert opened(several, 2).answers == [NotifyAck(False, S, 0)]
    assert claim(several, 2) is None


def test_notify_moves_a_stream_from_inactive_to_active_with_its_last_acknowledged_id(several: Several) -> None:
    first = opened(several, 1)
    first.send()
    first.send()
    several.take()
    first.close()
    several.settle()
    assert several.registry.active == {}
    second = opened(several, 2)
    assert second.answers == [NotifyAck(True, S, 1)]
    assert several.registry.active == {S: "gateway-2"}


def test_stream_update_a_commit_reaches_the_registry_of_every_gateway(several: Several) -> None:
    producer = opened(several, 1)
    producer.send()
    several.take()
    assert [node.committed for node in several.nodes] == [{S: 0}] * 3


def test_eos_is_released_and_relinquished_by_a_checkpoint_that_began_after_it(several: Several) -> None:
    producer = opened(several, 1)
    producer.send()
    producer.end()
    assert claim(several, 1) is LeaseState.PENDING_CLOSE
    several.settle()
    assert opened(several, 2).answers == [NotifyAck(False, S, 0)]
    several.take()
    assert claim(several, 1) is LeaseState.PENDING_RELINQUISH
    several.settle()
    assert claim(several, 1) is None
    assert opened(several, 2).answers == [NotifyAck(True, S, 0)]


def test_relinquish_by_a_gateway_that_is_not_the_holder_changes_nothing(several: Several) -> None:
    opened(several, 1)
    assert not several.registry.relinquish(several[2].link, S, 5)
    assert several.registry.active == {S: "gateway-1"}
    assert several.registry.notify(several[1].link, S) == Grant(S, None), "its committed position is not used, either"


def test_at_the_end_of_a_recovery_streams_without_a_session_are_relinquished(several: Several) -> None:
    producer = opened(several, 1)
    producer.send()
    several.take()
    several.crash(1)
    several.settle()
    assert several.registry.active == {}
    assert opened(several, 2).answers == [NotifyAck(True, S, 0)]


# Events in between


def test_a_grant_for_a_closed_session_gives_the_stream_back(several: Several) -> None:
    producer = several[1].open(S)
    several.receive(several[1])
    producer.close()
    several.settle()
    assert claim(several, 1) is None
    assert several.registry.active == {}
    assert opened(several, 2).is_open


def test_a_refusal_for_a_closed_session_leaves_nothing_behind(several: Several) -> None:
    opened(several, 1)
    producer = several[2].open(S)
    producer.close()
    several.settle()
    assert claim(several, 2) is None
    assert several.registry.active == {S: "gateway-1"}


def test_a_leader_that_restarts_during_a_notify_refuses_it_and_loses_the_request(several: Several) -> None:
    producer = several[1].open(S)
    several.receive(several[1])
    several.crash(0)
    assert producer.answers == [NotifyAck(False, S, 0)]
    several.settle()
    assert several.registry.active == {}
    producer.notify()
    several.settle()
    assert producer.answers[-1].success


def test_two_restarts_of_the_leader_leave_every_stream_with_its_holder(several: Several) -> None:
    producer = opened(several, 1)
    producer.send()
    several.crash(0)
    several.join(several[1])
    several.crash(0)
    assert not several[2].open(S).answers[-1].success, "without a leader nothing is granted"
    several.settle()
    assert several.registry.active == {S: "gateway-1"}
    producer.send()
    several.take()
    assert several.ids(S) == [0, 1]


def test_a_new_leader_grants_nothing_before_every_gateway_has_reported_its_streams(several: Several) -> None:
    opened(several, 2)
    several.crash(0)
    several.join(several[0])
    several.join(several[1])
    assert several.registry.unreported == ["gateway-2"]
    for number in (0, 1):
        producer = several[number].open(S)
        several.receive(several[number])
        several.answer(several[number])
        assert producer.answers == [NotifyAck(False, S, 0)]
    several.join(several[2])
    assert several.registry.unreported == []
    assert several.registry.active == {S: "gateway-2"}


def test_an_end_of_stream_during_a_checkpoint_waits_for_the_next_one(several: Several) -> None:
    producer = opened(several, 1)
    producer.send()
    several.take(tells=lambda number: False)
    producer.end()
    several.tell(1)
    assert claim(several, 1) is LeaseState.PENDING_CLOSE
    several.take()
    assert claim(several, 1) is LeaseState.PENDING_RELINQUISH


def test_a_gateway_that_died_holds_its_streams_until_it_is_back_and_its_records_are_committed(
    several: Several,
) -> None:
    producer = opened(several, 1)
    producer.send()
    several[1].durable = 1
    several.crash(1)
    assert opened(several, 2).answers == [NotifyAck(False, S, 0)]
    several.settle()
    assert opened(several, 2).answers == [NotifyAck(False, S, 0)], "a record of it is in the log of the first"
    several.take()
    several.settle()
    assert opened(several, 2).answers == [NotifyAck(True, S, 0)]


def test_a_producer_that_returns_to_its_gateway_continues_without_the_leader(several: Several) -> None:
    producer = opened(several, 1)
    producer.send()
    producer.close()
    several.lose(several[1])
    again = several[1].open(S)
    assert again.answers == [NotifyAck(True, S, NOTHING_COMMITTED)]
    again.send()
    again.send()
    several.take()
    assert several.ids(S) == [0, 1]


def test_a_new_leader_learns_the_position_from_the_gateway_that_relinquished_the_stream(several: Several) -> None:
    producer = opened(several, 1)
    producer.send()
    several.take(tells=lambda number: number == 1)
    producer.close()
    several.settle()
    several.crash(0)
    several.settle()
    assert opened(several, 2).answers == [NotifyAck(True, S, 0)], "otherwise record 0 would be duplicated"


@pytest.mark.parametrize("number", [0, 2])
def test_a_gateway_that_died_before_its_first_commit_of_a_stream_asks_for_its_position(
    several: Several, number: int
) -> None:
    first = opened(several, 1)
    first.send()
    several.take(tells=lambda number: number == 1)
    first.close()
    several.settle()
    second = opened(several, number)
    second.send()
    several[number].durable = 1
    several.crash(number)
    early = several[number].open(S)
    assert early.answers == [NotifyAck(False, S, 0)], "only the leader knows it, and there is no connection to it yet"
    several.settle()
    early.notify()
    assert claim(several, number) is LeaseState.PENDING_POSITION
    several.settle()
    assert early.answers[-1] == NotifyAck(True, S, 0), "its producer was told that record 0 is committed"
    early.send()
    early.send()
    several.take()
    assert several.ids(S) == [0, 1, 2]


def test_a_stream_whose_position_is_requested_stays_held_without_the_leader_or_the_session(several: Several) -> None:
    producer = opened(several, 1)
    producer.send()
    several[1].durable = 1
    several.crash(1)
    several.join(several[1])
    asking = several[1].open(S)
    several.lose(several[1])
    assert asking.answers == [NotifyAck(False, S, 0)]
    assert claim(several, 1) is LeaseState.PENDING_CLOSE
    several.join(several[1])
    asking.notify()
    asking.close()
    several.take()
    assert claim(several, 1) is LeaseState.PENDING_POSITION, (
        "an answer is in flight: the stream must still be held when it arrives"
    )
    several.settle()
    assert claim(several, 1) is None
    assert opened(several, 2).answers == [NotifyAck(True, S, 0)]


def test_a_gateway_that_claims_a_stream_of_another_is_refused() -> None:
    registry = GlobalRegistry(["a"])
    registry.join("a", 1, [S], {})
    with pytest.raises(ConfigError, match="both hold stream 7"):
        registry.join("b", 2, [S], {})
    assert registry.gateways == {"a": True}


def test_messages_of_a_gateway_count_on_its_latest_link_only() -> None:
    registry = GlobalRegistry(["a"])
    registry.join("a", 1, [], {})
    registry.join("a", 2, [], {})
    registry.lost(1)
    assert registry.notify(1, S) == Refusal(S)
    assert registry.notify(2, S) == Grant(S, None)
    assert registry.notify(2, S) == Grant(S, None), "a lost answer may be requested again"


def test_a_gateway_that_holds_a_stream_cannot_leave() -> None:
    registry = GlobalRegistry(["a"])
    registry.join("a", 1, [S], {})
    with pytest.raises(ConfigError, match="still holds 1 streams"):
        registry.leave("a")
    registry.relinquish(1, S, None)
    registry.leave("a")
    assert registry.gateways == {}


def test_the_leader_stores_only_positions_that_its_own_gateway_does_not_have() -> None:
    known = {7: 5, 8: 3}
    registry = GlobalRegistry(["a"], known=known.get)
    registry.join("a", 1, [], {7: 4, 8: 6, 9: 1})
    assert [registry.notify(1, stream_id) for stream_id in (7, 8, 9)] == [Grant(7, 5), Grant(8, 6), Grant(9, 1)]
    registry.trim()
    assert [registry.notify(1, stream_id) for stream_id in (7, 8, 9)] == [Grant(7, 5), Grant(8, 6), Grant(9, 1)]
    known |= {8: 7, 9: 1}
    registry.trim()
    known.clear()  # as if they were removed: nothing of them remains here either
    assert [registry.notify(1, stream_id) for stream_id in (7, 8, 9)] == [
        Grant(7, None),
        Grant(8, None),
        Grant(9, None),
    ]
