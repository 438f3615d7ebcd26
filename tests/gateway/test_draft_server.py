"""A real gateway process that serves both versions at one port: sessions of the draft from HELLO to the last ACK,
killed gateways, and faults that a session requests."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from procession.errors import RoundError
from procession.gateway.control_client import ControlClient
from procession.gateway.listen_address import addresses
from procession.storage.log_reader import LogReader
from procession.storage.segment import RECORD_KINDS, REFERENCE_KINDS
from procession.wire import draft, frame_codec, v3
from procession.wire.connection import Connection
from procession.wire.dialect import DRAFT
from procession.wire.draft_messages import AckCounts, Debug, DebugFault, DraftMessage, DraftOk, Extension
from procession.wire.lifecycle import ConnectionSide, Role
from procession.wire.messages import Ack, Error, Hello, Notify, Restart
from tests.gateway.gateway_process import PATIENCE_S, GatewayProcess
from tests.gateway.producer import Producer

Make = Callable[..., GatewayProcess]
ALL = 2**40


class DraftProducer(Producer):
    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.connection = Connection(ConnectionSide.INITIATOR, Role.SOURCE, dialect=DRAFT)

    def open(self, stream_id: int, *extensions: Extension) -> int:
        """Open the stream, and return its committed position, or -1."""
        self.send(Hello(draft.version(frozenset(extensions)), b"", "test", "test"))
        known = {known_id: point for known_id, _, point in self.expect(DraftOk).streams}
        self.send(Notify(stream_id, "s", 0))
        return known.get(stream_id, -1)

    def say(self, *messages: DraftMessage) -> None:
        """Send these messages, as credits arrive."""
        for message in messages:
            while not self.connection.credit.available:
                self.expect(Ack)
            self.send(message)


def rows(directory: Path, start: int, end: int) -> list[dict[str, Any]]:
    return [row for batch in LogReader(directory / "log").read(start, end) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([draft.encode(Hello("draft2", b"", "p", "i"))], "unknown version 'draft2', this is draft"),
        ([draft.encode(Hello("draft", b"sesame", "p", "i"))], "no cookie is expected here"),
        ([draft.encode(Hello("draft+debug", b"", "p", "i"))], "the draft's extension 'debug' is not allowed here"),
        ([draft.encode(DraftMessage(7, 1, b""))], "DraftMessage from the initiator while connected"),
        (
            [draft.encode(Hello("draft", b"", "p", "i")), frame_codec.frame(b"M\x01\x00" + bytes(16))],
            "unknown message flags",
        ),
        (
            [draft.encode(Hello("draft", b"", "p", "i")), draft.encode(Debug(DebugFault.CLOSE))],
            "Debug from the initiator",
        ),
        ([draft.encode(Hello("draft", b"", "p", "i")), v3.encode(Error("no"))], "unknown frame tag 2"),
    ],
)
def test_a_bad_peer_gets_the_reason_in_its_own_version_and_the_gateway_lives(
    gateway_process: Make, parts: list[bytes], reason: str
) -> None:
    gateway = gateway_process().start()
    with DraftProducer(gateway.listen) as peer, Producer(gateway.listen) as other:
        peer.socket.sendall(parts[0])
        if len(parts) > 1:
            assert isinstance(draft.decode(peer.socket.recv(9)[4:]), DraftOk)
            peer.socket.sendall(parts[1])
        data = b""
        while part := peer.socket.recv(65536):
            data += part
        *_, error = (draft.decode(body) for body in frame_codec.Framer().feed(data))  # after ACKs, if it took long
        assert isinstance(error, Error)
        assert reason in error.reason
        assert other.hello().credits > 0


def test_both_versions_are_served_at_one_port_and_neither_takes_a_stream_from_the_other(gateway_process: Make) -> None:
    gateway = gateway_process(ack_interval_s=0.02).start()
    with DraftProducer(gateway.listen) as new, Producer(gateway.listen) as old, gateway.client() as control:
        new.open(7)
        old.hello()
        old.notify(8)
        new.say(DraftMessage(7, 1, b"a"), DraftMessage(7, 50, b"b", is_unstable=True), DraftMessage(7, 9, b"c"))
        old.messages(8, range(3))
        assert not old.notify(7).success
        while control.offer(1, 0, ALL, ALL).end < 6:
            pass
        control.commit(1, 0, 6, {7: 9, 8: 2})
        new.wait_committed(7, 9)
        old.wait_committed(8, 2)
        new.send(Notify(8, "s", 0))
        assert new.expect(Error).reason == f"{draft.IN_USE}: 8"
        status = control.status()
        assert (status["records_in"], status["ephemeral_in"], status["held_bytes"]) == (6, 0, 0)


def test_an_offer_divides_no_group(gateway_process: Make) -> None:
    gateway = gateway_process().start()
    with DraftProducer(gateway.listen) as producer, gateway.client() as control:
        producer.open(7)
        for first in (0, 10, 20):
            unstable = (DraftMessage(7, 1000 + n, b"u", is_unstable=True) for n in range(9))
            producer.say(*unstable, DraftMessage(7, first + 9, b"s"))
        while control.offer(1, 0, ALL, ALL).end < 30:
            pass
        assert [control.offer(1, 0, limit, ALL).end for limit in (1, 9, 10, 11, 25, 30)] == [10, 10, 10, 10, 20, 30]


@pytest.mark.parametrize("fault", ["gateway:after-append@2", "gateway:before-ack@2", "gateway:after-ack-before-trim@2"])
def test_a_gateway_that_is_killed_anywhere_loses_and_duplicates_no_group(gateway_process: Make, fault: str) -> None:
    """The producer has a point of reference at every seventh record only. Its other ids differ in each session."""
    count, sessions = 1400, itertools.count(1)
    gateway = gateway_process(append_bytes_max=2000, segment_bytes_max=20_000).start(fault)
    control, answer = gateway.client(timeout_s=0.5), gateway.answer

    def message(session: int, number: int) -> DraftMessage:
        if number % 7 == 6:
            return DraftMessage(7, number, b"%d" % number)
        return DraftMessage(7, session * 10_000 - number, b"%d" % number, is_unstable=True)

    found: list[bytes] = []
    start, epoch, restarts = 0, 0, 0
    last: dict[int, int] = {}
    producer, session = DraftProducer(gateway.listen), next(sessions)
    position = producer.open(7) + 1
    while len(found) < count:
        try:
            producer.say(*(message(session, number) for number in range(position, min(position + 250, count))))
            position = min(position + 250, count)
            while (end := answer(control.offer, 1, start, 200, ALL).end) == start:
                pass
            part = rows(gateway.directory, start, end)
            last |= {row["stream_id"]: row["message_id"] for row in part if row["kind"] in REFERENCE_KINDS}
            answer(control.commit, 1, epoch, end, last)
            found += [row["payload"] for row in part if row["kind"] in RECORD_KINDS]
            start, epoch = end, epoch + 1
        except (OSError, RoundError):
            gateway.wait()
            gateway.start()
            restarts += 1
            producer.socket.close()
            producer, session = DraftProducer(gateway.listen), next(sessions)
            position = producer.open(7) + 1
            if epoch:
                answer(control.commit, 1, epoch - 1, start, last)
    producer.socket.close()
    control.close()
    assert restarts == 1
    assert found == [b"%d" % number for number in range(count)]


# Behind options


@contextmanager
def gateway_program(directory: Path, *options: str) -> Iterator[str]:
    """Run `procession gateway` with these options, and yield its address."""
    command = [sys.executable, "-m", "procession", "gateway", "--dir", str(directory)]
    command += ["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--open-producers", *options]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            with ControlClient(directory, timeout_s=PATIENCE_S) as control:
                control.status()
            yield str(addresses(directory)["listen"])
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=PATIENCE_S) == 0


def test_counts_and_faults_come_with_their_options(tmp_path: Path) -> None:
    with gateway_program(tmp_path, "--draft-counts", "--draft-debug") as listen:
        for fault, kind in ((DebugFault.RESTART, Restart), (DebugFault.ERROR, Error), (DebugFault.CLOSE, None)):
            with DraftProducer(listen) as producer:
                producer.open(7, *Extension)
                producer.say(DraftMessage(7, 1, b"x"))
                producer.send(Debug(DebugFault.TICK, 2))
                producer.expect(AckCounts)
                producer.expect(AckCounts)
                producer.send(Debug(fault))
                if kind is not None:
                    producer.expect(kind)
                with pytest.raises(ConnectionError):
                    producer.expect(Ack)
    with gateway_program(tmp_path / "other", "--draft-counts") as listen, DraftProducer(listen) as producer:
        producer.send(Hello("draft+debug", b"", "test", "test"))
        assert producer.expect(Error).reason == "the draft's extension 'debug' is not allowed here"
