"""The lifecycle of a connection of the draft, and of a stream within it, as tables.

Invariant: as in `lifecycle` and `stream_lifecycle`, a step that is not in the table is an error and changes nothing.
The draft is for sources only. A NOTIFY opens its stream at once: there is no NOTIFY_ACK. The end of a stream is a flag
of a MESSAGE. ACK with counts and DEBUG may be sent only in a session whose HELLO asked for them
(`draft_messages.NEEDS`).
"""

from __future__ import annotations

from procession.wire.draft_messages import AckCounts, Debug, DraftFrame, DraftMessage, DraftOk
from procession.wire.lifecycle import ConnectionSide, ConnectionState
from procession.wire.messages import Ack, Error, Hello, Notify, Restart
from procession.wire.stream_lifecycle import StreamState, StreamStep

DRAFT_CONNECTION: dict[ConnectionState, dict[ConnectionSide, dict[type[DraftFrame], ConnectionState]]] = {
    ConnectionState.CONNECTED: {
        ConnectionSide.INITIATOR: {Hello: ConnectionState.HANDSHAKE, Error: ConnectionState.ERROR},
        ConnectionSide.ACCEPTOR: {Error: ConnectionState.ERROR},
    },
    ConnectionState.HANDSHAKE: {
        ConnectionSide.INITIATOR: {Error: ConnectionState.ERROR},
        ConnectionSide.ACCEPTOR: {DraftOk: ConnectionState.STREAMING, Error: ConnectionState.ERROR},
    },
    ConnectionState.STREAMING: {
        ConnectionSide.INITIATOR: {
            Notify: ConnectionState.STREAMING,
            DraftMessage: ConnectionState.STREAMING,
            Debug: ConnectionState.STREAMING,
            Error: ConnectionState.ERROR,
        },
        ConnectionSide.ACCEPTOR: {
            Ack: ConnectionState.STREAMING,
            AckCounts: ConnectionState.STREAMING,
            Restart: ConnectionState.DISCONNECTED,
            Error: ConnectionState.ERROR,
        },
    },
    ConnectionState.ERROR: {ConnectionSide.INITIATOR: {}, ConnectionSide.ACCEPTOR: {}},
    ConnectionState.DISCONNECTED: {ConnectionSide.INITIATOR: {}, ConnectionSide.ACCEPTOR: {}},
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
