"""The draft adapter: lets a source that knows the messages of version 3 speak the draft.

Invariant: the adapter only translates. The answer to a NOTIFY comes from OK and the ACKs; a MESSAGE and the end of a
stream become frames of the draft. `connection` uses it at the source's end of a draft session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from procession.wire.draft_messages import AnyFrame, DraftMessage, DraftOk
from procession.wire.messages import NOTHING_COMMITTED, Eos, Message, NotifyAck, Ok


class VersionAdapter:
    """Adapter of a source that speaks version 3: frames are sent unchanged, and a frame answers each NOTIFY."""

    def ok_received(self, frame: Ok) -> None:
        """Handle the gateway's OK."""

    def committed(self, points: Iterable[tuple[int, int]]) -> None:
        """Handle the gateway's message that these points of reference are committed."""

    def notified(self, stream_id: int) -> None:
        """Handle a NOTIFY that was sent."""

    def answers(self) -> Iterator[NotifyAck]:
        """Return the answers to NOTIFYs that arrive without a frame."""
        return iter(())

    def sent_without_ids(self, stream_id: int) -> None:
        """Handle ephemeral messages that were sent."""

    def translated(self, frame: AnyFrame) -> AnyFrame:
        """Translate a frame into this dialect."""
        return frame


class DraftAdapter(VersionAdapter):
    """Adapter of a source that speaks the draft."""

    def __init__(self) -> None:
        self._points: dict[int, int] = {}
        self._answers: deque[NotifyAck] = deque()
        self._ephemeral: set[int] = set()
        """Streams with ephemeral messages, whose end has no id either."""

    def ok_received(self, frame: Ok) -> None:
        assert isinstance(frame, DraftOk)
        self.committed((stream_id, point) for stream_id, _, point in frame.streams)

    def committed(self, points: Iterable[tuple[int, int]]) -> None:
        self._points |= dict(points)

    def notified(self, stream_id: int) -> None:
        """Record the answer to the NOTIFY: the stream is open without a frame from the gateway."""
        self._ephemeral.discard(stream_id)
        self._answers.append(NotifyAck(True, stream_id, self._points.get(stream_id, NOTHING_COMMITTED)))

    def answers(self) -> Iterator[NotifyAck]:
        while self._answers:
            yield self._answers.popleft()

    def sent_without_ids(self, stream_id: int) -> None:
        self._ephemeral.add(stream_id)

    def translated(self, frame: AnyFrame) -> AnyFrame:
        """Translate a frame into the draft.

        An end without an id is not a point of reference, because a stream without messages has none."""
        match frame:
            case Message(stream_id, message_id, event_time, key, payload):
                return DraftMessage(stream_id, message_id, payload, event_time or None, key or None)
            case Eos(stream_id) if stream_id in self._ephemeral:
                return DraftMessage(stream_id, None, None, is_last=True)
            case Eos(stream_id, message_id):
                return DraftMessage(stream_id, message_id or 0, None, is_last=True, is_unstable=message_id is None)
            case _:
                return frame
