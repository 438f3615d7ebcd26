"""The lifecycle of a stream within one session, as a table.

Invariant: a step that is not in the table is an error and changes nothing. `connection` keeps one state per stream id
and updates it with every frame of the stream, in either direction.
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
        # A NOTIFY for a stream that is in use is refused, not an error; the stream keeps its state.
        StreamStep.NOTIFY: StreamState.NOTIFY_SENT,
        # The stream is being reopened, and an ACK from before its end crosses the NOTIFY on the wire.
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
        # The answer to a NOTIFY that was sent while the stream was open, or while another NOTIFY was pending.
        StreamStep.ACCEPTED: StreamState.OPEN,
        StreamStep.REFUSED: StreamState.CLOSED,
        StreamStep.RESTART: StreamState.TERMINATED,
    },
    StreamState.TERMINATED: {},
}
