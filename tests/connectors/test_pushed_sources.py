"""Push sources are stopped by a signal while no gateway answers: the wait ends, and losses are reported."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from procession.address import parse_address
from procession.connectors.pushed_sources import SpoolOptions, after_answer, run_pushed
from procession.connectors.udp_source import UdpSource, datagram_socket
from procession.errors import StorageError
from procession.sdk.backlog import Buffer, Spool
from procession.sdk.connector_program import run_source
from procession.sdk.push_source import PushStream
from procession.sdk.source_options import SourceOptions
from procession.sdk.source_records import Batch, Stream

NOWHERE = "127.0.0.1:1"
OPTIONS = SourceOptions("test", "test", stop_wait_s=0.05)


async def one_signal() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.get_running_loop().create_future()


def test_one_signal_ends_the_wait_for_a_gateway_that_is_away_and_the_lost_records_are_counted() -> None:
    async def medium(push_stream: PushStream) -> None:
        for payloads in ([b"one", b"two"], [b"three"]):
            count = len(payloads)
            await push_stream.put(Batch.gathered(list(range(count)), [0] * count, [b""] * count, payloads))
        await one_signal()

    with capture_logs() as events:
        assert not run_pushed(SpoolOptions(is_best_effort=True).open_stream("some", "It"), medium, NOWHERE, OPTIONS)
    assert [line["waited_s"] for line in events if line["event"] == "program.wait_expired"] == [0.05]
    assert [line["records"] for line in events if line["event"] == "source.records_lost"] == [3]


def test_one_signal_ends_the_wait_and_the_datagrams_that_were_not_sent_are_counted() -> None:
    source = UdpSource(datagram_socket(parse_address("127.0.0.1:0")), "some")

    async def beside() -> None:
        for _ in range(3):
            source.datagram_received(b"datagram", None)
        await one_signal()

    options = SourceOptions("test", "test", stop_wait_s=0.05, dialect="draft", report=source.on_report)
    with capture_logs() as events:
        assert not run_source(source, NOWHERE, options, on_stop=source.stop, beside=beside)
        source.close()
    assert [line["lost"] for line in events if line["event"] == "source.datagrams_lost"] == [3]


def test_a_new_spool_receives_nothing_if_the_gateway_has_records_of_its_stream(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    pushed = PushStream(Stream.named("changes"), spool)

    async def medium(push_stream: PushStream) -> None:
        await push_stream.put(Batch.gathered(list(range(9)), [0] * 9, [b""] * 9, [b"new"] * 9))

    async def life() -> None:
        reading = asyncio.create_task(after_answer(medium)(pushed))
        for _ in range(10):
            await asyncio.sleep(0)  # as long as the gateway is away
        with pytest.raises(StorageError, match="has sent at most 0 records, but 5 are committed"):
            await anext(pushed.read(pushed.stream, 4))
        reading.cancel()

    asyncio.run(life())
    assert spool.next_id == 0
    spool.close()


def test_a_stream_that_failed_to_keep_records_does_not_end_as_if_it_were_complete() -> None:
    class Full(Buffer):
        def append(self, batch: Batch) -> None:
            raise StorageError("the disk is full")

    async def life() -> None:
        pushed = PushStream(Stream.named("changes"), Full())
        with pytest.raises(StorageError, match="full"):
            await pushed.put(Batch.gathered([0], [0], [b""], [b"lost"]))
        pushed.end()  # as the reader of a medium does after an error
        with pytest.raises(StorageError, match="full"):
            async for _ in pushed.read(pushed.stream, None):
                pass

    asyncio.run(life())
