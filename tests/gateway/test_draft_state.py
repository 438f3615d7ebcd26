"""The gateway's decisions about sessions of the draft: holders of streams, boundaries, counts and faults."""

from __future__ import annotations

import pytest

from procession.gateway.draft_groups import MARKS_MAX, DraftGroup
from procession.gateway.gateway_events import (
    AckIntervalPassed,
    Action,
    CloseSession,
    FrameReceived,
    SendFrame,
    SessionClosed,
    SessionOpened,
)
from procession.gateway.gateway_limits import Limits
from procession.storage.segment import (
    KIND_BOUNDARY,
    KIND_EOS,
    KIND_RECORD,
)
from procession.wire import draft
from procession.wire.draft_messages import (
    AckCounts,
    Debug,
    DebugFault,
    DraftMessage,
    DraftOk,
)
from procession.wire.messages import NOTHING_COMMITTED, Ack, Hello, Notify, Restart
from tests.gateway.draft_gateway_rig import ALL, A, B, C, DraftGatewayRig, stable, unstable
from tests.gateway.gateway_rig import reasons, sent


@pytest.fixture
def rig() -> DraftGatewayRig:
    return DraftGatewayRig()


# Handshake


def test_ok_lists_the_streams_that_have_something_committed(rig: DraftGatewayRig) -> None:
    assert rig.hello(A) == [DraftOk(100)]
    rig.do(FrameReceived(A, Notify(7, "seven", 0)))
    rig.do(FrameReceived(A, Notify(8, "eight", 0)))
    rig.take(A, stable(1), stable(2), stable(1, stream_id=8))
    rig.commit_to(0, 2)
    assert rig.hello(B) == [DraftOk(100, ((7, "seven", 2),))]
    rig.restart()
    assert rig.hello(C) == [DraftOk(100, ((7, "seven", 2),))]


def test_a_list_of_streams_is_bounded_and_an_unlisted_stream_is_not_duplicated() -> None:
    rig = DraftGatewayRig(Limits(listed_bytes_max=19 * 3))
    rig.open(A, 1, 2, 3, 4)
    rig.take(A, *(stable(5, stream_id=stream_id) for stream_id in (1, 2, 3, 4)))
    rig.commit_to(0)
    (ok,) = rig.hello(B)
    assert isinstance(ok, DraftOk)
    assert [stream_id for stream_id, _, _ in ok.streams] == [1, 2, 3]
    rig.do(SessionClosed(A))
    rig.do(FrameReceived(B, Notify(4, "s", 0)))
    rig.take(B, stable(5, stream_id=4), stable(6, stream_id=4))
    assert len(rig.rows) == 5


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("draft+counts", "the draft's extension 'counts' is not allowed here"),
        ("draft+debug", "the draft's extension 'debug' is not allowed here"),
    ],
)
def test_extensions_of_the_draft_are_refused_unless_they_are_allowed(version: str, reason: str) -> None:
    rig = DraftGatewayRig()
    rig.do(SessionOpened(A))
    assert rig.do(FrameReceived(A, Hello(version, b"", "p", "i"))) == [CloseSession(A, reason)]
    rig = DraftGatewayRig(Limits(extensions=draft.VERSIONS[version]))
    assert rig.hello(A, version) == [DraftOk(Limits().credits_max)]


def test_a_cookie_is_required_in_the_draft_too() -> None:
    rig = DraftGatewayRig(Limits(cookie=b"sesame"))
    rig.do(SessionOpened(A))
    assert rig.do(FrameReceived(A, Hello("draft", b"", "p", "i"))) == [CloseSession(A, "a cookie is needed here")]


# Who holds a stream


def test_a_notify_is_not_answered_and_its_credit_is_replenished(rig: DraftGatewayRig) -> None:
    rig.hello(A)
    assert rig.do(FrameReceived(A, Notify(7, "s", 0))) == []
    assert rig.do(AckIntervalPassed()) == [SendFrame(A, Ack(1, ()))]


def test_a_notify_for_a_stream_of_another_session_ends_the_session_that_asked(rig: DraftGatewayRig) -> None:
    rig.open(A, 7)
    rig.hello(B)
    assert reasons(rig.do(FrameReceived(B, Notify(7, "s", 0)))) == [f"{draft.IN_USE}: 7"]
    assert rig.state.registry[7].session == A
    rig.do(SessionClosed(A))
    rig.open(C, 7)


def test_the_session_that_ended_a_stream_may_open_it_again_at_once_and_others_when_the_end_is_committed(
    rig: DraftGatewayRig,
) -> None:
    rig.open(A, 7)
    rig.take(A, stable(1), stable(2, is_last=True))
    assert [row["kind"] for row in rig.rows] == [KIND_RECORD, KIND_RECORD, KIND_EOS]
    rig.hello(B)
    assert reasons(rig.do(FrameReceived(B, Notify(7, "s", 0))))
    assert rig.do(FrameReceived(A, Notify(7, "s", 0))) == []
    rig.take(A, stable(3))
    rig.commit_to(0, 3)
    assert rig.state.registry[7].session == A, "the commit of its former end does not release it"
    rig.take(A, stable(4, None, is_last=True))
    rig.commit_to(1)
    rig.open(C, 7)


def test_the_last_ack_comes_with_a_commit_that_covers_the_end(rig: DraftGatewayRig) -> None:
    rig.open(A, 7)
    rig.take(A, stable(1), DraftMessage(7, 0, None, is_last=True, is_unstable=True))
    assert rig.written == [(KIND_RECORD, 1, b"x"), (KIND_EOS, 1, b"")]
    assert sent(rig.commit_to(0, 1), A) == [Ack(3, ((7, 1),))]
    assert sent(rig.commit_to(1, 2), A) == [Ack(0, ((7, 1),))]
    assert rig.state.registry[7].is_free


def test_the_end_of_an_empty_stream_leaves_nothing_behind(rig: DraftGatewayRig) -> None:
    rig.open(A, 7)
    rig.take(A, DraftMessage(7, 0, None, is_last=True, is_unstable=True))
    assert rig.written == [(KIND_EOS, NOTHING_COMMITTED, b"")]
    assert sent(rig.commit_to(0), A) == [Ack(2, ())]
    assert 7 not in rig.state.registry


# Boundaries


def test_a_boundary_is_a_point_of_reference_without_a_record(rig: DraftGatewayRig) -> None:
    rig.open(A, 7)
    rig.take(A, stable(1), stable(5, None))
    assert rig.written == [(KIND_RECORD, 1, b"x"), (KIND_BOUNDARY, 5, b"")]
    assert rig.state.records_in == 1
    assert sent(rig.commit_to(0), A) == [Ack(3, ((7, 5),))]
    assert reasons(rig.take(A, stable(5), stable(6))) == []
    assert rig.payloads == [b"x", b"x"], "5 is committed, so it is dropped"


def test_a_boundary_at_the_last_message_is_accepted_and_one_before_it_goes_back(rig: DraftGatewayRig) -> None:
    rig.open(A, 7)
    rig.take(A, stable(3), stable(3, None), stable(3, None, is_last=True))
    assert rig.written == [(KIND_RECORD, 3, b"x"), (KIND_EOS, 3, b"")]
    rig.do(FrameReceived(A, Notify(7, "s", 0)))
    rig.take(A, stable(4))
    assert reasons(rig.take(A, stable(3, None), stable(5))) == [], "below the position at the reopening"
    rig.do(SessionClosed(A))
    rig.open(B, 8)
    rig.take(B, stable(3, stream_id=8))
    assert reasons(rig.take(B, stable(2, None, stream_id=8))) == ["message id goes back on stream 8"]


def test_a_boundary_at_an_earlier_position_closes_no_group(rig: DraftGatewayRig) -> None:
    rig.open(A, 7)
    rig.take(A, stable(5), unstable(6))
    assert reasons(rig.take(A, stable(5, None))) == ["message id goes back on stream 7"]


def test_a_boundary_that_is_not_a_point_of_reference_changes_nothing(rig: DraftGatewayRig) -> None:
    rig.open(A, 7)
    assert rig.take(A, unstable(1, None)) == []
    assert rig.rows == []


# Counts


def counted(actions: list[Action], session: int) -> list[tuple[int, int, int]]:
    frames = [action.frame for action in actions if isinstance(action, SendFrame) and action.session == session]
    return [triple for frame in frames if isinstance(frame, AckCounts) for triple in frame.positions]


def test_an_ack_with_counts_tells_how_many_messages_are_settled_in_the_order_they_were_sent() -> None:
    rig = DraftGatewayRig(Limits(credits_max=1000, extensions=ALL))
    rig.open(A, 7, 8, version="draft+counts")
    rig.take(A, stable(5), unstable(1), unstable(2), stable(9), unstable(3, None), stable(20, None), unstable(4))
    rig.take(A, stable(1, stream_id=8))
    assert counted(rig.commit_to(0, 1), A) == [(7, 5, 1)]
    assert counted(rig.commit_to(1, 3), A) == [], "within a group nothing new is settled"
    assert counted(rig.commit_to(2, 4), A) == [(7, 9, 5)], (
        "a boundary without a new position is settled with the message before it"
    )
    assert counted(rig.commit_to(3), A) == [(7, 20, 6), (8, 1, 1)]
    rig.take(A, stable(21, is_last=True))
    assert counted(rig.commit_to(4), A) == [(7, 21, 8)]


def test_counts_start_again_with_a_session_and_what_was_committed_before_is_settled_at_once() -> None:
    rig = DraftGatewayRig(Limits(credits_max=1000, extensions=ALL))
    rig.open(A, 7, version="draft+counts")
    rig.take(A, stable(1), unstable(5), stable(2), stable(3))
    rig.commit_to(0, 3)
    rig.do(SessionClosed(A))
    rig.open(B, 7, version="draft+counts")
    rig.take(B, stable(1), unstable(6), stable(2), stable(3), stable(4))
    assert counted(rig.do(AckIntervalPassed()), B) == [(7, 2, 3)]
    assert counted(rig.do(AckIntervalPassed()), B) == []
    assert counted(rig.commit_to(1), B) == [(7, 4, 5)]


def test_the_number_of_count_positions_is_bounded_and_a_count_is_never_too_high() -> None:
    group = DraftGroup()
    for number in range(3 * MARKS_MAX):
        group.frames, group.reference = number + 1, number
        group.mark()
        assert len(group.marks) <= MARKS_MAX
    for number in range(3 * MARKS_MAX):
        group.settle(number)
        assert group.settled <= number + 1
    assert group.settled == 3 * MARKS_MAX


# Faults


@pytest.fixture
def faulty() -> DraftGatewayRig:
    rig = DraftGatewayRig(Limits(credits_max=100, extensions=ALL))
    rig.open(A, 7, version="draft+debug")
    rig.open(B, 8)
    rig.do(AckIntervalPassed())
    return rig


def test_a_session_that_requests_held_acks_gets_them_together_later(faulty: DraftGatewayRig) -> None:
    faulty.do(FrameReceived(A, Debug(DebugFault.STUTTER, 2)))
    faulty.take(A, stable(1), stable(2))
    assert sent(faulty.commit_to(0, 1), A) == []
    assert faulty.do(AckIntervalPassed()) == [SendFrame(B, Ack(0, ()))]
    assert sent(faulty.do(AckIntervalPassed()), A) == [], "the second one"
    assert sent(faulty.do(AckIntervalPassed()), A) == [Ack(3, ((7, 1),))]


def test_a_session_may_request_a_tick_that_affects_no_other_session(faulty: DraftGatewayRig) -> None:
    assert faulty.do(FrameReceived(A, Debug(DebugFault.TICK, 3))) == [
        SendFrame(A, Ack(1, ())),
        SendFrame(A, Ack(0, ())),
        SendFrame(A, Ack(0, ())),
    ]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (DebugFault.RESTART, [SendFrame(A, Restart()), CloseSession(A, None)]),
        (DebugFault.CLOSE, [CloseSession(A, None)]),
        (DebugFault.ERROR, [CloseSession(A, "the client requested an error")]),
    ],
)
def test_a_session_may_request_its_own_end(faulty: DraftGatewayRig, fault: DebugFault, expected: list[Action]) -> None:
    assert faulty.do(FrameReceived(A, Debug(fault))) == expected
    assert set(faulty.state.sessions) == {B}
    assert 7 not in faulty.state.registry
