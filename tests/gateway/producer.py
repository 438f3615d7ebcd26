"""A producer for tests: a blocking socket and one end of the protocol, without retries or threads."""

from __future__ import annotations

import socket
import time
from types import TracebackType
from typing import Self, TypeVar

from procession.address import parse_address
from procession.tls import ClientTls
from procession.wire import v3
from procession.wire.connection import Connection, Event
from procession.wire.lifecycle import ConnectionSide, Role
from procession.wire.messages import Ack, Frame, Hello, Message, Notify, NotifyAck, Ok

Kind = TypeVar("Kind")
TIMEOUT_S = 10.0


class Producer:
    def __init__(self, address: str, tls: ClientTls | None = None) -> None:
        where = parse_address(address)
        self.socket = socket.create_connection(where, timeout=TIMEOUT_S)
        if tls:
            self.socket = tls.context().wrap_socket(self.socket, server_hostname=where.host)
        self.connection = Connection(ConnectionSide.INITIATOR, Role.SOURCE)
        self.events: list[Event] = []
        self.committed: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, *frames: Frame) -> None:
        self.socket.sendall(b"".join(self.connection.send(frame) for frame in frames))

    def send_raw(self, *parts: bytes | Frame) -> None:
        """Send bytes without our own checks, as a broken peer would."""
        self.socket.sendall(b"".join(part if isinstance(part, bytes) else v3.encode(part) for part in parts))

    def hello(self, cookie: bytes = b"", version: str = "0.0.1") -> Ok:
        self.send(Hello(version, cookie, "test", "test"))
        return self.expect(Ok)

    def notify(self, stream_id: int) -> NotifyAck:
        self.send(Notify(stream_id, f"stream {stream_id}", 0))
        return self.expect(NotifyAck)

    def messages(self, stream_id: int, message_ids: range) -> None:
        """Send messages with these ids, as credits arrive."""
        for message_id in message_ids:
            while not self.connection.credit.available:
                self.expect(Ack)
            self.send(Message(stream_id, message_id, 0, b"", b"%d" % message_id))

    def expect(self, kind: type[Kind]) -> Kind:
        """Return the next event of this kind. Events before it are only counted."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            while self.events:
                event = self.events.pop(0)
                if isinstance(event, Ack):
                    self.committed.update(event.positions)
                if isinstance(event, kind):
                    return event
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionError("the gateway closed")
            self.events += self.connection.receive(data)
        raise TimeoutError(f"no {kind.__name__} came")

    def wait_committed(self, stream_id: int, message_id: int) -> None:
        while self.committed.get(stream_id, -1) < message_id:
            self.expect(Ack)
