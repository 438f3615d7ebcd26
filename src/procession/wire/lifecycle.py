"""The lifecycle of a connection, as tables: which side may send which frame in which state, and what state follows.

The one rule: what the table does not have is an error and changes nothing. `connection` walks these tables;
`stream_lifecycle` has the lifecycle of the streams inside.
"""

from __future__ import annotations

import enum

from procession.wire.messages import Ack, Eos, Error, Frame, Hello, Message, Notify, NotifyAck, Ok, Restart


class Side(enum.Enum):
    """Who opened the connection: the initiator says HELLO, the acceptor OK."""

    INITIATOR = "initiator"
    ACCEPTOR = "acceptor"

    __hash__ = object.__hash__  # every frame asks the tables; a member is itself only, and the hash of its name is slow

    @property
    def other(self) -> Side:
        return _OTHER[self]


_OTHER = {Side.INITIATOR: Side.ACCEPTOR, Side.ACCEPTOR: Side.INITIATOR}


class Role(enum.Enum):
    """What the connector at one end is: a source (then it is the initiator) or a sink (then it is the acceptor)."""

    SOURCE = "source"
    SINK = "sink"

    __hash__ = object.__hash__


class State(enum.Enum):
    CONNECTED = "connected"
    HANDSHAKE = "handshake"
    STREAMING = "streaming"
    ERROR = "error"
    DISCONNECTED = "disconnected"

    __hash__ = object.__hash__


Table = dict[State, dict[Side, dict[type[Frame], State]]]

SOURCE: Table = {
    State.CONNECTED: {
        Side.INITIATOR: {Hello: State.HANDSHAKE, Error: State.ERROR},
        Side.ACCEPTOR: {Error: State.ERROR},
    },
    State.HANDSHAKE: {
        Side.INITIATOR: {Error: State.ERROR},
        Side.ACCEPTOR: {Ok: State.STREAMING, Error: State.ERROR},
    },
    State.STREAMING: {
        Side.INITIATOR: {
            Notify: State.STREAMING,
            Message: State.STREAMING,
            Eos: State.STREAMING,
            Error: State.ERROR,
        },
        Side.ACCEPTOR: {
            NotifyAck: State.STREAMING,
            Ack: State.STREAMING,
            Restart: State.DISCONNECTED,
            Error: State.ERROR,
        },
    },
    State.ERROR: {Side.INITIATOR: {}, Side.ACCEPTOR: {}},
    State.DISCONNECTED: {Side.INITIATOR: {}, Side.ACCEPTOR: {}},
}

SINK: Table = {
    State.CONNECTED: {
        Side.INITIATOR: {Hello: State.HANDSHAKE, Error: State.ERROR},
        Side.ACCEPTOR: {Error: State.ERROR},
    },
    State.HANDSHAKE: {
        # A worker says HELLO, NOTIFY and LIST_UNCOMMITTED in one breath; existing sinks wait for all three.
        Side.INITIATOR: {Notify: State.HANDSHAKE, Message: State.HANDSHAKE, Error: State.ERROR},
        Side.ACCEPTOR: {Ok: State.STREAMING, Error: State.ERROR},
    },
    State.STREAMING: {
        Side.INITIATOR: {
            Notify: State.STREAMING,
            Message: State.STREAMING,
            Eos: State.STREAMING,
            Error: State.ERROR,
        },
        Side.ACCEPTOR: {
            NotifyAck: State.STREAMING,
            Message: State.STREAMING,
            Ack: State.STREAMING,
            Restart: State.DISCONNECTED,
            Error: State.ERROR,
        },
    },
    State.ERROR: {Side.INITIATOR: {}, Side.ACCEPTOR: {}},
    State.DISCONNECTED: {Side.INITIATOR: {}, Side.ACCEPTOR: {}},
}

TABLES: dict[Role, Table] = {Role.SOURCE: SOURCE, Role.SINK: SINK}
