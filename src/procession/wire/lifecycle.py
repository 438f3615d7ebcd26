"""The lifecycle of a connection, as tables: the frames that each side may send in each state, and the following states.

Invariant: a step that is not in the table is an error and changes nothing. `connection` follows these tables;
`stream_lifecycle` has the lifecycle of the streams within a connection.
"""

from __future__ import annotations

import enum

from procession.wire.messages import Ack, Eos, Error, Frame, Hello, Message, Notify, NotifyAck, Ok, Restart


class ConnectionSide(enum.Enum):
    """One side of a connection: the initiator sends HELLO, the acceptor OK."""

    INITIATOR = "initiator"
    ACCEPTOR = "acceptor"

    __hash__ = object.__hash__  # tables are looked up for every frame, and the default hash by name is slow

    @property
    def other(self) -> ConnectionSide:
        return _OTHER[self]


_OTHER = {ConnectionSide.INITIATOR: ConnectionSide.ACCEPTOR, ConnectionSide.ACCEPTOR: ConnectionSide.INITIATOR}


class Role(enum.Enum):
    """The connector's role: a source is the initiator, a sink is the acceptor."""

    SOURCE = "source"
    SINK = "sink"

    __hash__ = object.__hash__


class ConnectionState(enum.Enum):
    CONNECTED = "connected"
    HANDSHAKE = "handshake"
    STREAMING = "streaming"
    ERROR = "error"
    DISCONNECTED = "disconnected"

    __hash__ = object.__hash__


Table = dict[ConnectionState, dict[ConnectionSide, dict[type[Frame], ConnectionState]]]

SOURCE: Table = {
    ConnectionState.CONNECTED: {
        ConnectionSide.INITIATOR: {Hello: ConnectionState.HANDSHAKE, Error: ConnectionState.ERROR},
        ConnectionSide.ACCEPTOR: {Error: ConnectionState.ERROR},
    },
    ConnectionState.HANDSHAKE: {
        ConnectionSide.INITIATOR: {Error: ConnectionState.ERROR},
        ConnectionSide.ACCEPTOR: {Ok: ConnectionState.STREAMING, Error: ConnectionState.ERROR},
    },
    ConnectionState.STREAMING: {
        ConnectionSide.INITIATOR: {
            Notify: ConnectionState.STREAMING,
            Message: ConnectionState.STREAMING,
            Eos: ConnectionState.STREAMING,
            Error: ConnectionState.ERROR,
        },
        ConnectionSide.ACCEPTOR: {
            NotifyAck: ConnectionState.STREAMING,
            Ack: ConnectionState.STREAMING,
            Restart: ConnectionState.DISCONNECTED,
            Error: ConnectionState.ERROR,
        },
    },
    ConnectionState.ERROR: {ConnectionSide.INITIATOR: {}, ConnectionSide.ACCEPTOR: {}},
    ConnectionState.DISCONNECTED: {ConnectionSide.INITIATOR: {}, ConnectionSide.ACCEPTOR: {}},
}

SINK: Table = {
    ConnectionState.CONNECTED: {
        ConnectionSide.INITIATOR: {Hello: ConnectionState.HANDSHAKE, Error: ConnectionState.ERROR},
        ConnectionSide.ACCEPTOR: {Error: ConnectionState.ERROR},
    },
    ConnectionState.HANDSHAKE: {
        # A worker sends HELLO, NOTIFY and LIST_UNCOMMITTED together; existing sinks wait for all three.
        ConnectionSide.INITIATOR: {
            Notify: ConnectionState.HANDSHAKE,
            Message: ConnectionState.HANDSHAKE,
            Error: ConnectionState.ERROR,
        },
        ConnectionSide.ACCEPTOR: {Ok: ConnectionState.STREAMING, Error: ConnectionState.ERROR},
    },
    ConnectionState.STREAMING: {
        ConnectionSide.INITIATOR: {
            Notify: ConnectionState.STREAMING,
            Message: ConnectionState.STREAMING,
            Eos: ConnectionState.STREAMING,
            Error: ConnectionState.ERROR,
        },
        ConnectionSide.ACCEPTOR: {
            NotifyAck: ConnectionState.STREAMING,
            Message: ConnectionState.STREAMING,
            Ack: ConnectionState.STREAMING,
            Restart: ConnectionState.DISCONNECTED,
            Error: ConnectionState.ERROR,
        },
    },
    ConnectionState.ERROR: {ConnectionSide.INITIATOR: {}, ConnectionSide.ACCEPTOR: {}},
    ConnectionState.DISCONNECTED: {ConnectionSide.INITIATOR: {}, ConnectionSide.ACCEPTOR: {}},
}

TABLES: dict[Role, Table] = {Role.SOURCE: SOURCE, Role.SINK: SINK}
