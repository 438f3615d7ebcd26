"""Streams that come and go while a source runs: named late, ended, opened again; and mistakes of the source's
author."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from procession.address import Address
from procession.errors import ConfigError, RecordError
from procession.sdk.batching import GatherLimits
from procession.sdk.doubles import Crashed, Gateway, ListSource
from procession.sdk.source_records import Batch, Record, Stream
from procession.sdk.source_report import Report
from procession.wire.messages import NOTHING_COMMITTED, Ack, Eos, Hello, Messages, Notify, NotifyAck, Ok, Restart
from tests.sdk.loops import on_a_loop
from tests.sdk.test_source_client import (
    ONE,
    TEN,
    TWO,
    confirmed,
    expected,
    greeted,
    nothing_comes,
    opened,
    running,
    taken,
)


class Growing:
    """Streams of records that a test appends to. A stream that is named again has more records."""

    def __init__(self) -> None:
        self.named: asyncio.Queue[Stream | Exception | None] = asyncio.Queue()
        self.records: dict[int, list[bytes]] = {}
        self.forgotten: list[tuple[int, int]] = []

    def name(self, stream: Stream, records: Sequence[bytes]) -> None:
        self.records.setdefault(stream.id, []).extend(records)
        self.named.put_nowait(stream)

    async def streams(self) -> AsyncIterator[Stream]:
        while (stream := await self.named.get()) is not None:
            if isinstance(stream, Exception):
                raise stream
            yield stream

    def read(self, stream: Stream, after: int | None) -> Iterator[Record]:
        for number, payload in enumerate(self.records[stream.id]):
            if after is None or number > after:
                yield number, 0, b"", payload

    def forget(self, stream: Stream, message_id: int) -> None:
        self.forgotten.append((stream.id, message_id))


@on_a_loop
async def test_a_stream_that_is_named_late_is_opened_in_the_same_session() -> None:
    source = Growing()
    async with Gateway() as gateway, running(source, gateway) as client:
        peer = await greeted(gateway)
        await nothing_comes(peer)
        for stream in (ONE, TWO):
            source.name(stream, TEN[:3])
            assert await peer.receive() == Notify(stream.id, stream.name, 0)
            peer.send(NotifyAck(True, stream.id, NOTHING_COMMITTED))
            assert await taken(peer, 3) == expected(0, 3, stream)
            assert await peer.receive() == Eos(stream.id)
            peer.send(Ack(0, ((stream.id, 2),)))
        await nothing_comes(peer)
        assert not client.done(), "more streams may come"
        source.named.put_nowait(None)
        await confirmed(peer, ONE, TWO)
        assert await peer.receive() is None
        peer.close()
        await client
        assert source.forgotten == [(ONE.id, 2), (TWO.id, 2)]


@on_a_loop
async def test_a_stream_that_is_named_again_after_its_end_is_opened_again_and_continues() -> None:
    source = Growing()
    async with Gateway() as gateway, running(source, gateway) as client:
        source.name(ONE, TEN[:3])
        peer = await opened(gateway)
        await taken(peer, 3)
        assert await peer.receive() == Eos(ONE.id)
        source.name(ONE, TEN[3:5])
        assert await peer.receive() == Notify(ONE.id, ONE.name, 0)
        peer.send(NotifyAck(False, ONE.id, 0))  # its end is not committed yet
        await nothing_comes(peer)
        peer.send(Ack(0, ((ONE.id, 2),)))
        assert await peer.receive() == Notify(ONE.id, ONE.name, 2)
        peer.send(NotifyAck(True, ONE.id, 2))
        assert await taken(peer, 2) == expected(3, 5)
        assert await peer.receive() == Eos(ONE.id)
        source.named.put_nowait(None)
        peer.send(Ack(0, ((ONE.id, 4),)))
        await confirmed(peer, ONE)
        assert await peer.receive() is None
        peer.close()
        await client


@on_a_loop
async def test_a_stream_that_is_named_again_before_its_end_was_sent_is_not_forgotten() -> None:
    source = Growing()
    async with Gateway() as gateway, running(source, gateway):
        source.name(ONE, TEN[:3])
        peer = await opened(gateway, granted=4)
        await taken(peer, 3)
        await nothing_comes(peer)  # no credit for its end
        source.name(ONE, TEN[3:5])
        await nothing_comes(peer)
        peer.send(Ack(100, ((ONE.id, 2),)))
        assert await peer.receive() == Eos(ONE.id)
        assert await peer.receive() == Notify(ONE.id, ONE.name, 2)
        peer.send(NotifyAck(True, ONE.id, 2))
        assert await taken(peer, 2) == expected(3, 5)


@on_a_loop
async def test_a_session_that_is_lost_before_a_stream_is_open_again_loses_nothing() -> None:
    source = Growing()
    async with Gateway() as gateway, running(source, gateway):
        source.name(ONE, TEN[:3])
        peer = await opened(gateway)
        await taken(peer, 3)
        assert await peer.receive() == Eos(ONE.id)
        source.name(ONE, TEN[3:5])
        assert isinstance(await peer.receive(), Notify)
        peer.close()
        peer = await opened(gateway, committed=0)
        assert await taken(peer, 4) == expected(1, 5)


@on_a_loop
async def test_an_error_of_a_source_while_it_lists_streams_ends_the_program() -> None:
    source = Growing()
    async with Gateway() as gateway, running(source, gateway) as client:
        source.name(ONE, TEN)
        await opened(gateway)
        source.named.put_nowait(Crashed())
        with pytest.raises(Crashed):
            await client


@on_a_loop
async def test_two_streams_with_one_id_are_refused() -> None:
    source = ListSource({ONE: TEN, Stream(ONE.id, "another"): TEN})
    async with Gateway() as gateway, running(source, gateway) as client:
        with pytest.raises(ConfigError, match="'one' and 'another' have the same id, 1"):
            await client


@on_a_loop
async def test_an_invalid_item_of_a_source_is_an_error_with_a_reason() -> None:
    class Nonsense(ListSource):
        def read(self, stream: Stream, after: int | None) -> Iterator[Record]:  # type: ignore[override]
            yield 3, 0, b"", b"x"
            yield 2, 0, b"", b"y"

    async with Gateway() as gateway, running(Nonsense({ONE: []}), gateway) as client:
        await opened(gateway)
        with pytest.raises(RecordError, match="message id 2 comes after 3"):
            await client


@on_a_loop
async def test_a_stream_is_not_read_again_before_its_first_reader_has_ended() -> None:
    class Slow(ListSource):
        readers = 0
        let_go = threading.Event()

        def read(self, stream: Stream, after: int | None) -> Iterator[Record]:  # type: ignore[override]
            assert not Slow.readers
            Slow.readers += 1
            yield 0, 0, b"", b"x"
            Slow.let_go.wait()
            Slow.readers -= 1
            yield 1, 0, b"", b"y"

    limits = GatherLimits(delay_s=0.001)
    async with Gateway() as gateway, running(Slow({ONE: []}), gateway, gather=limits) as client:
        peer = await opened(gateway)
        assert len(await taken(peer, 1)) == 1
        peer.send(Restart())
        peer = await opened(gateway)
        await nothing_comes(peer)
        Slow.let_go.set()
        assert len(await taken(peer, 2)) == 2
        assert not client.done()


@on_a_loop
async def test_large_records_are_written_one_by_one_and_small_ones_together() -> None:
    records = [b"x" * size for size in (10, 10, 10, 500, 500, 10, 10)]
    source = ListSource({ONE: records}, batch_records=7)
    async with Gateway() as gateway, running(source, gateway, write_bytes_max=100) as client:
        peer = await opened(gateway)
        seen: list[int] = []
        while len(seen) < 7:
            event = await peer.receive()
            assert isinstance(event, Messages)
            seen += [len(row.payload) for row in event]
        assert seen == [10, 10, 10, 500, 500, 10, 10]
        assert not client.done()


@on_a_loop
async def test_only_a_limited_number_of_streams_are_read_at_once() -> None:
    streams = [Stream(number, f"stream {number}") for number in range(5)]
    begun: list[int] = []
    two_are_read, four_are_read = asyncio.Event(), asyncio.Event()

    class Counted:
        def streams(self) -> list[Stream]:
            return streams

        async def read(self, stream: Stream, after: int | None) -> AsyncIterator[Batch]:
            begun.append(stream.id)
            if stream.id == 1:
                two_are_read.set()
            if stream.id == 3:
                four_are_read.set()
            for batch in ListSource({stream: TEN}, batch_records=10).read(stream, after):
                yield batch

    async with Gateway() as gateway, running(Counted(), gateway, streams_at_once_max=2):
        peer = await greeted(gateway, granted=5)
        for stream in streams:
            assert isinstance(await peer.receive(), Notify)
            peer.send(NotifyAck(True, stream.id, NOTHING_COMMITTED))
        await two_are_read.wait()
        await nothing_comes(peer)
        assert begun == [0, 1]
        peer.send(Ack(20))
        await taken(peer, 20)
        await four_are_read.wait()
        await nothing_comes(peer)
        assert begun == [0, 1, 2, 3], "their ends wait for a credit, but no longer for a reader"


@on_a_loop
async def test_a_closed_address_from_a_restart_is_replaced_by_the_first_address() -> None:
    async with Gateway() as other:
        nowhere = other.address
    async with Gateway() as gateway, running(ListSource({ONE: TEN}), gateway):
        peer = await opened(gateway, granted=4)
        peer.send(Restart(str(nowhere)))
        peer = await opened(gateway)
        assert await taken(peer, 10) == expected(0, 10)


@on_a_loop
async def test_a_source_with_a_time_limit_gives_up_a_gateway_that_never_answers() -> None:
    async with Gateway() as gateway:
        pass
    async with running(ListSource({ONE: TEN}), gateway, patience_s=0.05) as client:
        with pytest.raises(
            ConfigError, match=f"No gateway at {gateway.address} opened a session within 0.05 seconds"
        ) as caught:
            await client
        assert caught.value.next_step


@on_a_loop
async def test_a_source_leaves_a_gateway_that_accepts_and_does_not_answer() -> None:
    async with Gateway() as gateway, running(ListSource({ONE: TEN}), gateway, handshake_timeout_s=0.02):
        silent = await gateway.session()
        assert isinstance(await silent.receive(), Hello)
        assert await silent.receive() is None
        notify = None
        while notify is None:  # on a busy machine our OK may take longer; then the source reconnects
            peer = await gateway.session()
            assert isinstance(await peer.receive(), Hello)
            peer.send(Ok(1000))
            notify = await peer.receive()
        assert isinstance(notify, Notify)
        peer.send(NotifyAck(True, ONE.id, NOTHING_COMMITTED))
        assert await taken(peer, 10) == expected(0, 10)


@on_a_loop
async def test_reports_have_the_progress_of_the_source() -> None:
    reports: list[Report] = []
    notified = asyncio.Event()

    def report(one: Report) -> None:
        reports.append(one)
        notified.set()

    async def until(state: str) -> Report:
        while not reports or reports[-1].state != state:
            notified.clear()
            await notified.wait()
        return reports[-1]

    async with Gateway() as gateway:
        address: Address = gateway.address
    async with running(
        ListSource({ONE: TEN}), gateway, address=address, report=report, report_interval_s=0.005
    ) as client:
        assert (await until("connecting")).sent == 0
        async with gateway:
            peer = await opened(gateway, granted=5)
            starved = await until("waiting for credits")
            assert (starved.sent, starved.acknowledged, starved.streams, starved.streams_ended) == (4, 0, 1, 0)
            peer.send(Ack(100, ((ONE.id, 3),)))
            ending = await until("waiting for commits")
            assert (ending.sent, ending.acknowledged, ending.streams_ended) == (10, 4, 1)
            # Read everything, the end too: closing a socket with unread bytes resets the connection.
            await taken(peer, 10)
            assert await peer.receive() == Eos(ONE.id)
            peer.send(Ack(0, ((ONE.id, 9),)))
            await confirmed(peer, ONE)
            assert await peer.receive() is None
            peer.close()
            await client
        done = reports[-1]
        assert done.is_done
        assert (done.sent, done.acknowledged, done.sent_bytes, done.sessions) == (10, 10, 10, 1)
