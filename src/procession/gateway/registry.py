"""The registry: all streams that the gateway knows, with their committed and seen positions and their session. Pure.

Invariant: this module owns both positions. *Committed* is in the last complete checkpoint, and is reported to
producers. *Seen* is in the log, and decides what is a duplicate. `gateway/state` uses it for each NOTIFY, MESSAGE, EOS
and commit.
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
"""Longer names are truncated."""

LISTED_BYTES = 18
"""Bytes of a stream without a name in an OK."""


@dataclass(slots=True)
class RegisteredStream:
    stream_id: int
    name: str = ""
    committed: int | None = None
    seen: int | None = None
    session: int | None = None
    """The session that may send on it, or that has sent its end and waits for the last ACK."""
    eos_sequence: int | None = None
    """Sequence number of its end in the log. Until it is committed, no session may open the stream."""
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
        """The answer to a NOTIFY with this point of reference."""
        if notified == UNNUMBERED and self.seen is not None:
            return self.seen
        return self.point_of_reference

    def call(self, name: str) -> None:
        """Sets the name that another gateway knows, unless a session here has given one."""
        self.name = self.name or name[:STREAM_NAME_CHARS_MAX]

    def open(self, session: int, name: str) -> None:
        self.name = name[:STREAM_NAME_CHARS_MAX]
        self.session = session
        self.eos_sequence = None
        self.fresh_from = _after(self.seen)

    @property
    def floor(self) -> int:
        """Ids below this are duplicates, and are dropped silently."""
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
        """Sets the committed id. False if it is not newer."""
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
        """Restores the registry from the snapshot and the rows of the log behind it. A stream that is in neither may be
        `retired`; then it continues from its committed id there."""
        self._retired = RetiredStreams(Limits()) if retired is None else retired
        self._streams: dict[int, RegisteredStream] = {}
        self._idle: dict[int, float] = {}
        """Times since when streams are idle, the longest first. Some of these streams may have become active again."""
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
        """The last committed id of a stream, also of one that is retired."""
        return self[stream_id].committed if stream_id in self else self._retired.committed(stream_id)

    def call(self, stream_id: int, name: str) -> None:
        """Another gateway says what a stream is called; of one that is retired no name is kept."""
        if stream_id in self or self._retired.committed(stream_id) is None:
            self.get_or_add(stream_id).call(name)

    def leave(self, session: int, now: float = 0.0) -> list[int]:
        """Releases the streams of a gone session, except those whose end waits for a commit. Returns their ids."""
        left = [stream for stream in self if stream.session == session]
        for stream in left:
            stream.session = None
            self._note_idle(stream, now)
            self._forget_unused(stream)
        return [stream.stream_id for stream in left]

    def positions(self, changes: Mapping[int, int]) -> dict[int, Position]:
        """The positions for a snapshot once `changes` are committed."""
        known = {
            stream.stream_id: Position(stream.name, stream.committed) for stream in self if stream.committed is not None
        }
        for stream_id, message_id in changes.items():
            name = self[stream_id].name if stream_id in self else ""
            before = known.get(stream_id)
            known[stream_id] = Position(name, message_id if before is None else max(before.committed, message_id))
        return known

    def listed(self, bytes_max: int) -> tuple[tuple[int, str, int], ...]:
        """Triples (stream id, name, committed id), up to `bytes_max` bytes. A producer whose stream is not listed
        starts from the beginning, which costs only time."""
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
        """Take what is committed. Returns, per session, the pairs (stream id, committed id) of its streams with news.

        A stream whose end is below `end_sequence` is released, and that is news even if its position is not.
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
                # A point of reference that says "nothing" would make the producer go back.
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
        """The streams that are idle since before this, and the longest idle ones up to this count: each with its
        committed id. Those that are held elsewhere in the gateway stay."""
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
        """The snapshot leaves these streams out. A stream that has returned meanwhile stays."""
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
        """A stream on which nothing ever came leaves nothing to remember."""
        if stream.is_free and stream.seen is None:
            del self._streams[stream.stream_id]


def _after(message_id: int | None) -> int:
    return 0 if message_id is None else message_id + 1


def went_back(stream_id: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"message id goes back on stream {stream_id}")


def reserved(stream_id: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"message id 2^64-1 on stream {stream_id} is reserved")
