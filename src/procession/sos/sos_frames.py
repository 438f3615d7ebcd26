"""The frames of the object service, and their bytes. Pure.

    u32 length | u8 tag | fields | u32 CRC-32 of tag and fields | data

Numbers are big-endian. Only APPEND and CHUNKS have data. The data has its own checksums: the running CRC-32 of the
object after each append. The writer makes them, the server stores them, and the reader checks them.

Invariant: a frame decodes to the value that was encoded, and no other bytes decode to it. All other bytes are a
RemoteProtocolError. `sos/sos_lifecycle` defines when a frame may be sent.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from procession.errors import LocalProtocolError, RemoteProtocolError
from procession.sos.volume_rules import (
    IDENTITY_BYTES,
    MEMBERS_MAX,
    OBJECTS_MAX,
    OLD_CONFIGS_MAX,
    ObjectHead,
    ObjectState,
    QuorumConfig,
    RefusalCode,
    VolumeState,
)
from procession.wire.frame_codec import Reader, frame, short_bytes, short_text, u8, u32, u64

VERSION = 1
REASON_BYTES_MAX = 1024
NAMES_MAX = 1000
"""Maximum number of volumes in one reply."""
CHUNK_BYTES_MAX = 8 * 1024 * 1024
"""Maximum size of one append."""
FRAME_BYTES_MAX = CHUNK_BYTES_MAX + 64 * 1024
VOLUME_BYTES_MAX = 64 + OBJECTS_MAX * (64 + (1 + OLD_CONFIGS_MAX) * (2 + MEMBERS_MAX * (IDENTITY_BYTES + 2)))
"""Maximum size of the description of a volume. It fits into a frame."""
HELLO_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True)
class SosError:
    """The last frame of a side that ends the connection because of an error."""

    reason: str


@dataclass(frozen=True, slots=True)
class SosHello:
    version: int
    cookie: bytes
    program: str


@dataclass(frozen=True, slots=True)
class SosWelcome:
    version: int
    credits: int
    """Maximum number of requests that may wait for their replies at a time."""


@dataclass(frozen=True, slots=True)
class FormatVolume:
    """Make a copy of a volume, unless it exists, and describe it."""

    request: int
    volume: str


@dataclass(frozen=True, slots=True)
class DescribeVolume:
    request: int
    volume: str


@dataclass(frozen=True, slots=True)
class ListVolumes:
    """List the names after this name."""

    request: int
    after: str


@dataclass(frozen=True, slots=True)
class ClaimVolume:
    """Promise this fence: lower fences may not write any more. All written data is synced before the reply."""

    request: int
    volume: str
    fence: int
    token: bytes


@dataclass(frozen=True, slots=True)
class CreateObject:
    """Create an object, which seals its predecessor. It is synced before the reply."""

    request: int
    volume: str
    fence: int
    number: int
    head: ObjectHead
    mark: int


@dataclass(frozen=True, slots=True)
class AppendChunk:
    """Append data at the end. `checksum` is that of the object, including this chunk."""

    request: int
    volume: str
    fence: int
    number: int
    offset: int
    checksum: int
    is_barrier: bool
    """Whether the reply waits until the object is synced."""
    data: bytes


@dataclass(frozen=True, slots=True)
class ReadChunks:
    """Read whole appends from an offset at which one begins: about `bytes_max` bytes, but at least one append."""

    request: int
    volume: str
    number: int
    offset: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class RetainFrom:
    """Delete the objects below this one."""

    request: int
    volume: str
    fence: int
    mark: int


@dataclass(frozen=True, slots=True)
class VolumeReply:
    request: int
    state: VolumeState | None
    """The state of the copy. None: there is no copy here."""


@dataclass(frozen=True, slots=True)
class ProgressReply:
    request: int
    number: int
    written: int
    synced: int
    checksum: int


@dataclass(frozen=True, slots=True)
class ChunksReply:
    request: int
    number: int
    offset: int
    checksum: int
    """The checksum of the object before these chunks."""
    chunks: tuple[tuple[int, int], ...]
    """The length of each chunk, and the object's checksum after it."""
    data: bytes


@dataclass(frozen=True, slots=True)
class NamesReply:
    request: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RefusedReply:
    request: int
    code: RefusalCode
    promised: int
    reason: str


SosRequest = (
    FormatVolume | DescribeVolume | ListVolumes | ClaimVolume | CreateObject | AppendChunk | ReadChunks | RetainFrom
)
SosReply = VolumeReply | ProgressReply | ChunksReply | NamesReply | RefusedReply
SosFrame = SosError | SosHello | SosWelcome | SosRequest | SosReply

REQUESTS: tuple[type[SosRequest], ...] = (
    FormatVolume,
    DescribeVolume,
    ListVolumes,
    ClaimVolume,
    CreateObject,
    AppendChunk,
    ReadChunks,
    RetainFrom,
)
REPLIES: tuple[type[SosReply], ...] = (VolumeReply, ProgressReply, ChunksReply, NamesReply, RefusedReply)


# Fields: how each is written and read


def _text(reader: Reader) -> str:
    return reader.short_text()


def _identity(reader: Reader) -> bytes:
    value = reader.short_bytes()
    if len(value) != IDENTITY_BYTES:
        raise RemoteProtocolError("an identity or token that has not 16 bytes")
    return value


def _config_bytes(config: QuorumConfig) -> bytes:
    return u8(config.write_quorum) + u8(len(config.members)) + b"".join(map(short_bytes, config.members))


def _config(reader: Reader) -> QuorumConfig:
    write_quorum = reader.u8()
    return QuorumConfig(tuple(_identity(reader) for _ in range(reader.u8())), write_quorum)


def _head_bytes(head: ObjectHead) -> bytes:
    numbers = u64(head.previous) + u64(head.length) + u32(head.checksum)
    return (
        numbers
        + _config_bytes(head.config)
        + u8(len(head.old_configs))
        + b"".join(map(_config_bytes, head.old_configs))
    )


def _head(reader: Reader) -> ObjectHead:
    numbers = reader.u64(), reader.u64(), reader.u32()
    return ObjectHead(*numbers, _config(reader), tuple(_config(reader) for _ in range(reader.u8())))


def _state_bytes(state: VolumeState | None) -> bytes:
    if state is None:
        return u8(0)
    data = u8(1) + short_bytes(state.identity) + u64(state.promised) + short_bytes(state.token) + u64(state.mark)
    parts = [data, u32(len(state.objects))]
    for number, known in sorted(state.objects.items()):
        parts += [u64(number), _head_bytes(known.head), u64(known.written), u64(known.synced), u32(known.checksum)]
    return b"".join(parts)


def _state(reader: Reader) -> VolumeState | None:
    if not reader.boolean():
        return None
    identity, promised, token, mark = _identity(reader), reader.u64(), reader.short_bytes(), reader.u64()
    if len(token) != (IDENTITY_BYTES if promised else 0):
        raise RemoteProtocolError("a promise without its token")
    objects: dict[int, ObjectState] = {}
    last = 0
    for _ in range(reader.count(48)):
        number = reader.u64()
        if number <= last:
            raise RemoteProtocolError("objects that are not in order")
        objects[number] = ObjectState(_head(reader), reader.u64(), reader.u64(), reader.u32())
        last = number
    return VolumeState(identity, promised, token, mark, objects)


def _chunks_bytes(chunks: tuple[tuple[int, int], ...]) -> bytes:
    return u32(len(chunks)) + b"".join(u32(length) + u32(checksum) for length, checksum in chunks)


def _chunks(reader: Reader) -> tuple[tuple[int, int], ...]:
    return tuple((reader.u32(), reader.u32()) for _ in range(reader.count(8)))


def _names_bytes(names: tuple[str, ...]) -> bytes:
    return u32(len(names)) + b"".join(map(short_text, names))


def _names(reader: Reader) -> tuple[str, ...]:
    return tuple(reader.short_text() for _ in range(reader.count(2)))


def _code(reader: Reader) -> RefusalCode:
    value = reader.u8()
    try:
        return RefusalCode(value)
    except ValueError:
        raise RemoteProtocolError(f"a refusal of code {value}") from None


Field = tuple[Callable[[Any], bytes], Callable[[Reader], Any]]
_U32: Field = (u32, Reader.u32)
_U64: Field = (u64, Reader.u64)
_TEXT: Field = (short_text, _text)
_BYTES: Field = (short_bytes, Reader.short_bytes)
_TOKEN: Field = (short_bytes, _identity)
_FLAG: Field = (lambda value: u8(int(value)), Reader.boolean)

SHAPES: dict[type, tuple[int, tuple[Field, ...]]] = {
    SosError: (0, (_TEXT,)),
    SosHello: (1, (_U32, _BYTES, _TEXT)),
    SosWelcome: (2, (_U32, _U32)),
    FormatVolume: (10, (_U32, _TEXT)),
    DescribeVolume: (11, (_U32, _TEXT)),
    ListVolumes: (12, (_U32, _TEXT)),
    ClaimVolume: (13, (_U32, _TEXT, _U64, _TOKEN)),
    CreateObject: (14, (_U32, _TEXT, _U64, _U64, (_head_bytes, _head), _U64)),
    AppendChunk: (15, (_U32, _TEXT, _U64, _U64, _U64, _U32, _FLAG)),
    ReadChunks: (16, (_U32, _TEXT, _U64, _U64, _U32)),
    RetainFrom: (17, (_U32, _TEXT, _U64, _U64)),
    VolumeReply: (20, (_U32, (_state_bytes, _state))),
    ProgressReply: (21, (_U32, _U64, _U64, _U64, _U32)),
    ChunksReply: (22, (_U32, _U64, _U64, _U32, (_chunks_bytes, _chunks))),
    NamesReply: (23, (_U32, (_names_bytes, _names))),
    RefusedReply: (24, (_U32, (u8, _code), _U64, _TEXT)),
}
"""Tag and fields of each frame, without its data."""
_KINDS = {tag: kind for kind, (tag, _) in SHAPES.items()}
WITH_DATA = frozenset({AppendChunk, ChunksReply})


def encode(value: SosFrame) -> bytes:
    """Encode a frame, with its length. Raises LocalProtocolError if a value does not fit its field."""
    tag, fields = SHAPES[type(value)]
    names = type(value).__dataclass_fields__
    parts = [write(getattr(value, name)) for name, (write, _) in zip(names, fields, strict=False)]
    head = u8(tag) + b"".join(parts)
    data: bytes = value.data if isinstance(value, AppendChunk | ChunksReply) else b""
    if len(head) + 4 + len(data) > FRAME_BYTES_MAX:
        raise LocalProtocolError(f"a frame of {len(head) + 4 + len(data)} bytes, the limit is {FRAME_BYTES_MAX}")
    return frame(b"".join((head, u32(zlib.crc32(head)), data)))


def decode(body: bytes) -> SosFrame:
    """Decode the body of a frame, without its length. Raises RemoteProtocolError."""
    kind = _KINDS.get(body[0])
    if kind is None:
        raise RemoteProtocolError(f"a frame of unknown tag {body[0]}")
    reader = Reader(body, 1)
    values = [read(reader) for _, read in SHAPES[kind][1]]
    position = len(body) - reader.remaining
    if reader.u32() != zlib.crc32(memoryview(body)[:position]):
        raise RemoteProtocolError("a frame whose checksum does not match")
    if kind in WITH_DATA:
        values.append(reader.remainder())
    reader.finish()
    made: SosFrame = kind(*values)
    return made


def checked_chunks(reply: ChunksReply) -> list[tuple[bytes, int]]:
    """Return the chunks of a reply, each with the object's checksum after it. Raises RemoteProtocolError if a chunk
    does not match its writer's checksum."""
    found, position, running = [], 0, reply.checksum
    for length, checksum in reply.chunks:
        data = reply.data[position : position + length]
        running = zlib.crc32(data, running)
        if len(data) != length or not length or running != checksum:
            raise RemoteProtocolError("data that does not match its checksum")
        found.append((data, checksum))
        position += length
    if position != len(reply.data):
        raise RemoteProtocolError("data that belongs to no append")
    return found
