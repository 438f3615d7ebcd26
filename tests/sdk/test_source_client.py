"""The source's client over real TCP, against a gateway that the test controls: credits, refusals, restarts, the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from procession.address import Address
from procession.errors import ConfigError, RemoteProtocolError, StorageError
from procession.sdk.doubles import Crash, Crashed, Gateway, ListSource, Peer
from procession.sdk.pacing import Backoff
from procession.sdk.source_client import SourceClient
from procession.sdk.source_options import SourceOptions
from procession.sdk.source_records import Batch, Source, Stream
from procession.sdk.source_session import CONFIRM_PAUSE_S, REFUSED_PAUSE_S, StreamFeed
from procession.sdk.stream_progress import KnownStreams
from procession.wire.connection import Connection
from procession.wire.lifecycle import ConnectionSide, Role
from procession.wire.messages import (
    NOTHING_COMMITTED,
    Ack,
    Eos,
    Error,
    Hello,
    Messages,
    Notify,
    NotifyAck,
    Ok,
    Restart,
)
from tests.sdk.loops import on_a_loop

ONE, TWO = Stream(1, "one"), Stream(2, "two")
TEN = [b"%d" % number for number in range(10)]


@asynccontextmanager
async def running(
    source: Source, gateway: Gateway, *, address: Address | None = None, **options: object
) -> AsyncIterator[asyncio.Task[None]]:
    backoff = Backoff(first_s=0.001, limit_s=0.01)
    settings = SourceOptions("test", "test", **options)  # type: ignore[arg-type]
    task = asyncio.create_task(SourceClient(source, address or gateway.address, settings, backoff).run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def greeted(gateway: Gateway, granted: int = 1000) -> Peer:
    peer = await gateway.session()
    hello = await peer.receive()
    assert isinstance(hello, Hello)
    assert hello.version == "0.0.1"
    peer.send(Ok(granted))
    return peer


async def opened(gateway: Gateway, committed: int = NOTHING_COMMITTED, granted: int = 1000) -> Peer:
    peer = await greeted(gateway, granted)
    notify = await peer.receive()
    assert isinstance(notify, Notify)
    peer.send(NotifyAck(True, notify.stream_id, committed))
    return peer


async def taken(peer: Peer, count: int) -> list[tuple[int, int, bytes]]:
    """Return the next `count` records, and check that there is not one more."""
    records: list[tuple[int, int, bytes]] = []
    while len(records) < count:
        event = await peer.receive()
        assert isinstance(event, Messages), event
        records += [(message.stream_id, message.message_id, message.payload) for message in event]
    assert len(records) == count
    return records


async def confirmed(peer: Peer, *streams: Stream, is_committed: bool = True) -> None:
    """Answer the NOTIFYs with which the source asks whether the ends of these streams are committed."""
    requested: set[int] = set()
    while len(requested) < len(streams):
        notify = await peer.receive()
        assert isinstance(notify, Notify), notify
        requested.add(notify.stream_id)
        peer.send(NotifyAck(is_committed, notify.stream_id, notify.point_of_reference))
    assert requested == {stream.id for stream in streams}


async def nothing_comes(peer: Peer, for_s: float = 0.05) -> None:
    with pytest.raises(TimeoutError):
        await peer.receive(for_s)


def expected(start: int, end: int, stream: Stream = ONE) -> list[tuple[int, int, bytes]]:
    return [(stream.id, number, TEN[number]) for number in range(start, end)]


async def ends_cleanly(peer: Peer, client: asyncio.Task[None]) -> None:
    """Check that the source has closed its side, and that the client ends without an error when the gateway closes
    too."""
    assert await peer.receive() is None
    peer.close()
    await client


@on_a_loop
async def test_every_record_is_sent_once_in_order_and_the_end_waits_for_the_last_ack() -> None:
    async with Gateway() as gateway, running(ListSource({ONE: TEN}), gateway) as client:
        peer = await opened(gateway)
        assert await taken(peer, 10) == expected(0, 10)
        assert await peer.receive() == Eos(ONE.id)
        peer.send(Ack(0, ((ONE.id, 8),)))
        await nothing_comes(peer)
        assert not client.done()
        peer.send(Ack(0, ((ONE.id, 9),)))
        await confirmed(peer, ONE)
        assert await peer.receive() is None, "the source sends no more"
        assert not client.done(), "it waits until the gateway has read that"
        peer.close()
        await client


@on_a_loop
async def test_nothing_is_sent_without_a_credit() -> None:
    async with Gateway() as gateway, running(ListSource({ONE: TEN}, batch_records=7), gateway) as client:
        peer = await opened(gateway, granted=4)
        assert await taken(peer, 3) == expected(0, 3), "NOTIFY costs one, each record one"
        await nothing_comes(peer)
        peer.send(Ack(0))
        await nothing_comes(peer)
        peer.send(Ack(2))
        assert await taken(peer, 2) == expected(3, 5)
        peer.send(Ack(5))
        assert await taken(peer, 5) == expected(5, 10)
        await nothing_comes(peer)
        peer.send(Ack(1, ((ONE.id, 9),)))
        assert await peer.receive() == Eos(ONE.id), "EOS costs one as well"
        await nothing_comes(peer)
        peer.send(Ack(1))
        await confirmed(peer, ONE)
        peer.close()
        await client


@on_a_loop
async def test_streams_share_the_credits_and_each_keeps_its_order() -> None:
    async with Gateway() as gateway, running(ListSource({ONE: TEN, TWO: TEN}), gateway) as client:
        peer = await greeted(gateway, granted=1)
        first = await peer.receive()
        assert isinstance(first, Notify)
        await nothing_comes(peer)
        peer.send(NotifyAck(True, first.stream_id, NOTHING_COMMITTED), Ack(1))
        records: list[tuple[int, int, bytes]] = []
        ended: set[int] = set()
        while len(ended) < 2:
            event = await peer.receive()
            match event:
                case Notify(stream_id):
                    peer.send(NotifyAck(True, stream_id, NOTHING_COMMITTED))
                case Messages():
                    records += [(message.stream_id, message.message_id, message.payload) for message in event]
                case Eos(stream_id):
                    ended.add(stream_id)
            if not peer.connection.credit.available:
                peer.send(Ack(1))
        for stream in (ONE, TWO):
            assert [record for record in records if record[0] == stream.id] == expected(0, 10, stream)
        peer.send(Ack(2, ((ONE.id, 9), (TWO.id, 9))))
        await confirmed(peer, ONE, TWO)
        await ends_cleanly(peer, client)


@on_a_loop
async def test_a_stream_is_read_from_what_the_gateway_says_is_committed() -> None:
    for committed in range(10):
        async with Gateway() as gateway, running(ListSource({ONE: TEN}), gateway) as client:
            peer = await opened(gateway, committed)
            if committed < 9:
                assert await taken(peer, 9 - committed) == expected(committed + 1, 10)
                peer.send(Ack(0, ((ONE.id, 9),)))
            assert await peer.receive() == Eos(ONE.id)
            await confirmed(peer, ONE)
            assert await peer.receive() is None
            peer.close()
            await client


@on_a_loop
async def test_a_stream_without_records_ends_without_an_ack() -> None:
    async with Gateway() as gateway, running(ListSource({ONE: []}), gateway) as client:
        peer = await opened(gateway)
        assert await peer.receive() == Eos(ONE.id)
        await confirmed(peer, ONE, is_committed=False)
        peer.send(Ack(0))
        await confirmed(peer, ONE)
        await ends_cleanly(peer, client)


@on_a_loop
async def test_a_source_without_streams_is_done_when_it_is_welcome() -> None:
    async with Gateway() as gateway, running(ListSource({}), gateway) as client:
        peer = await greeted(gateway)
        await ends_cleanly(peer, client)


@on_a_loop
async def test_a_refused_stream_is_requested_again_after_the_next_ack() -> None:
    async with Gateway() as gateway, running(ListSource({ONE: TEN}), gateway):
        peer = await greeted(gateway)
        for _ in range(3):
            notify = await peer.receive()
            assert isinstance(notify, Notify)
            peer.send(NotifyAck(False, ONE.id, notify.point_of_reference))
            await nothing_comes(peer)
            peer.send(Ack(0))
        assert isinstance(await peer.receive(), Notify)
        peer.send(NotifyAck(True, ONE.id, 4))
        assert await taken(peer, 5) == expected(5, 10)


@on_a_loop
async def test_a_refusal_that_comes_with_an_ack_is_not_repeated_at_once() -> None:
    """The simulator found this case: with a small window of credits, each refusal comes with an ACK."""
    repeats = 5
    async with Gateway() as gateway, running(ListSource({ONE: TEN}), gateway):
        peer = await greeted(gateway)
        started_s = asyncio.get_running_loop().time()
        for _ in range(repeats):
            assert isinstance(await peer.receive(), Notify)
            peer.send(NotifyAck(False, ONE.id, 0))
            peer.send(Ack(1))
        assert isinstance(await peer.receive(), Notify)
        assert asyncio.get_running_loop().time() - started_s >= 0.9 * repeats * REFUSED_PAUSE_S


@on_a_loop
async def test_restart_without_an_address_comes_back_to_the_same_place() -> None:
    async with Gateway() as gateway, running(ListSource({ONE: TEN}), gateway):
        peer = await opened(gateway, granted=4)
        await taken(peer, 3)
        peer.send(Restart())
        assert await peer.receive() is None
        peer = await opened(gateway)
        assert await taken(peer, 10) == expected(0, 10)


@on_a_loop
async def test_a_restart_read_together_with_an_ack_is_only_a_restart() -> None:
    """The simulator found this case: one read has the ACK after which a refused NOTIFY is repeated, and a RESTART."""
    async with Gateway() as gateway, running(ListSource({ONE: TEN}), gateway):
        peer = await gateway.session()
        assert isinstance(await peer.receive(), Hello)
        peer.send(Ok(1000))
        peer.send(Restart())  # both frames are written before the client's next turn
        assert await peer.receive() is None
        peer = await greeted(gateway)
        assert isinstance(await peer.receive(), Notify)
        peer.send(NotifyAck(False, ONE.id, 0))
        peer.send(Ack(0))
        peer.send(Restart())
        assert await peer.receive() is None
        peer = await opened(gateway)
        assert await taken(peer, 10) == expected(0, 10)


@on_a_loop
async def test_restart_with_an_address_goes_there() -> None:
    async with Gateway() as gateway, Gateway() as other, running(ListSource({ONE: TEN}), gateway) as client:
        peer = await opened(gateway, granted=4)
        peer.send(Restart("nowhere at all"))
        peer = await opened(gateway, granted=4)
        peer.send(Restart(str(other.address)))
        peer = await opened(other, committed=8)
        assert await taken(peer, 1) == expected(9, 10)
        assert await peer.receive() == Eos(ONE.id)
        peer.send(Ack(0, ((ONE.id, 9),)))
        await confirmed(peer, ONE)
        await ends_cleanly(peer, client)


@on_a_loop
async def test_a_lost_session_replays_from_the_notify_ack_and_never_below_what_was_acknowledged() -> None:
    async with Gateway() as gateway, running(ListSource({ONE: TEN}), gateway) as client:
        peer = await opened(gateway, granted=8)
        assert await taken(peer, 7) == expected(0, 7)
        peer.close()
        peer = await opened(gateway, committed=2, granted=8)
        assert await taken(peer, 7) == expected(3, 10)
        peer.send(Ack(0, ((ONE.id, 5),)))
        await nothing_comes(peer)
        peer.close()
        peer = await greeted(gateway)
        assert await peer.receive() == Notify(ONE.id, ONE.name, 5)
        peer.send(NotifyAck(True, ONE.id, NOTHING_COMMITTED))
        assert await taken(peer, 4) == expected(6, 10)
        assert await peer.receive() == Eos(ONE.id)
        peer.send(Ack(0, ((ONE.id, 9),)))
        await confirmed(peer, ONE)
        await ends_cleanly(peer, client)


@on_a_loop
async def test_the_records_of_all_sessions_count_towards_the_compiled_encoder() -> None:
    loaded = asyncio.Event()
    loop = asyncio.get_running_loop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("procession.sdk.source_session.ENCODER_FROM_RECORDS", 14)
        patch.setattr("procession.wire.columns.make_ready", lambda: loop.call_soon_threadsafe(loaded.set))
        async with Gateway() as gateway, running(ListSource({ONE: TEN}), gateway):
            for _ in range(2):
                assert not loaded.is_set()
                peer = await opened(gateway, granted=8)
                assert await taken(peer, 7) == expected(0, 7)
                peer.close()
            await asyncio.wait_for(loaded.wait(), 10)


@on_a_loop
async def test_an_end_that_the_gateway_may_not_have_read_is_sent_again() -> None:
    async with Gateway() as gateway, running(ListSource({ONE: TEN}), gateway) as client:
        peer = await opened(gateway)
        await taken(peer, 10)
        peer.send(Ack(0, ((ONE.id, 9),)))
        peer.abort()  # before it read EOS
        peer = await opened(gateway, committed=9)
        assert await peer.receive() == Eos(ONE.id)
        await confirmed(peer, ONE)
        await ends_cleanly(peer, client)


@on_a_loop
async def test_a_source_is_not_done_before_the_end_of_its_stream_is_committed() -> None:
    """The end may be in its own epoch, with all output that the end makes the pipeline write."""
    async with Gateway() as gateway, running(ListSource({ONE: TEN}), gateway) as client:
        peer = await opened(gateway)
        await taken(peer, 10)
        assert await peer.receive() == Eos(ONE.id)
        peer.send(Ack(0, ((ONE.id, 9),)))
        for _ in range(3):
            await confirmed(peer, ONE, is_committed=False)
            assert not client.done()
            peer.send(Ack(0))
        await confirmed(peer, ONE)
        await ends_cleanly(peer, client)


@on_a_loop
async def test_ends_are_confirmed_one_after_the_other_in_the_order_of_ids() -> None:
    """An accepted source holds the stream until its session ends. If two sources of the same streams asked for all of
    them at once, each might get some and wait for the others forever."""
    async with Gateway() as gateway, running(ListSource({TWO: TEN, ONE: TEN}), gateway) as client:
        peer = await greeted(gateway)
        ended: set[int] = set()
        while len(ended) < 2:
            match await peer.receive():
                case Notify(stream_id):
                    peer.send(NotifyAck(True, stream_id, NOTHING_COMMITTED))
                case Eos(stream_id):
                    ended.add(stream_id)
        peer.send(Ack(0, ((ONE.id, 9), (TWO.id, 9))))
        await confirmed(peer, ONE, is_committed=False)  # a rival has it, and wants the other one
        await confirmed(peer, ONE, is_committed=False)
        peer.send(Ack(0))
        await confirmed(peer, ONE)
        await confirmed(peer, TWO)
        await ends_cleanly(peer, client)


@on_a_loop
async def test_a_session_that_is_lost_before_the_end_was_confirmed_is_started_again() -> None:
    async with Gateway() as gateway, running(ListSource({ONE: TEN}), gateway) as client:
        peer = await opened(gateway)
        await taken(peer, 10)
        assert await peer.receive() == Eos(ONE.id)
        peer.send(Ack(0, ((ONE.id, 9),)))
        await confirmed(peer, ONE, is_committed=False)
        peer.abort()
        peer = await opened(gateway, committed=9)
        assert await peer.receive() == Eos(ONE.id), "nobody knows whether the first one arrived"
        await confirmed(peer, ONE)
        await ends_cleanly(peer, client)


@on_a_loop
async def test_a_source_that_waits_for_the_end_does_not_ask_all_the_time() -> None:
    """With a small window an ACK replenishes the credit of each NOTIFY at once, and an ACK is the time to ask again."""
    async with Gateway() as gateway, running(ListSource({ONE: TEN}), gateway):
        peer = await opened(gateway)
        await taken(peer, 10)
        assert await peer.receive() == Eos(ONE.id)
        peer.send(Ack(0, ((ONE.id, 9),)))
        began, requested = time.monotonic(), 10
        for _ in range(requested):
            await confirmed(peer, ONE, is_committed=False)
            peer.send(Ack(1))
        assert time.monotonic() - began >= (requested - 1) * CONFIRM_PAUSE_S * 0.9


class Reset:
    """The writer of a reset connection: uvloop's transport raises a RuntimeError."""

    def is_closing(self) -> bool:
        return True

    def write(self, data: bytes) -> None:
        raise RuntimeError("unable to perform operation; the handler is closed")


@on_a_loop
async def test_a_connection_that_is_reset_during_a_write_is_a_lost_session() -> None:
    writer = cast(asyncio.StreamWriter, Reset())
    options, connection = SourceOptions("test", "test"), Connection(ConnectionSide.INITIATOR, Role.SOURCE)
    feed = StreamFeed(ListSource({}), KnownStreams(), options, connection, asyncio.StreamReader(), writer)
    with pytest.raises(ConnectionError):
        await feed.run(Hello("0.0.1", b"", "test", "test"))


@on_a_loop
async def test_the_source_waits_for_a_gateway_that_is_not_up_yet() -> None:
    async with Gateway() as gateway:
        address = gateway.address
    async with running(ListSource({ONE: TEN}), gateway, address=address) as client:
        await asyncio.sleep(0.05)
        assert not client.done()
        async with gateway:
            assert gateway.address == address
            peer = await opened(gateway)
            assert await taken(peer, 10) == expected(0, 10)


@on_a_loop
async def test_a_greeting_that_is_always_refused_ends_the_program_with_the_reason() -> None:
    async with Gateway() as gateway, running(ListSource({ONE: TEN}), gateway, cookie=b"wrong") as client:
        for _ in range(5):
            assert not client.done(), "a single refusal may be a gateway that is stopping"
            peer = await gateway.session()
            hello = await peer.receive()
            assert isinstance(hello, Hello)
            assert hello.cookie == b"wrong"
            peer.send(Error("the cookie does not match"))
        with pytest.raises(ConfigError, match="the cookie does not match") as caught:
            await client
        assert caught.value.next_step


@on_a_loop
async def test_a_repeated_error_ends_the_program_unless_there_was_progress() -> None:
    async with Gateway() as gateway, running(ListSource({ONE: TEN}), gateway) as client:
        for turn in range(8):
            peer = await opened(gateway, committed=turn)
            peer.send(Error("credits overspent"))
        for _ in range(4):
            peer = await opened(gateway, committed=7)
            peer.send_bytes(b"\xff\xff\xff\xff")
        with pytest.raises(RemoteProtocolError):
            await client


@on_a_loop
async def test_an_error_of_the_source_ends_the_program_and_a_new_one_continues() -> None:
    source = ListSource({ONE: [*TEN[:5], Crash(), *TEN[5:]]})
    async with Gateway() as gateway:
        async with running(source, gateway) as client:
            peer = await opened(gateway)
            with pytest.raises(Crashed):
                await client
            await taken(peer, 5)
        async with running(source, gateway):
            peer = await opened(gateway, committed=3)
            assert await taken(peer, 6) == expected(4, 10)


@on_a_loop
async def test_a_source_that_is_stopped_early_closes_and_sends_no_end() -> None:
    async with Gateway() as gateway:
        async with running(ListSource({ONE: TEN}), gateway):
            peer = await opened(gateway, granted=4)
            await taken(peer, 3)
        assert await peer.receive() is None


@on_a_loop
async def test_records_go_out_at_the_rate_that_was_asked_for_with_their_time() -> None:
    records = [b"x"] * 300
    async with Gateway() as gateway, running(ListSource({ONE: records}, 300), gateway, rate=1000.0, is_stamping=True):
        peer = await opened(gateway)
        began, began_ns = time.monotonic(), time.time_ns()
        stamps: list[int] = []
        while len(stamps) < 300:
            event = await peer.receive()
            assert isinstance(event, Messages)
            stamps += [row.event_time for row in event]
        assert time.monotonic() - began >= 0.2, "the rest of it: tests/sdk/test_pacing.py, without a clock"
        assert stamps == sorted(stamps)
        assert began_ns - 10**9 < stamps[0] < stamps[-1] <= time.time_ns()


class Ticks:
    """An asynchronous source with keys."""

    def streams(self) -> list[Stream]:
        return [ONE]

    async def read(self, stream: Stream, after: int | None) -> AsyncIterator[Batch]:
        for tick in range(3):
            await asyncio.sleep(0)
            yield Batch(
                np.array([tick], np.uint64), np.array([tick * 5], np.int64), pa.array([b"p"]), keys=pa.array([b"k"])
            )


@on_a_loop
async def test_a_source_may_be_asynchronous_and_have_keys_and_times() -> None:
    async with Gateway() as gateway, running(Ticks(), gateway):
        peer = await opened(gateway)
        rows: list[tuple[int, int, bytes]] = []
        while len(rows) < 3:
            event = await peer.receive()
            assert isinstance(event, Messages)
            rows += [(message.message_id, message.event_time, message.key) for message in event]
        assert rows == [(0, 0, b"k"), (1, 5, b"k"), (2, 10, b"k")]


def test_an_invalid_rate_is_refused() -> None:
    for rate in (0.0, -1.0):
        with pytest.raises(ConfigError, match="is not a rate"):
            SourceClient(ListSource({}), Address("127.0.0.1", 1), SourceOptions("p", "i", rate=rate))


@on_a_loop
async def test_the_error_of_a_source_keeps_its_cause() -> None:
    reason = OSError("no space")

    class Unreadable(ListSource):
        def read(self, stream: Stream, after: int | None) -> Iterator[Batch]:
            raise StorageError("the source cannot be read") from reason

    async with Gateway() as gateway, running(Unreadable({ONE: TEN}), gateway) as client:
        await opened(gateway)
        with pytest.raises(StorageError) as raised:
            await client
    assert raised.value.__cause__ is reason
