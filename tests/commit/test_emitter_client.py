"""Emitter processes send what the driver would send; if one dies, only its connections are lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from procession.address import Address, listening_socket
from procession.commit.checkpoint import Checkpoint
from procession.commit.coordinator import Coordinator
from procession.commit.emitter_channel import EmitterChannel, ListeningEmitter, StartedEmitter
from procession.commit.emitter_client import EmitterClient, EmitterLink, emitter_links
from procession.commit.emitter_frames import RUNS_IDENTITY, DriverGreeting, RunPlace
from procession.commit.emitter_server import ANNOUNCEMENT, announced_address
from procession.commit.epoch_link import DirectLink, EpochLink
from procession.commit.performer import CommitPerformer, DriverCallbacks
from procession.commit.round_record import RoundRecord
from procession.commit.sink_link import SinkOptions
from procession.connectors.file_sink import FileOutput
from procession.deployment.local_pipeline import COMMAND, announced_in
from procession.errors import FencedError, ProcessionError, StorageError
from procession.sdk.sink_directory import SinkDirectory
from procession.sdk.sink_server import SinkServer
from procession.storage.epoch_runs import EpochRuns
from procession.storage.flight_reader import FlightAccess
from procession.storage.host_runs import DIRECTORY_VARIABLE, HostRuns
from procession.storage.host_service import HostConfig, open_service
from procession.storage.run_store import Manifest, RunStore
from tests.sdk.loops import on_a_loop
from tests.walk.cluster import wait_for

CONNECTIONS = 3
COOKIE = b"the control secret"


class DrivenPipeline:
    """A performer with a sink of three connections. The test writes Spark's files. `emitters` are processes that the
    driver starts, or addresses. With `hosts`, tasks write to a host service."""

    def __init__(self, root: Path, port: int, emitters: int | Sequence[Address], hosts: HostRuns | None = None) -> None:
        self.root = root
        self.failures: list[ProcessionError] = []
        self.links: list[EpochLink] = []
        self._failed = asyncio.Event()
        self.said = asyncio.Event()
        self.checkpoint = checkpoint = Checkpoint.claim(root / "c", name="p", fingerprint="f")
        self._store = RunStore(root / "runs")
        self.runs = EpochRuns(self._store, hosts, {"a"})
        self._written = self._store if hosts is None else hosts.store()
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
            acknowledge=self._acknowledge, observe=lambda outcome: None, say=self._say, fail=self._fail
        )
        options = [
            SinkOptions(f"a.{n}", "127.0.0.1", port, "p", f"p-a-{n}", backoff_max_s=0.05, sink="a", bucket=n)
            for n in range(CONNECTIONS)
        ]
        place = RunPlace(str(self._store.directory), hosts=hosts)
        channels: list[EmitterChannel]
        if isinstance(emitters, int):
            channels = [StartedEmitter() for _ in range(emitters)]
        else:
            self._store.directory.mkdir(exist_ok=True)
            (self._store.directory / RUNS_IDENTITY).write_text("of this driver")
            place = replace(place, identity="of this driver")
            greeting = DriverGreeting(checkpoint.id, checkpoint.fence, COOKIE)
            channels = [ListeningEmitter(address, greeting) for address in emitters]
        make = emitter_links([EmitterClient(channel, place) for channel in channels], self.runs)

        def made(*arguments: object) -> EpochLink:
            self.links.append(make(*arguments))  # type: ignore[arg-type]
            return self.links[-1]

        self.performer = CommitPerformer(coordinator, checkpoint, self.runs, options, callbacks, make_link=made)
        self.performer.start()

    @property
    def clients(self) -> list[EmitterClient]:
        return list(dict.fromkeys(link._client for link in self.links if isinstance(link, EmitterLink)))

    async def run(self, epoch: int, *, is_lost: bool = False) -> None:
        """Run an epoch with a record for each connection. If `is_lost`, its runs are removed before they are sent."""
        self.begin(epoch)
        writer = self._written.writer(epoch, 0, 0, 0)
        for bucket in range(CONNECTIONS):
            rows = pa.record_batch({"payload": pa.array([b"epoch %d of %d\n" % (epoch, bucket)], pa.binary())})
            writer.add("a", rows, bucket)
        manifest = writer.publish(Manifest(epoch, 0, 0, epoch, epoch + 1))
        if is_lost:
            self._written.drop(epoch)
        await self.performer.run_epoch(epoch, self.runs.gathered(epoch, [manifest]))

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

    def _say(self, sentence: str) -> None:
        self.said.set()

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
    assert isinstance(client.channel, StartedEmitter)
    assert client.channel.process is not None
    return client.channel.process.pid


class ListeningProcess:
    """A process `procession emitter`, which the test kills and starts again."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "emitter"
        self._secret = root / "secret"
        self._secret.write_bytes(COOKIE)
        self._secret.chmod(0o600)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> Address:
        return announced_address(self.directory)

    def start(self) -> None:
        argv = [*COMMAND, "emitter", "--dir", str(self.directory), "--listen", "127.0.0.1:0"]
        env = {name: value for name, value in os.environ.items() if name != DIRECTORY_VARIABLE}
        self.process = subprocess.Popen([*argv, "--control-cookie-file", str(self._secret)], env=env)
        is_ready = announced_in(self.directory / ANNOUNCEMENT)
        wait_for(lambda: self.process is not None and is_ready(self.process.pid), "the emitter")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@contextmanager
def listening(root: Path) -> Iterator[ListeningProcess]:
    process = ListeningProcess(root)
    process.start()
    try:
        yield process
    finally:
        process.kill()


@on_a_loop
async def test_emitters_that_listen_write_what_the_driver_would_write_and_outlive_drivers(tmp_path: Path) -> None:
    with listening(tmp_path) as emitter:
        async with served(tmp_path / "sink") as port:
            for life in range(2):
                pipeline = DrivenPipeline(tmp_path, port, [emitter.address])
                for epoch in range(2 * life, 2 * life + 2):
                    await pipeline.run(epoch)
                    await pipeline.commit(epoch)
                await pipeline.performer.close()
                assert pipeline.failures == []
        assert emitter.process is not None
        assert emitter.process.poll() is None
    assert outputs(tmp_path / "sink") == expected(4)


@pytest.mark.parametrize("when", ["before the epoch", "after the vote", "after the decision"])
@on_a_loop
async def test_a_killed_emitter_that_listens_loses_and_duplicates_nothing(tmp_path: Path, when: str) -> None:
    with listening(tmp_path) as emitter:

        def killed(now: str) -> None:
            if now == when and epoch:
                emitter.kill()
                emitter.start()

        async with served(tmp_path / "sink") as port:
            pipeline = DrivenPipeline(tmp_path, port, [emitter.address])
            for epoch in range(3):
                killed("before the epoch")
                await pipeline.run(epoch)
                killed("after the vote")
                await pipeline.commit(epoch)
                killed("after the decision")
            await pipeline.performer.close()
    assert outputs(tmp_path / "sink") == expected(3)
    assert pipeline.failures == []


@on_a_loop
async def test_a_later_driver_gets_the_emitter_of_an_earlier_one_that_still_runs(tmp_path: Path) -> None:
    with listening(tmp_path) as emitter:
        async with served(tmp_path / "sink") as port:
            first = DrivenPipeline(tmp_path, port, [emitter.address])
            await first.run(0)  # the sink has voted, and Spark decides while the driver is replaced
            first._spark_writes("commits", 0, "v1\n{}")
            second = DrivenPipeline(tmp_path, port, [emitter.address])
            await second.run(1)
            await second.commit(1)
            await asyncio.wait_for(first._failed.wait(), 30)
            assert [type(failure) for failure in first.failures] == [FencedError]
            await second.performer.close()
    assert outputs(tmp_path / "sink") == expected(2)
    assert second.failures == []


@on_a_loop
async def test_an_emitter_that_does_not_run_yet_is_waited_for(tmp_path: Path) -> None:
    emitter = ListeningProcess(tmp_path)
    with closing(listening_socket(Address("127.0.0.1", 0))) as reserved:
        address = Address(*reserved.getsockname())
    async with served(tmp_path / "sink") as port:
        pipeline = DrivenPipeline(tmp_path, port, [address])
        running = asyncio.ensure_future(pipeline.run(0))
        await asyncio.wait_for(pipeline.said.wait(), 30)
        emitter.directory.mkdir()
        (emitter.directory / ANNOUNCEMENT).write_text(f'{{"pid": 0, "listen": "{address}"}}')
        emitter.start()
        try:
            await running
            await pipeline.commit(0)
            await pipeline.performer.close()
        finally:
            emitter.kill()
    assert outputs(tmp_path / "sink") == expected(1)


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostRuns]:
    """The runs of a host service, to which tasks of this process write."""
    service = open_service(HostConfig(tmp_path / "host", "127.0.0.1:0", COOKIE))
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "host"))
    yield HostRuns("0a1b", 1, FlightAccess(COOKIE))
    service.shutdown()


@pytest.mark.parametrize("is_listening", [True, False])
@on_a_loop
async def test_emitters_fetch_from_host_services_and_the_driver_fetches_nothing(
    tmp_path: Path, hosts: HostRuns, is_listening: bool
) -> None:
    with listening(tmp_path) as emitter:
        async with served(tmp_path / "sink") as port:
            pipeline = DrivenPipeline(tmp_path, port, [emitter.address] if is_listening else 2, hosts)
            for epoch in range(4):
                await pipeline.run(epoch)
                assert epoch in hosts.store().epochs(), "its runs stay until phase 2 is confirmed"
                if epoch == 2 and is_listening:
                    emitter.kill()
                    emitter.start()
                await pipeline.commit(epoch)
            await pipeline.performer.close()
    assert outputs(tmp_path / "sink") == expected(4)
    assert pipeline.failures == []
    assert pipeline.runs.fetched_bytes == 0
    assert not list((tmp_path / "runs").rglob("*.arrow"))
    wait_for(lambda: hosts.store().epochs() in ([], [3]), "the deletion of the confirmed epochs")


@on_a_loop
async def test_a_run_that_an_emitter_cannot_fetch_any_more_stops_the_driver_as_its_own_reader_would(
    tmp_path: Path, hosts: HostRuns
) -> None:
    with listening(tmp_path) as emitter:
        async with served(tmp_path / "sink") as port:
            pipeline = DrivenPipeline(tmp_path, port, [emitter.address], hosts)
            with pytest.raises(StorageError, match="a run of epoch 0 is lost"):
                await pipeline.run(0, is_lost=True)
            await pipeline.performer.close()


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
    make = emitter_links([EmitterClient(StartedEmitter(), RunPlace(str(tmp_path)))], RunStore(tmp_path))
    alone = make(SinkOptions("a", "127.0.0.1", 1, "p", "p-a-0"), lambda event: None, lambda sentence: None)
    assert isinstance(alone, DirectLink)
