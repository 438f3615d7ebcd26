"""Measures the gateway's throughput relative to plain loopback TCP, with one and with eight producers.

The same bytes go, alternately, to a plain `recv_into` loop and to a gateway, which decodes them, removes duplicates,
appends them to its log and replenishes the credits. The producers send frames that are encoded beforehand, as far as
their credits allow, so their cost is not measured. Nor is the disk: the log is in memory, unless a directory is given.
"""

from __future__ import annotations

import json
import multiprocessing
import selectors
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from procession.deployment.local_pipeline import COMMAND
from procession.gateway.control_client import ControlClient
from procession.wire import v3
from procession.wire.frame_codec import Framer
from procession.wire.messages import NOTHING_COMMITTED, Ack, Hello, Notify, Ok

PRODUCERS = (1, 8)
PAYLOAD_BYTES = 50
READ_BYTES = 1024 * 1024
POLL_INTERVAL_S = 0.01
WARM_STREAM, WARM_RECORDS = 1000, 200_000
WARM_BYTES_MAX = 64 * 1024 * 1024
MEMORY = Path("/dev/shm")
FORK: Any = multiprocessing.get_context("fork")
"""Producers are forks: they share the data in memory, which is ready before the measurement starts."""


def measure(records: int, rounds: int, directory: Path | None) -> dict[str, dict[str, float]]:
    directory = directory or (MEMORY if MEMORY.is_dir() else None)
    return {str(producers): measure_with(producers, records, rounds, directory) for producers in PRODUCERS}


def report_lines(figures: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    for producers, result in figures.items():
        yield (
            f"{producers} producer(s): gateway {result['gateway_mb_s']:5.0f} MB/s,"
            f" {result['gateway_records_s'] / 1e6:.1f} M records/s;"
            f" plain loopback {result['loopback_mb_s']:5.0f} MB/s; share {result['share']:.2f}"
        )


def measure_with(producers: int, records: int, rounds: int, directory: Path | None) -> dict[str, float]:
    records_per_producer = records // producers
    loads = [encoded(stream_id, records_per_producer) for stream_id in range(1, producers + 1)]
    size_bytes = sum(map(len, loads))
    plain: list[float] = []
    ours: list[float] = []
    for _ in range(rounds):
        plain.append(through_loopback(loads))
        ours.append(through_gateway(loads, records_per_producer, directory))
    return {
        "loopback_mb_s": size_bytes / statistics.median(plain) / 1e6,
        "gateway_mb_s": size_bytes / statistics.median(ours) / 1e6,
        "gateway_records_s": records_per_producer * producers / statistics.median(ours),
        "share": statistics.median(bare / whole for bare, whole in zip(plain, ours, strict=True)),
    }


def encoded(stream_id: int, records: int) -> memoryview:
    """Return the MESSAGE frames of one producer, all equally long."""
    payloads = pa.array([b"x" * PAYLOAD_BYTES] * records, pa.binary())
    return memoryview(v3.encode_messages(stream_id, np.arange(records), np.zeros(records, np.int64), None, payloads))


def through_loopback(loads: Sequence[memoryview]) -> float:
    """Return the seconds that a loop which only receives takes."""
    with socket.create_server(("127.0.0.1", 0)) as server, selectors.DefaultSelector() as waiting:
        start, senders = forked(lambda load, _: _send_plainly(server.getsockname(), load), loads)
        for _ in loads:
            waiting.register(server.accept()[0], selectors.EVENT_READ)
        buffer = bytearray(READ_BYTES)
        start.set()
        began = time.perf_counter()
        while waiting.get_map():
            for ready, _ in waiting.select():
                receiver: Any = ready.fileobj
                if not receiver.recv_into(buffer):
                    waiting.unregister(receiver)
                    receiver.close()
        took_s = time.perf_counter() - began
    for sender in senders:
        sender.join()
    return took_s


def through_gateway(loads: Sequence[memoryview], records: int, parent: Path | None) -> float:
    """Return the seconds from the first frame until the last is in the log of a gateway that has warmed up."""
    warming: list[Any] = []
    senders: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="procession-bench-", dir=parent) as directory:
        with running(directory, "--lag-bytes-max", str(4 * sum(map(len, loads)) + WARM_BYTES_MAX)) as gateway:
            client = ControlClient(Path(directory), b"", 20.0)

            def producing(
                buffers: Sequence[memoryview], records_per_stream: int, first_stream: int
            ) -> tuple[Any, list[Any]]:
                return forked(
                    lambda load, number: produce(gateway.address, load, records_per_stream, first_stream + number),
                    buffers,
                )

            start, warming = producing([encoded(WARM_STREAM, WARM_RECORDS)], WARM_RECORDS, WARM_STREAM)
            start.set()
            until(lambda: client.status()["is_columnar"])
            start, senders = producing(loads, records, 1)
            until(lambda: client.status()["streams_total"] == 1 + len(loads))
            start.set()
            began = time.perf_counter()
            until(lambda: client.status()["next_sequence"] == WARM_RECORDS + records * len(loads))
            took_s = time.perf_counter() - began
        for sender in warming + senders:
            sender.join()
    return took_s


class Running(NamedTuple):
    pid: int
    address: tuple[str, int]


@contextmanager
def running(directory: str, *options: str) -> Iterator[Running]:
    """Yield a gateway, with its log in this directory, while it is needed."""
    arguments = [
        "--dir",
        directory,
        "--listen",
        "127.0.0.1:0",
        "--control",
        "127.0.0.1:0",
        "--open-producers",
        *options,
    ]
    with subprocess.Popen([*COMMAND, "gateway", *arguments], stderr=subprocess.PIPE) as gateway:
        try:
            yield Running(gateway.pid, _address(Path(directory)))
        finally:
            gateway.terminate()


def until(is_reached: Callable[[], bool]) -> None:
    while not is_reached():
        time.sleep(POLL_INTERVAL_S)


def _address(directory: Path) -> tuple[str, int]:
    until((directory / "gateway.json").exists)
    host, _, port = json.loads((directory / "gateway.json").read_text())["listen"].rpartition(":")
    return host, int(port)


def forked(send: Callable[[memoryview, int], Callable[[], None]], loads: Sequence[memoryview]) -> tuple[Any, list[Any]]:
    """Return a process for each load: connected at once, and sending when the event is set."""
    start = FORK.Event()

    def run(load: memoryview, number: int) -> None:
        go = send(load, number)
        start.wait()
        go()

    senders = [FORK.Process(target=run, args=(load, number)) for number, load in enumerate(loads)]
    for sender in senders:
        sender.start()
    return start, senders


def _send_plainly(address: tuple[str, int], load: memoryview) -> Callable[[], None]:
    peer = socket.create_connection(address)

    def go() -> None:
        peer.sendall(load)
        peer.close()

    return go


def produce(address: tuple[str, int], load: memoryview, records: int, stream_id: int) -> Callable[[], None]:
    """Return a producer that spends the credits it has, and waits when it has none."""
    peer = socket.create_connection(address)
    framer = Framer()
    frame_bytes = len(load) // records

    def granted() -> int:
        frames = map(v3.decode, framer.feed(peer.recv(READ_BYTES)))
        return sum(frame.credits for frame in frames if isinstance(frame, Ok | Ack))

    peer.sendall(v3.encode(Hello(v3.SOURCE_VERSION, b"", "bench", str(stream_id))))
    credit = granted() - 1
    peer.sendall(v3.encode(Notify(stream_id, "bench", NOTHING_COMMITTED)))
    credit += granted()

    def go() -> None:
        sent, left = 0, credit
        while sent < records:
            while not left:
                left += granted()
            count = min(left, records - sent)
            peer.sendall(load[sent * frame_bytes : (sent + count) * frame_bytes])
            sent, left = sent + count, left - count
        # Closed by the gateway, when it is stopped: an unread ACK in a closed socket would reset it.
        while peer.recv(READ_BYTES):
            pass

    return go
