"""Media that push, stopped by one signal while no gateway is there: the wait ends, and what is lost is said."""

from __future__ import annotations

import asyncio
import os
import signal

from structlog.testing import capture_logs

from procession.address import parse_address
from procession.connectors.pushed_sources import Keeping, run_pushed
from procession.connectors.udp_source import UdpSource, datagram_socket
from procession.sdk.connector_program import run_source
from procession.sdk.push_source import Inlet
from procession.sdk.source_options import SourceOptions
from procession.sdk.source_records import Batch

NOWHERE = "127.0.0.1:1"
OPTIONS = SourceOptions("test", "test", stop_wait_s=0.05)


async def one_signal() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.get_running_loop().create_future()


def test_one_signal_ends_the_wait_for_a_gateway_that_is_away_and_the_lost_records_are_counted() -> None:
    async def medium(inlet: Inlet) -> None:
        for payloads in ([b"one", b"two"], [b"three"]):
            count = len(payloads)
            await inlet.put(Batch.gathered(list(range(count)), [0] * count, [b""] * count, payloads))
        await one_signal()

    with capture_logs() as said:
        assert not run_pushed(Keeping(is_best_effort=True).inlet("some", "It"), medium, NOWHERE, OPTIONS)
    assert [line["waited_s"] for line in said if line["event"] == "program.wait_expired"] == [0.05]
    assert [line["records"] for line in said if line["event"] == "source.records_lost"] == [3]


def test_one_signal_ends_the_wait_and_the_datagrams_that_were_not_sent_are_counted() -> None:
    source = UdpSource(datagram_socket(parse_address("127.0.0.1:0")), "some")

    async def beside() -> None:
        for _ in range(3):
            source.datagram_received(b"datagram", None)
        await one_signal()

    options = SourceOptions("test", "test", stop_wait_s=0.05, dialect="draft", report=source.hear)
    with capture_logs() as said:
        assert not run_source(source, NOWHERE, options, on_stop=source.stop, beside=beside)
        source.close()
    assert [line["lost"] for line in said if line["event"] == "source.datagrams_lost"] == [3]
