"""The registry: all streams that the gateway knows, with their committed and seen positions and their session. Pure.

Invariant: this module owns both positions of a stream. The *committed* id is in the last complete checkpoint, and is
reported to producers. The *seen* id is the last id in the log; it decides which records are duplicates. `gateway/state`
uses it for each NOTIFY, MESSAGE, EOS and commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from procession.errors import RemoteProtocolError
from procession.gateway.gateway_limits import Limits
from procession.gateway.log_rows import LogTail
from procession.gateway.retired_streams import RetiredStreams
from procession.gateway.snapshot import Position
from procession.wire.messages import NOTHING_COMMITTED, UNNUMBERED

STREAM_NAME_CHARS_MAX = 256
"""Maximum length of a stream's name. Longer names are truncated."""

LISTED_BYTES = 18
"""Bytes in an OK of a stream without a name."""


@dataclass(slots=True)
class RegisteredStream:
    stream_id: int
    name: str = ""
    committed: int | None = None
    seen: int | None = None
    session: int | None = None
    """The session that may send on the stream, or that has ended the stream and waits for the last ACK."""
    eos_sequence: int | None = None
    """Sequence of the stream's end in the log. Until it is committed, no session may open the stream."""
    fresh_from: int = 0
    """The first id that was new when the session opened the stream. Lower ids are duplicates of a reconnect."""

    @property
    def is_free(self) -> bool:
        return self.session is None and self.eos_sequence is None

    @property
    def is_idle(self) -> bool:
        """Whether no session has the stream, and all its records are committed."""
        return self.is_free and self.committed is not None and self.committed == self.seen

    @property
    def state(self) -> str:
        if self.eos_sequence is not None:
            return "ending"
        return "closed" if self.session is None else "open"

    @property
    def point_of_reference(self) -> int:
        return NOTHING_COMMITTED if self.committed is None else self.committed

    def reference_for(self, notified: int) -> int:
        """Return the point of reference that answers a NOTIFY with this point of reference."""
        if notified == UNNUMBERED and self.seen is not None:
            return self.seen
        return self.point_of_reference

    def call(self, name: str) -> None:
        """Set the name that another gateway knows, unless a session here has given a name."""
        self.name = self.name or name[:STREAM_NAME_CHARS_MAX]

    def open(self, session: int, name: str) -> None:
        self.name = name[:STREAM_NAME_CHARS_MAX]
        self.session = session
        self.eos_sequence = None
        self.fresh_from = _after(self.seen)

    @property
    def floor(self) -> int:
        """The first id that is not a duplicate. Lower ids are dropped silently."""
        return max(self.fresh_from, _after(self.committed))

    @property
    def next_id(self) -> int:
        """The smallest id that may come next, except for duplicates."""
        return _after(self.seen)

    def is_fresh(self, message_id: int) -> bool:
        """Whether this id is new. A new id must be larger than the last one, else the peer has broken the protocol."""
        if message_id < self.floor:
            return False
        if message_id == NOTHING_COMMITTED:
            raise reserved(self.stream_id)
        if message_id < self.next_id:
            raise went_back(self.stream_id)
        return True

    def commit(self, message_id: int) -> bool:
        """Set the committed id. Returns False if it is not newer."""
        if self.committed is not None and message_id <= self.committed:
            return False
        self.committed = message_id
        self.seen = message_id if self.seen is None else max(self.seen, message_id)
        return True


class Registry:
    def __init__(
        self,
        positions: Mapping[int, Position],
        tail: LogTail,
        retired: RetiredStreams | None = None,
        now: float = 0.0,
    ) -> None:
        """Restore the registry from the snapshot and the rows of the log after it. A stream that is in neither may be
        `retired`; then it continues from its committed id there."""
        self._retired = RetiredStreams(Limits()) if retired is None else retired
        self._streams: dict[int, RegisteredStream] = {}
        self._idle: dict[int, float] = {}
        """The time since when each stream is idle, the longest idle first. Some of these streams may be active
        again."""
        for stream_id, position in positions.items():
            self._streams[stream_id] = RegisteredStream(
                stream_id, position.name, position.committed, position.committed
            )
        for stream_id, message_id in tail.seen.items():
            self.get_or_add(stream_id).seen = message_id
        for stream_id, sequence in tail.eos_sequences.items():
            self.get_or_add(stream_id).eos_sequence = sequence
        for stream in self:
            self._note_idle(stream, now)

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[RegisteredStream]:
        return iter(self._streams.values())

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._streams

    def __getitem__(self, stream_id: int) -> RegisteredStream:
        return self._streams[stream_id]

    def get_or_add(self, stream_id: int) -> RegisteredStream:
        if stream_id not in self._streams:
            committed = self._retired.returning(stream_id)
            self._streams[stream_id] = RegisteredStream(stream_id, "", committed, committed)
        return self._streams[stream_id]

    def committed(self, stream_id: int) -> int | None:
        """Return the last committed id of a stream, even of a retired stream."""
        return self[stream_id].committed if stream_id in self else self._retired.committed(stream_id)

    def call(self, stream_id: int, name: str) -> None:
        """Set the name that another gateway knows for a stream. A retired stream has no name."""
        if stream_id in self or self._retired.committed(stream_id) is None:
            self.get_or_add(stream_id).call(name)

    def leave(self, session: int, now: float = 0.0) -> list[int]:
        """Release the streams of a session that has ended, except streams whose end waits for a commit. Returns their
        ids."""
        left = [stream for stream in self if stream.session == session]
        for stream in left:
            stream.session = None
            self._note_idle(stream, now)
            self._forget_unused(stream)
        return [stream.stream_id for stream in left]

    def positions(self, changes: Mapping[int, int]) -> dict[int, Position]:
        """Return the positions for a snapshot in which `changes` are committed."""
        known = {
            stream.stream_id: Position(stream.name, stream.committed) for stream in self if stream.committed is not None
        }
        for stream_id, message_id in changes.items():
            name = self[stream_id].name if stream_id in self else ""
            before = known.get(stream_id)
            known[stream_id] = Position(name, message_id if before is None else max(before.committed, message_id))
        return known

    def listed(self, bytes_max: int) -> tuple[tuple[int, str, int], ...]:
        """Return triples (stream id, name, committed id), up to `bytes_max` bytes. A producer whose stream is not
        listed starts from the beginning, which costs only time."""
        listed: list[tuple[int, str, int]] = []
        for stream in self:
            bytes_max -= LISTED_BYTES + len(stream.name.encode())
            if bytes_max < 0:
                break
            if stream.committed is not None:
                listed.append((stream.stream_id, stream.name, stream.committed))
        return tuple(listed)

    def commit(
        self, end_sequence: int, positions: Mapping[int, Position], now: float = 0.0
    ) -> dict[int, list[tuple[int, int]]]:
        """Apply a commit. Returns, per session, the pairs (stream id, committed id) of its streams with news.

        A stream whose end is below `end_sequence` is released. This is news even if its position is unchanged.
        """
        new_positions: dict[int, list[tuple[int, int]]] = {}
        for stream_id in positions:
            self.get_or_add(stream_id)
        for stream in list(self):
            position = positions.get(stream.stream_id)
            is_new = position is not None and stream.commit(position.committed)
            is_released = stream.eos_sequence is not None and stream.eos_sequence < end_sequence
            if stream.session is not None and (is_new or is_released):
                pairs = new_positions.setdefault(stream.session, [])
                # A point of reference that means "nothing" would make the producer go back.
                if stream.committed is not None:
                    pairs.append((stream.stream_id, stream.committed))
            if is_released:
                stream.eos_sequence = stream.session = None
            if is_new or is_released or stream.stream_id not in self._idle:
                self._note_idle(stream, now)
            if is_released:
                self._forget_unused(stream)
        return new_positions

    # Retirement

    def idle(self, since: float, count: int, is_held: Callable[[int], bool]) -> dict[int, int]:
        """Return streams with their committed ids: all streams that are idle since before `since`, and the longest idle
        streams up to `count`. Omits streams that another part of the gateway holds."""
        chosen: dict[int, int] = {}
        stale = []
        for stream_id, idle_since in self._idle.items():
            if idle_since > since and len(chosen) >= count:
                break
            stream = self._streams.get(stream_id)
            if stream is None or not stream.is_idle:
                stale.append(stream_id)
            elif not is_held(stream_id):
                assert stream.committed is not None
                chosen[stream_id] = stream.committed
        for stream_id in stale:
            del self._idle[stream_id]
        return chosen

    def retire(self, streams: Mapping[int, int]) -> None:
        """Remove these streams, which the snapshot omits. A stream that has returned meanwhile stays."""
        for stream_id, committed in streams.items():
            stream = self._streams.get(stream_id)
            if stream is None:
                continue
            if stream.is_idle and stream.committed == committed:
                del self._streams[stream_id]
                self._idle.pop(stream_id, None)
            else:
                self._retired.returning(stream_id)

    def _note_idle(self, stream: RegisteredStream, now: float) -> None:
        self._idle.pop(stream.stream_id, None)
        if stream.is_idle:
            self._idle[stream.stream_id] = now

    def _forget_unused(self, stream: RegisteredStream) -> None:
        """Forget a stream that never had a record."""
        if stream.is_free and stream.seen is None:
            del self._streams[stream.stream_id]


def _after(message_id: int | None) -> int:
    return 0 if message_id is None else message_id + 1


def went_back(stream_id: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"message id goes back on stream {stream_id}")


def reserved(stream_id: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"message id 2^64-1 on stream {stream_id} is reserved")
