"""The lifecycle of a connection of the draft, and of a stream within it, as tables.

The one rule: as in `lifecycle` and `stream_lifecycle`, what the table does not have is an error and changes nothing.
The draft is for sources only. A NOTIFY opens its stream at once: there is no NOTIFY_ACK. The end of a stream is a flag
of a MESSAGE. ACK with counts and DEBUG may be sent only in a session whose HELLO asked for them
(`draft_messages.NEEDS`).
"""

from __future__ import annotations

from procession.wire.draft_messages import AckCounts, Debug, DraftFrame, DraftMessage, DraftOk
from procession.wire.lifecycle import Side, State
from procession.wire.messages import Ack, Error, Hello, Notify, Restart
from procession.wire.stream_lifecycle import StreamState, StreamStep

DRAFT_CONNECTION: dict[State, dict[Side, dict[type[DraftFrame], State]]] = {
    State.CONNECTED: {
        Side.INITIATOR: {Hello: State.HANDSHAKE, Error: State.ERROR},
        Side.ACCEPTOR: {Error: State.ERROR},
    },
    State.HANDSHAKE: {
        Side.INITIATOR: {Error: State.ERROR},
        Side.ACCEPTOR: {DraftOk: State.STREAMING, Error: State.ERROR},
    },
    State.STREAMING: {
        Side.INITIATOR: {
            Notify: State.STREAMING,
            DraftMessage: State.STREAMING,
            Debug: State.STREAMING,
            Error: State.ERROR,
        },
        Side.ACCEPTOR: {
            Ack: State.STREAMING,
            AckCounts: State.STREAMING,
            Restart: State.DISCONNECTED,
            Error: State.ERROR,
        },
    },
    State.ERROR: {Side.INITIATOR: {}, Side.ACCEPTOR: {}},
    State.DISCONNECTED: {Side.INITIATOR: {}, Side.ACCEPTOR: {}},
}

DRAFT_STREAM: dict[StreamState, dict[StreamStep, StreamState]] = {
    StreamState.START: {
        StreamStep.NOTIFY: StreamState.OPEN,
    },
    StreamState.OPEN: {
        StreamStep.MESSAGE: StreamState.OPEN,
        StreamStep.LAST: StreamState.CLOSED,
        StreamStep.ACK: StreamState.OPEN,
        StreamStep.RESTART: StreamState.TERMINATED,
    },
    StreamState.CLOSED: {
        StreamStep.NOTIFY: StreamState.OPEN,
        StreamStep.ACK: StreamState.CLOSED,
        StreamStep.RESTART: StreamState.TERMINATED,
    },
    StreamState.TERMINATED: {},
}
