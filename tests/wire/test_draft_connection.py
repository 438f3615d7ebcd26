"""Connections of the draft joined in memory: every frame in every state in both directions; one port for both versions;
a client that uses the messages of version 3; extensions."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.errors import LocalProtocolError
from procession.wire import draft, frame_codec, v3
from procession.wire.connection import Connection, Violation
from procession.wire.dialect import DRAFT, V3
from procession.wire.draft_lifecycle import DRAFT_CONNECTION, DRAFT_STREAM
from procession.wire.draft_messages import (
    NEEDS,
    AckCounts,
    AnyFrame,
    Debug,
    DebugFault,
    DraftFrame,
    DraftMessage,
    DraftMessages,
    DraftOk,
    Extension,
)
from procession.wire.lifecycle import ConnectionSide, ConnectionState, Role
from procession.wire.messages import (
    NOTHING_COMMITTED,
    Ack,
    Eos,
    Error,
    Frame,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Restart,
)
from procession.wire.stream_lifecycle import StreamState, StreamStep
from tests.wire.connection_steps import JoinedConnections

ALL = frozenset(Extension)
NONE: frozenset[Extension] = frozenset()
FRAMES: list[DraftFrame] = [
    Hello("draft", b"", "program", "instance"),
    DraftOk(10),
    Error("no"),
    Notify(1, "s", 0),
    DraftMessage(7, 1, b"x"),
    Ack(1),
    AckCounts(1),
    Restart(),
    Debug(DebugFault.TICK),
]
V3_ONLY: list[Frame] = [Ok(10), NotifyAck(True, 7, 0)]


class Pair(JoinedConnections):
    """A client of the draft and a gateway's end that accepts both versions, joined in memory."""

    def __init__(self, extensions: frozenset[Extension] = NONE, *, credits_max: int = 10) -> None:
        self.hello = Hello(draft.version(extensions), b"", "program", "instance")
        self.initiator = Connection(ConnectionSide.INITIATOR, Role.SOURCE, dialect=DRAFT)
        self.acceptor = Connection(ConnectionSide.ACCEPTOR, Role.SOURCE)
        self.credits_max = credits_max

    def to(self, state: ConnectionState) -> Pair:
        ok = DraftOk(self.credits_max)
        script: dict[ConnectionState, list[tuple[ConnectionSide, AnyFrame]]] = {
            ConnectionState.CONNECTED: [],
            ConnectionState.HANDSHAKE: [(ConnectionSide.INITIATOR, self.hello)],
            ConnectionState.STREAMING: [(ConnectionSide.INITIATOR, self.hello), (ConnectionSide.ACCEPTOR, ok)],
            ConnectionState.ERROR: [(ConnectionSide.INITIATOR, Error("no"))],
            ConnectionState.DISCONNECTED: [
                (ConnectionSide.INITIATOR, self.hello),
                (ConnectionSide.ACCEPTOR, ok),
                (ConnectionSide.ACCEPTOR, Restart()),
            ],
        }
        self.pass_all(script[state], state)
        return self

    def open(self, *stream_ids: int) -> Pair:
        for stream_id in stream_ids:
            self.pass_on(Notify(stream_id, "s", 0), ConnectionSide.INITIATOR)
        return self


CASES = list(itertools.product([NONE, ALL], ConnectionState, ConnectionSide, FRAMES))


@pytest.mark.parametrize(
    ("extensions", "state", "sender", "frame"),
    CASES,
    ids=[f"{len(e)}-{s.value}-{side.value}-{type(f).__name__}" for e, s, side, f in CASES],
)
def test_both_ends_move_as_the_table_says_or_not_at_all(
    extensions: frozenset[Extension], state: ConnectionState, sender: ConnectionSide, frame: DraftFrame
) -> None:
    pair = Pair(extensions).to(state)
    if state is ConnectionState.STREAMING:
        pair.open(7)
    needs = NEEDS.get(type(frame))
    following = DRAFT_CONNECTION[state][sender].get(type(frame)) if needs is None or needs in extensions else None
    # The gateway's end uses version 3, which has other frames, until it has received a frame.
    pair.check_step(sender, frame, draft.encode(frame), following)


STREAM_FRAMES: dict[StreamStep, tuple[ConnectionSide, DraftFrame]] = {
    StreamStep.NOTIFY: (ConnectionSide.INITIATOR, Notify(7, "s", 0)),
    StreamStep.MESSAGE: (ConnectionSide.INITIATOR, DraftMessage(7, 1, b"x")),
    StreamStep.LAST: (ConnectionSide.INITIATOR, DraftMessage(7, 1, b"x", is_last=True)),
    StreamStep.ACK: (ConnectionSide.ACCEPTOR, Ack(0, ((7, 0),))),
    StreamStep.RESTART: (ConnectionSide.ACCEPTOR, Restart()),
}
STREAM_SCRIPT: dict[StreamState, list[StreamStep]] = {
    StreamState.START: [],
    StreamState.OPEN: [StreamStep.NOTIFY],
    StreamState.CLOSED: [StreamStep.NOTIFY, StreamStep.LAST],
    StreamState.TERMINATED: [StreamStep.NOTIFY, StreamStep.RESTART],
}


def test_the_tables_have_every_state_and_step_of_the_draft() -> None:
    assert DRAFT_STREAM.keys() == STREAM_SCRIPT.keys()
    assert {step for steps in DRAFT_STREAM.values() for step in steps} == STREAM_FRAMES.keys()
    kinds = {kind for sides in DRAFT_CONNECTION.values() for moves in sides.values() for kind in moves}
    assert kinds == {type(frame) for frame in FRAMES}


@pytest.mark.parametrize("counting", [False, True], ids=["ack", "ack with counts"])
@pytest.mark.parametrize("state", DRAFT_STREAM)
@pytest.mark.parametrize("step", STREAM_FRAMES)
def test_a_stream_moves_at_both_ends_as_the_table_says_or_not_at_all(
    state: StreamState, step: StreamStep, counting: bool
) -> None:
    pair = Pair(ALL).to(ConnectionState.STREAMING)
    for earlier in STREAM_SCRIPT[state]:
        pair.pass_on(STREAM_FRAMES[earlier][1], STREAM_FRAMES[earlier][0])
    sender, frame = STREAM_FRAMES[step]
    if counting and step is StreamStep.ACK:
        frame = AckCounts(0, ((7, 0, 1),))
    pair.check_stream_step(sender, frame, draft.encode(frame), state, step, DRAFT_STREAM[state].get(step))


# One port for both versions


@pytest.mark.parametrize("sentence", ["draft", "draft+counts", "draft+debug", "draft+counts+debug"])
def test_the_first_frame_decides_the_version_of_the_connection(sentence: str) -> None:
    acceptor = Connection(ConnectionSide.ACCEPTOR, Role.SOURCE)
    assert acceptor.receive(draft.encode(Hello(sentence, b"", "p", "i"))) == [Hello(sentence, b"", "p", "i")]
    assert acceptor.dialect is DRAFT
    assert acceptor.extensions == draft.VERSIONS[sentence]
    assert draft.decode(acceptor.send(DraftOk(1))[4:]) == DraftOk(1)


def test_a_peer_of_version_3_at_the_same_port_is_answered_in_version_3() -> None:
    acceptor = Connection(ConnectionSide.ACCEPTOR, Role.SOURCE)
    acceptor.receive(v3.encode(Hello("0.0.1", b"", "p", "i")))
    assert acceptor.dialect is V3
    assert v3.decode(acceptor.send(Ok(1))[4:]) == Ok(1)
    with pytest.raises(LocalProtocolError):
        acceptor.send(DraftOk(1))


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (draft.encode(Hello("0.0.1", b"", "p", "i")), "unknown version '0.0.1', this is draft"),
        (draft.encode(Hello("draft+", b"", "p", "i")), "unknown version 'draft+', this is draft"),
        (v3.encode(Hello("draft", b"", "p", "i")), "version 'draft' has no frames in v3"),
        (draft.encode(Notify(1, "s", 0)), "Notify from the initiator while connected"),
    ],
)
def test_a_first_frame_of_no_version_is_refused(first: bytes, reason: str) -> None:
    acceptor = Connection(ConnectionSide.ACCEPTOR, Role.SOURCE)
    assert acceptor.receive(first) == [Violation(reason)]


def test_the_version_does_not_change_within_a_session() -> None:
    for hello, other in (
        (draft.encode(Hello("draft", b"", "p", "i")), v3.encode(Error("no"))),
        (v3.encode(Hello("0.0.1", b"", "p", "i")), draft.encode(Error("no"))),
    ):
        acceptor = Connection(ConnectionSide.ACCEPTOR, Role.SOURCE)
        events = acceptor.receive(hello + other)
        assert [type(event) for event in events] == [Hello, Violation]
        assert str(events[1]).count("unknown frame tag") == 1


def test_an_error_is_sent_in_the_version_of_the_peer() -> None:
    pair = Pair().to(ConnectionState.HANDSHAKE)
    assert draft.decode(pair.acceptor.error_frame("why")[4:]) == Error("why")


def test_the_draft_is_for_sources_only() -> None:
    with pytest.raises(LocalProtocolError, match="the draft is for sources"):
        Connection(ConnectionSide.INITIATOR, Role.SINK, dialect=DRAFT)
    sink = Connection(ConnectionSide.ACCEPTOR, Role.SINK)
    assert [type(event) for event in sink.receive(draft.encode(FRAMES[0]))] == [Violation]


@pytest.mark.parametrize("frame", V3_ONLY, ids=lambda frame: type(frame).__name__)
def test_a_frame_of_version_3_is_none_of_the_draft(frame: Frame) -> None:
    pair = Pair().to(ConnectionState.STREAMING).open(7)
    with pytest.raises(LocalProtocolError):
        pair.acceptor.send(frame)
    assert [type(event) for event in pair.initiator.receive(v3.encode(frame))] == [Violation]


# Messages and credits


def test_consecutive_messages_come_as_one_event_however_they_were_cut() -> None:
    pair = Pair(credits_max=1000).to(ConnectionState.STREAMING).open(7, 8)
    messages = [DraftMessage(7 + n % 2, n, b"p" * n, key=b"k" * (n % 3), is_unstable=n % 5 == 1) for n in range(50)]
    data = b"".join(map(draft.encode, messages))
    found: list[DraftMessage] = []
    for start in range(0, len(data), 97):
        for event in pair.acceptor.receive(data[start : start + 97]):
            assert isinstance(event, DraftMessages)
            found += event.messages
    assert found == messages


def test_messages_before_a_violation_count_and_those_after_it_do_not() -> None:
    pair = Pair().to(ConnectionState.STREAMING).open(7)
    good, bad = draft.encode(DraftMessage(7, 1, b"x")), draft.encode(DraftMessage(8, 1, b"x"))
    events = pair.acceptor.receive(good + bad + good)
    assert events == [
        DraftMessages((DraftMessage(7, 1, b"x"),)),
        Violation("MESSAGE on stream 8, which is not notified"),
    ]
    assert pair.acceptor.receive(good) == []


@pytest.mark.parametrize(
    "bad",
    [
        frame_codec.u32(2**32 - 1),
        frame_codec.u32(0),
        frame_codec.frame(b"\x09"),
        frame_codec.frame(b"Mabc"),
        frame_codec.frame(b"M\x00\x40" + bytes(16)),
        frame_codec.frame(b"M\x00\x20" + bytes(16) + b"\xff\xff"),
        draft.encode(Debug(DebugFault.CLOSE)),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["4 GiB", "empty", "tag 9", "cut message", "unknown flag", "cut key", "debug", "browser"],
)
def test_whatever_the_peer_sends_is_an_event_and_the_messages_before_it_count(bad: bytes) -> None:
    pair = Pair().to(ConnectionState.STREAMING).open(7)
    events = pair.acceptor.receive(draft.encode(DraftMessage(7, 1, b"x")) + bad)
    assert [type(event) for event in events] == [DraftMessages, Violation]


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_no_bytes_make_a_connection_of_the_draft_raise(chunks: list[bytes]) -> None:
    for side in ConnectionSide:
        pair = Pair(ALL).to(ConnectionState.STREAMING).open(7)
        connection = pair.initiator if side is ConnectionSide.INITIATOR else pair.acceptor
        for chunk in chunks:
            connection.receive(chunk)


def test_every_frame_of_the_connector_costs_a_credit_but_hello_and_the_end_has_no_drift() -> None:
    pair = Pair(ALL, credits_max=4).to(ConnectionState.STREAMING).open(7)
    pair.pass_on(DraftMessage(7, 1, b""), ConnectionSide.INITIATOR)
    pair.pass_on(Debug(DebugFault.TICK), ConnectionSide.INITIATOR)
    pair.pass_on(DraftMessage(7, 2, None, is_last=True), ConnectionSide.INITIATOR)
    assert pair.initiator.credit.available == pair.acceptor.credit.affordable == 0
    with pytest.raises(LocalProtocolError, match="no credit"):
        pair.initiator.send(Notify(7, "s", 0))
    assert pair.acceptor.receive(draft.encode(Notify(7, "s", 0))) == [Violation("credits overspent")]
    pair = Pair(ALL, credits_max=1).to(ConnectionState.STREAMING).open(7)
    pair.pass_on(AckCounts(2), ConnectionSide.ACCEPTOR)
    assert pair.initiator.credit.available == pair.acceptor.credit.available == 2


# A client that uses only the messages of version 3


def test_a_notify_is_answered_with_the_positions_of_ok_and_acks() -> None:
    pair = Pair().to(ConnectionState.HANDSHAKE)
    pair.pass_on(DraftOk(10, ((7, "s", 49),)), ConnectionSide.ACCEPTOR)
    pair.open(7, 8)
    assert list(pair.initiator.implied()) == [NotifyAck(True, 7, 49), NotifyAck(True, 8, NOTHING_COMMITTED)]
    assert list(pair.initiator.implied()) == []
    pair.pass_on(DraftMessage(7, 60, b"", is_last=True), ConnectionSide.INITIATOR)
    pair.pass_on(Ack(0, ((7, 60),)), ConnectionSide.ACCEPTOR)
    pair.open(7)
    assert list(pair.initiator.implied()) == [NotifyAck(True, 7, 60)]
    assert list(pair.acceptor.implied()) == []


def test_messages_and_ends_of_version_3_are_sent_in_the_draft() -> None:
    pair = Pair().to(ConnectionState.STREAMING).open(7, 8)
    assert pair.pass_on(Message(7, 1, 5, b"k", b"x"), ConnectionSide.INITIATOR) == [
        DraftMessages((DraftMessage(7, 1, b"x", event_time=5, key=b"k"),))
    ]
    assert pair.pass_on(Message(7, 2, 0, b"", b"x"), ConnectionSide.INITIATOR) == [
        DraftMessages((DraftMessage(7, 2, b"x"),))
    ]
    # Its id is no point of reference: an empty stream has none to give.
    assert pair.pass_on(Eos(7), ConnectionSide.INITIATOR) == [
        DraftMessages((DraftMessage(7, 0, None, is_last=True, is_unstable=True),))
    ]
    assert pair.pass_on(Eos(8, 9), ConnectionSide.INITIATOR) == [
        DraftMessages((DraftMessage(8, 9, None, is_last=True),))
    ]
    assert pair.initiator.stream_state(7) is pair.acceptor.stream_state(8) is StreamState.CLOSED


def test_messages_sent_by_columns_are_those_sent_one_by_one() -> None:
    pair = Pair().to(ConnectionState.STREAMING).open(7)
    data = pair.initiator.send_messages(
        7, [1, 2, 3], [0, 5, 0], pa.array([b"", b"k", b""], pa.binary()), pa.array([b"a", b"b", b"c"], pa.binary())
    )
    assert pair.acceptor.receive(data.to_pybytes()) == [
        DraftMessages(
            (DraftMessage(7, 1, b"a"), DraftMessage(7, 2, b"b", event_time=5, key=b"k"), DraftMessage(7, 3, b"c"))
        )
    ]
    assert pair.initiator.credit.available == pair.acceptor.credit.available == 6
    with pytest.raises(LocalProtocolError, match="7 messages for 6 credits"):
        pair.initiator.send_messages(7, range(7), [0] * 7, None, pa.array([b"a"] * 7, pa.binary()))
    assert pair.initiator.credit.available == 6


def test_messages_without_ids_are_ephemeral_and_only_the_draft_has_them() -> None:
    pair = Pair().to(ConnectionState.STREAMING).open(9)
    data = pair.initiator.send_messages(9, None, [0, 5], None, pa.array([b"a", b"b"], pa.binary()))
    assert pair.acceptor.receive(data.to_pybytes()) == [
        DraftMessages((DraftMessage(9, None, b"a"), DraftMessage(9, None, b"b", event_time=5)))
    ]
    assert pair.pass_on(Eos(9), ConnectionSide.INITIATOR) == [
        DraftMessages((DraftMessage(9, None, None, is_last=True),))
    ]
    pair.open(9)
    assert pair.pass_on(Eos(9), ConnectionSide.INITIATOR) == [
        DraftMessages((DraftMessage(9, 0, None, is_last=True, is_unstable=True),))
    ], "frames sent before have no effect on it"
    old = Connection(ConnectionSide.INITIATOR, Role.SOURCE)
    old.send(Hello("0.0.1", b"", "p", "i"))
    old.receive(v3.encode(Ok(5)))
    old.send(Notify(9, "s", 0))
    old.receive(v3.encode(NotifyAck(True, 9, 0)))
    with pytest.raises(LocalProtocolError, match="ephemeral"):
        old.send_messages(9, None, [0], None, pa.array([b"a"], pa.binary()))
