"""The lifecycle of a stream within one session, as a table.

The one rule: what the table does not have is an error and changes nothing. `connection` keeps one state per stream id
and moves it by every frame that names the stream, in either direction.
"""

from __future__ import annotations

import enum


class StreamState(enum.Enum):
    START = "not notified"
    NOTIFY_SENT = "waiting for NOTIFY_ACK"
    OPEN = "open"
    CLOSED = "closed"
    TERMINATED = "terminated"

    __hash__ = object.__hash__  # as in `lifecycle`


class StreamStep(enum.Enum):
    NOTIFY = "NOTIFY"
    ACCEPTED = "NOTIFY_ACK with success"
    REFUSED = "NOTIFY_ACK without success"
    MESSAGE = "MESSAGE"
    EOS = "EOS_MESSAGE"
    LAST = "MESSAGE with EOS"
    ACK = "ACK"
    RESTART = "RESTART"

    __hash__ = object.__hash__


STREAM: dict[StreamState, dict[StreamStep, StreamState]] = {
    StreamState.START: {
        StreamStep.NOTIFY: StreamState.NOTIFY_SENT,
    },
    StreamState.NOTIFY_SENT: {
        StreamStep.ACCEPTED: StreamState.OPEN,
        StreamStep.REFUSED: StreamState.CLOSED,
        # A NOTIFY for what is not free is refused, not an error: the owner answers, and the stream stays where it is.
        StreamStep.NOTIFY: StreamState.NOTIFY_SENT,
        # A stream that was closed and is being reopened: the ACK of its former life crosses the NOTIFY on the wire.
        StreamStep.ACK: StreamState.NOTIFY_SENT,
        StreamStep.RESTART: StreamState.TERMINATED,
    },
    StreamState.OPEN: {
        StreamStep.MESSAGE: StreamState.OPEN,
        StreamStep.EOS: StreamState.CLOSED,
        StreamStep.ACK: StreamState.OPEN,
        StreamStep.NOTIFY: StreamState.OPEN,
        StreamStep.REFUSED: StreamState.OPEN,
        StreamStep.RESTART: StreamState.TERMINATED,
    },
    StreamState.CLOSED: {
        StreamStep.NOTIFY: StreamState.NOTIFY_SENT,
        StreamStep.ACK: StreamState.CLOSED,
        # The answer to a NOTIFY that was sent while the stream was open, or before the answer to another.
        StreamStep.ACCEPTED: StreamState.OPEN,
        StreamStep.REFUSED: StreamState.CLOSED,
        StreamStep.RESTART: StreamState.TERMINATED,
    },
    StreamState.TERMINATED: {},
}
