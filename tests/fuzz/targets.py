"""The fuzz targets: each is a function that takes any bytes and fails if they break one of its promises.

Invariant: a target ignores only the errors that bad bytes must cause. So any failure is a bug: another exception, a
frame that is encoded to other bytes, or two ways of reading that disagree.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator

from procession.errors import LocalProtocolError, RemoteProtocolError
from procession.sos import sos_frames
from procession.sos.sos_connection import SosConnection, SosViolation
from procession.sos.sos_lifecycle import SosState
from procession.wire import columns, draft, frame_codec, two_phase_commit, v3
from procession.wire.capture import Capture, HexReader, encoded, is_hex
from procession.wire.connection import Connection, Event, Violation
from procession.wire.dialect import DRAFT, V3
from procession.wire.draft_messages import AckCounts, AnyFrame, Debug, DraftMessages, DraftOk, Extension
from procession.wire.lifecycle import ConnectionSide, ConnectionState, Role
from procession.wire.messages import Ack, Eos, Hello, Message, Messages, Notify, NotifyAck, Ok, Restart

FRAME_BYTES_MAX = 512
"""Small, so that an input can pass it."""
CREDITS = 8
OPEN_STREAMS = (1, 2)
HELLO = Hello("0.0.1", b"", "program", "instance")
DRAFT_HELLO = Hello(draft.version(frozenset(Extension)), b"", "program", "instance")


def v3_frame(body: bytes) -> None:
    """Check that a body is a frame that is encoded to the same bytes, or an error of the peer."""
    try:
        frame = v3.decode(body)
    except RemoteProtocolError:
        return
    # The text shows a RESTART without a length; we always write one.
    assert v3.encode(frame)[4:] == body or (frame, body) == (Restart(), b"\x07")


def draft_frame(body: bytes) -> None:
    """Check `v3_frame`'s promise for the draft, and that no body is a frame of both versions."""
    try:
        frame = draft.decode(body)
    except RemoteProtocolError:
        return
    assert draft.encode(frame)[4:] == body
    with contextlib.suppress(RemoteProtocolError):
        v3.decode(body)
        raise AssertionError("a frame of both versions")


def two_phase(payload: bytes) -> None:
    """Check that a payload is a two-phase-commit message that is encoded to the same bytes, or an error of the peer."""
    try:
        message = two_phase_commit.decode(payload)
    except RemoteProtocolError:
        return
    assert two_phase_commit.encode(message) == payload


def stream(data: bytes) -> None:
    """Check that a connection gives the same events and state however its bytes are divided, by columns or frame by
    frame."""
    if len(data) < 3:
        return
    how, size, data = data[0], data[1] % 64 + 1, data[2:]
    first = None
    for columns_bytes_min, piece_bytes in (sys.maxsize, len(data)), (0, len(data)), (0 if how & 8 else 64, size):
        end = _end(how, columns_bytes_min)
        pieces = [data[start : start + piece_bytes] for start in range(0, len(data), piece_bytes)]
        events = list(_flat(event for piece in pieces for event in end.receive(piece)))
        found = events, end.state, end.credit.available, end.credit.drift
        first = first or found
        assert found == first
        assert not any(isinstance(event, Violation) for event in events[:-1])
        if end.is_over:
            _is_over(end)


def session(data: bytes) -> None:
    """Check an end that answers as Procession's do: for any input of the peer it answers or refuses, and never
    breaks."""
    if not data:
        return
    end = _end(data[0])
    for body in _bodies(data[1:]):
        for event in itertools.chain(end.receive(frame_codec.frame(body)), end.implied()):
            for answer in _answers(event):
                with contextlib.suppress(LocalProtocolError):
                    end.send(answer)
    if end.is_over:
        _is_over(end)


def capture(data: bytes) -> None:
    """Check that the text form of a capture is encoded to the same bytes."""
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
    """Check that any JSON is a frame that can be read again, or an error of its author."""
    try:
        _, frame = encoded(json.loads(data))
    except (LocalProtocolError, ValueError, RecursionError):
        return
    again = Capture()
    assert [captured.data for captured in again.feed(frame)] == [frame]
    again.finish()


def sos_frame(body: bytes) -> None:
    """Check that a body is a frame of the object service that is encoded to the same bytes, or an error of the peer."""
    if not body:
        return
    # The checksum is added here, because no fuzzer would find it.
    sealed = body + zlib.crc32(body).to_bytes(4, "big")
    for whole in (body, sealed):
        try:
            frame = sos_frames.decode(whole)
        except RemoteProtocolError:
            continue
        assert sos_frames.encode(frame)[4:] == whole
        if isinstance(frame, sos_frames.ChunksReply):
            with contextlib.suppress(RemoteProtocolError):
                sos_frames.checked_chunks(frame)


def sos_session(data: bytes) -> None:
    """Check that an end of the object service accepts and refuses the same however frames are divided."""
    if len(data) < 2:
        return
    side, is_open, size = list(ConnectionSide)[data[0] & 1], bool(data[0] & 2), data[1] % 64 + 1
    frames = b"".join(
        frame_codec.frame(body + zlib.crc32(body).to_bytes(4, "big")) if body[0] & 1 else body
        for body in _bodies(data[2:])
    )
    found = []
    for piece_bytes in (len(frames) or 1, size):
        end = SosConnection(side, FRAME_BYTES_MAX)
        if is_open:
            end.state, end.credits = SosState.OPEN, CREDITS
            end.waiting = {1: sos_frames.VolumeReply, 2: sos_frames.ChunksReply, 3: sos_frames.ProgressReply}
        pieces = [frames[start : start + piece_bytes] for start in range(0, len(frames), piece_bytes)]
        events = [event for piece in pieces for event in end.receive(piece)]
        assert not any(isinstance(event, SosViolation) for event in events[:-1])
        assert len(end.waiting) <= max(CREDITS, 3)
        found.append((events, end.state, end.waiting))
    assert found[0] == found[1]


TARGETS: dict[str, Callable[[bytes], None]] = {
    "v3_frame": v3_frame,
    "draft_frame": draft_frame,
    "two_phase": two_phase,
    "stream": stream,
    "session": session,
    "capture": capture,
    "document": document,
    "sos_frame": sos_frame,
    "sos_session": sos_session,
}


def _end(choice: int, columns_bytes_min: int = 0) -> Connection:
    """Return one end of a connection, either at its start or with open streams.

    The bits of `choice` select the role, the side, the state, and whether the initiator speaks the draft.
    """
    columns.make_ready()
    role, side = list(Role)[choice & 1], list(ConnectionSide)[choice >> 1 & 1]
    is_draft = bool(choice & 16) and role is Role.SOURCE
    ends = {
        ConnectionSide.INITIATOR: Connection(
            ConnectionSide.INITIATOR, role, FRAME_BYTES_MAX, columns_bytes_min, dialect=DRAFT if is_draft else V3
        ),
        ConnectionSide.ACCEPTOR: Connection(ConnectionSide.ACCEPTOR, role, FRAME_BYTES_MAX, columns_bytes_min),
    }
    hello = DRAFT_HELLO if is_draft else HELLO
    if choice & 4:
        ok = DraftOk(CREDITS) if is_draft else Ok(CREDITS)
        script: list[tuple[ConnectionSide, AnyFrame]] = [
            (ConnectionSide.INITIATOR, hello),
            (ConnectionSide.ACCEPTOR, ok),
        ]
        for stream_id in OPEN_STREAMS:
            script.append((ConnectionSide.INITIATOR, Notify(stream_id, "s", 0)))
            script += [] if is_draft else [(ConnectionSide.ACCEPTOR, NotifyAck(True, stream_id, 0))]
        for sender, frame in script:
            ends[sender.other].receive(ends[sender].send(frame))
        assert ends[side].state is ConnectionState.STREAMING
    elif side is ConnectionSide.INITIATOR:
        ends[side].send(hello)
    return ends[side]


def _flat(events: Iterable[Event]) -> Iterator[object]:
    """Yield the events with each MESSAGE alone, because their grouping is not specified."""
    for event in events:
        if isinstance(event, Messages):
            ids = (column.tolist() for column in (event.stream_ids, event.message_ids, event.event_times))
            yield from zip(*ids, event.keys.to_pylist(), event.payloads.to_pylist(), strict=True)
        elif isinstance(event, DraftMessages):
            yield from event.messages
        else:
            yield event


def _bodies(data: bytes) -> Iterator[bytes]:
    """Yield bodies of frames. A byte before each has its length, so that any input has complete frames."""
    while data:
        length = data[0] + 1
        if body := data[1 : 1 + length]:
            yield body
        data = data[1 + length :]


def _answers(event: Event) -> Iterator[AnyFrame]:
    match event:
        case Hello():
            yield Ok(CREDITS)
            yield DraftOk(CREDITS, ((OPEN_STREAMS[0], "s", 1),))
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
        case DraftMessages():
            yield AckCounts(len(event), tuple((message.stream_id, 0, 1) for message in event.messages))
            yield Ack(len(event), tuple((message.stream_id, 0) for message in event.messages))
        case Debug():
            yield Restart()


def _is_over(end: Connection) -> None:
    """Check that an end that has failed ignores input and refuses to send, and can still encode its error."""
    assert end.receive(v3.encode(HELLO)) == []
    with contextlib.suppress(LocalProtocolError):
        end.send(Ok(1))
        raise AssertionError("a frame was sent after the end")
    assert end.dialect.decode(end.error_frame("no")[4:])
