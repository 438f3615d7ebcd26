"""Retirement: which streams leave the snapshot and when, and how they return with their positions."""

from __future__ import annotations

import pytest

from procession.errors import StorageError
from procession.gateway.gateway_events import (
    EpochCommitted,
    FrameReceived,
    RetireStreams,
    SessionClosed,
    SessionOpened,
    SnapshotWritten,
    WriteSnapshot,
)
from procession.gateway.gateway_limits import Limits
from procession.gateway.log_rows import LogTail
from procession.gateway.plausibility import advanced_positions, check_positions
from procession.gateway.registry import Registry
from procession.gateway.retired_streams import HEADER, RetiredStreams
from procession.gateway.snapshot import Position
from procession.gateway.state import GatewayState
from procession.wire.messages import NOTHING_COMMITTED, Messages, Notify, NotifyAck
from tests.gateway.gateway_rig import A, B, GatewayRig
from tests.gateway.several import HELLO, Producer, Several

AT_ONCE = Limits(credits_max=100, streams_retire_after_s=0)
S = 7


def retired_rig(limits: Limits = AT_ONCE) -> GatewayRig:
    """Return a gateway that has retired a stream with messages up to 2."""
    rig = GatewayRig(limits)
    rig.open(A, S)
    rig.message(A, S, 0, 1, 2)
    rig.do(SessionClosed(A))
    rig.commit(0, s7=2)
    rig.do(RetireStreams())
    return rig


def test_an_idle_stream_is_retired_and_returns_with_its_position() -> None:
    rig = retired_rig()
    assert S not in rig.state.registry
    assert rig.state.snapshot.streams == {}
    assert len(rig.state.retired) == 1
    rig.hello(B)
    assert rig.notify(B, S) == NotifyAck(True, S, 2)
    rig.message(B, S, 1, 2, 3)
    assert rig.ids == [0, 1, 2, 3], "records from before are duplicates"
    rig.commit(1, s7=3)
    assert rig.state.snapshot.streams == {S: Position("stream 7", 3)}
    assert len(rig.state.retired) == 0, "the snapshot has the stream again"


def test_a_stream_is_not_retired_before_its_age_nor_while_it_is_open_or_not_committed() -> None:
    state = GatewayState(Limits(streams_retire_after_s=60))
    for session in (A, B):
        state.handle(SessionOpened(session), 0.0)
        state.handle(FrameReceived(session, HELLO), 0.0)
        state.handle(FrameReceived(session, Notify(session, "", 0)), 0.0)
        state.handle(FrameReceived(session, Messages.of([session], [0], [0], [b""], [b""])), 0.0)
    state.handle(SessionClosed(A), 1.0)
    assert state.handle(RetireStreams(), 100.0) == [], "nothing is committed"
    (write,) = state.handle(EpochCommitted(1, 0, 2, {A: 0, B: 0}), 110.0)
    assert isinstance(write, WriteSnapshot)
    state.handle(SnapshotWritten(write.snapshot), 110.0)
    assert state.handle(RetireStreams(), 169.0) == []
    (write,) = state.handle(RetireStreams(), 171.0)
    assert isinstance(write, WriteSnapshot)
    assert write.retiring is not None
    assert write.retiring.streams == {A: 0}
    assert list(write.snapshot.streams) == [B], "a session has it open"


def test_near_the_limit_the_longest_idle_streams_are_retired_at_once() -> None:
    rig = GatewayRig(Limits(credits_max=1000, streams_max=16))
    rig.hello(A)
    for stream_id in range(13):
        assert rig.notify(A, stream_id).success
        rig.message(A, stream_id, 0)
        if stream_id == 5:
            rig.do(SessionClosed(A))
            rig.commit(0, **{f"s{stream_id}": 0 for stream_id in range(6)})
            rig.hello(A)
    rig.do(SessionClosed(A))
    rig.commit(1, **{f"s{number}": 0 for number in range(6, 13)})
    rig.do(RetireStreams())
    assert [stream.stream_id for stream in rig.state.registry] == list(range(5, 13))


def test_a_stream_that_returns_while_it_is_being_retired_stays() -> None:
    rig = retired_rig(Limits(credits_max=100, streams_retire_after_s=60))
    (write,) = rig.state.handle(RetireStreams(), 100.0)
    assert isinstance(write, WriteSnapshot)
    assert write.retiring is not None
    rig.retired = write.retiring.data
    rig.hello(B)
    assert rig.notify(B, S) == NotifyAck(True, S, 2)
    rig.message(B, S, 3)
    rig.do(SnapshotWritten(write.snapshot, write.retiring))
    assert rig.state.registry[S].session == B
    # Before the next snapshot the record is in the log only, and the position among the retired only.
    rig.restart()
    assert (rig.state.registry[S].committed, rig.state.registry[S].seen) == (2, 3)
    rig.commit(1, s7=3)
    assert rig.state.snapshot.streams[S].committed == 3


def test_a_repeated_commit_does_not_restore_a_retired_or_forgotten_stream() -> None:
    rig = retired_rig()
    for positions in ({"s7": 2}, {"s7": 1}, {"s8": 4}):
        rig.commit(0, **positions)
        assert rig.state.snapshot.streams == {}
    assert rig.state.retired.committed(S) == 2


def test_a_commit_may_name_a_retired_stream_up_to_its_position_and_not_beyond() -> None:
    retired = RetiredStreams(Limits())
    retired.retired(retired.retiring({S: 41}, 0.0))
    registry = Registry({}, LogTail(), retired)
    check_positions({S: 41}, registry, None)
    assert advanced_positions({S: 41, 8: 1, 9: NOTHING_COMMITTED}, registry, is_late=False) == {8: 1}
    assert advanced_positions({S: 42, 8: 1}, registry, is_late=True) == {S: 42}
    with pytest.raises(StorageError, match="Message 42 of stream 7 was reported as committed, but the last"):
        check_positions({S: 42}, registry, None)


# Several gateways


def committed(gateways: int, records: int = 1) -> tuple[Several, Producer]:
    """Gateways with an open stream at the second one, and its records, which are committed."""
    several = Several(gateways)
    producer = several[1].open(S)
    several.settle()
    for _ in range(records):
        producer.send()
    several.take()
    return several, producer


def test_a_retired_stream_is_granted_with_its_position_to_another_gateway() -> None:
    several, producer = committed(3, records=2)
    producer.close()
    several.settle()
    for node in several.nodes:
        node.retire()
        assert S not in node.state.registry
        assert node.snapshot.streams == {}
    several.crash(0)
    several.settle()
    other = several[2].open(S)
    several.settle()
    assert other.answers == [NotifyAck(True, S, 1)]
    other.send()
    several.take()
    several.check()
    assert several.ids(S) == [0, 1, 2]


def test_a_gateway_keeps_positions_that_the_leader_does_not_have_on_disk() -> None:
    several = Several(3)
    producer = several[1].open(S)
    several.settle()
    producer.send()
    several.take(tells=lambda number: number != 0)
    producer.close()
    several.settle()
    several[1].retire()
    several.crash(0)
    several.settle()
    other = several[2].open(S)
    several.settle()
    assert other.answers == [NotifyAck(True, S, 0)]


def test_the_leader_keeps_a_stream_that_another_gateway_holds() -> None:
    several, producer = committed(2)
    several.settle()
    several[0].retire()
    assert S in several[0].state.registry
    producer.close()
    several.settle()
    several[0].retire()
    assert S not in several[0].state.registry


def test_a_gateway_that_does_not_lead_writes_no_file() -> None:
    several, producer = committed(2)
    producer.close()
    several.settle()
    several[1].retire()
    assert S not in several[1].state.registry
    assert several[1].files == {}
    assert several[1].snapshot.retired is None


def test_old_retired_streams_are_forgotten_although_no_stream_retires() -> None:
    rig = retired_rig(Limits(credits_max=100, streams_retire_after_s=0, streams_retired_age_s=50))
    (write,) = rig.state.handle(RetireStreams(), 1000.0)
    assert isinstance(write, WriteSnapshot)
    assert write.retiring is not None
    assert write.retiring.data == HEADER
