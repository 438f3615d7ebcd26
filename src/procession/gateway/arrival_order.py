"""The order in which a gateway offers records: its interface, and the default order, which is that of arrival. Pure.

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
    """The decisions that depend on the order of records. An error of the peer is a RemoteProtocolError."""

    @property
    def retires(self) -> bool:
        """Whether idle streams are retired."""

    def begin(self, state: GatewayState) -> None:
        """Restore the order when the state is restored."""

    def handle(self, state: GatewayState, event: StreamsIdled | RowsOrdered) -> list[Action]:
        """Handle an event of the order itself."""

    def check_hello(self, hello: Hello) -> None: ...

    def refuses(self, state: GatewayState, stream_id: int) -> bool:
        """Whether the stream may not be opened now."""

    def opening(self, state: GatewayState, session: int, notify: Notify) -> None:
        """Prepare for the opening of the stream."""

    def check_messages(self, state: GatewayState, messages: Messages) -> None: ...

    def stream_ended(self, state: GatewayState, session: int, stream_id: int) -> list[Action] | None:
        """Return the actions if the end of the stream needs no row. None: the end gets a row."""

    def end_of_stream(self, state: GatewayState) -> int:
        """Return the sequence of the end of a stream that ends now."""

    def closing(self, state: GatewayState, stream_ids: Iterable[int]) -> int:
        """Return a sequence. When all rows below it are committed, these streams may be released."""

    def granted(self, state: GatewayState, stream_id: int, clock: StreamClock | None) -> list[Action]:
        """Handle the leader's grant of the stream, which has reached the clock."""

    def offered_end(self, state: GatewayState) -> int | None:
        """Return the end of the log that the driver reads. None: this log does not have all received records yet."""

    def appending(self, state: GatewayState, session: int, batch: pa.RecordBatch) -> None:
        """Note that these rows of a session are about to be appended."""

    def spares(self, state: GatewayState, session: int) -> bool:
        """Whether the session is read although there are too many uncommitted records."""

    def allowed(self, state: GatewayState, session: int, among_all: int) -> int:
        """Return the credits that the session may hold, if its share of all credits is `among_all`."""

    def complete(self, state: GatewayState, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the data that the order must remember."""

    def settle(self, state: GatewayState, snapshot: Snapshot) -> list[int]:
        """Handle a snapshot that is on disk. Returns the sessions without credits, whose streams may have some now."""


class ArrivalOrder:
    """Offers records as they arrive: one log, and the same credits for all sessions."""

    retires = True

    def begin(self, state: GatewayState) -> None:
        """Do nothing: there is nothing to restore."""

    def handle(self, state: GatewayState, event: StreamsIdled | RowsOrdered) -> list[Action]:
        raise AssertionError(f"{type(event).__name__} is for event-time order")

    def check_hello(self, hello: Hello) -> None:
        """Accept every protocol version."""

    def refuses(self, state: GatewayState, stream_id: int) -> bool:
        return False

    def opening(self, state: GatewayState, session: int, notify: Notify) -> None:
        """Do nothing: there are no limits per stream."""

    def check_messages(self, state: GatewayState, messages: Messages) -> None:
        """Do nothing: a stream may continue after its end."""

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
        """Do nothing: credits belong to the session, not to its streams."""

    def spares(self, state: GatewayState, session: int) -> bool:
        return False

    def allowed(self, state: GatewayState, session: int, among_all: int) -> int:
        return among_all

    def complete(self, state: GatewayState, snapshot: Snapshot) -> Snapshot:
        return snapshot

    def settle(self, state: GatewayState, snapshot: Snapshot) -> list[int]:
        return []
