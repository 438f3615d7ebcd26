"""The performer: whether its driver is still current, and rounds with foreign sinks and older ids."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from procession.address import Address, listening_socket
from procession.commit.checkpoint import Checkpoint
from procession.commit.coordinator import Coordinator
from procession.commit.performer import CommitPerformer, DriverCallbacks
from procession.commit.round_events import SinkConnected
from procession.commit.round_record import RoundRecord, SinkShare
from procession.commit.sink_link import SinkOptions
from procession.connectors.epochs_sink import EpochsOutput
from procession.errors import FencedError, ProcessionError
from procession.sdk.output import refuse_to_wait
from procession.sdk.sink_directory import SinkDirectory
from procession.sdk.sink_server import SinkServer
from procession.storage.run_store import Manifest, RunStore
from procession.wire import two_phase_commit
from procession.wire.connection import Connection
from procession.wire.lifecycle import ConnectionSide, Role
from procession.wire.messages import (
    DATA_STREAM,
    ListUncommitted,
    Messages,
    NotifyAck,
    Ok,
    Phase1,
    Phase2,
    Reply,
    ReplyUncommitted,
)
from tests.sdk.loops import on_a_loop


async def nobody(record: RoundRecord) -> None:
    raise AssertionError("nothing is acknowledged here")


def performer_of(checkpoint: Checkpoint, failures: list[ProcessionError]) -> CommitPerformer:
    coordinator = Coordinator(
        pipeline="p", checkpoint="abc", fence=checkpoint.fence, fingerprint="f", sinks=["a"], rounds={}, committed=-1
    )
    rim = DriverCallbacks(
        acknowledge=nobody, observe=lambda outcome: None, say=lambda sentence: None, fail=failures.append
    )
    sinks = [SinkOptions("a", "127.0.0.1", 1, "p", "p-a-0", is_authoritative=False)]
    return CommitPerformer(coordinator, checkpoint, RunStore(checkpoint.root / "runs"), sinks, rim)


@on_a_loop
async def test_a_driver_that_was_replaced_stops_when_it_greets_a_sink_again(tmp_path: Path) -> None:
    """The simulator found a driver that continued forever, in a round at a sink with an advisory position. Each HELLO
    that it sent ended the session of its successor."""
    failures: list[ProcessionError] = []
    performer = performer_of(Checkpoint.claim(tmp_path / "c", name="p", fingerprint="f"), failures)
    performer._handle(SinkConnected("a", (), None))
    assert failures == []
    Checkpoint.claim(tmp_path / "c", name="p", fingerprint="f")
    performer._handle(SinkConnected("a", (), None))
    assert [type(failure) for failure in failures] == [FencedError]


@on_a_loop
async def test_i10_a_driver_that_was_replaced_begins_no_epoch(tmp_path: Path) -> None:
    """The driver checks its fence first: it does not sync the offsets of the epoch, which Spark has not written
    here."""
    performer = performer_of(Checkpoint.claim(tmp_path / "c", name="p", fingerprint="f"), [])
    Checkpoint.claim(tmp_path / "c", name="p", fingerprint="f")
    with pytest.raises(FencedError):
        await performer.run_epoch(0, [])


class Foreign:
    """A sink of another vendor: it answers no phase 2 and its position is advisory.

    It has a rule on the text of transaction ids, which it enforces by an abort vote or by closing the connection.
    """

    def __init__(self, rule: str, *, closes: bool) -> None:
        self.rule = rule
        self.closes = closes
        self.asked: list[str] = []
        self.fired: list[str] = []
        self.output = b""
        self._prepared: dict[str, bytes] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, self._data = Connection(ConnectionSide.ACCEPTOR, Role.SINK), b""
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                for event in connection.receive(data):
                    for stream_id, some in event.by_stream() if isinstance(event, Messages) else ():
                        for payload in some.bodies():
                            if stream_id == DATA_STREAM:
                                self._data += payload
                            elif not self._decide(two_phase_commit.decode(payload), connection, writer):
                                writer.close()
                                return

    def _decide(self, message: object, connection: Connection, writer: asyncio.StreamWriter) -> bool:
        match message:
            case ListUncommitted(tag):
                for frame in (
                    Ok(2),
                    NotifyAck(True, 1, 0),
                    two_phase_commit.wrap(ReplyUncommitted(tag, tuple(self._prepared))),
                ):
                    writer.write(connection.send(frame))
            case Phase1(txn):
                self.asked.append(txn)
                is_hit = txn.endswith(self.rule)
                self.fired += [txn] if is_hit else []
                if is_hit and self.closes:
                    return False
                if not is_hit:
                    self._prepared[txn] = self._data
                self._data = b""
                writer.write(connection.send(two_phase_commit.wrap(Reply(txn, not is_hit))))
            case Phase2(txn, commit):
                data = self._prepared.pop(txn, b"")
                self.output += data if commit else b""
        return True

    @property
    def numbers(self) -> list[int]:
        return [int(txn.rpartition(":c_id=")[2]) for txn in self.asked]


async def drive(root: Path, port: int, epochs: range, **options: Any) -> None:
    """Run a driver for these epochs, with one record each, and write Spark's files."""
    failures: list[ProcessionError] = []
    checkpoint = Checkpoint.claim(root / "c", name="p", fingerprint="f")
    log, rounds = checkpoint.log, checkpoint.rounds.read_all()
    coordinator = Coordinator(
        pipeline="p",
        checkpoint=checkpoint.id,
        fence=checkpoint.fence,
        fingerprint="f",
        sinks=["a"],
        rounds=rounds,
        committed=log.committed,
        reserved=checkpoint.reserved,
    )

    acknowledged: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)

    async def acknowledge(record: RoundRecord) -> None:
        acknowledged[record.epoch].set()

    rim = DriverCallbacks(
        acknowledge=acknowledge, observe=lambda outcome: None, say=lambda sentence: None, fail=failures.append
    )
    sinks = [SinkOptions("a", "127.0.0.1", port, "p", "p-a-0", backoff_max_s=0.05, **options)]
    performer = CommitPerformer(coordinator, checkpoint, RunStore(root / "runs"), sinks, rim)
    performer.start()
    for epoch in epochs:
        _spark_writes(log.directory / "offsets" / str(epoch), f'v1\n{{}}\n{{"gateway-0":{epoch}}}')
        writer = RunStore(root / "runs").writer(epoch, 0, 0, 0)
        writer.add("a", pa.record_batch({"payload": pa.array([b"epoch %d\n" % epoch], pa.binary())}))
        manifest = Manifest(epoch, 0, 0, epoch, epoch + 1, positions={epoch: 0})
        await performer.run_epoch(epoch, [writer.publish(manifest)])
        _spark_writes(log.directory / "commits" / str(epoch), "v1\n{}")
        await performer.settle()
        await acknowledged[epoch].wait()
    await performer.close()
    assert failures == []


def _spark_writes(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("closes", [False, True], ids=["votes abort", "closes"])
@on_a_loop
async def test_an_abort_rule_on_a_number_fires_once_and_the_pipeline_continues(tmp_path: Path, closes: bool) -> None:
    sink = Foreign(":c_id=3", closes=closes)
    server = await asyncio.start_server(sink.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await drive(tmp_path, port, range(5), is_authoritative=False)
    assert [txn.rpartition(":")[2] for txn in sink.fired] == ["c_id=3"]
    assert sink.numbers == [1, 2, 3, 4, 5, 6]
    await drive(tmp_path, port, range(5, 8), is_authoritative=False)
    assert sink.numbers[6:] == [101, 102, 103], "another driver begins above all numbers that the first one reserved"
    assert len(sink.fired) == 1
    assert sink.output == b"".join(b"epoch %d\n" % epoch for epoch in range(8))
    server.close()


@on_a_loop
async def test_a_record_names_only_positions_that_a_gateway_may_lack(tmp_path: Path) -> None:
    """Each epoch has another stream and is acknowledged, so the next record need not name that stream."""
    server = await asyncio.start_server(Foreign("no rule", closes=False).serve, "127.0.0.1", 0)
    await drive(tmp_path, server.sockets[0].getsockname()[1], range(6), is_authoritative=False)
    server.close()
    rounds = Checkpoint.claim(tmp_path / "c", name="p", fingerprint="f").rounds
    records = rounds.read_all()
    assert [list(records[epoch].positions) for epoch in range(6)] == [[epoch] for epoch in range(6)]
    assert rounds.positions(5) == dict.fromkeys(range(6), 0)


@on_a_loop
async def test_a_transaction_with_an_id_of_the_old_form_that_a_sink_has_prepared_is_committed(tmp_path: Path) -> None:
    """The previous version wrote it and died between `commits/0` and phase 2. The epoch's file has the same name."""
    old = Checkpoint.claim(tmp_path / "c", name="p", fingerprint="f")
    txn = f"p-w-a-id-{old.id}.1.7:c_id=0"
    directory = tmp_path / "sink"
    home = SinkDirectory(directory, lambda instance: EpochsOutput(directory / instance))
    participant = home.open_participant("p-a-0", refuse_to_wait)
    participant.begin()
    participant.append([0], [b"epoch 0\n"])
    assert participant.phase1(txn, [(1, 0, 8)])
    participant.close()
    home.close()
    old.rounds.write(RoundRecord(0, 1, "f", 0, 1, {"a": SinkShare(txn, 0, 8)}))
    _spark_writes(old.directory / "offsets" / "0", 'v1\n{}\n{"gateway-0":0}')
    _spark_writes(old.directory / "commits" / "0", "v1\n{}")

    home = SinkDirectory(directory, lambda instance: EpochsOutput(directory / instance))
    with closing(listening_socket(Address("127.0.0.1", 0))) as listener:
        serving = asyncio.ensure_future(SinkServer(home.open_participant).serve(listener))
        await drive(tmp_path, listener.getsockname()[1], range(1, 3))
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
    home.close()
    files = {path.name[-7:]: path.read_bytes() for path in (directory / "p-a-0.epochs").iterdir()}
    assert files == {f"0{epoch}.data": b"epoch %d\n" % epoch for epoch in range(3)}
