"""A real gateway process on real sockets: bad peers, slow peers, killed gateways, and its control port."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from procession.address import parse_address
from procession.errors import (
    ConfigError,
    FencedError,
    LocalProtocolError,
    RemoteProtocolError,
    RoundError,
    StorageError,
)
from procession.gateway.control_client import ControlClient
from procession.gateway.gateway_options import GatewayConfig
from procession.gateway.listen_address import addresses
from procession.gateway.server import serve
from procession.storage.log_reader import LogReader
from procession.wire import frame_codec, v3
from procession.wire.messages import (
    NOTHING_COMMITTED,
    Ack,
    Eos,
    Error,
    Frame,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Restart,
)
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.producer import TIMEOUT_S, Producer

Make = Callable[..., GatewayProcess]
HELLO = Hello("0.0.1", b"", "test", "test")
ALL = 2**40


def ids(gateway: GatewayProcess, end: int, start: int = 0) -> list[int]:
    batches = LogReader(gateway.directory / "log").read(start, end)
    return [row["message_id"] for batch in batches for row in batch.to_pylist() if row["kind"] == 0]


def is_alive(gateway: GatewayProcess) -> bool:
    with Producer(gateway.listen) as producer:
        return producer.hello().credits > 0


def is_closed(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1)
    except ConnectionError:
        return True


# Bad peers


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"], "frame of 1195725856 bytes"),
        ([bytes(64)], "empty frame"),
        ([frame_codec.u32(2**32 - 1)], "frame of 4294967295 bytes"),
        ([Hello("9", b"", "p", "i")], "unknown version '9'"),
        ([Hello("0.0.1", b"sesame", "p", "i")], "no cookie is expected here"),
        ([Message(7, 1, 0, b"", b"")], "Message from the initiator while connected"),
        ([HELLO, HELLO], "Hello from the initiator while"),
        ([HELLO, frame_codec.frame(b"\x09")], "unknown frame tag 9"),
        ([frame_codec.frame(b"\x00\x00\x05abc")], "truncated frame"),
        ([Ok(1)], "Ok from the initiator"),
        ([Error("I give up")], None),
    ],
    ids=[
        "browser",
        "zeros",
        "4 GiB",
        "version",
        "cookie",
        "no hello",
        "two hellos",
        "tag",
        "cut",
        "direction",
        "error",
    ],
)
def test_a_bad_peer_gets_the_reason_and_is_closed_and_the_gateway_lives(
    gateway_process: Make, parts: list[bytes | Frame], reason: str | None
) -> None:
    gateway = gateway_process().start()
    with Producer(gateway.listen) as peer:
        peer.send_raw(*parts)
        data = b""
        while part := peer.socket.recv(65536):
            data += part
    frames = [v3.decode(body) for body in frame_codec.Framer().feed(data)]
    last = frames[-1].reason if frames and isinstance(frames[-1], Error) else None
    assert (last is None) if reason is None else (last is not None and reason in last)
    assert is_alive(gateway)


def test_a_bad_peer_while_streaming_loses_its_session_and_its_good_records_stay(gateway_process: Make) -> None:
    gateway = gateway_process().start()
    with Producer(gateway.listen) as bad:
        bad.hello()
        bad.notify(7)
        bad.messages(7, range(3))
        bad.send_raw(Message(8, 1, 0, b"", b"not my stream"), Message(7, 4, 0, b"", b"too late"))
        assert "stream 8" in bad.expect(Error).reason
        with Producer(gateway.listen) as good:
            good.hello()
            assert good.notify(7) == NotifyAck(True, 7, NOTHING_COMMITTED)
            good.messages(7, range(5))
            good.send(Eos(7))
            with gateway.client() as control:
                while (end := control.offer(1, 0, ALL, ALL).end) < 6:
                    pass
    assert ids(gateway, end) == [0, 1, 2, 3, 4]


def test_an_id_that_goes_back_first_of_all_that_was_read_gets_the_reason_too(gateway_process: Make) -> None:
    gateway = gateway_process().start()
    with _open(gateway) as producer, gateway.client() as control:
        producer.messages(7, range(2))
        while control.status()["records_in"] < 2:
            pass
        producer.send(Message(7, 1, 0, b"", b"again"))
        assert producer.expect(Error).reason == "message id goes back on stream 7"


@pytest.mark.parametrize(("cookie", "reason"), [(b"", "a cookie is needed"), (b"sesamf", "bad cookie")])
def test_a_wrong_cookie_opens_neither_door_and_is_not_logged(gateway_process: Make, cookie: bytes, reason: str) -> None:
    gateway = gateway_process(limits={"cookie": b"sesame"}, control_cookie=b"sesame too").start()
    with Producer(gateway.listen) as producer:
        producer.send(Hello("0.0.1", cookie, "p", "i"))
        assert reason in producer.expect(Error).reason
        host, port = producer.socket.getsockname()
    with ControlClient(gateway.directory, cookie) as control, pytest.raises(ConfigError, match="wrong secret"):
        control.status()
    with Producer(gateway.listen) as producer:
        producer.hello(b"sesame")
        with gateway.client() as control:
            assert control.status()["sessions"] == 1
    gateway.process.terminate()
    log = gateway.wait()[1]
    assert "sesam" not in log
    assert [line for line in log.splitlines() if "session.refused" in line and f"{host}:{port}" in line], "by whom"


def test_a_peer_that_says_nothing_is_sent_away(gateway_process: Make) -> None:
    gateway = gateway_process(handshake_timeout_s=0.1).start()
    with Producer(gateway.listen) as silent:
        assert silent.expect(Error).reason == "no HELLO in time"


def test_one_session_too_many_gets_the_reason(gateway_process: Make) -> None:
    gateway = gateway_process(limits={"sessions_max": 1}).start()
    with Producer(gateway.listen) as first:
        first.hello()  # answered, so it is in; of two connections that are made at once either may be accepted first
        with Producer(gateway.listen) as second:
            assert second.expect(Error).reason == "more than 1 sessions"


def test_a_peer_that_overspends_its_credits_is_closed(gateway_process: Make) -> None:
    gateway = gateway_process(limits={"credits_max": 4, "lag_bytes_max": 0}).start()
    with Producer(gateway.listen) as greedy:
        greedy.hello()
        greedy.notify(7)
        greedy.send_raw(*(Message(7, number, 0, b"", b"x") for number in range(20)))
        assert greedy.expect(Error).reason == "credits overspent"


def test_a_peer_that_never_reads_is_dropped_and_the_gateways_memory_stays_bounded(gateway_process: Make) -> None:
    limits = {"credits_max": 2**31}  # or else it is sent away for the credits that it overspends
    gateway = gateway_process(write_bytes_max=200_000, ack_interval_s=0.01, limits=limits).start()
    with Producer(gateway.listen) as other, gateway.client() as control:
        other.hello()
        before = gateway.memory_bytes
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(TIMEOUT_S)
        deaf.connect(parse_address(gateway.listen))
        deaf.sendall(v3.encode(HELLO))
        deaf.recv(9)
        deaf.settimeout(1)
        # Every NOTIFY is answered, and nobody reads the answers: it is not read from any more, or cut off.
        with pytest.raises(OSError, match=r"reset|Broken|timed out"):
            deaf.sendall(v3.encode(Notify(7, "s", 0)) * 5_000_000)
        assert gateway.memory_bytes - before < 64 * 1024 * 1024
        assert other.expect(Ack) is not None
        deaf.close()
        while control.status()["sessions"] > 1:
            pass


def test_a_large_message_in_small_pieces_arrives(gateway_process: Make) -> None:
    gateway = gateway_process().start()
    with Producer(gateway.listen) as producer, gateway.client() as control:
        producer.hello()
        producer.notify(7)
        payload = b"x" * (15 * 1024 * 1024)
        producer.send(Message(7, 1, 0, b"key", payload))
        while not control.offer(1, 0, ALL, ALL).end:
            pass
        (batch,) = LogReader(gateway.directory / "log").read(0, 1)
        assert batch.column("payload")[0].as_py() == payload


# Commits and restarts


def test_a_commit_reaches_the_producer_and_an_idle_producer_gets_steady_acks(gateway_process: Make) -> None:
    gateway = gateway_process(ack_interval_s=0.02).start()
    with Producer(gateway.listen) as producer, gateway.client() as control:
        producer.hello()
        producer.notify(7)
        producer.messages(7, range(100))
        while (end := control.offer(1, 0, ALL, ALL).end) < 100:
            pass
        assert control.offer(1, 10, 5, ALL).end == 15
        control.commit(1, 0, end, {7: 99})
        producer.wait_committed(7, 99)
        assert producer.expect(Ack).positions == ()
        assert producer.expect(Ack).positions == ()
        status = control.status()
        assert (status["committed_end"], status["records_in"], status["lag_bytes"]) == (100, 100, 0)
        assert status["streams"] == [{"id": 7, "name": "stream 7", "state": "open", "committed": 99, "seen": 99}]


@pytest.mark.parametrize(
    "fault",
    [
        "gateway:before-append@3",
        "gateway:after-append@3",
        "gateway:before-snapshot@2",
        "gateway:before-ack@2",
        "gateway:after-ack-before-trim@2",
        "",
    ],
)
def test_a_gateway_killed_anywhere_comes_back_without_loss_or_duplicate(gateway_process: Make, fault: str) -> None:
    """A producer that resends from its last NOTIFY_ACK, a driver that repeats its commit, and a gateway that dies."""
    count = 3000
    gateway = gateway_process(append_bytes_max=2000, segment_bytes_max=20_000).start(fault)
    control, answer = gateway.client(timeout_s=0.5), gateway.answer
    found: list[int] = []
    start, epoch, restarts, position = 0, 0, 0, 0
    producer = _open(gateway)
    while len(found) < count:
        try:
            producer.messages(7, range(position, min(position + 500, count)))
            position = min(position + 500, count)
            # Each part is taken in before the next is sent: two that came in one read would be one append, and a
            # point that is reached by the third might never be.
            while answer(control.status)["next_sequence"] < position:
                pass
            end = answer(control.offer, 1, start, 400, ALL).end
            if not fault and epoch == 3 and not restarts:
                gateway.process.kill()
            if end > start:
                part = ids(gateway, end, start)
                answer(control.commit, 1, epoch, end, {7: part[-1]})
                found += part
                start, epoch = end, epoch + 1
        except (OSError, RoundError):
            gateway.wait()
            gateway.start()
            restarts += 1
            producer.socket.close()
            producer = _open(gateway)
            point = producer.committed[7]
            position = 0 if point == NOTHING_COMMITTED else point + 1
            if epoch and found:
                answer(control.commit, 1, epoch - 1, start, {7: found[-1]})
    producer.socket.close()
    assert restarts == 1
    assert found == list(range(count))
    assert answer(control.status)["start_sequence"] > 0, "committed segments are gone"
    control.close()


def _open(gateway: GatewayProcess) -> Producer:
    producer = Producer(gateway.listen)
    producer.hello()
    producer.committed[7] = producer.notify(7).point_of_reference
    return producer


def test_a_gateway_asked_to_stop_disconnects_its_producers_and_keeps_their_records(gateway_process: Make) -> None:
    gateway = gateway_process().start()
    listen = gateway.listen
    with Producer(gateway.listen) as producer, Producer(gateway.listen) as silent:
        producer.hello()
        producer.notify(7)
        producer.messages(7, range(10))
        with gateway.client() as control:
            while control.status()["records_in"] < 10:
                pass
        gateway.process.terminate()
        assert producer.expect(Restart) == Restart(None)
        assert silent.expect(Error).reason == "the gateway is stopping"
    assert gateway.wait()[0] == 0
    gateway.start()
    assert gateway.listen == listen, "a port that was chosen for us is kept"
    with gateway.client() as control:
        assert control.status()["durable_end"] == 10


def test_a_gateway_whose_disk_fails_ends_and_its_clients_wait_for_its_next_start(
    gateway_process: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver does not get the gateway's error. It repeats its request until the restarted gateway answers."""
    fault = tmp_path / "fault"
    monkeypatch.setenv("PROCESSION_FAULT_FILE", str(fault))
    gateway = gateway_process().start()
    fault.write_text("disk:sync")
    with gateway.client(timeout_s=1.0) as client, pytest.raises(RoundError, match="does not answer"):
        client.fence(1)
    status, output = gateway.wait()
    assert status == 1
    assert "Input/output error" in output
    fault.unlink()
    gateway.start()
    with gateway.client() as client:
        assert client.fence(1).next_sequence == 0


def test_a_full_disk_ends_the_gateway_with_a_sentence_and_loses_nothing(gateway_process: Make) -> None:
    gateway = gateway_process().start()
    with _open(gateway) as producer:
        producer.messages(7, range(100))
        with gateway.client() as control:
            while (end := control.offer(1, 0, ALL, ALL).end) < 100:
                pass
            control.commit(1, 0, end, {7: 99})
            producer.wait_committed(7, 99)
        resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE, (65536, 65536))
        with pytest.raises((ConnectionError, LocalProtocolError)):
            producer.messages(7, range(100, 100_000))
    status, output = gateway.wait()
    assert status == 1
    assert "Cannot write" in output
    assert "Next:" in output
    gateway.start()
    with _open(gateway) as producer:
        assert producer.committed[7] == 99
        producer.messages(7, range(100, 5000))
        with gateway.client() as control:
            while (end := control.offer(1, 100, ALL, ALL).end) < 5000:
                pass
    assert ids(gateway, 5000, 100) == list(range(100, 5000))


# The side connection


def test_a_replaced_driver_gets_nothing_from_the_gateway_any_more_also_after_a_restart(gateway_process: Make) -> None:
    gateway = gateway_process().start()
    with gateway.client() as control:
        assert control.fence(5)[:2] == (0, 0)
        for _ in range(2):
            with pytest.raises(FencedError):
                control.offer(4, 0, 1, 1)
            with pytest.raises(FencedError):
                control.commit(4, 0, 0, {})
            with pytest.raises(FencedError):
                control.fence(4)
            gateway.kill()
            gateway.start()
        assert control.offer(6, 0, 1, 1).end == 0
        with pytest.raises(FencedError):
            control.fence(5)


def test_a_commit_beyond_the_log_is_refused_and_the_gateway_lives(gateway_process: Make) -> None:
    gateway = gateway_process().start()
    with gateway.client() as control:
        with pytest.raises(StorageError, match="no record from 0 on was offered") as caught:
            control.commit(1, 0, 10, {})
        assert "same pipeline" in caught.value.next_step
        assert control.status()["committed_end"] == 0


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"hello",
        b"[]",
        b'{"op":"dance"}',
        b'{"op":"offer"}',
        b'{"op":"fence","fence":-1}',
        b'{"op":"fence","fence":"1"}',
        b"[" * 100_000,
    ]
    + [
        b'{"op":"commit","fence":1,"epoch":0,"end":0,"positions":%s}' % bad
        for bad in (b"[]", b'{"x":1}', b'{"1":"y"}', b'{"1":%d}' % 2**64, b'{"%s":1}' % (b"1" * 5000))
    ],
)
def test_a_request_that_makes_no_sense_is_answered_with_a_sentence(gateway_process: Make, line: bytes) -> None:
    gateway = gateway_process().start()
    with socket.create_connection(addresses(gateway.directory)["control"], timeout=10) as connection:
        for _ in range(2):
            connection.sendall(line + b"\n")
            reply = json.loads(connection.makefile().readline())
            assert (reply["ok"], reply["kind"]) in ((False, "invalid"), (False, "garbled"))
    with ControlClient(gateway.directory) as control, pytest.raises(RemoteProtocolError):
        control._ask("dance")


def test_a_request_that_is_too_long_closes_only_its_connection(gateway_process: Make) -> None:
    gateway = gateway_process(request_bytes_max=1000).start()
    with socket.create_connection(addresses(gateway.directory)["control"], timeout=10) as connection:
        connection.sendall(b"x" * 5000)
        assert is_closed(connection)
    with gateway.client() as control:
        assert control.status()["sessions"] == 0


def test_a_client_waits_for_a_gateway_that_is_not_there_yet_and_says_so_in_the_end(gateway_process: Make) -> None:
    gateway = gateway_process()
    with ControlClient(gateway.directory, timeout_s=0.2) as control, pytest.raises(RoundError, match="does not answer"):
        control.status()
    gateway.start()
    with gateway.client() as control:
        assert control.status()["next_sequence"] == 0


def test_a_port_in_use_is_one_sentence_and_a_next_step(gateway_process: Make, tmp_path: Path) -> None:
    gateway = gateway_process().start()
    with pytest.raises(ConfigError, match="is in use") as caught:
        serve(GatewayConfig(tmp_path / "other", gateway.listen, "127.0.0.1:0"))
    assert "another" in caught.value.next_step


def test_two_gateways_cannot_have_one_directory(gateway_process: Make) -> None:
    gateway = gateway_process().start()
    with pytest.raises(StorageError, match="Another process holds"):
        serve(GatewayConfig(gateway.directory, "127.0.0.1:0", "127.0.0.1:0"))
