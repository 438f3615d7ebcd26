"""Emitter processes send what the driver would send; if one dies, only its connections are lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pyarrow as pa
import pytest

from procession.address import Address, listening_socket
from procession.commit.checkpoint import Checkpoint
from procession.commit.coordinator import Coordinator
from procession.commit.emitter_client import EmitterClient, EmitterLink, emitter_links
from procession.commit.epoch_link import DirectLink, EpochLink
from procession.commit.performer import CommitPerformer, DriverCallbacks
from procession.commit.round_record import RoundRecord
from procession.commit.sink_link import SinkOptions
from procession.connectors.file_sink import FileOutput
from procession.errors import ProcessionError, StorageError
from procession.sdk.sink_directory import SinkDirectory
from procession.sdk.sink_server import SinkServer
from procession.storage.run_store import Manifest, RunStore
from tests.sdk.loops import on_a_loop

CONNECTIONS = 3


class DrivenPipeline:
    """A performer with a sink of three connections. The test writes Spark's files."""

    def __init__(self, root: Path, port: int, emitters: int) -> None:
        self.root = root
        self.failures: list[ProcessionError] = []
        self.links: list[EpochLink] = []
        self._failed = asyncio.Event()
        self.checkpoint = checkpoint = Checkpoint.claim(root / "c", name="p", fingerprint="f")
        self._store = RunStore(root / "runs")
        coordinator = Coordinator(
            pipeline="p",
            checkpoint=checkpoint.id,
            fence=checkpoint.fence,
            fingerprint="f",
            sinks=[f"a.{bucket}" for bucket in range(CONNECTIONS)],
            rounds=checkpoint.rounds.read_all(),
            committed=checkpoint.log.committed,
            reserved=checkpoint.reserved,
        )
        callbacks = DriverCallbacks(
            acknowledge=self._acknowledge, observe=lambda outcome: None, say=lambda sentence: None, fail=self._fail
        )
        options = [
            SinkOptions(f"a.{n}", "127.0.0.1", port, "p", f"p-a-{n}", backoff_max_s=0.05, sink="a", bucket=n)
            for n in range(CONNECTIONS)
        ]
        make = emitter_links(emitters, self._store)

        def made(*arguments: object) -> EpochLink:
            self.links.append(make(*arguments))  # type: ignore[arg-type]
            return self.links[-1]

        self.performer = CommitPerformer(coordinator, checkpoint, self._store, options, callbacks, make_link=made)
        self.performer.start()

    @property
    def clients(self) -> list[EmitterClient]:
        return list(dict.fromkeys(link._client for link in self.links if isinstance(link, EmitterLink)))

    async def run(self, epoch: int, *, is_lost: bool = False) -> None:
        """Run an epoch with a record for each connection. If `is_lost`, its runs are removed before they are sent."""
        self.begin(epoch)
        writer = self._store.writer(epoch, 0, 0, 0)
        for bucket in range(CONNECTIONS):
            rows = pa.record_batch({"payload": pa.array([b"epoch %d of %d\n" % (epoch, bucket)], pa.binary())})
            writer.add("a", rows, bucket)
        manifest = writer.publish(Manifest(epoch, 0, 0, epoch, epoch + 1))
        if is_lost:
            self._store.drop(epoch)
        await self.performer.run_epoch(epoch, [manifest])

    def begin(self, epoch: int) -> None:
        self._spark_writes("offsets", epoch, f'v1\n{{}}\n{{"gateway-0":{epoch}}}')

    async def commit(self, epoch: int) -> None:
        self._spark_writes("commits", epoch, "v1\n{}")
        await self.performer.settle()

    def _spark_writes(self, folder: str, epoch: int, text: str) -> None:
        path = self.checkpoint.log.directory / folder / str(epoch)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    async def _acknowledge(self, record: RoundRecord) -> None:
        pass

    def _fail(self, error: ProcessionError) -> None:
        self.failures.append(error)
        self._failed.set()


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[int]:
    """Serve a file sink of ours on a port, and yield the port."""
    home = SinkDirectory(directory, lambda instance: FileOutput(directory / f"{instance}.data"))
    with closing(listening_socket(Address("127.0.0.1", 0))) as listener:
        serving = asyncio.ensure_future(SinkServer(home.open_participant).serve(listener))
        try:
            yield listener.getsockname()[1]
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving
    home.close()


def outputs(directory: Path) -> list[bytes]:
    return [(directory / f"p-a-{bucket}.data").read_bytes() for bucket in range(CONNECTIONS)]


def expected(epochs: int) -> list[bytes]:
    return [b"".join(b"epoch %d of %d\n" % (epoch, bucket) for epoch in range(epochs)) for bucket in range(CONNECTIONS)]


def process_of(client: EmitterClient) -> int:
    assert client.process is not None
    return client.process.pid


@pytest.mark.parametrize("emitters", [1, 2, 5])
@on_a_loop
async def test_emitter_processes_write_what_the_driver_would_write_and_end_with_it(
    tmp_path: Path, emitters: int
) -> None:
    async with served(tmp_path / "sink") as port:
        pipeline = DrivenPipeline(tmp_path, port, emitters)
        for epoch in range(3):
            await pipeline.run(epoch)
            await pipeline.commit(epoch)
        processes = [process_of(client) for client in pipeline.clients]
        await pipeline.performer.close()
    assert len(processes) == min(emitters, CONNECTIONS)
    assert outputs(tmp_path / "sink") == expected(3)
    assert pipeline.failures == []
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


@pytest.mark.parametrize("when", ["before the epoch", "after the vote", "after the decision"])
@on_a_loop
async def test_a_killed_emitter_process_loses_and_duplicates_nothing(tmp_path: Path, when: str) -> None:
    async with served(tmp_path / "sink") as port:
        pipeline = DrivenPipeline(tmp_path, port, 2)
        for epoch in range(6):
            victims = pipeline.clients[: 1 + epoch % 2]
            if when == "before the epoch" and epoch:
                kill(victims)
            await pipeline.run(epoch)
            if when == "after the vote":
                kill(victims)
            await pipeline.commit(epoch)
            if when == "after the decision":
                kill(victims)
        await pipeline.performer.close()
    assert outputs(tmp_path / "sink") == expected(6)
    assert pipeline.failures == []


def kill(clients: list[EmitterClient]) -> None:
    for client in clients:
        os.kill(process_of(client), signal.SIGKILL)


@on_a_loop
async def test_a_successor_settles_the_votes_that_emitters_of_a_dead_driver_obtained(tmp_path: Path) -> None:
    async with served(tmp_path / "sink") as port:
        first = DrivenPipeline(tmp_path, port, 2)
        await first.run(0)  # the sink has voted; then the driver dies, and Spark has decided
        kill(first.clients)
        first._spark_writes("commits", 0, "v1\n{}")
        for task in list(first.performer._tasks):
            task.cancel()
        second = DrivenPipeline(tmp_path, port, 1)
        await second.run(1)
        await second.commit(1)
        await second.performer.close()
    assert outputs(tmp_path / "sink") == expected(2)
    assert second.failures == []


@on_a_loop
async def test_missing_runs_stop_the_pipeline_with_their_error(tmp_path: Path) -> None:
    async with served(tmp_path / "sink") as port:
        pipeline = DrivenPipeline(tmp_path, port, 1)
        with pytest.raises(StorageError):
            await pipeline.run(0, is_lost=True)
        assert [type(failure) for failure in pipeline.failures] == [StorageError]
        await pipeline.performer.close()


@on_a_loop
async def test_the_driver_itself_sends_to_a_sink_with_one_connection(tmp_path: Path) -> None:
    make = emitter_links(2, RunStore(tmp_path))
    alone = make(SinkOptions("a", "127.0.0.1", 1, "p", "p-a-0"), lambda event: None, lambda sentence: None)
    assert isinstance(alone, DirectLink)
