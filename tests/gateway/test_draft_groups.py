"""Messages of the draft at the gateway: groups, ephemeral messages, and where an epoch may end."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.gateway.draft_groups import HELD_BYTES
from procession.gateway.gateway_events import FrameReceived, RowsAppended, SessionClosed
from procession.gateway.gateway_limits import Limits
from procession.gateway.log_rows import whole_groups
from procession.storage.segment import (
    INGRESS_SCHEMA,
    KIND_BOUNDARY,
    KIND_EOS,
    KIND_EPHEMERAL,
    KIND_RECORD,
    KIND_UNSTABLE,
)
from procession.wire.draft_messages import (
    DraftMessage,
    DraftOk,
)
from procession.wire.messages import Ack, Notify
from tests.gateway.draft_gateway_rig import A, B, C, DraftGatewayRig, ephemeral, stable, unstable
from tests.gateway.gateway_rig import STEP, reasons, sent


@pytest.fixture
def rig() -> DraftGatewayRig:
    return DraftGatewayRig()


# Groups


def test_unstable_messages_wait_for_the_stable_message_that_closes_their_group(rig: DraftGatewayRig) -> None:
    rig.open(A, 7, 8)
    rig.take(A, stable(1), unstable(900, b"a"), unstable(3, b"b"))
    rig.take(A, stable(1, b"other", stream_id=8))
    assert rig.payloads == [b"x", b"other"]
    rig.take(A, stable(10, b"c"))
    assert rig.written[2:] == [(KIND_UNSTABLE, 900, b"a"), (KIND_UNSTABLE, 3, b"b"), (KIND_RECORD, 10, b"c")]
    rig.take(A, unstable(0, b"d"), stable(11, None))
    assert rig.written[5:] == [(KIND_UNSTABLE, 0, b"d"), (KIND_BOUNDARY, 11, b"")]
    assert rig.state.records_in == 6


@pytest.mark.parametrize("is_killed", [False, True], ids=["dropped", "killed"])
@pytest.mark.parametrize("committed", range(8))
def test_a_group_that_is_sent_again_with_other_ids_is_neither_duplicated_nor_lost(
    rig: DraftGatewayRig, committed: int, is_killed: bool
) -> None:
    """Checked for every commit position at the loss of the session, also in the middle of a group."""

    def groups(first_unstable: int) -> list[DraftMessage]:
        ids = iter(range(first_unstable, first_unstable + 9))
        return [
            stable(1, b"1"),
            *(unstable(next(ids), payload) for payload in (b"2", b"3")),
            stable(10, b"4"),
            *(unstable(next(ids), payload) for payload in (b"5", b"6")),
            stable(20, None),
        ]

    rig.open(A, 7)
    rig.take(A, *groups(100))
    assert len(rig.rows) == 7
    rig.take(A, unstable(777, b"7"))
    rig.commit_to(0, committed)
    if is_killed:
        rig.restart()
    else:
        rig.do(SessionClosed(A))
    (ok,) = rig.hello(B)
    assert isinstance(ok, DraftOk)
    position = ok.streams[0][2] if ok.streams else -1
    assert position == {0: -1, 1: 1, 2: 1, 3: 1, 4: 10, 5: 10, 6: 10, 7: 20}[committed]
    rig.do(FrameReceived(B, Notify(7, "s", 0)))
    again = groups(200)
    after = next((at + 1 for at, message in enumerate(again) if message.message_id == position), 0)
    rig.take(B, *again[after:], unstable(888, b"7"), stable(30, b"8"))
    assert rig.payloads == [b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8"]


def test_the_held_messages_of_a_lost_session_are_dropped_and_sent_again(rig: DraftGatewayRig) -> None:
    rig.open(A, 7)
    rig.take(A, unstable(1, b"a"))
    rig.do(SessionClosed(A))
    assert 7 not in rig.state.registry
    rig.open(B, 7)
    rig.take(B, unstable(5, b"a"), stable(6, b"b"))
    assert rig.payloads == [b"a", b"b"]


def test_a_stream_may_not_end_in_an_open_group(rig: DraftGatewayRig) -> None:
    rig.open(A, 7)
    last = DraftMessage(7, 5, b"x", is_last=True, is_unstable=True)
    reason = "stream 7 ends without a stable point of reference"
    assert reasons(rig.take(A, last)) == [reason]
    rig.open(B, 7)
    rig.take(B, unstable(1))
    assert reasons(rig.take(B, DraftMessage(7, 5, None, is_last=True, is_unstable=True))) == [reason]
    assert rig.rows == []


def test_credits_for_held_messages_are_replenished_so_a_group_may_be_longer_than_the_window() -> None:
    rig = DraftGatewayRig(Limits(credits_max=4))
    rig.open(A, 7)
    given = 3
    for number in range(50):
        assert given > 0
        given -= 1
        frames = sent(rig.take(A, unstable(number)), A)
        given += sum(frame.credits for frame in frames if isinstance(frame, Ack))
    rig.take(A, stable(99))
    assert len(rig.rows) == 51


def test_a_session_holds_at_most_its_limit_and_released_bytes_do_not_count() -> None:
    rig = DraftGatewayRig(Limits(held_bytes_max=3 * (HELD_BYTES + 10)))
    rig.open(A, 7, 8)
    for _ in range(3):
        rig.take(A, *(unstable(n, b"0123456789") for n in range(3)))
        rig.take(A, stable(1 + len(rig.rows)))
        assert rig.state.sessions[A].groups is not None
        assert rig.state.sessions[A].groups.held_bytes == 0
    rig.take(A, unstable(1, b"0123456789"), unstable(2, b"0123456789", stream_id=8))
    refusal = rig.take(A, unstable(3, b"0123456789"), unstable(4, b""))
    assert reasons(refusal) == [f"more than {3 * (HELD_BYTES + 10)} bytes without a stable point of reference"]


def test_messages_before_an_invalid_one_count(rig: DraftGatewayRig) -> None:
    rig.open(A, 7)
    actions = rig.take(A, stable(1), stable(2), stable(2), stable(3))
    assert reasons(actions) == ["message id goes back on stream 7"]
    assert rig.ids == [1, 2]
    rig.open(B, 7)
    rig.take(B, stable(1), stable(2), stable(3))
    assert rig.ids == [1, 2, 3]


def test_an_event_time_that_the_log_cannot_keep_is_refused(rig: DraftGatewayRig) -> None:
    rig.open(A, 7)
    rig.take(A, DraftMessage(7, 1, b"x", event_time=2**63 - 1, key=b"k"))
    assert (rig.rows[0]["event_time"], rig.rows[0]["key"]) == (2**63 - 1, b"k")
    assert reasons(rig.take(A, DraftMessage(7, 2, b"x", event_time=2**63))) == [f"event time {2**63} is over 2^63-1"]


# Ephemeral messages


def test_ephemeral_messages_are_counted_separately_and_never_acknowledged(rig: DraftGatewayRig) -> None:
    rig.open(A, 9)
    rig.take(A, ephemeral(b"a"), ephemeral(b"a"))
    assert rig.written == [(KIND_EPHEMERAL, 0, b"a"), (KIND_EPHEMERAL, 1, b"a")]
    assert (rig.state.records_in, rig.state.ephemeral_in, rig.state.duplicates) == (0, 2, 0)
    assert sent(rig.commit_to(0), A) == []
    rig.do(SessionClosed(A))
    assert 9 not in rig.state.registry
    rig.open(B, 9)
    rig.take(B, ephemeral(b"a"))
    assert len(rig.payloads) == 3, "it cannot be compared, so it is kept"


def test_an_ephemeral_stream_ends_and_is_released_by_the_commit(rig: DraftGatewayRig) -> None:
    rig.open(A, 9)
    rig.take(A, ephemeral(b"a"), ephemeral(None, is_last=True))
    assert [row["kind"] for row in rig.rows] == [KIND_EPHEMERAL, KIND_EOS]
    rig.restart()
    rig.hello(B)
    assert reasons(rig.do(FrameReceived(B, Notify(9, "s", 0))))
    rig.commit_to(0)
    rig.open(C, 9)
    rig.take(C, stable(1, stream_id=9))


@pytest.mark.parametrize(
    "mixed",
    [
        (ephemeral(stream_id=7), stable(1)),
        (stable(1), ephemeral(stream_id=7)),
        (unstable(1), ephemeral(stream_id=7)),
        (stable(1, None), ephemeral(None, stream_id=7, is_last=True)),
    ],
    ids=["then stable", "after stable", "after unstable", "end after a boundary"],
)
def test_a_stream_does_not_mix_ephemeral_messages_with_others(
    rig: DraftGatewayRig, mixed: tuple[DraftMessage, DraftMessage]
) -> None:
    rig.open(A, 7)
    assert reasons(rig.take(A, *mixed)) == ["ephemeral and other messages on stream 7"]


# Epochs and groups


def test_an_epoch_ends_before_a_group_that_it_would_divide_or_after_it_if_it_has_nothing_else() -> None:
    kinds = [KIND_RECORD, KIND_UNSTABLE, KIND_UNSTABLE, KIND_RECORD, KIND_UNSTABLE, KIND_BOUNDARY, KIND_EPHEMERAL]
    blank = dict.fromkeys(INGRESS_SCHEMA.names, 0) | {"key": b"", "payload": b""}
    rows = [blank | {"kind": kind} for kind in kinds]

    def ends(start: int, end: int, piece: int) -> int:
        def batches(first: int, last: int) -> list[pa.RecordBatch]:
            cuts = range(first, last, piece)
            return [pa.RecordBatch.from_pylist(rows[at : min(at + piece, last)], schema=INGRESS_SCHEMA) for at in cuts]

        return whole_groups(start, end, batches(start, end), batches(end, len(rows)))

    for piece in (1, 2, 100):
        assert [ends(0, end, piece) for end in range(1, 8)] == [1, 1, 1, 4, 4, 6, 7]
        assert [ends(1, end, piece) for end in range(2, 8)] == [4, 4, 4, 4, 6, 7]
        assert [ends(4, end, piece) for end in range(5, 8)] == [6, 6, 7]


def test_a_restarted_gateway_knows_the_boundaries_of_groups(rig: DraftGatewayRig) -> None:
    rig.open(A, 7)
    rig.take(A, stable(1))
    assert rig.state.groups_end == 0
    rig.take(A, unstable(1), stable(2))
    rig.take(A, stable(3))
    assert rig.state.groups_end == 3
    rig.restart()
    assert rig.state.groups_end == 3


# Everything, compared with a slow and simple reference


@given(st.lists(st.sampled_from("usb"), min_size=1, max_size=30), st.lists(STEP, max_size=40))
def test_every_record_of_the_draft_is_in_the_log_once_in_order_after_any_events(
    shape: list[str], steps: list[tuple[str, int]]
) -> None:
    """The stream has unstable (u), stable (s) and boundary (b) messages. Each session gives unstable messages other
    ids."""
    rig, session, epoch, position = DraftGatewayRig(Limits(credits_max=10_000)), 1, 0, 0

    def message(number: int) -> DraftMessage:
        if shape[number] == "u":
            return unstable(session * 1000 + number, b"%d" % number)
        return stable(number, None if shape[number] == "b" else b"%d" % number)

    rig.open(session, 7)
    for what, number in steps:
        if what == "send":
            end = min(len(shape), position + number)
            rig.take(session, *(message(at) for at in range(position, end)))
            position = end
        elif what == "commit":
            rig.commit_to(epoch, min(len(rig.rows), rig.state.snapshot.end_sequence + number))
            epoch += 1
        else:
            if what == "kill":
                rig.restart()
            else:
                rig.do(SessionClosed(session))
            session += 1
            (ok,) = rig.hello(session)
            assert isinstance(ok, DraftOk)
            rig.do(FrameReceived(session, Notify(7, "s", 0)))
            position = ok.streams[0][2] + 1 if ok.streams else 0
    expected = [b"%d" % number for number, kind in enumerate(shape) if kind != "b"]
    assert rig.payloads == expected[: len(rig.payloads)]
    closed = max((at for at in range(position) if shape[at] != "u"), default=-1)
    assert len(rig.payloads) >= sum(kind != "b" for kind in shape[: closed + 1])


def test_nothing_of_the_draft_is_appended_twice_when_the_log_is_slow() -> None:
    rig = DraftGatewayRig(Limits(credits_max=100), appends=False)
    rig.open(A, 7)
    assert sent(rig.take(A, *(stable(number) for number in range(60))), A) == []
    assert sent(rig.do(RowsAppended(60)), A) == [Ack(61, ())]
