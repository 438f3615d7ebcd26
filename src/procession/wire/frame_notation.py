"""Frame notation: formats a frame as a JSON object or a readable line, and parses the object.

Invariant: the object is lossless and gives the same frame again. Bytes that are not UTF-8 are in hex, in another field
(`payload_hex` instead of `payload`). Used by the command `procession frames`, on the frames of `capture`. The object
shows everything, including the cookie; the line does not show the cookie.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from procession.errors import LocalProtocolError, RemoteProtocolError
from procession.wire import two_phase_commit
from procession.wire.draft_messages import AckCounts, Debug, DebugFault, DraftFrame, DraftMessage, DraftOk
from procession.wire.messages import (
    NOTHING_COMMITTED,
    TWOPC_STREAM,
    Ack,
    Eos,
    Error,
    Frame,
    Hello,
    ListUncommitted,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Phase1,
    Phase2,
    Reply,
    ReplyUncommitted,
    Restart,
    TwoPhase,
    WorkersLeft,
)

Document = dict[str, Any]
"""A JSON object."""

SHOWN_MAX = 60
"""Maximum number of characters of a value in a line. An object has the whole value."""

AnyFrame = Frame | DraftFrame

FRAMES: dict[str, dict[str, type[AnyFrame]]] = {
    "v3": {
        "HELLO": Hello,
        "OK": Ok,
        "ERROR": Error,
        "NOTIFY": Notify,
        "NOTIFY_ACK": NotifyAck,
        "MESSAGE": Message,
        "ACK": Ack,
        "RESTART": Restart,
        "EOS_MESSAGE": Eos,
    },
    "draft": {
        "HELLO": Hello,
        "OK": DraftOk,
        "ERROR": Error,
        "NOTIFY": Notify,
        "MESSAGE": DraftMessage,
        "ACK": Ack,
        "ACK_COUNTS": AckCounts,
        "RESTART": Restart,
        "DEBUG": Debug,
    },
}
"""The frames of each version of the protocol, by name."""

TWO_PHASE: dict[str, type[TwoPhase]] = {
    "LIST_UNCOMMITTED": ListUncommitted,
    "REPLY_UNCOMMITTED": ReplyUncommitted,
    "PHASE1": Phase1,
    "REPLY": Reply,
    "PHASE2": Phase2,
    "WORKERS_LEFT": WorkersLeft,
}
_NAMES: dict[type, str] = {kind: name for frames in FRAMES.values() for name, kind in frames.items()}
_NAMES |= {kind: name for name, kind in TWO_PHASE.items()}


def name_of(value: AnyFrame | TwoPhase) -> str:
    return _NAMES[type(value)]


# To an object


def as_document(frame: AnyFrame) -> Document:
    """Return the frame as an object. A two-phase-commit message in a payload of stream 0 is decoded."""
    document = {"frame": name_of(frame), **_shown(frame)}
    message = two_phase_of(frame)
    if message is not None:
        document.pop("payload", None)
        document.pop("payload_hex", None)
        document["two_phase"] = {"message": name_of(message), **_shown(message)}
    return document


def two_phase_of(frame: AnyFrame) -> TwoPhase | None:
    """Return the two-phase-commit message in this frame, or None. A source's stream 0 has none."""
    if not isinstance(frame, Message) or frame.stream_id != TWOPC_STREAM:
        return None
    try:
        return two_phase_commit.decode(frame.payload)
    except RemoteProtocolError:
        return None


def _shown(value: AnyFrame | TwoPhase) -> Document:
    document: Document = {}
    for field in fields(value):
        item = getattr(value, field.name)
        if isinstance(item, bytes):
            try:
                document[field.name] = item.decode()
            except UnicodeDecodeError:
                document[f"{field.name}_hex"] = item.hex()
        else:
            document[field.name] = item.name if isinstance(item, DebugFault) else item
    return document


# From an object


def from_document(document: object, protocol: str) -> AnyFrame:
    """Parse an object as a frame. Raises LocalProtocolError for an invalid object."""
    given = mapping(document, "a frame")
    kind = _kind(FRAMES[protocol], given.pop("frame", None), "frame")
    if kind is Message and "two_phase" in given:
        inner = mapping(given.pop("two_phase"), "two_phase")
        message: Any = _built(_kind(TWO_PHASE, inner.pop("message", None), "two-phase-commit message"), inner)
        given["payload_hex"] = two_phase_commit.encode(message).hex()
    frame: AnyFrame = _built(kind, given)
    return frame


def mapping(value: object, what: str) -> Document:
    if not isinstance(value, Mapping):
        raise LocalProtocolError(f"{what} must be an object, not {_short(value)}")
    return dict(value)


def _kind(kinds: Mapping[str, type[Any]], name: object, what: str) -> type[Any]:
    if not isinstance(name, str) or name not in kinds:
        raise LocalProtocolError(f"there is no {what} {_short(name)}; there are {', '.join(kinds)}")
    return kinds[name]


def _built(kind: type[Any], given: Document) -> Any:
    values = {}
    for field in fields(kind):
        try:
            read = _READERS[str(field.type)]
            values[field.name] = read(_item(given, field.name, is_bytes=str(field.type).startswith("bytes")))
        except (KeyError, TypeError, ValueError) as error:
            reason = "is missing" if isinstance(error, KeyError) else f"must be {error}"
            raise LocalProtocolError(f"{field.name} of {_NAMES[kind]} {reason}") from None
    if given:
        raise LocalProtocolError(f"{_NAMES[kind]} has no field {_short(next(iter(given)))}")
    return kind(**values)


def _item(given: Document, name: str, *, is_bytes: bool) -> Any:
    if is_bytes and f"{name}_hex" in given:
        try:
            return bytes.fromhex(given.pop(f"{name}_hex"))
        except (TypeError, ValueError):
            raise ValueError("hex digits") from None
    return given.pop(name)


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("a whole number")
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("true or false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text")
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON allows
        raise ValueError("a text that UTF-8 can encode") from None
    return value


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else _text(value).encode()


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _list(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def reader(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise TypeError("a list")
        return tuple(read(item) for item in value)

    return reader


def _row(*reads: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def reader(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) != len(reads):
            raise ValueError(f"a list of lists of {len(reads)} values")
        return tuple(read(item) for read, item in zip(reads, value, strict=True))

    return reader


def _fault(value: Any) -> DebugFault:
    if not isinstance(value, str) or value not in DebugFault.__members__:
        raise ValueError(f"one of {', '.join(DebugFault.__members__)}")
    return DebugFault[value]


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": _integer,
    "bool": _boolean,
    "str": _text,
    "bytes": _bytes,
    "bytes | None": _optional(_bytes),
    "int | None": _optional(_integer),
    "str | None": _optional(_text),
    "tuple[str, ...]": _list(_text),
    "tuple[tuple[int, int], ...]": _list(_row(_integer, _integer)),
    "tuple[tuple[int, int, int], ...]": _list(_row(_integer, _integer, _integer)),
    "tuple[tuple[int, str, int], ...]": _list(_row(_integer, _text, _integer)),
    "DebugFault": _fault,
}
"""The parser for a field of each type, by the type annotation in `messages`."""


# To a line


def as_line(frame: AnyFrame) -> str:
    """Format the frame for people: its name, then its fields. Long values are truncated."""
    shown: list[str] = [name_of(frame)]
    message = two_phase_of(frame)
    for field in fields(frame):
        value = getattr(frame, field.name)
        if field.name == "cookie":
            shown.append(f"cookie=({len(value)} bytes)")
        elif field.name == "payload" and message is not None:
            shown.append(name_of(message))
            shown += [f"{inner.name}={_short(getattr(message, inner.name))}" for inner in fields(message)]
        elif value is not None:
            shown.append(f"{field.name}={'nothing' if value == NOTHING_COMMITTED else _short(value)}")
    return " ".join(shown)


def _short(value: object) -> str:
    if isinstance(value, bytes):
        try:
            return _short(value.decode())
        except UnicodeDecodeError:
            return _short(f"0x{value.hex()}")
    text = value.name if isinstance(value, DebugFault) else json.dumps(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}… ({len(text)} characters)"
