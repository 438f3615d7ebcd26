"""The order in which a gateway offers records: what it may decide, and the usual one, that of their arrival. Pure.

Invariant: an order decides which sessions are accepted, what a session may send, and the sequence of the end of a
stream. `gateway/state` decides everything else. `gateway/event_time_state` is the other order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from procession.gateway.gateway_events import Action, RowsOrdered, StreamsIdled
from procession.gateway.snapshot import Snapshot
from procession.merge.stream_clocks import StreamClock
from procession.wire.messages import Hello, Messages, Notify

if TYPE_CHECKING:
    from procession.gateway.state import GatewayState


class RecordOrder(Protocol):
    """What the order of records decides. An error of the peer is a RemoteProtocolError."""

    @property
    def retires(self) -> bool:
        """Whether idle streams are retired."""

    def begin(self, state: GatewayState) -> None:
        """The state is restored."""

    def handle(self, state: GatewayState, event: StreamsIdled | RowsOrdered) -> list[Action]:
        """Handles an event of the order itself."""

    def check_hello(self, hello: Hello) -> None: ...

    def refuses(self, state: GatewayState, stream_id: int) -> bool:
        """Whether the stream may not be opened now."""

    def opening(self, state: GatewayState, session: int, notify: Notify) -> None:
        """The stream is about to be opened."""

    def check_messages(self, state: GatewayState, messages: Messages) -> None: ...

    def stream_ended(self, state: GatewayState, session: int, stream_id: int) -> list[Action] | None:
        """The actions, if the end of the stream needs no row. None: it gets one."""

    def end_of_stream(self, state: GatewayState) -> int:
        """Sequence of the end of a stream that ends now."""

    def closing(self, state: GatewayState, stream_ids: Iterable[int]) -> int:
        """These streams may be released when all below this sequence is committed."""

    def granted(self, state: GatewayState, stream_id: int, clock: StreamClock | None) -> list[Action]:
        """The leader grants the stream, which is so far."""

    def offered_end(self, state: GatewayState) -> int | None:
        """End of the log that the driver reads, once it holds all that was received. None: it does not yet."""

    def appending(self, state: GatewayState, session: int, batch: pa.RecordBatch) -> None:
        """These rows of a session are about to be appended."""

    def spares(self, state: GatewayState, session: int) -> bool:
        """Whether the session is read although there is too much uncommitted."""

    def allowed(self, state: GatewayState, session: int, among_all: int) -> int:
        """Credits that the session may hold, if `among_all` is its part of all."""

    def complete(self, state: GatewayState, snapshot: Snapshot) -> Snapshot:
        """The snapshot with what the order must remember."""

    def settle(self, state: GatewayState, snapshot: Snapshot) -> list[int]:
        """The snapshot is on disk. Gives the sessions without credits, whose streams may have some now."""


class ArrivalOrder:
    """Records are offered as they arrive: one log, and credits for all sessions alike."""

    retires = True

    def begin(self, state: GatewayState) -> None:
        """Nothing to restore."""

    def handle(self, state: GatewayState, event: StreamsIdled | RowsOrdered) -> list[Action]:
        raise AssertionError(f"{type(event).__name__} is for event-time order")

    def check_hello(self, hello: Hello) -> None:
        """Every protocol version is accepted."""

    def refuses(self, state: GatewayState, stream_id: int) -> bool:
        return False

    def opening(self, state: GatewayState, session: int, notify: Notify) -> None:
        """Streams have no limits of their own."""

    def check_messages(self, state: GatewayState, messages: Messages) -> None:
        """A stream may go on after its end."""

    def stream_ended(self, state: GatewayState, session: int, stream_id: int) -> list[Action] | None:
        return None

    def end_of_stream(self, state: GatewayState) -> int:
        return state.next_sequence

    def closing(self, state: GatewayState, stream_ids: Iterable[int]) -> int:
        return state.next_sequence

    def granted(self, state: GatewayState, stream_id: int, clock: StreamClock | None) -> list[Action]:
        return []

    def offered_end(self, state: GatewayState) -> int | None:
        return state.next_sequence

    def appending(self, state: GatewayState, session: int, batch: pa.RecordBatch) -> None:
        """Credits are those of the session."""

    def spares(self, state: GatewayState, session: int) -> bool:
        return False

    def allowed(self, state: GatewayState, session: int, among_all: int) -> int:
        return among_all

    def complete(self, state: GatewayState, snapshot: Snapshot) -> Snapshot:
        return snapshot

    def settle(self, state: GatewayState, snapshot: Snapshot) -> list[int]:
        return []
