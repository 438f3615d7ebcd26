"""The draft adapter: lets a source that knows the messages of version 3 speak the draft.

The one rule: it adds nothing that was not said. A NOTIFY's answer is what OK and the ACKs have told; a MESSAGE and the
end of a stream become what the draft has for them. `connection` asks it at the source's end of a session of the draft.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from procession.wire.draft_messages import AnyFrame, DraftMessage
from procession.wire.messages import NOTHING_COMMITTED, Eos, Message, NotifyAck


class Interpreter:
    """For a source that speaks version 3: its frames are sent as they are, and each NOTIFY is answered by a frame."""

    def told(self, points: Iterable[tuple[int, int]]) -> None:
        """The gateway said that these points of reference are committed."""

    def notified(self, stream_id: int) -> None:
        """We have sent a NOTIFY."""

    def answers(self) -> Iterator[NotifyAck]:
        """The answers to our NOTIFYs that no frame brings."""
        return iter(())

    def sent_without_ids(self, stream_id: int) -> None:
        """We have sent ephemeral messages."""

    def translated(self, frame: AnyFrame) -> AnyFrame:
        """The frame in this dialect."""
        return frame


class DraftInterpreter(Interpreter):
    """For a source that speaks the draft."""

    def __init__(self) -> None:
        self._points: dict[int, int] = {}
        self._answers: deque[NotifyAck] = deque()
        self._ephemeral: set[int] = set()
        """Streams on which messages without ids were sent: their end has none either."""

    def told(self, points: Iterable[tuple[int, int]]) -> None:
        self._points |= dict(points)

    def notified(self, stream_id: int) -> None:
        """We have sent a NOTIFY, and the stream is open: no frame will say so."""
        self._ephemeral.discard(stream_id)
        self._answers.append(NotifyAck(True, stream_id, self._points.get(stream_id, NOTHING_COMMITTED)))

    def answers(self) -> Iterator[NotifyAck]:
        while self._answers:
            yield self._answers.popleft()

    def sent_without_ids(self, stream_id: int) -> None:
        self._ephemeral.add(stream_id)

    def translated(self, frame: AnyFrame) -> AnyFrame:
        """The frame in the words of the draft. An end without an id is no point of reference: of a stream without
        messages there is none that could be given."""
        match frame:
            case Message(stream_id, message_id, event_time, key, payload):
                return DraftMessage(stream_id, message_id, payload, event_time or None, key or None)
            case Eos(stream_id) if stream_id in self._ephemeral:
                return DraftMessage(stream_id, None, None, is_last=True)
            case Eos(stream_id, message_id):
                return DraftMessage(stream_id, message_id or 0, None, is_last=True, is_unstable=message_id is None)
            case _:
                return frame
