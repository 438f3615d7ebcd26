"""Checks one step of a connection at both ends, for the tests of both protocol versions."""

from __future__ import annotations

import pytest

from procession.errors import LocalProtocolError
from procession.wire.connection import Connection, Violation
from procession.wire.draft_messages import AnyFrame
from procession.wire.lifecycle import ConnectionSide, ConnectionState
from procession.wire.stream_lifecycle import StreamState, StreamStep


class JoinedConnections:
    """Two connections joined in memory: the bytes that one sends are received by the other at once."""

    initiator: Connection
    acceptor: Connection

    def ends(self, sender: ConnectionSide) -> tuple[Connection, Connection]:
        """Return the connection that sends and the one that receives."""
        is_initiator = sender is ConnectionSide.INITIATOR
        return (self.initiator, self.acceptor) if is_initiator else (self.acceptor, self.initiator)

    def pass_on(self, frame: AnyFrame, sender: ConnectionSide) -> list[object]:
        sending, receiving = self.ends(sender)
        return list(receiving.receive(sending.send(frame)))

    def pass_all(self, frames: list[tuple[ConnectionSide, AnyFrame]], state: ConnectionState) -> None:
        """Send these frames, and check that both ends are then in this state."""
        for sender, frame in frames:
            self.pass_on(frame, sender)
        assert (self.initiator.state, self.acceptor.state) == (state, state)

    def check_step(
        self, sender: ConnectionSide, frame: AnyFrame, encoded: bytes, following: ConnectionState | None
    ) -> None:
        """Check a frame at both ends.

        An allowed frame moves both to `following`. A forbidden one (None) moves neither, and is a violation if it
        arrives anyway.
        """
        sending, receiving = self.ends(sender)
        state = sending.state
        if following is not None:
            events = receiving.receive(sending.send(frame))
            assert (sending.state, receiving.state) == (following, following)
            assert len(events) == 1
            assert not isinstance(events[0], Violation)
            return
        with pytest.raises(LocalProtocolError):
            sending.send(frame)
        assert sending.state is state
        events = receiving.receive(encoded)
        if state in (ConnectionState.ERROR, ConnectionState.DISCONNECTED):
            assert (events, receiving.state) == ([], state)
        else:
            assert [type(event) for event in events] == [Violation]
            assert receiving.state is ConnectionState.ERROR

    def check_stream_step(
        self,
        sender: ConnectionSide,
        frame: AnyFrame,
        encoded: bytes,
        state: StreamState,
        step: StreamStep,
        following: StreamState | None,
    ) -> None:
        """Check a frame on stream 7, which is in `state`, at both ends.

        An allowed frame moves the stream to `following`. A forbidden one (None) moves neither end, and is a violation
        if it arrives anyway.
        """
        sending, receiving = self.ends(sender)
        assert sending.stream_state(7) is receiving.stream_state(7) is state
        if following is not None:
            receiving.receive(sending.send(frame))
            assert sending.stream_state(7) is receiving.stream_state(7) is following
        elif step is StreamStep.RESTART and state is StreamState.START:
            receiving.receive(sending.send(frame))
            assert sending.stream_state(7) is state
        else:
            with pytest.raises(LocalProtocolError):
                sending.send(frame)
            assert sending.stream_state(7) is state
            events = receiving.receive(encoded)
            assert receiving.stream_state(7) is state
            assert [type(event) for event in events] == ([] if state is StreamState.TERMINATED else [Violation])
