"""Each sync in turn fails, and the process starts again: everything promised since then survives a power cut.

Each scenario runs once for each of its syncs, which then fails. The process whose sync fails ends. The next run starts
from what can be read; what it promises must survive when the machine loses its power.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from procession.commit.checkpoint import Checkpoint
from procession.commit.round_record import RoundRecord, SinkShare
from procession.connectors.epochs_sink import EpochsOutput, epoch_files
from procession.connectors.file_sink import FileOutput
from procession.errors import StorageError
from procession.sdk.output import Output
from procession.sdk.participant import SinkParticipant
from procession.sdk.transaction_log import TransactionLog
from procession.storage.durable import make_directory, write_durably
from procession.storage.log_ranges import LogLocation
from tests.storage.linux_disk import LinuxDisk

ROUNDS = (b"one", b"two!", b"three")
SYNCS_MAX = 150


def open_file(directory: Path) -> Output:
    return FileOutput(directory / "out.data")


def open_epochs(directory: Path) -> Output:
    return EpochsOutput(directory / "out")


def shown_file(directory: Path, end: int) -> bytes:
    return (directory / "out.data").read_bytes()[:end]


def shown_epochs(directory: Path, end: int) -> bytes:
    return b"".join(file.path.read_bytes() for file in epoch_files(directory / "out.epochs") if file.end <= end)


class Sink:
    """One output over several runs. `voted` has its votes without a decision."""

    def __init__(self, directory: Path, open_output: Callable[[Path], Output]) -> None:
        self.directory = directory
        self._open_output = open_output
        self._attempts = 0
        self.voted: str | None = None

    def life(self) -> SinkParticipant:
        self._txnlog = TransactionLog(self.directory / "out.txnlog")
        output = self._open_output(self.directory)
        self._txnlog.open()
        participant = SinkParticipant(output, self._txnlog)
        participant.begin()
        return participant

    def live(self) -> bool:
        """Run until all is committed, or a sync fails."""
        try:
            participant = self.life()
            if self.voted is not None and self.voted in participant.uncommitted:
                self._commit(participant, self.voted)
            for txn in participant.uncommitted:
                participant.phase2(txn, False)
            while self._done(participant.committed_end) < len(ROUNDS):
                self._round(participant, ROUNDS[self._done(participant.committed_end)])
        except StorageError:
            return False
        finally:
            self._txnlog.close()
        participant.close()
        return True

    def _done(self, end: int) -> int:
        return next(n for n in range(len(ROUNDS) + 1) if len(b"".join(ROUNDS[:n])) == end)

    def _round(self, participant: SinkParticipant, data: bytes) -> None:
        self._attempts += 1
        start, txn = participant.committed_end, f"t{self._attempts}:c_id={self._attempts}"
        participant.append([start], [data])
        assert participant.phase1(txn, [(1, start, start + len(data))])
        self.voted = txn
        self._commit(participant, txn)

    def _commit(self, participant: SinkParticipant, txn: str) -> None:
        participant.phase2(txn, True)
        self.voted = None


@pytest.mark.parametrize(
    ("open_output", "shown"), [(open_file, shown_file), (open_epochs, shown_epochs)], ids=["file", "epochs"]
)
def test_a_sink_keeps_its_votes_and_its_committed_output_whichever_sync_fails(
    open_output: Callable[[Path], Output], shown: Callable[[Path, int], bytes], tmp_path: Path
) -> None:
    fails_at = 0
    while (fails_at := fails_at + 1) < SYNCS_MAX:
        directory = tmp_path / str(fails_at)
        directory.mkdir()
        sink = Sink(directory, open_output)
        with pytest.MonkeyPatch.context() as patch:
            disk = LinuxDisk(directory, patch, fails_at)
            first_ended_well = sink.live()
            while not sink.live():
                pass
            left = disk.crash(tmp_path / f"{fails_at}-after")
        after = Sink(left, open_output).life()
        assert (after.committed_end, after.uncommitted) == (len(b"".join(ROUNDS)), ()), f"sync {fails_at}"
        assert shown(left, after.committed_end) == b"".join(ROUNDS)
        if first_ended_well:
            break
    assert 5 < fails_at < SYNCS_MAX, "every sync failed once, and the last run had no failure"


def write_as_spark(path: Path, text: str) -> None:
    """Write a file without a sync, as Spark does."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def drive(root: Path) -> int:
    """Take over as a driver and commit one epoch. Returns the epoch for which phase 2 may be sent."""
    checkpoint = Checkpoint.claim(root, name="p", fingerprint="f")
    checkpoint.places.keep("gateway-0", LogLocation("somewhere", "g0"))
    epoch = checkpoint.log.committed + 1
    if checkpoint.log.offered < epoch:
        write_as_spark(checkpoint.directory / "offsets" / str(epoch), 'v1\n{}\n{"gateway-0": 1}')
    checkpoint.log.sync_offsets(epoch)
    checkpoint.rounds.write(RoundRecord(epoch, checkpoint.fence, "f", 0, 1, {"a": SinkShare(f"t{epoch}", 0, 1)}))
    write_as_spark(checkpoint.directory / "commits" / str(epoch), "v1\n{}")
    checkpoint.log.sync_commit(epoch)
    return epoch


def test_a_drivers_decision_holds_for_every_successor_whichever_sync_fails(tmp_path: Path) -> None:
    fails_at = 0
    while (fails_at := fails_at + 1) < SYNCS_MAX:
        place = tmp_path / str(fails_at)
        place.mkdir()
        decided: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            disk = LinuxDisk(place, patch, fails_at)
            while len(decided) < 3:
                try:
                    decided.append(drive(place / "checkpoint"))
                except StorageError:
                    assert disk.syncs == fails_at, "only the sync that was to fail did"
            is_over, disk.fails_at = disk.syncs < fails_at, 0
            identity = Checkpoint.claim(place / "checkpoint", name="p", fingerprint="f").id
            left = disk.crash(tmp_path / f"{fails_at}-after")
        successor = Checkpoint.claim(left / "checkpoint", name="p", fingerprint="f")
        assert successor.id == identity
        assert successor.places.all() == {"gateway-0": LogLocation("somewhere", "g0")}
        assert all(successor.log.is_committed(epoch) and successor.rounds.read(epoch) for epoch in decided)
        if is_over:
            break
    assert 20 < fails_at < SYNCS_MAX, "every sync failed once, and the last run had no failure"


def test_a_commit_that_another_process_failed_to_sync_is_decided_only_by_a_new_file(tmp_path: Path) -> None:
    """Another process of the driver has failed to sync the file, so a second sync of it succeeds without writing."""
    place = tmp_path / "before"
    place.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        disk = LinuxDisk(place, patch)
        checkpoint = Checkpoint.claim(place / "checkpoint", name="p", fingerprint="f")
        write_as_spark(checkpoint.directory / "offsets" / "0", 'v1\n{}\n{"gateway-0": 1}')
        checkpoint.log.sync_offsets(0)
        checkpoint.rounds.write(RoundRecord(0, checkpoint.fence, "f", 0, 1, {"a": SinkShare("t0", 0, 1)}))
        commit = checkpoint.directory / "commits" / "0"
        write_as_spark(commit, "v1\n{}")
        disk.fails_at = disk.syncs + 1
        with open(commit, "rb") as file, pytest.raises(OSError, match="Input/output error"):
            os.fsync(file.fileno())
        checkpoint.log.sync_commit(0)
        left = disk.crash(tmp_path / "after")
    assert Checkpoint.claim(left / "checkpoint", name="p", fingerprint="f").log.is_committed(0)


def test_this_disk_tells_a_new_file_from_a_lost_one_although_numbers_of_files_come_again(tmp_path: Path) -> None:
    place = tmp_path / "before"
    place.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        disk = LinuxDisk(place, patch, fails_at=2)
        with pytest.raises(StorageError):
            write_durably(place / "file", b"lost")  # the second sync is that of the directory
        lost = (place / "file").stat().st_ino
        for number in range(100):
            write_durably(place / "file", b"%d" % number)
            if (place / "file").stat().st_ino == lost:
                break
        left = disk.crash(tmp_path / "after")
    assert (left / "file").read_bytes() == b"%d" % number


def test_the_name_of_every_directory_that_is_made_is_on_disk(tmp_path: Path) -> None:
    place = tmp_path / "before"
    place.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        disk = LinuxDisk(place, patch)
        make_directory(place / "a" / "b" / "c")
        (place / "a" / "d").mkdir()  # by a process that was killed before its sync
        make_directory(place / "a" / "d" / "e")
        left = disk.crash(tmp_path / "after")
    assert (left / "a" / "b" / "c").is_dir()
    assert (left / "a" / "d" / "e").is_dir()
