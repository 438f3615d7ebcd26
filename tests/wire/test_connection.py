"""Connections joined in memory: every frame in every state in both directions; streams, credits, violations."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.errors import LocalProtocolError
from procession.wire import frame_codec, two_phase_commit, v3
from procession.wire.connection import Connection, Violation
from procession.wire.draft_messages import AnyFrame
from procession.wire.lifecycle import TABLES, ConnectionSide, ConnectionState, Role
from procession.wire.messages import (
    Ack,
    Eos,
    Error,
    Frame,
    Hello,
    ListUncommitted,
    Message,
    Messages,
    Notify,
    NotifyAck,
    Ok,
    ReplyUncommitted,
    Restart,
)
from procession.wire.stream_lifecycle import STREAM, StreamState, StreamStep
from tests.wire.connection_steps import JoinedConnections

HELLO = Hello("0.0.1", b"", "program", "instance")
LIST = two_phase_commit.wrap(ListUncommitted(1))
FRAMES: list[Frame] = [
    HELLO,
    Ok(10),
    Error("no"),
    Notify(1, "s", 0),
    NotifyAck(True, 1, 0),
    LIST,
    Ack(1),
    Restart(),
    Eos(1),
]


class Pair(JoinedConnections):
    """Two connected ends of version 3."""

    def __init__(self, role: Role = Role.SOURCE, *, credits_max: int = 10) -> None:
        self.initiator = Connection(ConnectionSide.INITIATOR, role)
        self.acceptor = Connection(ConnectionSide.ACCEPTOR, role)
        self.credits_max = credits_max

    def to(self, state: ConnectionState) -> Pair:
        script: dict[ConnectionState, list[tuple[ConnectionSide, AnyFrame]]] = {
            ConnectionState.CONNECTED: [],
            ConnectionState.HANDSHAKE: [(ConnectionSide.INITIATOR, HELLO)],
            ConnectionState.STREAMING: [
                (ConnectionSide.INITIATOR, HELLO),
                (ConnectionSide.ACCEPTOR, Ok(self.credits_max)),
            ],
            ConnectionState.ERROR: [(ConnectionSide.ACCEPTOR, Error("no"))],
            ConnectionState.DISCONNECTED: [
                (ConnectionSide.INITIATOR, HELLO),
                (ConnectionSide.ACCEPTOR, Ok(1)),
                (ConnectionSide.ACCEPTOR, Restart()),
            ],
        }
        self.pass_all(script[state], state)
        return self

    def open(self, stream_id: int) -> Pair:
        self.pass_on(Notify(stream_id, "s", 0), ConnectionSide.INITIATOR)
        self.pass_on(NotifyAck(True, stream_id, 0), ConnectionSide.ACCEPTOR)
        return self


def ready_for(pair: Pair, frame: Frame, role: Role) -> None:
    """Bring stream 1 (and stream 0 of a source) to a state that allows the frame."""
    if pair.acceptor.state is ConnectionState.STREAMING:
        if isinstance(frame, NotifyAck):
            pair.pass_on(Notify(1, "s", 0), ConnectionSide.INITIATOR)
        elif isinstance(frame, Eos):
            pair.open(1)
        elif isinstance(frame, Message) and role is Role.SOURCE:
            pair.open(0)


CASES = list(itertools.product(Role, ConnectionState, ConnectionSide, FRAMES))


@pytest.mark.parametrize(
    ("role", "state", "sender", "frame"),
    CASES,
    ids=[f"{r.value}-{s.value}-{side.value}-{type(f).__name__}" for r, s, side, f in CASES],
)
def test_both_ends_move_as_the_table_says_or_not_at_all(
    role: Role, state: ConnectionState, sender: ConnectionSide, frame: Frame
) -> None:
    pair = Pair(role).to(state)
    ready_for(pair, frame, role)
    pair.check_step(sender, frame, v3.encode(frame), TABLES[role][state][sender].get(type(frame)))


STREAM_FRAMES: dict[StreamStep, tuple[ConnectionSide, Frame]] = {
    StreamStep.NOTIFY: (ConnectionSide.INITIATOR, Notify(7, "s", 0)),
    StreamStep.ACCEPTED: (ConnectionSide.ACCEPTOR, NotifyAck(True, 7, 0)),
    StreamStep.REFUSED: (ConnectionSide.ACCEPTOR, NotifyAck(False, 7, 0)),
    StreamStep.MESSAGE: (ConnectionSide.INITIATOR, Message(7, 1, 0, b"", b"x")),
    StreamStep.EOS: (ConnectionSide.INITIATOR, Eos(7)),
    StreamStep.ACK: (ConnectionSide.ACCEPTOR, Ack(0, ((7, 0),))),
    StreamStep.RESTART: (ConnectionSide.ACCEPTOR, Restart()),
}
STREAM_SCRIPT: dict[StreamState, list[StreamStep]] = {
    StreamState.START: [],
    StreamState.NOTIFY_SENT: [StreamStep.NOTIFY],
    StreamState.OPEN: [StreamStep.NOTIFY, StreamStep.ACCEPTED],
    StreamState.CLOSED: [StreamStep.NOTIFY, StreamStep.ACCEPTED, StreamStep.EOS],
    StreamState.TERMINATED: [StreamStep.NOTIFY, StreamStep.RESTART],
}


def test_the_table_has_every_state_and_step_of_version_3() -> None:
    assert STREAM.keys() == set(StreamState) == STREAM_SCRIPT.keys()
    assert {step for steps in STREAM.values() for step in steps} == STREAM_FRAMES.keys()
    kinds = {
        kind for table in TABLES.values() for sides in table.values() for moves in sides.values() for kind in moves
    }
    assert kinds == {type(frame) for frame in FRAMES}


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("state", StreamState)
@pytest.mark.parametrize("step", STREAM_FRAMES)
def test_a_stream_moves_at_both_ends_as_the_table_says_or_not_at_all(
    role: Role, state: StreamState, step: StreamStep
) -> None:
    pair = Pair(role).to(ConnectionState.STREAMING)
    for earlier in STREAM_SCRIPT[state]:
        pair.pass_on(STREAM_FRAMES[earlier][1], STREAM_FRAMES[earlier][0])
    sender, frame = STREAM_FRAMES[step]
    pair.check_stream_step(sender, frame, v3.encode(frame), state, step, STREAM[state].get(step))


def test_frames_before_a_violation_in_the_same_bytes_are_delivered_and_those_after_it_are_not() -> None:
    pair = Pair().to(ConnectionState.STREAMING).open(7)
    good, bad = v3.encode(Message(7, 1, 0, b"k", b"x")), v3.encode(HELLO)
    events = pair.acceptor.receive(good + bad + good)
    assert events == [Messages.of([7], [1], [0], [b"k"], [b"x"]), Violation("Hello from the initiator while streaming")]
    assert pair.acceptor.receive(good) == []
    assert v3.decode(pair.acceptor.error_frame("why")[4:]) == Error("why")


@pytest.mark.parametrize(
    "bad",
    [
        frame_codec.u32(2**32 - 1),
        frame_codec.u32(0),
        frame_codec.frame(b"\x09"),
        frame_codec.frame(b"\x05abc"),
        frame_codec.frame(b"\x05" + bytes(24) + b"\xff\xff"),
        v3.encode(Message(8, 1, 0, b"", b"")),
        v3.encode(Eos(8)),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["4 GiB", "empty", "tag 9", "cut message", "cut key", "message on no stream", "eos on no stream", "browser"],
)
def test_whatever_the_peer_sends_is_an_event_and_the_messages_before_it_count(bad: bytes) -> None:
    pair = Pair().to(ConnectionState.STREAMING).open(7)
    events = pair.acceptor.receive(v3.encode(Message(7, 1, 0, b"", b"x")) + bad)
    assert [type(event) for event in events] == [Messages, Violation]


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_no_bytes_make_a_connection_raise(chunks: list[bytes]) -> None:
    for role, side in itertools.product(Role, ConnectionSide):
        connection = Connection(side, role)
        for chunk in chunks:
            connection.receive(chunk)


def test_before_hello_a_peer_cannot_make_us_buffer_a_big_frame() -> None:
    acceptor = Connection(ConnectionSide.ACCEPTOR, Role.SOURCE)
    assert [type(event) for event in acceptor.receive(frame_codec.u32(1024 * 1024))] == [Violation]
    pair = Pair().to(ConnectionState.STREAMING)
    assert pair.acceptor.receive(frame_codec.u32(1024 * 1024)) == []


def test_consecutive_messages_come_as_columns_whatever_way_they_were_cut() -> None:
    pair = Pair(credits_max=1000).to(ConnectionState.STREAMING).open(7).open(8)
    messages = [Message(7 + n % 2, n, -n, b"k" * (n % 3), b"p" * n) for n in range(50)]
    data = b"".join(map(v3.encode, messages))
    found = []
    for start in range(0, len(data), 97):
        for event in pair.acceptor.receive(data[start : start + 97]):
            assert isinstance(event, Messages)
            found += list(event)
    assert found == messages


def test_messages_sent_in_columns_cost_the_same_credits_as_one_by_one() -> None:
    pair = Pair(credits_max=10).to(ConnectionState.STREAMING).open(7)
    data = pair.initiator.send_messages(7, [1, 2, 3], [0, 0, 0], None, pa.array([b"a", b"b", b"c"], pa.binary()))
    events = pair.acceptor.receive(data.to_pybytes())
    assert events == [Messages.of([7] * 3, [1, 2, 3], [0] * 3, [b""] * 3, [b"a", b"b", b"c"])]
    assert pair.initiator.credit.available == pair.acceptor.credit.available == 6
    with pytest.raises(LocalProtocolError, match="7 messages for 6 credits"):
        pair.initiator.send_messages(7, range(7), [0] * 7, None, pa.array([b"a"] * 7, pa.binary()))
    with pytest.raises(LocalProtocolError, match="not notified"):
        pair.initiator.send_messages(8, [1], [0], None, pa.array([b"a"], pa.binary()))
    assert pair.initiator.credit.available == 6


def test_every_frame_of_the_connector_costs_a_credit_but_hello() -> None:
    pair = Pair(credits_max=3).to(ConnectionState.STREAMING).open(7)
    pair.pass_on(Message(7, 1, 0, b"", b""), ConnectionSide.INITIATOR)
    pair.pass_on(Eos(7), ConnectionSide.INITIATOR)
    assert pair.initiator.credit.available == pair.acceptor.credit.available == 0
    with pytest.raises(LocalProtocolError, match="no credit"):
        pair.initiator.send(Notify(7, "s", 0))
    pair.pass_on(Ack(2), ConnectionSide.ACCEPTOR)
    assert pair.initiator.credit.available == pair.acceptor.credit.available == 2


def test_messages_beyond_the_credits_are_a_violation_and_those_within_count() -> None:
    pair = Pair(credits_max=3).to(ConnectionState.STREAMING).open(7)
    data = b"".join(v3.encode(Message(7, n, 0, b"", b"")) for n in range(3))
    events = pair.acceptor.receive(data)
    assert events == [Messages.of([7, 7], [0, 1], [0, 0], [b"", b""], [b"", b""]), Violation("credits overspent")]


def test_a_peer_that_does_not_charge_itself_for_the_end_of_a_stream_is_tolerated_once_per_stream() -> None:
    pair = Pair(credits_max=2).to(ConnectionState.STREAMING).open(7)
    message, notify = v3.encode(Message(7, 1, 0, b"", b"")), v3.encode(Notify(8, "t", 0))
    assert len(pair.acceptor.receive(message + v3.encode(Eos(7)))) == 2
    pair.pass_on(Ack(1), ConnectionSide.ACCEPTOR)
    assert pair.acceptor.credit.affordable == 1
    assert isinstance(pair.acceptor.receive(notify)[-1], Notify)
    assert isinstance(pair.acceptor.receive(v3.encode(Notify(9, "u", 0)))[-1], Violation)


def test_a_worker_sends_hello_notify_and_list_at_once_and_then_waits() -> None:
    pair = Pair(Role.SINK)
    data = b"".join(pair.initiator.send(frame) for frame in (HELLO, Notify(1, "out", 0), LIST))
    with pytest.raises(LocalProtocolError):
        pair.initiator.send(Message(1, 0, 0, b"", b"too early"))
    events = pair.acceptor.receive(data)
    assert [type(event) for event in events] == [Hello, Notify, Messages]
    reply = two_phase_commit.wrap(ReplyUncommitted(1, ()))
    for frame in (Ok(2), NotifyAck(True, 1, 0), reply):
        pair.pass_on(frame, ConnectionSide.ACCEPTOR)
    for number in range(100):
        assert isinstance(pair.pass_on(Message(1, number, 0, b"", b"x"), ConnectionSide.INITIATOR)[0], Messages)


def test_a_sink_sends_messages_on_stream_0_only() -> None:
    pair = Pair(Role.SINK).to(ConnectionState.STREAMING).open(1)
    data = Message(1, 0, 0, b"", b"x")
    with pytest.raises(LocalProtocolError, match="a sink's MESSAGE on stream 1"):
        pair.acceptor.send(data)
    assert pair.initiator.receive(v3.encode(data)) == [Violation("a sink's MESSAGE on stream 1")]


def test_a_frame_over_the_limit_is_not_sent() -> None:
    initiator = Connection(ConnectionSide.INITIATOR, Role.SOURCE, frame_bytes_max=10)
    with pytest.raises(LocalProtocolError, match="limit is 10"):
        initiator.send(HELLO)
    assert initiator.state is ConnectionState.CONNECTED


def test_a_long_reason_still_fits_an_error_frame() -> None:
    frame = v3.decode(Connection(ConnectionSide.ACCEPTOR, Role.SOURCE).error_frame("é" * 100_000)[4:])
    assert isinstance(frame, Error)
    assert set(frame.reason) == {"é"}


LARGE = bytes(range(256)) * 1024


@pytest.mark.parametrize("cuts", [(), (7,), (100_000,), (100_000, 262_000), (262_150, 262_200)], ids=str)
def test_a_large_payload_stays_what_it_was_when_the_receive_buffer_is_used_again(cuts: tuple[int, ...]) -> None:
    pair = Pair(Role.SINK).to(ConnectionState.STREAMING).open(1)
    messages = [Message(1, number, 0, b"", LARGE) for number in range(2)]
    data = b"".join(map(v3.encode, messages))
    buffer = memoryview(bytearray(len(data)))
    # By rows, also if another test has made the columns ready.
    acceptor, found = pair.acceptor, []
    acceptor.columns_bytes_min = len(data) + 1
    for start, end in itertools.pairwise((0, *cuts, len(data))):
        buffer[: end - start] = data[start:end]
        found += acceptor.receive(buffer[: end - start])
        buffer[:] = bytes(len(buffer))
    assert [message for run in found for message in run] == messages
    assert all(run.payloads.to_pylist() == run.bodies() for run in found)


def test_a_large_payload_that_arrives_in_pieces_is_not_copied_when_it_is_complete() -> None:
    pair = Pair(Role.SINK).to(ConnectionState.STREAMING).open(1)
    data = v3.encode(Message(1, 0, 0, b"", LARGE))
    pair.acceptor.columns_bytes_min = len(data) + 1
    assert pair.acceptor.receive(data[:1000]) == []
    [run] = pair.acceptor.receive(data[1000:])
    [part] = run.parts()
    [row] = part._rows
    assert isinstance(row[4], memoryview)
    assert part.payloads.buffers()[2].address == pa.py_buffer(row[4]).address
