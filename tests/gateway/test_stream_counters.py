"""The counters of a gateway, compared with a slow and simple count."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.gateway.gateway_events import (
    EpochCommitted,
    FrameReceived,
    RowsAppended,
    SessionOpened,
    SnapshotWritten,
    WriteSnapshot,
)
from procession.gateway.gateway_limits import Limits
from procession.gateway.log_rows import record_rows
from procession.gateway.state import GatewayState
from procession.gateway.stream_counters import KINDS, RATE_TIME_S, StreamCounters, UncommittedRows, kind_of
from procession.wire import v3
from procession.wire.connection import Connection, Violation
from procession.wire.lifecycle import ConnectionSide, Role
from procession.wire.messages import Ack, Error, Frame, Hello, Message, Messages, Notify, Ok


class GatewayRig:
    """A gateway's state and the counters that observe it, without a log or a disk."""

    def __init__(self, **limits: int) -> None:
        self.state = GatewayState(Limits(**limits))  # type: ignore[arg-type]
        self.tally = StreamCounters(self.state.limits.streams_max)
        self.now = 0.0

    def handle(self, event: object) -> list[object]:
        actions = self.state.handle(event, self.now)  # type: ignore[arg-type]
        self.tally.watch(event, actions, self.now, self.state.registry)  # type: ignore[arg-type]
        return list(actions)

    def open(self, session: int, *streams: int) -> None:
        self.handle(SessionOpened(session))
        self.handle(FrameReceived(session, Hello("0.0.1", b"", "", "")))
        for stream_id in streams:
            self.handle(FrameReceived(session, Notify(stream_id, f"s{stream_id}", 0)))

    def send(self, session: int, *rows: tuple[int, int, bytes]) -> None:
        self.handle(
            FrameReceived(session, Messages.from_rows([(stream, at, 0, b"k", load) for stream, at, load in rows]))
        )
        self.handle(RowsAppended(self.state.next_sequence))

    def commit(self, end: int, **positions: int) -> None:
        named = {int(name[1:]): at for name, at in positions.items()}
        for action in self.handle(EpochCommitted(1, 0, end, named)):
            assert isinstance(action, WriteSnapshot)
            self.handle(SnapshotWritten(action.snapshot))


@given(st.lists(st.tuples(st.integers(1, 3), st.binary(max_size=5)), min_size=1, max_size=30))
def test_frames_bytes_and_lag_are_counted_for_each_stream(rows: list[tuple[int, bytes]]) -> None:
    rig = GatewayRig()
    rig.open(1, 1, 2, 3)
    rig.send(1, *[(stream_id, number, load) for number, (stream_id, load) in enumerate(rows)])
    frames = Counter(stream_id for stream_id, _ in rows)
    for stream_id in (1, 2, 3):
        counted = rig.tally[stream_id]
        size_bytes = sum(1 + len(load) for row, load in rows if row == stream_id)
        assert (counted.frames, counted.bytes, counted.behind.rows) == (
            frames[stream_id],
            size_bytes,
            frames[stream_id],
        )
    assert rig.tally.frames == {"HELLO": 1, "NOTIFY": 3, "MESSAGE": len(rows)}
    rig.commit(len(rows))
    assert [rig.tally[stream_id].behind.rows for stream_id in (1, 2, 3)] == [0, 0, 0]


def test_a_duplicate_counts_as_a_frame_and_not_as_lag() -> None:
    rig = GatewayRig()
    rig.open(1, 7)
    rig.send(1, (7, 0, b"a"), (7, 1, b"b"))
    rig.commit(2, s7=1)
    rig.send(1, (7, 1, b"b"), (7, 2, b"c"))
    assert (rig.tally[7].frames, rig.tally[7].behind.rows) == (4, 1)


def test_a_refused_notify_is_counted_for_the_gateway_and_the_stream() -> None:
    rig = GatewayRig()
    rig.open(1, 7)
    rig.open(2, 7)
    rig.open(3, 7)
    assert (rig.tally.refused, rig.tally[7].refused) == (2, 2)


def test_granted_credits_are_counted() -> None:
    rig = GatewayRig(credits_max=100)
    rig.open(1, 7)
    given_by = [a.frame.credits for a in rig.handle(FrameReceived(1, Notify(8, "", 0))) if _grants(a)]  # type: ignore[attr-defined]
    assert rig.tally.credits_granted >= 100 + sum(given_by)


def _grants(action: object) -> bool:
    return isinstance(getattr(action, "frame", None), Ok | Ack)


def test_the_rate_covers_recent_time_and_decays() -> None:
    rig = GatewayRig()
    rig.open(1, 7)
    for second in range(60):
        rig.now = float(second)
        rig.send(1, *[(7, 100 * second + number, b"") for number in range(100)])
    assert rig.tally[7].rate(60.0) == pytest.approx(100, rel=0.1)
    assert rig.tally[7].rate(60.0 + 10 * RATE_TIME_S) < 0.1


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 50)), max_size=200))
def test_a_streams_lag_is_at_least_exact_and_zero_when_all_is_committed(
    steps: list[tuple[bool, int]],
) -> None:
    behind, end, committed = UncommittedRows(), 0, 0
    for is_commit, number in steps:
        if is_commit:
            committed = min(end, committed + number)
            behind.commit(committed)
        else:
            end += number
            behind.add(end, number)
        assert end - committed <= behind.rows <= end
        assert len(behind._steps) <= 17
    behind.commit(end)
    assert behind.rows == 0


def test_a_restarted_gateway_knows_the_lag_of_its_streams() -> None:
    columns = (np.array([7, 7, 8], np.uint64), np.array([1, 2, 3], np.uint64), np.zeros(3, np.int64))
    loads = Messages.of([7], [1], [0], [b""], [b"x"]).payloads.take([0, 0, 0])
    tally = StreamCounters(10)
    assert sum(batch.num_rows for batch in tally.recovered(5, [record_rows(Messages(*columns, loads, loads))])) == 3
    assert (tally[7].behind.rows, tally[8].behind.rows, tally[7].frames) == (2, 1, 0)


def test_streams_that_the_registry_forgot_are_forgotten() -> None:
    rig = GatewayRig(streams_max=5)
    rig.open(1, 7)
    rig.send(1, (7, 0, b""))
    for stream_id in range(100, 110):
        rig.tally._of(stream_id)
    rig.send(1, (7, 1, b""))
    assert len(rig.tally._streams) == 1


LONG = v3.encode(Message(7, 1, 0, b"", b"x"))
GREETED: list[Frame] = [Hello("0.0.1", b"", "", "")]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x00\x00\x00\x00", "frame"),
        (b"\xff\xff\xff\xff\x05", "frame"),
        (b"\x00\x00\x00\x01\xee", "frame"),
        (b"\x00\x00\x00\x01\x01", "frame"),
        (v3.encode(Ok(1)), "order"),
        (v3.encode(GREETED[0]) * 2, "order"),
        (LONG, "order"),
    ],
)
def test_every_error_of_a_peer_has_a_kind(data: bytes, kind: str) -> None:
    connection = Connection(ConnectionSide.ACCEPTOR, Role.SOURCE)
    connection.receive(v3.encode(GREETED[0]))
    connection.send(Ok(10))
    (violation,) = connection.receive(data)[-1:]
    assert isinstance(violation, Violation)
    assert kind_of(violation.reason) == kind


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("bad cookie", "cookie"),
        ("no cookie is expected here", "cookie"),
        ("unknown version 'x', this is 0.0.1", "version"),
        ("credits overspent", "credits"),
        ("more than 4096 sessions", "sessions"),
        ("more than 65536 streams", "streams"),
        ("message id goes back on stream 7", "message id"),
        ("no HELLO in time", "handshake"),
        ("the draft protocol is not available with event-time order", "version"),
        ("stream 3 is not declared in the pipeline", "order"),
        ("stream 3 has ended", "order"),
        ("does not read what it is sent", "unread"),
        ("something that nobody foresaw", "other"),
    ],
)
def test_every_reason_has_a_known_kind(reason: str, kind: str) -> None:
    assert kind_of(reason) == kind
    assert kind in {"other", *(name for name, _ in KINDS)}


def test_an_error_that_a_peer_reports_is_counted_as_the_peers() -> None:
    rig = GatewayRig()
    rig.open(1)
    rig.handle(FrameReceived(1, Error("no")))
    assert rig.tally.errors == {"peer": 1}
