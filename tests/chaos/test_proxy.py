"""The proxy on real sockets: without a fault it changes nothing, and each fault has its documented effect."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue

import pytest

from procession.address import Address
from procession.chaos.proxy import FAULTS, HAS_WAY, Proxies, Proxy, ProxyFault
from procession.wire import two_phase_commit, v3
from procession.wire.messages import Hello, Message, Phase1, Phase2, Reply

LINK = "link"
GREETING = v3.encode(Hello("0.0.1", b"", "test", "test"))
PATIENCE_S = 30.0
"""The longest wait of a test. It only ends a hang."""


class Server:
    """Accepts connections and keeps them for the test."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.accepted: Queue[socket.socket] = Queue()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            connection.settimeout(PATIENCE_S)
            self.accepted.put(connection)

    @property
    def address(self) -> Address:
        return Address(*self._listener.getsockname())

    def close(self) -> None:
        self._listener.close()


class World:
    def __init__(self, server: Server, proxy: Proxy, proxies: Proxies) -> None:
        self.server = server
        self.proxy = proxy
        self.proxies = proxies

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """Return a client's socket and the server's socket of the same connection, found by the client's greeting."""
        client = socket.create_connection(self.proxies.address(LINK), timeout=PATIENCE_S)
        client.sendall(GREETING)
        while True:
            server = self.server.accepted.get(timeout=PATIENCE_S)
            if receive(server, len(GREETING)) == GREETING:
                return client, server

    def put(self, fault: str, seconds: float = PATIENCE_S) -> None:
        self.proxies.put(LINK, fault, seconds, PATIENCE_S)


@pytest.fixture
def world() -> Iterator[World]:
    server = Server()
    proxy = Proxy(LINK, lambda: server.address)
    with Proxies(proxy) as proxies:
        yield World(server, proxy, proxies)
    server.close()


def frame(payload: bytes) -> bytes:
    return v3.encode(Message(1, 0, 0, b"", payload))


def word(message: Phase1 | Phase2 | Reply) -> bytes:
    return v3.encode(two_phase_commit.wrap(message))


def receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := connection.recv(count - len(data))):
        data += piece
    return data


def is_lost(connection: socket.socket) -> bool:
    """Whether the connection is closed or reset."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    return True


@contextmanager
def silence(connection: socket.socket) -> Iterator[None]:
    """Check that nothing arrives on the connection for 0.3 s."""
    connection.settimeout(0.3)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    connection.settimeout(PATIENCE_S)
    yield


def test_without_a_fault_all_bytes_and_the_end_are_passed_on_in_both_directions(world: World) -> None:
    client, server = world.pair()
    up, down = frame(b"up" * 100_000), frame(b"down")
    threading.Thread(target=client.sendall, args=(up,), daemon=True).start()
    assert receive(server, len(up)) == up
    server.sendall(down)
    assert receive(client, len(down)) == down
    client.shutdown(socket.SHUT_WR)
    assert server.recv(1) == b""
    server.close()
    assert client.recv(1) == b""


def test_a_cut_resets_open_connections_and_blocks_new_ones_until_it_is_over(world: World) -> None:
    client, _ = world.pair()
    world.put("cut")
    assert is_lost(client)
    late = socket.create_connection(world.proxies.address(LINK), timeout=PATIENCE_S)
    assert is_lost(late)
    assert world.server.accepted.empty()
    world.proxies.lift_all()
    world.pair()


def test_a_silence_holds_all_bytes_back_and_delivers_them_at_its_end(world: World) -> None:
    client, server = world.pair()
    world.put("silent")
    client.sendall(frame(b"held"))
    with silence(server):
        pass
    world.proxies.lift_all()
    assert receive(server, len(frame(b"held"))) == frame(b"held")


def test_a_fault_ends_after_its_duration(world: World) -> None:
    client, server = world.pair()
    began = time.monotonic()
    world.put("silent", 0.3)
    client.sendall(frame(b"held"))
    assert receive(server, len(frame(b"held"))) == frame(b"held")
    assert time.monotonic() - began >= 0.3
    assert not world.proxy.faults


def test_a_delay_is_at_least_as_long_as_requested(world: World) -> None:
    client, server = world.pair()
    world.put("delay:0.3")
    began = time.monotonic()
    client.sendall(frame(b"slow"))
    assert receive(server, len(frame(b"slow"))) == frame(b"slow")
    assert time.monotonic() - began >= 0.3


@pytest.mark.parametrize("direction", ["up", "down"])
def test_one_direction_of_a_connection_ends_and_the_other_continues(world: World, direction: str) -> None:
    client, server = world.pair()
    ended, sender, other = (server, server, client) if direction == "up" else (client, client, server)
    world.put(f"half-close:{direction}")
    assert ended.recv(1) == b""
    sender.sendall(frame(b"still here"))
    assert receive(other, len(frame(b"still here"))) == frame(b"still here")


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_truncated_frame_arrives_in_part_and_then_nothing(world: World, direction: str) -> None:
    client, server = world.pair()
    sender, receiver = (client, server) if direction == "up" else (server, client)
    world.put(f"truncate:{direction}")
    whole = frame(b"x" * 100)
    sender.sendall(whole)
    got = receive(receiver, len(whole))
    assert 0 < len(got) < len(whole)
    assert whole.startswith(got)
    assert is_lost(sender)


def test_a_corrupted_frame_keeps_its_length_and_is_not_valid(world: World) -> None:
    client, server = world.pair()
    world.put("corrupt:up")
    good = frame(b"record")
    client.sendall(good)
    got = receive(server, len(good))
    assert got != good
    assert got[2:] == good[2:]
    assert struct.unpack(">I", got[:4])[0] > 2**24
    client.sendall(good)
    assert receive(server, len(good)) == good, "the fault occurs once"


def test_late_messages_of_an_old_connection_arrive_after_the_new_one_is_open(world: World) -> None:
    client, server = world.pair()
    world.put("late", 1.0)
    client.sendall(frame(b"old"))
    assert is_lost(client)
    newer, newer_server = world.pair()
    newer.sendall(frame(b"new"))
    assert receive(newer_server, len(frame(b"new"))) == frame(b"new")
    assert receive(server, len(frame(b"old"))) == frame(b"old")


FRAMES = {
    "phase1": word(Phase1("t:c_id=1", ((1, 0, 10),))),
    "phase2": word(Phase2("t:c_id=1", True)),
    "reply": word(Reply("t:c_id=1", True)),
    "refusal": word(Reply("t:c_id=2", False)),
}


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("kind", ["cut-before", "cut-after", "swallow"])
def test_a_fault_on_a_message_happens_at_that_message_and_at_no_other(world: World, kind: str, name: str) -> None:
    client, server = world.pair()
    world.put(f"{kind}:{name}")
    before = frame(b"data") + b"".join(data for other, data in FRAMES.items() if other != name)
    client.sendall(before)
    assert receive(server, len(before)) == before
    client.sendall(FRAMES[name])
    match kind:
        case "cut-before":
            assert is_lost(client)
            assert is_lost(server)
        case "cut-after":
            assert receive(server, len(FRAMES[name])) == FRAMES[name]
            assert is_lost(server)
            assert is_lost(client)
        case "swallow":
            client.sendall(frame(b"after"))
            assert receive(server, len(frame(b"after"))) == frame(b"after")
    assert world.proxies.fired()[LINK] == 1


def test_a_fault_that_finds_no_connection_waits_for_the_next_one(world: World) -> None:
    world.proxies.put(LINK, "half-close:up", 0.0, PATIENCE_S)
    client = socket.create_connection(world.proxies.address(LINK), timeout=PATIENCE_S)
    server = world.server.accepted.get(timeout=PATIENCE_S)
    assert server.recv(1) == b""
    assert world.proxies.fired()[LINK] == 1
    client.close()


def test_a_fault_waits_for_its_message_for_a_bounded_time(world: World) -> None:
    client, server = world.pair()
    world.proxies.put(LINK, "swallow:phase2", 0.0, PATIENCE_S)
    world.proxies.put(LINK, "swallow:reply", 0.0, 0.2)
    deadline = time.monotonic() + PATIENCE_S
    while [fault.argument for fault in world.proxy.faults] != ["phase2"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    client.sendall(FRAMES["phase2"] + FRAMES["reply"])
    assert receive(server, len(FRAMES["reply"])) == FRAMES["reply"]
    assert world.proxies.fired()[LINK] == 1


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="earthquake"):
        ProxyFault.parse("earthquake")
    arguments = {"delay": ":0.5"} | dict.fromkeys(HAS_WAY, ":up")
    assert all(ProxyFault.parse(kind + arguments.get(kind, "")).kind == kind for kind in FAULTS)
