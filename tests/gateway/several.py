"""Several gateways without sockets, disks or Spark: the real states and the real global registry, with messages in
flight between them, and a driver that reads epochs.

Invariant: no message arrives by itself. A test delivers each one, or loses it with the process that should receive it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from procession.commit.round_record import RoundRecord, next_positions
from procession.errors import StorageError
from procession.gateway.gateway_events import (
    Action,
    AppendRows,
    AskForStream,
    EpochCommitted,
    Event,
    FrameReceived,
    LeaderFound,
    LeaderKeeps,
    LeaderLost,
    RelinquishStream,
    RetireStreams,
    RowsAppended,
    SendFrame,
    SessionClosed,
    SessionOpened,
    SnapshotWritten,
    StreamGranted,
    StreamRefused,
    StreamRelinquished,
    WriteSnapshot,
)
from procession.gateway.gateway_limits import Limits
from procession.gateway.global_registry import GlobalRegistry, Grant
from procession.gateway.retired_streams import Retiring, checked
from procession.gateway.snapshot import Snapshot
from procession.gateway.state import GatewayState
from procession.storage.segment import INGRESS_SCHEMA, KIND_RECORD
from procession.wire.messages import NOTHING_COMMITTED, Ack, Eos, Hello, Messages, Notify, NotifyAck

HELLO = Hello("0.0.1", b"", "program", "instance")
LEADER = "gateway-0"


class Producer:
    """A session with one stream, as its client sees it: it continues from the point of reference that it gets."""

    def __init__(self, gateway: Node, session: int, stream_id: int) -> None:
        self.gateway = gateway
        self.session = session
        self.stream_id = stream_id
        self.next_id: int | None = None
        self.answers: list[NotifyAck] = []
        self.is_over = False

    def receive(self, answer: NotifyAck) -> None:
        self.answers.append(answer)
        if answer.success:
            self.next_id = 0 if answer.point_of_reference == NOTHING_COMMITTED else answer.point_of_reference + 1
            position = self.gateway.cluster.told.get(self.stream_id, 0)
            assert self.next_id >= position, f"{self.stream_id} continues at {self.next_id}, committed below {position}"
            self.gateway.cluster.told[self.stream_id] = self.next_id

    @property
    def is_open(self) -> bool:
        return self.next_id is not None and not self.is_over

    def notify(self) -> None:
        self.gateway.do(FrameReceived(self.session, Notify(self.stream_id, f"stream {self.stream_id}", 0)))

    def send(self) -> None:
        assert self.next_id is not None
        message = Messages.of([self.stream_id], [self.next_id], [0], [b""], [b"%d" % self.next_id])
        self.next_id += 1
        self.gateway.do(FrameReceived(self.session, message))

    def end(self) -> None:
        self.is_over = True
        self.gateway.do(FrameReceived(self.session, Eos(self.stream_id)))

    def close(self) -> None:
        self.is_over = True
        self.gateway.producers.pop(self.session, None)
        self.gateway.do(SessionClosed(self.session))


class Node:
    """One gateway. Its log is a list; only rows that were offered are certain to survive a crash."""

    def __init__(self, name: str, cluster: Several) -> None:
        self.name = name
        self.cluster = cluster
        self.rows: list[dict[str, Any]] = []
        self.durable = 0
        self.producers: dict[int, Producer] = {}
        self.sessions = 0
        self.link = -1
        self.outbox: deque[AskForStream | RelinquishStream] = deque()
        self.inbox: deque[Event] = deque()
        self.snapshot = Snapshot()
        self.files: dict[int, bytes] = {}
        """The files of retired streams, by their numbers."""
        self.begin()

    def begin(self) -> None:
        tail = self.rows[self.snapshot.end_sequence :]
        batches = [pa.RecordBatch.from_pylist(tail, schema=INGRESS_SCHEMA)] if tail else []
        mark = self.snapshot.retired
        retired = b"" if mark is None else checked(self.files[mark.number][: mark.length], mark, StorageError)
        self.state = GatewayState(
            Limits(streams_retire_after_s=0),
            self.snapshot,
            batches,
            len(self.rows),
            is_leading=self.name == LEADER,
            retired=retired,
        )

    def crash(self) -> None:
        """Lose everything that is not on disk, and all sessions."""
        self.rows = self.rows[: self.durable]
        for producer in self.producers.values():
            producer.is_over = True
        self.producers.clear()
        self.cut()
        self.begin()

    def cut(self) -> None:
        """Lose the connection to the leader, with all messages in flight."""
        self.outbox.clear()
        self.inbox.clear()
        self.link = -1

    def open(self, stream_id: int) -> Producer:
        self.sessions += 1
        producer = self.producers[self.sessions] = Producer(self, self.sessions, stream_id)
        self.do(SessionOpened(self.sessions))
        self.do(FrameReceived(self.sessions, HELLO))
        producer.notify()
        return producer

    def do(self, event: Event) -> None:
        for action in self.state.handle(event):
            self._perform(action)

    def _perform(self, action: Action) -> None:
        match action:
            case AppendRows(batch=batch):
                self.rows += batch.to_pylist()
                self.do(RowsAppended(len(self.rows)))
            case WriteSnapshot(snapshot, retiring):
                self.write(retiring)
                self.snapshot = snapshot
                self.do(SnapshotWritten(snapshot, retiring))
            case AskForStream() | RelinquishStream():
                self.outbox.append(action)
            case SendFrame(session, NotifyAck() as frame) if session in self.producers:
                self.producers[session].receive(frame)
            case SendFrame(session, Ack(positions=positions)):
                assert session in self.state.sessions
                for stream_id, committed in positions:
                    self.cluster.told[stream_id] = max(committed + 1, self.cluster.told.get(stream_id, 0))
            case _:
                pass

    def write(self, retiring: Retiring | None, share: float = 1.0) -> None:
        """Write the new bytes of the file of retired streams, or a part of them."""
        if retiring is not None and retiring.mark is not None:
            before = self.files.get(retiring.mark.number, b"")[: retiring.position]
            self.files[retiring.mark.number] = before + retiring.data[: int(share * len(retiring.data))]

    def retire(self, share: float | None = None) -> None:
        """Retire idle streams, or crash after a `share` of the file was written."""
        if self.cluster.epoch >= 0 and self.link >= 0:
            self.do(LeaderKeeps(self.cluster.nodes[0].snapshot.epoch))
        if share is None:
            self.do(RetireStreams())
            return
        for action in self.state.handle(RetireStreams()):
            assert isinstance(action, WriteSnapshot)
            self.write(action.retiring, share)
        self.cluster.crash(self.cluster.nodes.index(self))

    @property
    def committed(self) -> dict[int, int]:
        return {stream.stream_id: stream.committed for stream in self.state.registry if stream.committed is not None}


class Several:
    """The gateways, the leader's registry, and the epochs that a driver has taken from them."""

    def __init__(self, count: int) -> None:
        self.nodes = [Node(f"gateway-{number}", self) for number in range(count)]
        self.links = 0
        self.lead()
        for node in self.nodes:
            self.join(node)
        self.output: list[tuple[int, int]] = []
        """Pairs (stream id, message id) of all records in committed epochs, in order."""
        self.ends = [0] * count
        self.epoch = -1
        self.positions: dict[int, int] = {}
        self.record = RoundRecord(-1, 1, "", 0, 0, {})
        self.acknowledged: RoundRecord | None = None
        self._heard: set[int] = set()
        """The gateways that have received the last record."""
        self.told: dict[int, int] = {}
        """For each stream, the next id that its producers were told: they need not have earlier records any more."""

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def lead(self) -> None:
        """Restart the leader: it knows the members and its own checkpoint."""
        known = self.nodes[0].state.registry.committed
        self.registry = GlobalRegistry([node.name for node in self.nodes], known=known)
        self.nodes[0].state.retirement.is_granted = self.registry.may_be_held

    def join(self, node: Node) -> None:
        """Connect a gateway to the leader, and report the streams that it holds."""
        if node.link >= 0:
            return
        self.links += 1
        assert node.state.claims is not None
        self.registry.join(node.name, self.links, node.state.claims.held, node.committed)
        node.link = self.links
        node.do(LeaderFound())

    def lose(self, node: Node) -> None:
        """Break the connection between a gateway and the leader."""
        if node.link < 0:
            return
        self.registry.lost(node.link)
        node.cut()
        node.do(LeaderLost())

    def crash(self, number: int) -> None:
        node = self.nodes[number]
        self.registry.lost(node.link)
        node.crash()
        if number == 0:
            for other in self.nodes[1:]:
                self.lose(other)
            self.lead()

    def receive(self, node: Node) -> None:
        """Deliver one message of a gateway to the leader, which answers."""
        if not node.outbox:
            return
        match node.outbox.popleft():
            case AskForStream(stream_id):
                answer = self.registry.notify(node.link, stream_id)
                is_granted = isinstance(answer, Grant)
                node.inbox.append(
                    StreamGranted(stream_id, answer.committed) if is_granted else StreamRefused(stream_id)
                )
            case RelinquishStream(stream_id, committed):
                self.registry.relinquish(node.link, stream_id, committed)
                node.inbox.append(StreamRelinquished(stream_id))

    def answer(self, node: Node) -> None:
        """Deliver one answer of the leader to a gateway."""
        if node.inbox:
            node.do(node.inbox.popleft())

    def settle(self) -> None:
        """Deliver all messages."""
        for node in self.nodes:
            self.join(node)
        while any(node.outbox or node.inbox for node in self.nodes):
            for node in self.nodes:
                self.receive(node)
                self.answer(node)

    def take(self, *, tells: Callable[[int], bool] = lambda _: True) -> None:
        """Take an epoch of all rows, commit it, and send the commit to the gateways for which `tells` is true."""
        self.epoch += 1
        changes: dict[int, int] = {}
        for number, node in enumerate(self.nodes):
            node.durable = len(node.rows)
            for row in node.rows[self.ends[number] : node.durable]:
                if row["kind"] == KIND_RECORD:
                    self.output.append((row["stream_id"], row["message_id"]))
                    changes[row["stream_id"]] = row["message_id"]
            self.ends[number] = node.durable
        self.positions |= changes
        positions = next_positions(self.record, self.acknowledged, [changes])
        self.record, self._heard = RoundRecord(self.epoch, 1, "", 0, 0, {}, positions), set()
        for number in range(len(self.nodes)):
            if tells(number):
                self.tell(number)

    def tell(self, number: int) -> None:
        """Send the last commit to a gateway."""
        if self.epoch >= 0:
            self.nodes[number].do(EpochCommitted(1, self.epoch, self.ends[number], dict(self.record.positions)))
            self._heard.add(number)
            if len(self._heard) == len(self.nodes):
                self.acknowledged = self.record

    # What must hold

    def ids(self, stream_id: int) -> list[int]:
        return [message_id for stream, message_id in self.output if stream == stream_id]

    def check(self) -> None:
        holders: dict[int, str] = {}
        for node in self.nodes:
            assert node.state.claims is not None
            for stream_id in node.state.claims.held:
                assert stream_id not in holders, f"{stream_id} is held by {holders[stream_id]} and {node.name}"
                holders[stream_id] = node.name
            for stream in node.state.registry:
                if stream.session is not None:
                    assert stream.session in node.state.sessions
                    assert holders.get(stream.stream_id) == node.name, f"{stream.stream_id} is open, and not held"
        for stream_id in self.positions:
            ids = self.ids(stream_id)
            assert ids == list(range(len(ids))), f"stream {stream_id} came out as {ids}"
