"""The file source as a program, against a gateway that acknowledges, disappears, or never commits."""

from __future__ import annotations

import signal
from pathlib import Path

from procession.sdk.doubles import Gateway, Peer
from procession.wire.messages import NOTHING_COMMITTED, Ack, Eos, Hello, Messages, Notify, NotifyAck, Ok
from tests.connectors.programs import SOURCE, program
from tests.sdk.loops import on_a_loop

RECORDS = [b"record %05d" % number for number in range(20_000)]


class Ledger:
    """What a gateway has stored: the records by stream, and how far they are committed."""

    def __init__(self) -> None:
        self.records: dict[int, list[tuple[int, bytes]]] = {}
        self.ended: set[int] = set()

    def take(self, messages: Messages) -> None:
        for message in messages:
            stream = self.records.setdefault(message.stream_id, [])
            if not stream or message.message_id > stream[-1][0]:
                stream.append((message.message_id, message.payload))

    def committed(self, stream_id: int) -> int:
        return self.records[stream_id][-1][0] if self.records.get(stream_id) else NOTHING_COMMITTED


async def serve(peer: Peer, ledger: Ledger, *, frames_max: int | None = None) -> None:
    """Act as the gateway of one session, and disappear after `frames_max` events."""
    frames = 0
    while (event := await peer.receive()) and (frames_max is None or frames < frames_max):
        frames += 1
        match event:
            case Hello():
                peer.send(Ok(500))
            case Notify(stream_id):
                peer.send(NotifyAck(True, stream_id, ledger.committed(stream_id)))
            case Messages():
                ledger.take(event)
            case Eos(stream_id):
                ledger.ended.add(stream_id)
        spent = 500 - peer.connection.credit.available
        if spent > 250:
            peer.send(Ack(spent, tuple((stream, ledger.committed(stream)) for stream in ledger.records)))
        elif isinstance(event, Eos) and ledger.records.get(event.stream_id):
            peer.send(Ack(0, ((event.stream_id, ledger.committed(event.stream_id)),)))
    if event:
        peer.abort()
    else:
        peer.close()


@on_a_loop
async def test_a_source_program_ends_with_status_0_when_all_is_committed(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two", tmp_path / "empty"]
    paths[0].write_bytes(b"\n".join(RECORDS))
    paths[1].write_bytes(b"x\n\ny\n")
    paths[2].write_bytes(b"")
    ledger = Ledger()
    async with (
        Gateway() as gateway,
        program(SOURCE, str(gateway.address), *map(str, paths)) as process,
    ):
        await serve(await gateway.session(), ledger)
        assert await process.wait() == 0
    payloads = [[payload for _, payload in stream] for stream in ledger.records.values()]
    assert sorted(payloads, key=len) == [[b"x", b"", b"y"], RECORDS]
    assert len(ledger.ended) == 3


@on_a_loop
async def test_a_gateway_that_vanishes_again_and_again_gets_every_record_once_in_order(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"\n".join(RECORDS))
    ledger = Ledger()
    async with Gateway() as gateway, program(SOURCE, str(gateway.address), str(path)) as process:
        for frames_max in (0, 1, 2, 3, 5, 8, 13):
            await serve(await gateway.session(), ledger, frames_max=frames_max)
        await serve(await gateway.session(), ledger)
        assert await process.wait() == 0
    (stream,) = ledger.records.values()
    assert [payload for _, payload in stream] == RECORDS
    assert [message_id for message_id, _ in stream] == [13 * number for number in range(len(RECORDS))]


@on_a_loop
async def test_a_source_program_stops_on_sigterm_and_says_that_not_all_is_committed(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"\n".join(RECORDS))
    async with Gateway() as gateway, program(SOURCE, str(gateway.address), str(path)) as process:
        peer = await gateway.session()
        assert isinstance(await peer.receive(), Hello)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 3
        assert await peer.receive() is None
