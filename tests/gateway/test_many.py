"""Many producers at one gateway, idle ones, and some that disappear without closing."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from procession.address import parse_address
from procession.bench.producers import DESCRIPTORS, allow_descriptors, resident_bytes, waiting
from procession.wire.messages import Ack
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.producer import Producer

Make = Callable[..., GatewayProcess]
ALL = 2**40
CONNECTIONS = 1_000
STREAMS_EACH = 10
IDLE_BYTES_MAX = 64 * 1024
"""The memory that an idle connection with its streams may use in a gateway: eight times the measured value."""

PEER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.gateway.producer import Producer
producer = Producer(sys.argv[1])
producer.hello()
assert producer.notify(7).success
producer.messages(7, range(10))
print("sent", flush=True)
producer.wait_committed(7, 9)
producer.messages(7, range(10, 20))
producer.wait_committed(7, 19)
print("done", flush=True)
"""


def test_a_thousand_idle_connections_with_ten_thousand_streams_use_little_memory(
    gateway_process: Make,
) -> None:
    gateway = gateway_process().start()
    allow_descriptors(CONNECTIONS + DESCRIPTORS)
    with ExitStack() as idle, gateway.client() as control:
        before = resident_bytes(gateway.process.pid)
        for number in range(CONNECTIONS):
            first_stream = 1 + number * STREAMS_EACH
            idle.enter_context(waiting(parse_address(gateway.listen), first_stream, STREAMS_EACH))
        status = control.status()
        assert (status["sessions"], status["streams_total"]) == (CONNECTIONS, CONNECTIONS * STREAMS_EACH)
        grown = resident_bytes(gateway.process.pid) - before
        assert grown / CONNECTIONS < IDLE_BYTES_MAX
        with Producer(gateway.listen) as newcomer:
            newcomer.hello()
            newcomer.notify(10**9)
            newcomer.messages(10**9, range(100))
            while (end := control.offer(1, 0, ALL, ALL).end) < 100:
                pass
            control.commit(1, 0, end, {10**9: 99})
            newcomer.wait_committed(10**9, 99)
        assert sum(1 for _ in control.streams()) == CONNECTIONS * STREAMS_EACH + 1
    # All of them close at once, and their streams become free.
    with Producer(gateway.listen) as successor, gateway.client() as control:
        successor.hello()
        while gateway.answer(control.status)["sessions"] > 1:
            pass
        assert successor.notify(1).success


def test_a_suspended_producer_keeps_its_stream_costs_nothing_and_continues(gateway_process: Make) -> None:
    gateway = gateway_process(ack_interval_s=0.005).start()
    arguments = [sys.executable, "-c", PEER, gateway.listen, str(Path(__file__).parents[2])]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as peer, gateway.client() as control:
        try:
            assert peer.stdout is not None
            assert peer.stdout.readline() == "sent\n"
            os.kill(peer.pid, signal.SIGSTOP)
            while (end := control.offer(1, 0, ALL, ALL).end) < 10:
                pass
            control.commit(1, 0, end, {7: 9})
            with Producer(gateway.listen) as other:
                other.hello()
                assert not other.notify(7).success, "a suspended producer may still continue"
                other.notify(8)
                before = resident_bytes(gateway.process.pid)
                for _ in range(200):
                    other.expect(Ack)
                other.messages(8, range(10))
                while (end := control.offer(1, 10, ALL, ALL).end) < 20:
                    pass
                control.commit(1, 1, end, {8: 9})
                other.wait_committed(8, 9)
                assert resident_bytes(gateway.process.pid) - before < 8 * 1024 * 1024
            os.kill(peer.pid, signal.SIGCONT)
            while (end := control.offer(1, 20, ALL, ALL).end) < 30:
                assert peer.poll() is None
            control.commit(1, 2, end, {7: 19})
            assert peer.stdout.readline() == "done\n"
        finally:
            os.kill(peer.pid, signal.SIGCONT)
            peer.kill()


TCP_REPAIR = 19
"""A Linux socket option: a socket that is closed in this mode sends nothing to its peer."""


def forget(producer: Producer) -> None:
    try:
        producer.socket.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    except PermissionError:  # only root may; otherwise the peer gets a reset at once
        producer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    producer.socket.close()


def test_the_restart_of_a_producers_machine_is_noticed_and_its_streams_become_free(gateway_process: Make) -> None:
    """TCP's repair mode drops the connection without a packet, as a power cut does."""
    gateway = gateway_process(ack_interval_s=0.05).start()
    forgotten = Producer(gateway.listen)
    forgotten.hello()
    assert forgotten.notify(7).success
    forget(forgotten)
    with Producer(gateway.listen) as successor:
        successor.hello()
        while not successor.notify(7).success:
            successor.expect(Ack)
