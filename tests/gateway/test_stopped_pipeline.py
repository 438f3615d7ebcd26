"""A pipeline that stops while producers send: all queues stay bounded, and nothing is lost.

The producers and the gateway are real. The test acts as the driver: it waits, and then reads and commits everything.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from procession.bench.producers import resident_bytes
from procession.gateway.control_client import ControlClient
from procession.storage.log_reader import LogReader
from procession.storage.segment import KIND_RECORD
from procession.wire.messages import NOTHING_COMMITTED, Ack, Notify, Ok
from tests.gateway.gateway_process import PATIENCE_S, GatewayProcess
from tests.gateway.producer import Producer

Make = Callable[..., GatewayProcess]
MIB = 1024 * 1024
PRODUCERS, RECORDS, SIZE = 2, 9_000, 500
CREDITS = 512
LAG_BYTES_MAX = MIB
SEGMENT_BYTES_MAX = MIB // 2
ROW_BYTES_MAX = SIZE + 64
EPOCH_RECORDS = 1_000
ACK_INTERVAL_S = 0.05

DISK_BYTES_MAX = LAG_BYTES_MAX + PRODUCERS * CREDITS * ROW_BYTES_MAX + 2 * SEGMENT_BYTES_MAX
"""The sum of the limits: uncommitted rows, records on credits already granted, and incomplete segments."""
GROWTH_BYTES_MAX = 16 * MIB


def test_the_producers_send_more_than_the_limits_admit() -> None:
    assert PRODUCERS * RECORDS * SIZE > 3 * DISK_BYTES_MAX


@pytest.mark.parametrize("stopped_s", [1.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_a_stopped_pipeline_blocks_its_producers_and_then_receives_every_record_once_in_order(
    gateway_process: Make, stopped_s: float
) -> None:
    gateway = gateway_process(
        limits={"lag_bytes_max": LAG_BYTES_MAX, "credits_max": CREDITS},
        segment_bytes_max=SEGMENT_BYTES_MAX,
        ack_interval_s=ACK_INTERVAL_S,
    ).start()
    sources = [pushing(gateway, number) for number in range(PRODUCERS)]
    try:
        with gateway.client() as control:
            held_at = until_held(control)
            memory = {pid: resident_bytes(pid) for pid in [gateway.process.pid, *(source.pid for source in sources)]}
            over_at = time.monotonic() + stopped_s
            while time.monotonic() < over_at:
                time.sleep(0.1)
                assert disk_bytes(gateway) < DISK_BYTES_MAX
            assert control.status()["next_sequence"] == held_at < PRODUCERS * RECORDS, (
                "no record is received in the meantime"
            )
            for pid, before in memory.items():
                assert resident_bytes(pid) - before < GROWTH_BYTES_MAX
            taken = drain(gateway, control)
        assert [source.wait(PATIENCE_S) for source in sources] == [0] * PRODUCERS
    finally:
        for source in sources:
            source.kill()
            source.wait()
    assert len(taken) == PRODUCERS
    assert all(ids == sorted(set(ids)) and len(ids) == RECORDS for ids in taken.values())
    assert disk_bytes(gateway) <= 2 * SEGMENT_BYTES_MAX, "committed rows are deleted"


def test_credits_granted_before_the_stop_cannot_fill_the_disk(gateway_process: Make) -> None:
    """The first credits would allow all records. Records above the limits stay in the sockets."""
    lag, overrun, read = MIB // 4, MIB // 4, MIB // 16
    assert 8 * (lag + overrun) < PRODUCERS * RECORDS * SIZE
    gateway = gateway_process(
        limits={"lag_bytes_max": lag, "overrun_bytes_max": overrun},
        segment_bytes_max=SEGMENT_BYTES_MAX,
        read_bytes_max=read,
        ack_interval_s=0.05,
    ).start()
    bound = lag + overrun + 2 * read + SEGMENT_BYTES_MAX
    sources = [pushing(gateway, number) for number in range(PRODUCERS)]
    try:
        with gateway.client() as control:
            deadline = time.monotonic() + PATIENCE_S
            while not control.status()["is_over"]:
                assert time.monotonic() < deadline, control.status()
            held_at = control.status()["next_sequence"]
            over_at = time.monotonic() + 0.5
            while time.monotonic() < over_at:
                assert disk_bytes(gateway) < bound
            assert control.status()["next_sequence"] == held_at, "no socket is read in the meantime"
            taken = drain(gateway, control, bound)
        assert [source.wait(PATIENCE_S) for source in sources] == [0] * PRODUCERS
    finally:
        for source in sources:
            source.kill()
            source.wait()
    assert all(ids == sorted(set(ids)) and len(ids) == RECORDS for ids in taken.values())


def test_a_full_disk_holds_new_producers_back_and_keeps_acknowledging_the_others(gateway_process: Make) -> None:
    gateway = gateway_process(disk_free_bytes_min=1 << 62, ack_interval_s=0.05).start()
    with Producer(gateway.listen) as producer, gateway.client() as control:
        assert producer.hello() == Ok(1), "enough to open its stream"
        producer.send(Notify(7, "seven", NOTHING_COMMITTED))
        for _ in range(3):
            assert producer.expect(Ack).credits == 0
        assert control.status()["is_over"]
        assert control.status()["streams_total"] == 0, "its messages are not read"


def pushing(gateway: GatewayProcess, number: int) -> subprocess.Popen[bytes]:
    arguments = ["source", "generator", "--records", str(RECORDS), "--size", str(SIZE), "--name", f"push-{number}"]
    command = [sys.executable, "-m", "procession", *arguments, "--to", gateway.listen]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def until_held(control: ControlClient) -> int:
    """Wait until all producers are connected, the limit is exceeded and no producer has a credit left; return the log's
    end.

    The credits of their NOTIFYs are replenished with the gateway's next tick.
    """
    deadline, before = time.monotonic() + PATIENCE_S, -1
    while True:
        status = control.status()
        is_over = status["lag_bytes"] > LAG_BYTES_MAX and status["streams_total"] == PRODUCERS
        is_held = is_over and status["credits_owed"] == PRODUCERS * CREDITS
        if is_held and status["next_sequence"] == before:
            return before
        before = int(status["next_sequence"]) if is_held else -1
        assert time.monotonic() < deadline, status
        time.sleep(10 * ACK_INTERVAL_S)


def drain(
    gateway: GatewayProcess, control: ControlClient, disk_bytes_max: int = DISK_BYTES_MAX
) -> dict[int, list[int]]:
    """Read and commit all rows in small epochs, as a driver does, and return the message ids of each stream."""
    taken: dict[int, list[int]] = {}
    reader, start, epoch = LogReader(gateway.directory / "log"), 0, 0
    while start < PRODUCERS * (RECORDS + 1):  # includes an end of each stream
        end = control.offer(1, start, EPOCH_RECORDS, MIB).end
        if end == start:
            continue
        for batch in reader.read(start, end):
            rows = zip(*(batch.column(name).to_pylist() for name in ("kind", "stream_id", "message_id")), strict=True)
            for kind, stream_id, message_id in rows:
                if kind == KIND_RECORD:
                    taken.setdefault(stream_id, []).append(message_id)
        control.commit(1, epoch, end, {stream_id: ids[-1] for stream_id, ids in taken.items()})
        assert disk_bytes(gateway) < disk_bytes_max
        start, epoch = end, epoch + 1
    return taken


def disk_bytes(gateway: GatewayProcess) -> int:
    total = 0
    for path in (gateway.directory / "log").glob("*.segment"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # trimmed in the meantime
            continue
    return total
