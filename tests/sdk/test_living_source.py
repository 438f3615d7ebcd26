"""The source's client against a real gateway: many streams on few credits, streams that end and reopen, stops and
kills."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pyarrow as pa

from procession.sdk.doubles import ListSource
from procession.sdk.source_client import SourceClient
from procession.sdk.source_options import SourceOptions
from procession.sdk.source_records import Batch, Record, Source, Stream
from tests.sdk.gateways import LivingGateway, living_gateway
from tests.sdk.loops import on_a_loop
from tests.sdk.test_streams import Growing

ONE = Stream(1, "one")
RECORDS = [b"record %d" % number for number in range(5000)]
OPTIONS = SourceOptions("test", "test", backoff_first_s=0.001, backoff_limit_s=0.05)


def client(source: Source, gateway: LivingGateway) -> SourceClient:
    return SourceClient(source, gateway.listen, OPTIONS)


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  (what another process has done can only be looked at)
        await asyncio.sleep(0.005)


@on_a_loop
async def test_many_streams_on_few_credits_are_all_committed(tmp_path: Path) -> None:
    streams = [Stream(number, f"stream {number}") for number in range(60)]
    with living_gateway(tmp_path, limits={"credits_max": 8}, ack_interval_s=0.01) as gateway:
        await client(ListSource({stream: RECORDS[: stream.id] for stream in streams}), gateway).run()
        for stream in streams:
            assert gateway.payloads(stream.id) == RECORDS[: stream.id]


@on_a_loop
async def test_a_stream_that_ends_and_is_named_again_continues_in_the_same_session(tmp_path: Path) -> None:
    source = Growing()
    with living_gateway(tmp_path, ack_interval_s=0.01) as gateway:
        running = client(source, gateway)
        sending = asyncio.create_task(running.run())
        for turn in range(5):
            source.name(ONE, RECORDS[turn * 10 : turn * 10 + 10])
            await until(lambda turn=turn: len(gateway.payloads(ONE.id)) == turn * 10 + 10)
        source.named.put_nowait(None)
        await sending
        assert gateway.payloads(ONE.id) == RECORDS[:50]
        assert running.report().sessions == 1


class Mixed:
    """A source that yields everything allowed: records, batches and Arrow, from plain and asynchronous iterators."""

    def streams(self) -> list[Stream]:
        return [Stream(1, "plain"), Stream(2, "asynchronous")]

    def read(self, stream: Stream, after: int | None) -> Iterator[object] | AsyncIterator[object]:  # type: ignore[override]
        items = list(self._items(0 if after is None else after + 1))
        return iter(items) if stream.id == 1 else self._later(items)

    def _items(self, first: int) -> Iterator[object]:
        for number in range(first, 900):
            record: Record = (number, number, b"k", RECORDS[number])
            if number < 300:
                yield record
            elif number < 600:
                yield Batch.gathered(*([value] for value in record))
            else:
                columns = [pa.array([value]) for value in record]
                yield pa.RecordBatch.from_arrays(columns, ["message_id", "event_time", "key", "payload"])

    async def _later(self, items: list[object]) -> AsyncIterator[object]:
        for item in items:
            await asyncio.sleep(0)
            yield item


@on_a_loop
async def test_every_kind_of_yielded_item_arrives_unchanged(tmp_path: Path) -> None:
    with living_gateway(tmp_path) as gateway:
        await client(Mixed(), gateway).run()  # type: ignore[arg-type]
        expected = [(number, number, b"k", RECORDS[number]) for number in range(900)]
        assert gateway.rows(1) == gateway.rows(2) == expected


class Waiting:
    """A source that waits after some records until it may continue, so that the session with these is not its last."""

    def __init__(self) -> None:
        self.may_go_on = {1000: asyncio.Event(), 3000: asyncio.Event()}

    def streams(self) -> list[Stream]:
        return [ONE]

    async def read(self, stream: Stream, after: int | None) -> AsyncIterator[Record]:
        for number, payload in enumerate(RECORDS):
            if after is None or number > after:
                yield number, 0, b"", payload
                if number in self.may_go_on:
                    await self.may_go_on[number].wait()


@on_a_loop
async def test_a_gateway_that_stops_or_is_killed_only_delays_the_source(tmp_path: Path) -> None:
    with living_gateway(tmp_path) as gateway:
        source = Waiting()
        running = client(source, gateway)
        sending = asyncio.create_task(running.run())
        for end, (last, may_go_on) in zip((gateway.terminate, gateway.kill), source.may_go_on.items(), strict=True):
            await until(lambda last=last: len(gateway.rows(ONE.id)) > last - 100)
            await asyncio.to_thread(end)
            await asyncio.to_thread(gateway.start)
            may_go_on.set()
        await sending
        assert gateway.payloads(ONE.id) == RECORDS
        report = running.report()
        assert report.acknowledged == 5000
        assert report.sessions >= 3
