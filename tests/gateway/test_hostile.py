"""Hostile peers at the gateway's ports: records of other producers are still accepted and acknowledged."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from procession.address import parse_address
from procession.gateway.listen_address import addresses
from procession.wire import v3
from procession.wire.messages import Hello, Notify
from tests import hostile
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.producer import Producer

Make = Callable[..., GatewayProcess]
HELLO = v3.encode(Hello("0.0.1", b"", "test", "hostile"))
SESSIONS_MAX = 32
LINGERING_MAX = 16
CONTROLS_MAX = 8
GROWTH_BYTES_MAX = 48 * 1024 * 1024


class Honest:
    """An honest producer and its driver, in a thread. Record after record is sent, committed and acknowledged."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.committed = 0
        self._gateway = gateway
        self._is_over = threading.Event()
        self._moved = threading.Condition()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with Producer(self._gateway.listen) as producer, self._gateway.client() as driver:
                producer.hello()
                assert producer.notify(7).success
                while not self._is_over.is_set():
                    number = self.committed
                    producer.messages(7, range(number, number + 1))
                    while (end := driver.offer(1, number, 1, 1 << 20).end) <= number:
                        pass
                    driver.commit(1, number, end, {7: number})
                    producer.wait_committed(7, number)
                    with self._moved:
                        self.committed += 1
                        self._moved.notify_all()
        except BaseException as error:
            self._failure = error
            with self._moved:
                self._moved.notify_all()

    def goes_on(self, records: int = 3) -> None:
        """Wait until `count` more records are acknowledged."""
        with self._moved:
            enough = self.committed + records
            assert self._moved.wait_for(lambda: self._failure or self.committed >= enough, hostile.DEADLINE_S), (
                "the honest producer stalls"
            )
        if self._failure:
            raise self._failure

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()


@pytest.fixture
def gateway(gateway_process: Make) -> GatewayProcess:
    limits = {"sessions_max": SESSIONS_MAX, "credits_max": 64, "lag_bytes_max": 1 << 20}
    return gateway_process(
        limits=limits,
        handshake_timeout_s=2.0,
        write_bytes_max=200_000,
        linger_s=0.5,
        lingering_max=LINGERING_MAX,
        controls_max=CONTROLS_MAX,
    ).start()


@pytest.fixture
def honest(gateway: GatewayProcess) -> Iterator[Honest]:
    producer = Honest(gateway)
    try:
        producer.goes_on()
        yield producer
    finally:
        producer.end()


ATTACKS: dict[str, hostile.Attack] = {
    "opened and dropped": hostile.opened_and_dropped(10_000),
    "slow loris": hostile.slow_loris,
    "strangers": hostile.strangers,
    "two HELLOs": hostile.greeted_twice,
    "overspending": hostile.overspending,
    "never reading": hostile.never_reading(Notify(9, "s", 0)),
    "half open": hostile.half_open,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_honest_producer_is_served_during_an_attack_and_no_connection_of_the_attack_remains(
    gateway: GatewayProcess, honest: Honest, name: str
) -> None:
    pid = gateway.process.pid
    held, memory = hostile.sockets(pid), hostile.memory_bytes(pid)

    async def at_height() -> None:
        await asyncio.to_thread(honest.goes_on)
        await asyncio.to_thread(a_newcomer_is_served, gateway)
        assert hostile.sockets(pid) <= held + SESSIONS_MAX + LINGERING_MAX + 1

    asyncio.run(ATTACKS[name](parse_address(gateway.listen), HELLO, at_height))
    honest.goes_on()
    assert hostile.until(lambda: hostile.sockets(pid) <= held), "connections were left open"
    assert hostile.memory_bytes(pid) - memory < GROWTH_BYTES_MAX


def a_newcomer_is_served(gateway: GatewayProcess) -> None:
    """Check that a new producer is served.

    The crowd may fill the gateway between its connection and its HELLO, and then the gateway closes the oldest silent
    connection first, which may be this one. It reconnects, as every producer of ours does.
    """

    def is_served() -> bool:
        with suppress(OSError), Producer(gateway.listen) as newcomer:
            newcomer.hello()
            return newcomer.notify(8).success
        return False

    assert hostile.until(is_served), "no new producer is served"


def test_only_a_few_refused_connections_may_stay_open(gateway_process: Make) -> None:
    gateway = gateway_process(linger_s=10 * hostile.DEADLINE_S, lingering_max=LINGERING_MAX).start()
    held = hostile.sockets(gateway.process.pid)

    async def at_height() -> None:
        few = await asyncio.to_thread(hostile.until, lambda: hostile.sockets(pid) <= held + LINGERING_MAX)
        assert few, "refused connections stay open"

    pid = gateway.process.pid
    asyncio.run(hostile.staying(parse_address(gateway.listen), HELLO, at_height))


def test_strangers_at_the_control_port_do_not_block_a_driver(gateway_process: Make) -> None:
    gateway = gateway_process(controls_max=CONTROLS_MAX, handshake_timeout_s=10 * hostile.DEADLINE_S).start()
    pid, held = gateway.process.pid, hostile.sockets(gateway.process.pid)
    with ExitStack() as open_connections:
        knock(gateway, open_connections)
        with gateway.client() as newcomer:
            assert newcomer.status()["sessions"] == 0
            assert hostile.until(lambda: hostile.sockets(pid) <= held + CONTROLS_MAX), "all of them stay connected"


def test_strangers_at_the_control_port_are_disconnected_and_a_driver_stays(
    gateway: GatewayProcess, honest: Honest
) -> None:
    pid, held = gateway.process.pid, hostile.sockets(gateway.process.pid)
    with ExitStack() as open_connections:
        knock(gateway, open_connections)
        assert hostile.until(lambda: hostile.sockets(pid) <= held), "silent connections stay open"
        honest.goes_on()


def knock(gateway: GatewayProcess, open_connections: ExitStack) -> None:
    """Open many connections to the control port that send nothing, or an incomplete request."""
    for number in range(5 * CONTROLS_MAX):
        connection = socket.create_connection(addresses(gateway.directory)["control"], timeout=hostile.DEADLINE_S)
        open_connections.enter_context(connection)
        with suppress(ConnectionError):  # it may be closed already
            connection.sendall(b"{" * number)
