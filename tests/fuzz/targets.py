"""What is fuzzed: for each target a function that takes any bytes, and fails if a promise about them is broken.

The one rule: a target passes over the errors that bad bytes must end in, and over no other. So what fails is a bug of
ours: another exception, a frame that does not come back as the same bytes, two ways of reading that disagree.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator

from procession.errors import LocalProtocolError, RemoteProtocolError
from procession.wire import codec, twopc, v3
from procession.wire.capture import Capture, HexReader, encoded, is_hex
from procession.wire.connection import Connection, Event, Violation
from procession.wire.lifecycle import Role, Side, State
from procession.wire.messages import Ack, Eos, Frame, Hello, Message, Messages, Notify, NotifyAck, Ok, Restart

FRAME_BYTES_MAX = 512
"""Small, so that an input can pass it."""
CREDITS = 8
OPEN_STREAMS = (1, 2)
HELLO = Hello("0.0.1", b"", "program", "instance")


def v3_frame(body: bytes) -> None:
    """A body is a frame that comes back as the same bytes, or the peer's error."""
    try:
        frame = v3.decode(body)
    except RemoteProtocolError:
        return
    # The text shows a RESTART without a length; we always write one.
    assert v3.encode(frame)[4:] == body or (frame, body) == (Restart(), b"\x07")


def two_phase(payload: bytes) -> None:
    """A payload is a two-phase-commit message that comes back as the same bytes, or the peer's error."""
    try:
        message = twopc.decode(payload)
    except RemoteProtocolError:
        return
    assert twopc.encode(message) == payload


def stream(data: bytes) -> None:
    """However the bytes are cut on the way, the same events come, and the connection ends in the same state."""
    if len(data) < 2:
        return
    role, side, is_streaming = _chosen(data[0])
    ends = [_end(role, side, is_streaming) for _ in range(2)]
    size, data = data[1] % 32 + 1, data[2:]
    whole = ends[0].receive(data)
    cut = [event for start in range(0, len(data), size) for event in ends[1].receive(data[start : start + size])]
    assert list(_flat(cut)) == list(_flat(whole))
    assert ends[0].state is ends[1].state
    assert (ends[0].credit.available, ends[0].credit.drift) == (ends[1].credit.available, ends[1].credit.drift)
    assert [isinstance(event, Violation) for event in whole[:-1]] == [False] * len(whole[:-1])
    if whole and isinstance(whole[-1], Violation):
        _is_over(ends[0])


def session(data: bytes) -> None:
    """An end that answers, as ours do, whatever the peer says: it speaks, or refuses, and never breaks."""
    if not data:
        return
    role, side, is_streaming = _chosen(data[0])
    end = _end(role, side, is_streaming)
    for body in _bodies(data[1:]):
        for event in end.receive(codec.frame(body)):
            for answer in _answers(event):
                with contextlib.suppress(LocalProtocolError):
                    end.send(answer)
    if end.is_over:
        _is_over(end)


def capture(data: bytes) -> None:
    """What a capture shows of itself comes back as the same bytes."""
    found = Capture(frame_bytes_max=FRAME_BYTES_MAX)
    pieces: Iterable[tuple[str, bytes]] = [("", data)]
    if is_hex(data):
        pieces = HexReader().feed(data.decode())
    with contextlib.suppress(RemoteProtocolError):
        for direction, piece in pieces:
            for captured in found.feed(piece, direction):
                captured.as_line()
                assert encoded(json.loads(json.dumps(captured.as_document()))) == (direction, captured.data)
        found.finish()


def document(data: bytes) -> None:
    """Any JSON is a frame, or the error of whoever wrote it; and the frame can be read again."""
    try:
        _, frame = encoded(json.loads(data))
    except (LocalProtocolError, ValueError, RecursionError):
        return
    again = Capture()
    assert [captured.data for captured in again.feed(frame)] == [frame]
    again.finish()


TARGETS: dict[str, Callable[[bytes], None]] = {
    "v3_frame": v3_frame,
    "two_phase": two_phase,
    "stream": stream,
    "session": session,
    "capture": capture,
    "document": document,
}


def _chosen(choice: int) -> tuple[Role, Side, bool]:
    return list(Role)[choice & 1], list(Side)[choice >> 1 & 1], bool(choice & 4)


def _end(role: Role, side: Side, is_streaming: bool) -> Connection:
    """One end of a connection that has just begun, or of one that has got as far as open streams."""
    ends = {side: Connection(side, role, FRAME_BYTES_MAX) for side in Side}
    if is_streaming:
        script: list[tuple[Side, Frame]] = [(Side.INITIATOR, HELLO), (Side.ACCEPTOR, Ok(CREDITS))]
        for stream_id in OPEN_STREAMS:
            script.append((Side.INITIATOR, Notify(stream_id, "s", 0)))
            script.append((Side.ACCEPTOR, NotifyAck(True, stream_id, 0)))
        for sender, frame in script:
            ends[sender.other].receive(ends[sender].send(frame))
        assert ends[side].state is State.STREAMING
    elif side is Side.INITIATOR:
        ends[side].send(HELLO)
    return ends[side]


def _flat(events: Iterable[Event]) -> Iterator[object]:
    """The events, with each MESSAGE by itself: how many come at once is no promise."""
    for event in events:
        if isinstance(event, Messages):
            ids = zip(map(int, event.stream_ids), map(int, event.message_ids), map(int, event.event_times), strict=True)
            yield from zip(ids, map(_plain, event.keys), map(_plain, event.payloads), strict=True)
        else:
            yield event


def _plain(value: object) -> object:
    return value if isinstance(value, bytes) else value.as_py()  # type: ignore[attr-defined]


def _bodies(data: bytes) -> Iterator[bytes]:
    """Bodies of frames, each after a byte that says its length: so that frames are whole without luck."""
    while data:
        length = data[0] + 1
        if body := data[1 : 1 + length]:
            yield body
        data = data[1 + length :]


def _answers(event: Event) -> Iterator[Frame]:
    match event:
        case Hello():
            yield Ok(CREDITS)
        case Ok():
            yield Notify(OPEN_STREAMS[0], "s", 0)
        case Notify(stream_id):
            yield NotifyAck(stream_id % 3 != 0, stream_id, 0)
        case NotifyAck(_, stream_id):
            yield Message(stream_id, 1, 0, b"", b"x")
            yield Eos(stream_id)
        case Eos(stream_id):
            yield Ack(1, ((stream_id, 0),))
        case Messages():
            yield Ack(len(event), tuple((int(stream_id), 0) for stream_id in event.stream_ids))


def _is_over(end: Connection) -> None:
    """After an error nothing is heard, nothing may be said, and the last word can still be made."""
    assert end.receive(v3.encode(HELLO)) == []
    with contextlib.suppress(LocalProtocolError):
        end.send(Ok(1))
        raise AssertionError("a frame was sent after the end")
    assert v3.decode(end.error_frame("no")[4:])
