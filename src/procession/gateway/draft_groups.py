"""Groups: the messages that a session of the draft has sent on each stream since its last point of reference. Pure.

Invariant: a group is appended to the log as a whole, when the stable message that closes it arrives, or not at all. The
ids of unstable messages may differ when the stream is read again, so they cannot be deduplicated. A group is new if the
id that closes it is new, and a duplicate otherwise. Open groups are held here. A lost session loses its open groups,
and its producer sends them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from procession.errors import RemoteProtocolError
from procession.gateway.gateway_events import Action, SendFrame
from procession.gateway.log_rows import LogRow, eos_row
from procession.gateway.registry import RegisteredStream, Registry
from procession.storage.segment import KIND_BOUNDARY, KIND_EPHEMERAL, KIND_RECORD, KIND_UNSTABLE
from procession.wire.draft_messages import Debug, DebugFault, DraftMessage
from procession.wire.messages import Restart

if TYPE_CHECKING:
    from procession.gateway.state import GatewayState

HELD_BYTES = 256
"""Overhead in bytes of a held message."""

MARKS_MAX = 4096
"""Maximum number of positions that are remembered per stream for counting. Above it, every second position is
dropped."""

EVENT_TIME_MAX = 2**63 - 1
"""Maximum event time. The log stores signed times, as version 3 does."""


@dataclass(slots=True)
class DraftGroup:
    """The open group of one stream of one session."""

    is_ephemeral: bool | None = None
    """Whether the first message was ephemeral. All other messages of the stream must have the same value."""
    ephemeral: int = 0
    held: list[DraftMessage] = field(default_factory=list)
    frames: int = 0
    settled: int = 0
    reference: int | None = None
    marks: deque[tuple[int, int]] = field(default_factory=deque)
    """Pairs (point of reference, number of frames up to it) that are not committed yet, both ascending."""

    def mark(self) -> None:
        """Mark all frames so far as settled when the last point of reference is settled."""
        if self.held:
            return
        if self.reference is None:
            self.settled = self.frames
        elif self.marks and self.marks[-1][0] >= self.reference:
            self.marks[-1] = self.marks[-1][0], self.frames
        else:
            self.marks.append((self.reference, self.frames))
        if len(self.marks) > MARKS_MAX:
            self.marks = deque(list(self.marks)[::-2][::-1])

    def settle(self, committed: int | None) -> None:
        while committed is not None and self.marks and self.marks[0][0] <= committed:
            _, self.settled = self.marks.popleft()


@dataclass(slots=True)
class TakenMessages:
    """The result of taking several messages."""

    rows: list[LogRow] = field(default_factory=list)
    records: int = 0
    ephemeral: int = 0
    duplicates: int = 0
    groups_end: int = 0
    """Sequence after the last row of a group. No row from here on belongs to a group."""
    error: str | None = None
    """The reason why the next message was not taken and the session ends."""


class DraftGroups:
    """The groups of all streams of one session."""

    def __init__(self, held_bytes_max: int, *, is_counting: bool = False) -> None:
        self.is_counting = is_counting
        self.held_bytes = 0
        self.duplicates = 0
        self._held_bytes_max = held_bytes_max
        self._groups: dict[int, DraftGroup] = {}

    def open(self, stream_id: int) -> None:
        """Handle a NOTIFY. The stream's next message decides whether it is ephemeral."""
        self._groups.setdefault(stream_id, DraftGroup()).is_ephemeral = None

    def take_all(self, messages: Iterable[DraftMessage], registry: Registry, first_sequence: int) -> TakenMessages:
        """Take messages in order, up to an invalid message. The first row gets this sequence."""
        taken = TakenMessages()
        duplicates_before = self.duplicates
        try:
            for message in messages:
                stream = registry[message.stream_id]
                taken.rows += self._take(stream, message)
                if message.is_last:
                    stream.eos_sequence = first_sequence + len(taken.rows) - 1
        except RemoteProtocolError as error:
            taken.error = error.sentence
        kinds = [row.kind for row in taken.rows]
        taken.records = kinds.count(KIND_RECORD) + kinds.count(KIND_UNSTABLE)
        taken.ephemeral = kinds.count(KIND_EPHEMERAL)
        taken.duplicates = self.duplicates - duplicates_before
        taken.groups_end = first_sequence + len(kinds) if KIND_UNSTABLE in kinds else 0
        return taken

    def _take(self, stream: RegisteredStream, message: DraftMessage) -> list[LogRow]:
        """Return the rows that this message brings into the log, in order. Raises RemoteProtocolError if it is not
        allowed."""
        group = self._groups[stream.stream_id]
        is_ephemeral = message.message_id is None
        if group.is_ephemeral not in (None, is_ephemeral):
            raise RemoteProtocolError(f"ephemeral and other messages on stream {stream.stream_id}")
        if (message.event_time or 0) > EVENT_TIME_MAX:
            raise RemoteProtocolError(f"event time {message.event_time} is over 2^63-1")
        group.is_ephemeral = is_ephemeral
        group.frames += 1
        if is_ephemeral:
            rows = self._pass(group, message)
        elif message.is_unstable:
            rows = self._hold(group, message)
        else:
            rows = self._close(stream, group, message)
        if message.is_last:
            if group.held:
                # A replay of the stream would be mistaken for its continuation.
                raise RemoteProtocolError(f"stream {stream.stream_id} ends without a stable point of reference")
            rows.append(eos_row(stream.stream_id, stream.seen))
        if self.is_counting and not is_ephemeral:
            group.mark()
        return rows

    def _pass(self, group: DraftGroup, message: DraftMessage) -> list[LogRow]:
        if message.payload is None:
            return []
        group.ephemeral += 1
        return [_row(KIND_EPHEMERAL, message, group.ephemeral - 1)]

    def _hold(self, group: DraftGroup, message: DraftMessage) -> list[LogRow]:
        if message.payload is None:
            return []  # a point of reference without messages before it
        self.held_bytes += _cost(message)
        if self.held_bytes > self._held_bytes_max:
            raise RemoteProtocolError(f"more than {self._held_bytes_max} bytes without a stable point of reference")
        group.held.append(message)
        return []

    def _close(self, stream: RegisteredStream, group: DraftGroup, message: DraftMessage) -> list[LogRow]:
        assert message.message_id is not None
        held, group.held = group.held, []
        self.held_bytes -= sum(map(_cost, held))
        group.reference = message.message_id
        if message.payload is None and not held and message.message_id == stream.seen:
            return []  # a point of reference at the last message: nothing changes
        if not stream.is_fresh(message.message_id):
            self.duplicates += len(held) + (message.payload is not None)
            return []
        stream.seen = message.message_id
        rows = [_row(KIND_UNSTABLE, unstable, unstable.message_id or 0) for unstable in held]
        return [*rows, _row(KIND_BOUNDARY if message.payload is None else KIND_RECORD, message, message.message_id)]

    def counted(self, positions: Mapping[int, int], registry: Registry) -> tuple[tuple[int, int, int], ...]:
        """Return the counts for an ACK: of these streams, and of other streams whose count has grown."""
        counts = []
        for stream_id, group in self._groups.items():
            before = group.settled
            committed = registry[stream_id].committed if stream_id in registry else None
            group.settle(committed)
            if committed is not None and (stream_id in positions or group.settled > before):
                counts.append((stream_id, committed, group.settled))
        return tuple(counts)


def _cost(message: DraftMessage) -> int:
    return HELD_BYTES + len(message.payload or b"") + len(message.key or b"")


def _row(kind: int, message: DraftMessage, message_id: int) -> LogRow:
    return LogRow(
        kind, message.stream_id, message_id, message.event_time or 0, message.key or b"", message.payload or b""
    )


def inject_fault(state: GatewayState, session: int, debug: Debug) -> list[Action]:
    """Inject the fault that a session of the draft protocol requests, into this session only."""
    actions = state.give_back(session, 1)
    match debug.fault:
        case DebugFault.STUTTER:
            state.sessions[session].stutter = debug.count
        case DebugFault.TICK:
            actions += [action for _ in range(debug.count) for action in state.tick(session)]
        case DebugFault.RESTART:
            actions += [SendFrame(session, Restart()), *state.close_session(session, None)]
        case DebugFault.CLOSE:
            actions += state.close_session(session, None)
        case DebugFault.ERROR:
            actions += state.close_session(session, "the client requested an error")
    return actions
