"""Compares decoding a million MESSAGE frames with 50-byte payloads into columns with a `struct` loop.

Both read the same bytes in the same process, alternately, for several rounds; the result is the median of the ratios.
The loop returns a tuple per record. Ours returns columns, one read at a time as in a gateway, through
`Connection.receive` with all its checks. The encoder is measured in the same way: a loop, and the code that is used
until the compiled kernel is ready.
"""

from __future__ import annotations

import statistics
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from procession.wire import columns, v3
from procession.wire.connection import Connection
from procession.wire.lifecycle import ConnectionSide, Role
from procession.wire.messages import Hello, Messages, Notify, NotifyAck, Ok

STREAM = 1
PAYLOAD_BYTES = 50
READ_BYTES = 1024 * 1024
WRITE_RECORDS = 8192
HEADER = struct.Struct(">IBQQqH")


def measure(frames: int, rounds: int) -> dict[str, dict[str, float]]:
    payloads = [b"%0*d" % (PAYLOAD_BYTES, number) for number in range(frames)]
    column = pa.array(payloads, pa.binary())
    data = packed_by_struct(payloads)
    columns.make_ready()
    ways: dict[str, dict[str, Callable[[], int]]] = {
        "decode": {"struct": lambda: unpacked_by_struct(data), "columns": lambda: received(data)},
        "encode": {
            "struct": lambda: len(packed_by_struct(payloads)),
            "numpy": lambda: uncompiled(lambda: sent(column)),
            "columns": lambda: sent(column),
        },
    }
    return {name: measured(way, frames, rounds) for name, way in ways.items()}


def report_lines(figures: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    for decoder, times in figures.items():
        shown = ", ".join(f"{name} {value:.1f}" for name, value in times.items() if name != "ratio")
        yield f"{decoder}: {shown} ns a frame; columns are {times['ratio']:.0f} times as fast as struct"


def measured(ways: Mapping[str, Callable[[], int]], frames: int, rounds: int) -> dict[str, float]:
    """Return the median nanoseconds per frame of each variant, and the speedup of columns over struct."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    expected = {way() for way in ways.values()}
    assert len(expected) == 1, "all variants give the same result"
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            found[name].append((time.perf_counter() - began) / frames * 1e9)
    ratio = statistics.median(slow / fast for slow, fast in zip(found["struct"], found["columns"], strict=True))
    return {**{name: statistics.median(times) for name, times in found.items()}, "ratio": ratio}


def unpacked_by_struct(data: bytes) -> int:
    """Decode with the `struct` loop, and return the number of records."""
    records = []
    position = 0
    while position < len(data):
        length, _, stream_id, message_id, event_time, key_length = HEADER.unpack_from(data, position)
        payload_start = position + HEADER.size + key_length
        position += 4 + length
        key = data[payload_start - key_length : payload_start]
        records.append((stream_id, message_id, event_time, key, data[payload_start:position]))
    return len(records)


def packed_by_struct(payloads: Sequence[bytes]) -> bytes:
    return b"".join(
        HEADER.pack(HEADER.size - 4 + len(payload), v3.MESSAGE_TAG, STREAM, number, 3 * number, 0) + payload
        for number, payload in enumerate(payloads)
    )


def received(data: bytes) -> int:
    """Decode read by read, as a gateway does."""
    connection = Connection(ConnectionSide.ACCEPTOR, Role.SOURCE)
    connection.receive(v3.encode(Hello(v3.SOURCE_VERSION, b"", "bench", "")))
    connection.send(Ok(2**32 - 1))
    connection.receive(v3.encode(Notify(STREAM, "", 0)))
    connection.send(NotifyAck(True, STREAM, 0))
    rows = 0
    view = memoryview(data)
    for start in range(0, len(view), READ_BYTES):
        for event in connection.receive(view[start : start + READ_BYTES]):
            assert isinstance(event, Messages), event
            rows += len(event)
    return rows


def sent(payloads: pa.Array) -> int:
    """Encode write by write, as a source does."""
    size_bytes = 0
    for start in range(0, len(payloads), WRITE_RECORDS):
        piece = payloads[start : start + WRITE_RECORDS]
        ids = np.arange(start, start + len(piece), dtype=np.uint64)
        size_bytes += v3.encode_messages(STREAM, ids, (3 * ids).astype(np.int64), None, piece).size
    return size_bytes


def uncompiled(call: Callable[[], int]) -> int:
    kernels, columns._kernels = columns._kernels, None
    try:
        return call()
    finally:
        columns._kernels = kernels
