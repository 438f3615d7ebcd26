"""The gateway's decisions, without a socket or a disk: events in, actions out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.errors import FencedError, StorageError
from procession.gateway.gateway_events import (
    CloseSession,
    EpochCommitted,
    FenceRaised,
    FrameReceived,
    SendFrame,
    SessionClosed,
    SessionOpened,
    SnapshotWritten,
    TrimLog,
    WriteSnapshot,
)
from procession.gateway.gateway_limits import Limits
from procession.gateway.snapshot import Position, Snapshot
from procession.storage.segment import KIND_EOS
from procession.wire.connection import Violation
from procession.wire.messages import (
    NOTHING_COMMITTED,
    Ack,
    Eos,
    Error,
    Hello,
    Messages,
    Notify,
    NotifyAck,
    Ok,
)
from tests.gateway.gateway_rig import STEP, A, B, GatewayRig, reasons, sent


@pytest.fixture
def rig() -> GatewayRig:
    return GatewayRig()


# Handshake


@pytest.mark.parametrize("version", ["0.0.1", "v0.0.1"])
def test_a_hello_of_version_3_is_granted_all_credits(rig: GatewayRig, version: str) -> None:
    rig.do(SessionOpened(A))
    assert sent(rig.do(FrameReceived(A, Hello(version, b"", "p", "i"))), A) == [Ok(100)]


@pytest.mark.parametrize(
    ("expected", "given_cookie", "version", "reason"),
    [
        (b"", b"", "0.0.2", "unknown version '0.0.2', this is 0.0.1"),
        (b"", b"x", "0.0.1", "no cookie is expected here"),
        (b"x", b"", "0.0.1", "a cookie is needed here"),
        (b"x", b"y", "0.0.1", "bad cookie"),
    ],
)
def test_a_hello_for_another_pipeline_or_version_is_refused_with_a_reason(
    expected: bytes, given_cookie: bytes, version: str, reason: str
) -> None:
    rig = GatewayRig(Limits(cookie=expected))
    rig.do(SessionOpened(A))
    assert rig.do(FrameReceived(A, Hello(version, given_cookie, "p", "i"))) == [CloseSession(A, reason)]
    assert not rig.state.sessions


def test_a_session_above_the_limit_is_closed_and_does_not_count() -> None:
    rig = GatewayRig(Limits(sessions_max=1))
    rig.hello(A)
    assert rig.do(SessionOpened(B)) == [CloseSession(B, "more than 1 sessions")]
    rig.do(SessionClosed(A))
    assert rig.do(SessionOpened(3)) == []


def test_the_oldest_peer_that_has_not_greeted_makes_room_for_a_new_one() -> None:
    rig = GatewayRig(Limits(sessions_max=3))
    rig.hello(A)
    for number in (B, 3):
        rig.do(SessionOpened(number))
    assert rig.do(SessionOpened(4)) == [CloseSession(B, "more than 3 sessions")]
    rig.hello(5)
    assert rig.do(SessionOpened(6)) == [CloseSession(4, "more than 3 sessions")]


# Duplicates and order


def test_a_new_stream_learns_that_nothing_is_committed(rig: GatewayRig) -> None:
    rig.hello(A)
    assert rig.notify(A, 7) == NotifyAck(True, 7, NOTHING_COMMITTED)


def test_records_get_consecutive_sequences_in_the_order_of_arrival(rig: GatewayRig) -> None:
    rig.open(A, 7)
    rig.open(B, 8)
    rig.message(A, 7, 0, 10, 20)
    rig.message(B, 8, 5)
    rig.message(A, 7, 21)
    assert [(row["stream_id"], row["message_id"]) for row in rig.rows] == [(7, 0), (7, 10), (7, 20), (8, 5), (7, 21)]


def test_a_client_that_disconnects_between_commits_causes_no_gap_and_no_duplicate(rig: GatewayRig) -> None:
    rig.open(A, 7)
    rig.message(A, 7, 1, 2, 3)
    rig.commit(0, 2, s7=2)
    rig.do(SessionClosed(A))
    rig.hello(B)
    assert rig.notify(B, 7) == NotifyAck(True, 7, 2)
    rig.message(B, 7, 3, 4, 5)
    assert rig.ids == [1, 2, 3, 4, 5]
    assert rig.state.duplicates == 1


def test_a_client_that_replays_everything_causes_no_duplicate(rig: GatewayRig) -> None:
    rig.open(A, 7)
    rig.message(A, 7, 1, 2, 3)
    rig.commit(0, 2, s7=2)
    rig.do(SessionClosed(A))
    rig.open(B, 7)
    rig.message(B, 7, 1)
    rig.message(B, 7, 2, 3, 4)
    assert rig.ids == [1, 2, 3, 4]


@pytest.mark.parametrize("second", [[2], [3], [4, 4], [5, 4, 6]], ids=str)
def test_a_decreasing_id_above_the_duplicates_is_the_peers_error_and_earlier_messages_count(
    rig: GatewayRig, second: list[int]
) -> None:
    rig.open(A, 7)
    rig.message(A, 7, 1, 3)
    assert reasons(rig.message(A, 7, *second)) == ["message id goes back on stream 7"]
    assert rig.ids == [1, 3, *(one for one in second[:1] if one > 3)]
    rig.hello(B)
    assert rig.notify(B, 7).success, "the stream of a session that was closed is free at once"


def test_an_id_up_to_the_committed_one_is_dropped_without_an_error(rig: GatewayRig) -> None:
    rig.open(A, 7)
    rig.message(A, 7, 1, 3)
    rig.commit(0, s7=3)
    assert reasons(rig.message(A, 7, 2, 3, 4)) == []
    assert rig.ids == [1, 3, 4]


def test_the_id_that_means_nothing_committed_is_refused_in_a_message(rig: GatewayRig) -> None:
    rig.open(A, 7)
    assert reasons(rig.message(A, 7, NOTHING_COMMITTED)) == ["message id 2^64-1 on stream 7 is reserved"]
    assert rig.rows == []


def test_interleaved_streams_are_filtered_each_by_its_own_position(rig: GatewayRig) -> None:
    rig.open(A, 7)
    assert rig.notify(A, 8).success
    rig.message(A, 7, 1, 2)
    rig.message(A, 8, 50)
    rig.do(SessionClosed(A))
    rig.open(B, 7)
    assert rig.notify(B, 8).success
    mixed = Messages.of([7, 8, 7, 8, 7], [1, 50, 2, 51, 3], [0] * 5, [b"k"] * 5, [b"a", b"b", b"c", b"d", b"e"])
    rig.do(FrameReceived(B, mixed))
    assert [(row["stream_id"], row["message_id"], row["payload"]) for row in rig.rows[3:]] == [
        (8, 51, b"d"),
        (7, 3, b"e"),
    ]


def test_after_an_error_on_one_of_two_interleaved_streams_neither_moves(rig: GatewayRig) -> None:
    rig.open(A, 7)
    assert rig.notify(A, 8).success
    rig.message(A, 8, 50)
    mixed = Messages.of([7, 8, 7], [1, 50, 2], [0] * 3, [b""] * 3, [b""] * 3)
    assert reasons(rig.do(FrameReceived(A, mixed))) == ["message id goes back on stream 8"]
    assert rig.ids == [50, 1]
    assert rig.state.registry[7].seen == 1


# Who holds a stream


def test_a_stream_that_is_active_is_refused_with_the_peers_own_point_of_reference(rig: GatewayRig) -> None:
    rig.open(A, 7)
    rig.hello(B)
    assert rig.notify(B, 7, point=5) == NotifyAck(False, 7, 5)
    assert rig.notify(A, 7, point=6) == NotifyAck(False, 7, 6), "this includes its own session"
    rig.do(SessionClosed(A))
    assert rig.notify(B, 7).success


@pytest.mark.parametrize("last_word", [Violation("bad"), Error("mine")], ids=["violation", "error"])
def test_a_session_that_ends_with_an_error_holds_no_stream(rig: GatewayRig, last_word: Violation | Error) -> None:
    rig.open(A, 7)
    rig.do(FrameReceived(A, last_word))
    assert rig.message(A, 7, 1) == [], "later frames of the session are ignored"
    rig.hello(B)
    assert rig.notify(B, 7).success
    rig.do(SessionClosed(A))
    assert rig.state.registry[7].session == B, "a late end of the old session releases no stream of the new one"


def test_a_stream_without_messages_is_forgotten_with_its_session() -> None:
    rig = GatewayRig(Limits(streams_max=1))
    rig.open(A, 7)
    assert reasons(rig.do(FrameReceived(A, Notify(8, "s", 0)))) == ["more than 1 streams"]
    rig.open(B, 9)


# The end of a stream


def test_the_end_of_a_stream_is_a_row_with_its_own_sequence(rig: GatewayRig) -> None:
    rig.open(A, 7)
    rig.message(A, 7, 4)
    rig.do(FrameReceived(A, Eos(7)))
    assert (rig.rows[1]["kind"], rig.rows[1]["stream_id"], rig.rows[1]["message_id"]) == (KIND_EOS, 7, 4)


def test_an_ended_stream_is_released_only_by_a_commit_that_covers_its_end(rig: GatewayRig) -> None:
    rig.open(A, 7)
    rig.hello(B)
    rig.message(A, 7, 1, 2)
    rig.do(FrameReceived(A, Eos(7)))
    assert not rig.notify(B, 7).success
    assert sent(rig.commit(0, 2, s7=2), A) == [Ack(4, ((7, 2),))]
    assert not rig.notify(B, 7).success, "that checkpoint started before the end arrived"
    assert sent(rig.commit(1, 3, s7=2), A) == [Ack(0, ((7, 2),))], "the last ACK names the stream again"
    assert rig.notify(B, 7) == NotifyAck(True, 7, 2)


def test_an_ended_stream_whose_session_left_is_released_by_the_commit_too(rig: GatewayRig) -> None:
    rig.open(A, 7)
    rig.message(A, 7, 1)
    rig.do(FrameReceived(A, Eos(7)))
    rig.do(SessionClosed(A))
    rig.hello(B)
    assert not rig.notify(B, 7).success
    rig.commit(0, s7=1)
    assert rig.notify(B, 7) == NotifyAck(True, 7, 1)


def test_the_end_of_an_empty_stream_is_acknowledged_without_naming_it(rig: GatewayRig) -> None:
    rig.open(A, 7)
    rig.do(FrameReceived(A, Eos(7)))
    assert rig.rows[0]["message_id"] == NOTHING_COMMITTED
    assert sent(rig.commit(0, s7=NOTHING_COMMITTED), A) == [Ack(2, ())]
    assert 7 not in rig.state.registry
    assert rig.notify(A, 7) == NotifyAck(True, 7, NOTHING_COMMITTED)


# Commits, fences, snapshots


def test_a_commit_is_reported_only_after_its_snapshot_is_on_disk(rig: GatewayRig) -> None:
    rig.open(A, 7)
    rig.message(A, 7, 1, 2)
    (write,) = rig.state.handle(EpochCommitted(3, 5, 2, {7: 2}))
    assert write == WriteSnapshot(Snapshot(3, 5, 2, 2, {7: Position("stream 7", 2)}))
    rig.hello(B)
    rig.do(SessionClosed(A))
    assert rig.notify(B, 7) == NotifyAck(True, 7, NOTHING_COMMITTED), "not on disk yet, so not acknowledged"
    assert isinstance(write, WriteSnapshot)
    assert rig.do(SnapshotWritten(write.snapshot)) == [SendFrame(B, Ack(1, ((7, 2),))), TrimLog(2)]


def test_an_ack_lists_only_streams_with_new_committed_positions(rig: GatewayRig) -> None:
    for stream_id in (7, 8, 9):
        rig.open(stream_id, stream_id)
        rig.message(stream_id, stream_id, 1)
    assert [action for action in rig.commit(0, 2, s7=1, s8=1) if isinstance(action, SendFrame)] == [
        SendFrame(7, Ack(2, ((7, 1),))),
        SendFrame(8, Ack(2, ((8, 1),))),
    ]
    assert [action for action in rig.commit(1, 2, s7=1) if isinstance(action, SendFrame)] == []


def test_a_commit_sent_again_or_late_changes_nothing(rig: GatewayRig) -> None:
    rig.open(A, 7)
    rig.message(A, 7, 1, 2, 3)
    rig.commit(0, 1, s7=1)
    rig.commit(1, 3, s7=3)
    before = rig.state.snapshot
    assert sent(rig.commit(1, 3, s7=3), A) == []
    assert sent(rig.commit(0, 1, s7=1), A) == []
    assert rig.state.snapshot == before


def test_a_replaced_driver_is_refused_and_changes_nothing(rig: GatewayRig) -> None:
    rig.open(A, 7)
    rig.message(A, 7, 1)
    rig.do(FenceRaised(4))
    before = rig.state.snapshot
    with pytest.raises(FencedError, match="Driver 3 was replaced by driver 4"):
        rig.commit(0, fence=3, s7=1)
    with pytest.raises(FencedError):
        rig.do(FenceRaised(3))
    assert rig.state.snapshot == before
    assert before.fence == 4
    rig.restart()
    with pytest.raises(FencedError):
        rig.commit(0, fence=3, s7=1)


def test_a_commit_beyond_the_log_is_refused(rig: GatewayRig) -> None:
    with pytest.raises(StorageError, match="ends at 5, but no record from 0 on was offered"):
        rig.commit(0, 5)


def test_a_restarted_gateway_knows_from_snapshot_and_log_what_is_committed_seen_and_ended(rig: GatewayRig) -> None:
    rig.open(A, 7)
    rig.open(B, 8)
    rig.message(A, 7, 1, 2, 3)
    rig.message(B, 8, 50)
    rig.commit(0, 2, s7=2)
    rig.do(FrameReceived(B, Eos(8)))
    rig.restart()
    rig.hello(A)
    assert rig.notify(A, 7) == NotifyAck(True, 7, 2)
    assert not rig.notify(A, 8).success, "its end is in the log and not committed"
    rig.message(A, 7, 3, 4)
    assert rig.ids == [1, 2, 3, 50, 4]
    rig.commit(1, s7=4, s8=50)
    assert rig.notify(A, 8) == NotifyAck(True, 8, 50)


# Everything, compared with a slow and simple reference


@given(st.lists(STEP, max_size=40))
def test_every_message_is_in_the_log_once_in_order_after_any_events(
    steps: list[tuple[str, int]],
) -> None:
    rig, session, epoch = GatewayRig(), 1, 0
    rig.open(session, 7)
    position = 0
    for what, number in steps:
        if what == "send":
            rig.message(session, 7, *range(position, position + number))
            position += number
        elif what == "commit":
            end = min(len(rig.rows), rig.state.snapshot.end_sequence + number)
            rig.commit(epoch, end, **({"s7": end - 1} if end else {}))
            epoch += 1
        else:
            if what == "kill":
                rig.restart()
            else:
                rig.do(SessionClosed(session))
            session += 1
            rig.hello(session)
            answer = rig.notify(session, 7)
            assert answer.success
            position = 0 if answer.point_of_reference == NOTHING_COMMITTED else answer.point_of_reference + 1
    assert rig.ids == list(range(len(rig.ids)))
