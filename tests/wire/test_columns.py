"""Frames by columns: the compiled decoder gives the same events and errors as decoding frames one by one."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.wire import columns, frame_codec, v3
from procession.wire.connection import Connection, Event, Violation
from procession.wire.lifecycle import ConnectionSide, Role
from procession.wire.messages import Ack, Eos, Frame, Hello, Message, Messages, Notify, NotifyAck, Ok

FRAME_BYTES_MAX = 300
HELLO = Hello("0.0.1", b"", "program", "instance")


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    columns.make_ready()


def acceptor(columns_bytes_min: int, *, credits_max: int = 1000, streams: tuple[int, ...] = (7, 8)) -> Connection:
    """Return a gateway's end of a session that has these streams open."""
    connection = Connection(ConnectionSide.ACCEPTOR, Role.SOURCE, FRAME_BYTES_MAX, columns_bytes_min)
    connection.receive(v3.encode(HELLO))
    connection.send(Ok(credits_max + len(streams)))
    for stream_id in streams:
        connection.receive(v3.encode(Notify(stream_id, "s", 0)))
        connection.send(NotifyAck(True, stream_id, 0))
    return connection


def by_columns(**options: int) -> Connection:
    return acceptor(0, **options)


def one_by_one(**options: int) -> Connection:
    return acceptor(sys.maxsize, **options)


numbers = st.integers(0, 2**64 - 1)
message = st.builds(
    Message,
    st.sampled_from([7, 8, 7, 7]),
    numbers,
    st.integers(-(2**63), 2**63 - 1),
    st.binary(max_size=20),
    st.binary(max_size=60),
)
stray: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Message, st.just(9), numbers, st.just(0), st.just(b""), st.just(b"")),
    st.builds(Eos, st.sampled_from([7, 8, 9])),
    st.builds(Notify, st.sampled_from([7, 8, 9]), st.text(max_size=5), numbers),
    st.builds(Ack, st.integers(0, 3)),
    st.just(HELLO),
)
lie = st.one_of(
    st.binary(max_size=40),
    st.binary(min_size=1, max_size=50).map(frame_codec.frame),
    st.binary(max_size=40).map(lambda rest: frame_codec.frame(b"\x05" + rest)),
    st.sampled_from([0, 1, 26, 27, FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1, 2**31, 2**32 - 1]).map(frame_codec.u32),
    # A whole message with one byte changed.
    st.tuples(message.map(v3.encode), st.integers(0, 40), st.integers(0, 255)).map(
        lambda it: it[0][: it[1]] + bytes([it[2]]) + it[0][it[1] + 1 :]
    ),
)
# Mostly good messages, so that runs are long; now and then something else.
piece = st.one_of(message.map(v3.encode), message.map(v3.encode), message.map(v3.encode), stray.map(v3.encode), lie)
stream_of_bytes = st.lists(piece, max_size=30).map(b"".join)


def cut(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    position = turn = 0
    while position < len(data):
        size = sizes[turn % len(sizes)]
        yield data[position : position + size]
        position, turn = position + size, turn + 1


@settings(max_examples=1000, deadline=None)
@given(
    stream_of_bytes,
    st.lists(st.one_of(st.integers(1, 90), st.integers(1, 4000)), min_size=1, max_size=5),
    st.one_of(st.integers(0, 12), st.just(1000)),
)
def test_columns_give_the_same_events_as_one_by_one_for_any_bytes_in_any_cuts(
    data: bytes, sizes: list[int], credits_max: int
) -> None:
    one, other = by_columns(credits_max=credits_max), one_by_one(credits_max=credits_max)
    for chunk in cut(data, sizes):
        assert one.receive(chunk) == other.receive(chunk)
        assert (one.state, one.credit.available) == (other.state, other.credit.available)


@settings(max_examples=200, deadline=None)
@given(st.lists(message, min_size=1, max_size=40), st.lists(st.integers(1, 400), min_size=1, max_size=5))
def test_what_was_received_does_not_change_when_the_buffer_is_used_again(
    messages: list[Message], sizes: list[int]
) -> None:
    connection, buffer = by_columns(), bytearray(400)
    events: list[Event] = []
    for chunk in cut(b"".join(map(v3.encode, messages)), sizes):
        buffer[:] = b"\xff" * len(buffer)
        buffer[: len(chunk)] = chunk
        events += connection.receive(memoryview(buffer)[: len(chunk)])
    assert [one for event in events if isinstance(event, Messages) for one in event] == messages


def test_a_whole_buffer_of_messages_is_one_event() -> None:
    messages = [Message(7 + n % 2, n, -n, b"k" * (n % 3), b"p" * (n % 70)) for n in range(900)]
    data = b"".join(map(v3.encode, messages))
    (event,) = by_columns().receive(data)
    assert isinstance(event, Messages)
    assert list(event) == messages


GOOD = b"".join(v3.encode(Message(7, n, 0, b"k", b"x" * 50)) for n in range(100))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (frame_codec.u32(2**32 - 1), "frame of 4294967295 bytes, the limit is 300"),
        (frame_codec.u32(0), "empty frame"),
        (frame_codec.frame(b"\x05abc"), "truncated frame"),
        (frame_codec.frame(b"\x05" + bytes(24) + b"\xff\xff"), "truncated frame"),
        (v3.encode(Message(9, 1, 0, b"", b"")), "MESSAGE on stream 9, which is not notified"),
        (v3.encode(Eos(9)), "EOS_MESSAGE on stream 9, which is not notified"),
        (v3.encode(HELLO), "Hello from the initiator while streaming"),
    ],
    ids=["too long", "empty", "cut message", "cut key", "stream not open", "end of no stream", "second hello"],
)
def test_frames_before_a_violation_are_delivered_and_later_ones_are_not(bad: bytes, reason: str) -> None:
    connection = by_columns()
    messages, violation = connection.receive(GOOD + bad + GOOD)
    assert isinstance(messages, Messages)
    assert len(messages) == 100
    assert violation == Violation(reason)
    assert connection.credit.available == 900
    assert connection.receive(GOOD) == []


def test_messages_beyond_the_credits_are_a_violation_only_when_they_are_whole() -> None:
    connection = by_columns(credits_max=100)
    (messages,) = connection.receive(GOOD + GOOD[:50])
    assert isinstance(messages, Messages)
    assert connection.receive(GOOD[50:]) == [Violation("credits overspent")]


def test_few_bytes_are_taken_one_by_one() -> None:
    connection = acceptor(columns.COLUMNS_BYTES_MIN)
    assert connection.columns_bytes_min > len(v3.encode(Message(7, 1, 0, b"k", b"x" * 50))) * 8
    assert Connection(ConnectionSide.ACCEPTOR, Role.SOURCE).columns_bytes_min == columns.COLUMNS_BYTES_MIN
