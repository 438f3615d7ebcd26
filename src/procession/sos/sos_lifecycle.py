"""The lifecycle of a connection to the object service, as a table of the frames that each side may send in each state.
Pure.

Invariant: a step that is not in the table is an error and changes nothing. `sos/sos_connection` follows this table.
"""

from __future__ import annotations

import enum

from procession.sos.sos_frames import REPLIES, REQUESTS, SosError, SosFrame, SosHello, SosWelcome
from procession.wire.lifecycle import ConnectionSide


class SosState(enum.Enum):
    CONNECTED = "connected"
    HELLO_SENT = "hello sent"
    """HELLO was sent; requests wait for WELCOME."""
    OPEN = "open"
    ERROR = "error"

    __hash__ = object.__hash__


SosTable = dict[SosState, dict[ConnectionSide, dict[type[SosFrame], SosState]]]

SOS: SosTable = {
    SosState.CONNECTED: {
        ConnectionSide.INITIATOR: {SosHello: SosState.HELLO_SENT, SosError: SosState.ERROR},
        ConnectionSide.ACCEPTOR: {SosError: SosState.ERROR},
    },
    SosState.HELLO_SENT: {
        ConnectionSide.INITIATOR: {SosError: SosState.ERROR},
        ConnectionSide.ACCEPTOR: {SosWelcome: SosState.OPEN, SosError: SosState.ERROR},
    },
    SosState.OPEN: {
        ConnectionSide.INITIATOR: {**dict.fromkeys(REQUESTS, SosState.OPEN), SosError: SosState.ERROR},
        ConnectionSide.ACCEPTOR: {**dict.fromkeys(REPLIES, SosState.OPEN), SosError: SosState.ERROR},
    },
    SosState.ERROR: {ConnectionSide.INITIATOR: {}, ConnectionSide.ACCEPTOR: {}},
}
