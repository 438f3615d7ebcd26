"""The proxy on real sockets: without a fault it changes nothing, and each fault does what it says."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from queue import Queue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.address import Address
from procession.chaos.frame_splitter import FrameSplitter, LineSplitter
from procession.chaos.proxy import FAULTS, HAS_WAY, Proxies, Proxy, ProxyFault
from procession.wire import two_phase_commit, v3
from procession.wire.messages import Hello, Message, Phase1, Phase2, Reply

LINK = "link"
GREETING = v3.encode(Hello("0.0.1", b"", "test", "test"))
PATIENCE_S = 30.0
"""It ends a hang, and measures nothing."""


class Server:
    """Takes connections and keeps them for the test to look at."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.accepted: Queue[socket.socket] = Queue()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                door = self._listener.accept()[0]
            except OSError:
                return
            door.settimeout(PATIENCE_S)
            self.accepted.put(door)

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
        """A client, and the server's end of the same connection: the one on which its greeting arrives."""
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


def receive(door: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := door.recv(count - len(data))):
        data += piece
    return data


def is_lost(door: socket.socket) -> bool:
    """Whether the connection is over, one way or the other."""
    try:
        while door.recv(65536):
            pass
    except ConnectionError:
        return True
    return True


@contextmanager
def silence(door: socket.socket) -> Iterator[None]:
    """Nothing comes meanwhile."""
    door.settimeout(0.3)
    with pytest.raises(TimeoutError):
        door.recv(1)
    door.settimeout(PATIENCE_S)
    yield


def test_without_a_fault_every_byte_goes_both_ways_and_so_do_the_ends(world: World) -> None:
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


def test_cut_resets_what_is_open_and_lets_nothing_new_through_until_it_is_over(world: World) -> None:
    client, _ = world.pair()
    world.put("cut")
    assert is_lost(client)
    late = socket.create_connection(world.proxies.address(LINK), timeout=PATIENCE_S)
    assert is_lost(late)
    assert world.server.accepted.empty()
    world.proxies.lift_all()
    world.pair()


def test_silence_holds_everything_back_and_then_delivers_it(world: World) -> None:
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


def test_a_delay_is_at_least_as_long_as_it_says(world: World) -> None:
    client, server = world.pair()
    world.put("delay:0.3")
    began = time.monotonic()
    client.sendall(frame(b"slow"))
    assert receive(server, len(frame(b"slow"))) == frame(b"slow")
    assert time.monotonic() - began >= 0.3


@pytest.mark.parametrize("direction", ["up", "down"])
def test_half_of_a_connection_ends_and_the_other_half_goes_on(world: World, direction: str) -> None:
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


def test_a_corrupted_frame_is_as_long_as_it_was_and_no_frame_any_more(world: World) -> None:
    client, server = world.pair()
    world.put("corrupt:up")
    good = frame(b"record")
    client.sendall(good)
    got = receive(server, len(good))
    assert got != good
    assert got[2:] == good[2:]
    assert struct.unpack(">I", got[:4])[0] > 2**24
    client.sendall(good)
    assert receive(server, len(good)) == good, "once is enough"


def test_late_words_of_an_old_connection_arrive_after_the_new_one_is_open(world: World) -> None:
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


def test_a_fault_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="earthquake"):
        ProxyFault.parse("earthquake")
    arguments = {"delay": ":0.5"} | dict.fromkeys(HAS_WAY, ":up")
    assert all(ProxyFault.parse(kind + arguments.get(kind, "")).kind == kind for kind in FAULTS)


STREAM = v3.encode(Hello("0.0.1", b"", "p", "i")) + frame(b"a" * 40) + b"".join(FRAMES.values())


@given(st.lists(st.integers(0, len(STREAM)), max_size=6))
def test_however_a_stream_is_cut_the_pieces_are_its_frames(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    cutter = FrameSplitter()
    pieces = [piece for start, end in pairwise(edges) for piece in cutter.feed(STREAM[start:end])]
    assert b"".join(piece.data for piece in pieces) == STREAM
    assert [piece.kind for piece in pieces] == ["hello", "message", "phase1", "phase2", "reply", "refusal"]


def test_what_is_no_frame_goes_through_uncut() -> None:
    cutter = FrameSplitter()
    noise = b"\xff\xff\xff\xff noise"
    assert [piece.data for piece in cutter.feed(noise) + cutter.feed(b"more")] == [noise, b"more"]


def test_lines_are_cut_at_their_ends() -> None:
    cutter = LineSplitter()
    assert [piece.data for piece in [*cutter.feed(b'{"a"'), *cutter.feed(b':1}\n{"b')]] == [b'{"a":1}\n']
