"""A producer's session at a simulated gateway. Reports to the oracle what is sent to producers.

Invariant: a session number is never reused, so a message for an ended session reaches no other one. Upstream:
`network`. Downstream: `simulated_gateway`.
"""

from __future__ import annotations

from collections.abc import Callable

from procession.gateway.snapshot import Snapshot
from procession.sim.durable_gateway import is_durable_anywhere
from procession.sim.environment import Environment
from procession.sim.network import Endpoint
from procession.wire.connection import Connection
from procession.wire.draft_messages import AnyFrame
from procession.wire.lifecycle import ConnectionSide, Role
from procession.wire.messages import NOTHING_COMMITTED, Ack, NotifyAck


class SimulatedSession:
    __slots__ = ("connection", "end", "number")

    def __init__(self, end: Endpoint, number: int) -> None:
        self.end = end
        self.number = number
        self.connection = Connection(ConnectionSide.ACCEPTOR, Role.SOURCE)


def check_acknowledgement(site: Environment, durable: Callable[[], Snapshot], frame: AnyFrame) -> None:
    """A gateway sends this frame, and has this snapshot on disk."""
    if isinstance(frame, NotifyAck) and frame.success:
        site.oracle.opened(frame.stream_id, frame.point_of_reference)
    match frame:
        case Ack():
            positions = frame.positions
        case NotifyAck() if frame.success and frame.point_of_reference != NOTHING_COMMITTED:
            positions = ((frame.stream_id, frame.point_of_reference),)
        case _:
            return
    for stream_id, point in positions:
        position = durable().streams.get(stream_id)
        is_durable = position is not None and position.committed >= point
        if not is_durable and isinstance(frame, NotifyAck):
            is_durable = is_durable_anywhere(site.disks, stream_id, point)
        site.oracle.check_ack(stream_id, point, is_durable)
