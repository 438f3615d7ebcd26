"""The source's client with the draft protocol, against a real gateway: the same guarantees, and ephemeral streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from procession.errors import ConfigError
from procession.sdk.doubles import ListSource
from procession.sdk.source_client import SourceClient
from procession.sdk.source_options import SourceOptions
from procession.sdk.source_records import Record, Source, Stream
from tests.sdk.gateways import LivingGateway, living_gateway
from tests.sdk.loops import on_a_loop

ONE, TWO = Stream(1, "one"), Stream(2, "two")
RECORDS = [b"record %d" % number for number in range(5000)]
DRAFT = SourceOptions("test", "test", dialect="draft", backoff_first_s=0.001, backoff_limit_s=0.05)


def client(source: Source, gateway: LivingGateway, options: SourceOptions = DRAFT) -> SourceClient:
    return SourceClient(source, gateway.listen, options)


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  (what another process has done can only be looked at)
        await asyncio.sleep(0.005)


@on_a_loop
async def test_everything_is_committed_once_in_order_and_a_second_run_adds_what_is_new(tmp_path: Path) -> None:
    with living_gateway(tmp_path) as gateway:
        for count in (3000, 5000):
            sent = client(ListSource({ONE: RECORDS[:count], TWO: RECORDS[:10]}, 100), gateway)
            await sent.run()
            assert sent.committed == {ONE.id: count - 1, TWO.id: 9}
        assert gateway.payloads(ONE.id) == RECORDS
        assert gateway.payloads(TWO.id) == RECORDS[:10]


@on_a_loop
async def test_a_gateway_that_is_killed_only_delays_the_source(tmp_path: Path) -> None:
    with living_gateway(tmp_path) as gateway:
        sending = asyncio.create_task(client(Slow(RECORDS), gateway).run())
        for _ in range(2):
            await until(lambda: len(gateway.rows(ONE.id)) >= 500)
            await asyncio.to_thread(gateway.kill)
            await asyncio.to_thread(gateway.start)
        await sending
        assert gateway.payloads(ONE.id) == RECORDS


class Slow:
    """A source that yields a few records at a time, with pauses."""

    def __init__(self, records: Sequence[bytes]) -> None:
        self._records = records

    def streams(self) -> list[Stream]:
        return [ONE]

    async def read(self, stream: Stream, after: int | None) -> AsyncIterator[Record]:
        for number, payload in enumerate(self._records):
            if after is None or number > after:
                yield number, 0, b"", payload
                if number % 50 == 0:
                    await asyncio.sleep(0.001)


@on_a_loop
async def test_the_source_waits_for_a_stream_that_another_session_holds(tmp_path: Path) -> None:
    with living_gateway(tmp_path) as gateway:
        gateway.hold_commits()
        first = asyncio.create_task(client(ListSource({ONE: RECORDS[:10]}), gateway).run())
        with gateway.client() as control:
            await until(lambda: control.status()["next_sequence"] >= 10)
            second = asyncio.create_task(client(ListSource({ONE: RECORDS[:20]}), gateway).run())
            await asyncio.wait([second], timeout=0.1)
            assert control.status()["next_sequence"] <= 11, "ten records, and maybe their end"
        gateway.let_commit()
        await asyncio.gather(first, second)
        assert gateway.payloads(ONE.id) == RECORDS[:20]


@on_a_loop
async def test_ephemeral_records_are_sent_without_ids_and_the_end_waits_for_no_commit(tmp_path: Path) -> None:
    stream = Stream.named("lost if lost", is_ephemeral=True)
    with living_gateway(tmp_path) as gateway:
        gateway.hold_commits()
        sent = client(ListSource({stream: RECORDS}, 1000), gateway)
        await sent.run()
        report = sent.report()
        assert report.is_done
        assert (report.sent, report.ephemeral, report.acknowledged) == (5000, 5000, 0)
        gateway.let_commit()
        await until(lambda: len(gateway.rows(stream.id)) == 5000)
        assert gateway.payloads(stream.id) == RECORDS


@on_a_loop
async def test_an_ephemeral_stream_in_version_3_is_refused(tmp_path: Path) -> None:
    source = ListSource({Stream.named("x", is_ephemeral=True): []})
    with pytest.raises(ConfigError, match="'x' is ephemeral, which only the draft"):
        await SourceClient(source, "127.0.0.1:1", SourceOptions("test", "test")).run()


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(ConfigError, match="'v4' is not a dialect"):
        SourceClient(ListSource({}), "127.0.0.1:1", SourceOptions("test", "test", dialect="v4"))
