"""Measures the cost of many producers at a gateway: throughput with 1, 8 and 64 producers, and memory per idle
producer.

One producer and several producers send the same number of records, alternately; the result is the median of the ratios.
Then many connections are opened that only open their streams. The memory growth of the gateway's process is divided by
the number of connections.
"""

from __future__ import annotations

import resource
import socket
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from procession.bench.gateway_throughput import MEMORY, encoded, running, through_gateway
from procession.gateway.control_client import ControlClient
from procession.wire import v3
from procession.wire.frame_codec import Framer
from procession.wire.messages import NOTHING_COMMITTED, Frame, Hello, Notify, NotifyAck, Ok

PRODUCERS = (1, 8, 64)
READ_BYTES = 65536
DESCRIPTORS = 256
"""Maximum number of other open files of this process."""


def measure(
    records: int, rounds: int, connections: int, streams_each: int, directory: Path | None
) -> dict[str, dict[str, float]]:
    directory = directory or (MEMORY if MEMORY.is_dir() else None)
    took: dict[int, list[float]] = {producers: [] for producers in PRODUCERS}
    loads = {producers: _loads(producers, records) for producers in PRODUCERS}
    for _ in range(rounds):
        for producers in PRODUCERS:
            took[producers].append(through_gateway(loads[producers], records // producers, directory))
    figures = {str(producers): _figures(producers, records, took) for producers in PRODUCERS}
    return figures | {"idle": idle(connections, streams_each, directory)}


def report_lines(figures: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    for producers in map(str, PRODUCERS):
        row = figures[producers]
        yield f"{producers} producer(s): {row['records_s'] / 1e6:.1f} M records/s, {row['ratio']:.2f} of one producer's"
    rest = figures["idle"]
    yield (
        f"{rest['connections']:,.0f} idle connections with {rest['streams']:,.0f} streams:"
        f" {rest['grown_bytes'] / 2**20:.1f} MiB, {rest['bytes_each'] / 1024:.1f} KiB for each with its streams"
    )


def _loads(producers: int, records: int) -> list[memoryview]:
    return [encoded(stream_id, records // producers) for stream_id in range(1, producers + 1)]


def _figures(producers: int, records: int, took: Mapping[int, Sequence[float]]) -> dict[str, float]:
    sent = records // producers * producers
    ratios = [single / many for single, many in zip(took[1], took[producers], strict=True)]
    return {"records_s": sent / statistics.median(took[producers]), "ratio": statistics.median(ratios)}


def idle(connections: int, streams_each: int, directory: Path | None) -> dict[str, float]:
    """Measure the memory growth of a gateway when this number of producers connect, open their streams and wait."""
    allow_descriptors(connections + DESCRIPTORS)
    with (
        tempfile.TemporaryDirectory(prefix="procession-bench-", dir=directory) as place,
        running(place) as gateway,
        ControlClient(Path(place), b"", 20.0) as client,
        ExitStack() as open_sessions,
    ):
        client.status()
        before = resident_bytes(gateway.pid)
        for number in range(connections):
            open_sessions.enter_context(waiting(gateway.address, number * streams_each, streams_each))
        status = client.status()
        assert (status["sessions"], status["streams_total"]) == (connections, connections * streams_each)
        grown = resident_bytes(gateway.pid) - before
    return {
        "connections": connections,
        "streams": connections * streams_each,
        "grown_bytes": grown,
        "bytes_each": grown / connections,
    }


def waiting(address: tuple[str, int], first_stream: int, streams: int) -> socket.socket:
    """Connect a producer that sends HELLO and NOTIFY and receives a NOTIFY_ACK for each of its streams."""
    peer = socket.create_connection(address)
    framer = Framer()
    peer.sendall(v3.encode(Hello(v3.SOURCE_VERSION, b"", "bench", str(first_stream))))
    _expect(peer, framer, Ok, 1)
    names = (Notify(first_stream + number, "idle", NOTHING_COMMITTED) for number in range(streams))
    peer.sendall(b"".join(map(v3.encode, names)))
    _expect(peer, framer, NotifyAck, streams)
    return peer


def _expect(peer: socket.socket, framer: Framer, kind: type[Frame], count: int) -> None:
    while count:
        data = peer.recv(READ_BYTES)
        assert data, "the gateway closed the connection"
        count -= sum(isinstance(v3.decode(body), kind) for body in framer.feed(data))


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def allow_descriptors(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
