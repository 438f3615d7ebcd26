"""A driver's checkpoint on replicas: what the quorum has at each step of a round, and which driver may continue from
it."""

from __future__ import annotations

import asyncio
import errno
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from procession.cli.replica_options import driver_changes
from procession.commit.checkpoint import Checkpoint
from procession.commit.coordinator import Coordinator
from procession.commit.performer import CommitPerformer, DriverCallbacks
from procession.commit.recovery import RecoveredRounds, recover
from procession.commit.round_events import Action, Event, SendPhase2, SinkConnected
from procession.commit.round_record import RoundRecord
from procession.commit.sink_link import SinkOptions
from procession.commit.transaction_id import TransactionId
from procession.errors import FencedError, ProcessionError, StorageError
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.sos.directory_restore import JournalReplay, restore_directory
from procession.sos.file_operations import decode_operations
from procession.sos.replicated_files import ReplicatedFiles
from procession.sos.replicated_host import replicated_host
from procession.storage.driver_claim import read_claim
from procession.storage.run_store import Manifest, RunStore
from procession.wire.messages import Phase1
from tests.commit.test_performer import Foreign, performer_of
from tests.sdk.loops import on_a_loop
from tests.sos.test_replicated_files import ServiceThread, replicas

__all__ = ["replicas"]

ONLY, CHANGES = driver_changes()


class FakeQuorum:
    """A journal whose records reach the quorum only when a caller waits for them."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.synced = 0
        self.is_claimed = False
        """Whether another process has claimed the replicas. This process knows it after their next answer."""
        self._is_known = False

    @property
    def bytes_added(self) -> int:
        return sum(map(len, self.records))

    def add(self, parts: tuple[bytes, ...]) -> None:
        self.check()
        self.records.append(b"".join(parts))

    def room(self) -> None:
        pass

    def barrier(self) -> int:
        return len(self.records)

    def wait(self, barrier: int) -> None:
        self._is_known = self.is_claimed
        self.check()
        self.synced = max(self.synced, barrier)

    def check(self) -> None:
        if self._is_known:
            raise OSError(errno.ESTALE, "Fence 9 has claimed the volume.")

    def restore(self, directory: Path) -> Path:
        """Write the directory as a successor would restore it from the quorum."""
        directory.mkdir()
        replay = JournalReplay(directory / "restoring", HOST_FILES)
        for record in self.records[: self.synced]:
            for operation in decode_operations(record):
                replay.apply(operation)
        replay.finish(directory)
        return directory


class Watched(Foreign):
    """A sink that records what the quorum has when a message arrives."""

    def __init__(self, round_: WatchedRound) -> None:
        super().__init__("no rule", closes=False)
        self._round = round_

    def _decide(self, message: object, *rest: object) -> bool:
        if isinstance(message, Phase1):
            transaction = TransactionId.parse(message.txn_id)
            assert transaction is not None
            self._round.restore_now("phase 1", transaction.epoch)
        return super()._decide(message, *rest)  # type: ignore[arg-type]


class WatchedCoordinator(Coordinator):
    """A coordinator that records what the quorum has when phase 2 is decided."""

    round: WatchedRound

    def handle(self, event: Event) -> list[Action]:
        actions = super().handle(event)
        if any(isinstance(action, SendPhase2) and action.commit for action in actions):
            self.round.restore_now("phase 2", self.committed)
        return actions


class WatchedRound:
    """A driver on a fake quorum. The test writes Spark's files."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.here = place / "here"
        self.here.mkdir()
        self.quorum = FakeQuorum()
        self.files = ReplicatedFiles(HOST_FILES, self.here, self.quorum, only=ONLY, adopted=CHANGES)
        self.files.begin()
        self.checkpoint = Checkpoint.claim(self.here / "checkpoint", name="p", fingerprint="f", files=self.files)
        self.seen: dict[str, Path] = {}
        """For each step, the directory restored from what the quorum had then."""
        self._polls = 0
        self.acknowledged: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)

    def restore_now(self, step: str, epoch: int) -> None:
        self._polls += 1
        self.seen[f"{step} {epoch}"] = self.quorum.restore(self.place / f"seen-{self._polls}")

    def copy(self, step: str) -> Path:
        """Return the copy of the checkpoint that the quorum had at a step."""
        root = self.seen[step] / "checkpoint"
        assert read_claim(root) == self.checkpoint.fence, "any later driver has a later fence"
        return root / f"{self.checkpoint.fence:010d}"

    async def drive(self, epochs: int) -> None:
        checkpoint, directory = self.checkpoint, self.checkpoint.directory
        coordinator = WatchedCoordinator(
            pipeline="p",
            checkpoint=checkpoint.id,
            fence=checkpoint.fence,
            fingerprint="f",
            sinks=["a"],
            rounds={},
            committed=-1,
            reserved=checkpoint.reserved,
        )
        coordinator.round = self
        failures: list[ProcessionError] = []

        async def acknowledge(record: RoundRecord) -> None:
            self.restore_now("acknowledge", record.epoch)
            self.acknowledged[record.epoch].set()

        callbacks = DriverCallbacks(acknowledge, lambda outcome: None, lambda sentence: None, failures.append)
        server = await asyncio.start_server(Watched(self).serve, "127.0.0.1", 0)
        sinks = [
            SinkOptions("a", "127.0.0.1", server.sockets[0].getsockname()[1], "p", "p-a-0", is_authoritative=False)
        ]
        runs = RunStore(self.place / "runs")
        performer = CommitPerformer(coordinator, checkpoint, runs, sinks, callbacks)
        performer.start()
        spark_writes(directory / "metadata", '{"id":"x"}')
        for epoch in range(epochs):
            spark_writes(self.here / "checkpoint" / "gateways" / "gateway.json", f'{{"epoch": {epoch}}}')
            spark_writes(directory / "offsets" / str(epoch), f'v1\n{{}}\n{{"gateway-0":{epoch}}}')
            spark_writes(self.here / "state" / checkpoint.id / f"{epoch}.state", f"states of {epoch}")
            spark_writes(self.here / "sides" / checkpoint.id / f"{epoch}.table", f"table of {epoch}")
            writer = runs.writer(epoch, 0, 0, 0)
            writer.add("a", pa.record_batch({"payload": pa.array([b"epoch %d\n" % epoch], pa.binary())}))
            await performer.run_epoch(epoch, [writer.publish(Manifest(epoch, 0, 0, epoch, epoch + 1))])
            self.restore_now("return", epoch)
            spark_writes(directory / "commits" / str(epoch), "v1\n{}")
            await self.acknowledged[epoch].wait()
            await performer.settle()
        await performer.close()
        server.close()
        assert failures == []


def spark_writes(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text)


@on_a_loop
async def test_the_quorum_has_each_file_before_the_step_that_relies_on_it(tmp_path: Path) -> None:
    watched = WatchedRound(tmp_path)
    await watched.drive(3)
    for epoch in range(3):
        copy = watched.copy(f"phase 1 {epoch}")
        found = recover(copy)
        assert (found.committed, found.undecided) == (epoch - 1, epoch)
        assert found.reserved == 100, "the numbers of attempts are reserved before one is used"
        assert (copy / "metadata").read_text() == '{"id":"x"}', "Spark does not continue without it"
        assert (copy.parent / "gateways" / "gateway.json").read_text() == f'{{"epoch": {epoch}}}'

        copy = watched.copy(f"return {epoch}")
        assert recover(copy).undecided == epoch, "the round record alone decides nothing"
        assert (copy / "rounds" / f"{epoch:020d}").exists()
        name = watched.checkpoint.id
        assert (watched.seen[f"return {epoch}"] / "state" / name / f"{epoch}.state").read_text() == f"states of {epoch}"
        assert (watched.seen[f"return {epoch}"] / "sides" / name / f"{epoch}.table").read_text() == f"table of {epoch}"

        for step in ("phase 2", "acknowledge"):
            found = recover(watched.copy(f"{step} {epoch}"))
            assert (found.committed, found.undecided) == (epoch, None)
            assert found.last is not None


@on_a_loop
async def test_a_driver_whose_replicas_were_claimed_stops_at_its_next_greeting_without_a_write(tmp_path: Path) -> None:
    watched, failures = WatchedRound(tmp_path), list[ProcessionError]()
    performer = performer_of(watched.checkpoint, failures)
    performer._handle(SinkConnected("a", (), None))
    assert failures == []
    watched.quorum.is_claimed = True
    performer._handle(SinkConnected("a", (), None))
    assert [type(failure) for failure in failures] == [FencedError]


def test_files_that_spark_has_removed_are_removed_from_the_journal(tmp_path: Path) -> None:
    watched = WatchedRound(tmp_path)
    log, offsets = watched.checkpoint.log, watched.checkpoint.directory / "offsets"
    for epoch in range(600):
        spark_writes(offsets / str(epoch), f'v1\n{{}}\n{{"gateway-0":{epoch}}}')
        log.sync_offsets(epoch)
        if epoch >= 10:
            (offsets / str(epoch - 10)).unlink()
    named = [name for name in watched.files.tree.files if "/offsets/" in name]
    assert len(named) < 300
    found = watched.quorum.restore(tmp_path / "there") / "checkpoint" / offsets.parent.name / "offsets"
    assert {path.name for path in offsets.iterdir()} <= {path.name for path in found.iterdir()}


# On real object services


@contextmanager
def driver_files(replicas: ServiceThread, directory: Path) -> Iterator[FileSystem]:
    only, changes = driver_changes()
    with replicated_host(directory, "v", replicas.options(), only=only, adopted=changes) as host:
        yield host.files


def claimed(directory: Path, files: FileSystem) -> Checkpoint:
    return Checkpoint.claim(directory / "checkpoint", name="p", fingerprint="f", files=files)


def in_doubt(checkpoint: Checkpoint) -> None:
    """Write a checkpoint in which epoch 0 is decided, and epoch 1 has its record and Spark's commit on this machine
    only."""
    checkpoint.reserve(100)
    for epoch in (0, 1):
        spark_writes(checkpoint.directory / "offsets" / str(epoch), f'v1\n{{}}\n{{"gateway-0":{epoch}}}')
        checkpoint.log.sync_offsets(epoch)
        checkpoint.rounds.write(
            RoundRecord(epoch=epoch, fence=checkpoint.fence, fingerprint="f", first=0, last=epoch, parts={})
        )
        spark_writes(checkpoint.directory / "commits" / str(epoch), "v1\n{}")
        if epoch == 0:
            checkpoint.log.sync_commit(0)


def successor(replicas: ServiceThread, there: Path) -> tuple[Checkpoint, RecoveredRounds]:
    asyncio.run(restore_directory("v", replicas.options(), there))
    with driver_files(replicas, there) as files:
        checkpoint = claimed(there, files)
        return checkpoint, recover(checkpoint.directory)


def test_i10_a_commit_that_only_a_lost_machine_has_decides_nothing(replicas: ServiceThread, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    with driver_files(replicas, here) as files:
        old = claimed(here, files)
        in_doubt(old)
        checkpoint, found = successor(replicas, there)
        assert (found.committed, found.undecided) == (0, 1)
        assert checkpoint.id == old.id
        assert checkpoint.fence == old.fence + 1
        assert found.reserved == 100
        # The old driver continues.
        with pytest.raises(StorageError):
            old.log.sync_commit(1)
        with pytest.raises(FencedError, match="continued from the replicas"):
            old.check_fence()
        assert old.log.decided == 0, "the source's process does not offer the next epoch"
    with pytest.raises(FencedError), driver_files(replicas, here):
        raise AssertionError("its directory is not the newest")
    assert read_claim(here / "checkpoint") == old.fence


def test_a_driver_that_restarts_on_its_machine_decides_by_its_disk(replicas: ServiceThread, tmp_path: Path) -> None:
    here = tmp_path / "here"
    with driver_files(replicas, here) as files:
        in_doubt(claimed(here, files))
    with driver_files(replicas, here) as files:
        again = claimed(here, files)
        assert recover(again.directory).committed == 1
    _, found = successor(replicas, tmp_path / "there")
    assert (found.committed, found.undecided) == (1, None), "the quorum has the decision before the driver acts on it"


def test_a_driver_waits_for_the_quorum_before_it_reports_a_decision(replicas: ServiceThread, tmp_path: Path) -> None:
    here = tmp_path / "here"
    with driver_files(replicas, here) as files:
        checkpoint = claimed(here, files)
        in_doubt(checkpoint)
        for number in (0, 1):
            replicas.stop(number)
        told = asyncio.new_event_loop()
        try:
            waiting = told.run_in_executor(None, checkpoint.log.sync_commit, 1)
            told.run_until_complete(asyncio.wait([waiting], timeout=0.5))
            assert not waiting.done()
            assert checkpoint.log.decided == 0
            replicas.start(0)
            told.run_until_complete(waiting)
            assert checkpoint.log.decided == 1
        finally:
            told.close()
