"""A directory of epochs: whole files in order, which appear at their commit and which readers may take away."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.connectors.epochs_sink import EpochsOutput, epoch_files, file_name
from procession.errors import StorageError
from procession.sdk.participant import SinkParticipant
from procession.sdk.transaction_log import Transaction, TransactionLog

EPOCH_0 = "00000000000000000000-00000000000000000000.data"
EPOCH_1 = "00000000000000000004-00000000000000000001.data"


class Place:
    """One output over several runs. Each `open` starts one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.epochs = directory / "app.epochs"
        self.pending = directory / "app.pending"
        self._participant: SinkParticipant | None = None

    def open(self, *, is_empty_kept: bool = False) -> SinkParticipant:
        self.close()
        txnlog = TransactionLog(self.directory / "app.txnlog")
        txnlog.open()
        self._participant = SinkParticipant(EpochsOutput(self.directory / "app", is_empty_kept=is_empty_kept), txnlog)
        self._participant.begin()
        return self._participant

    def close(self) -> None:
        if self._participant is not None:
            self._participant.close()
        self._participant = None

    def shown(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(self.epochs.iterdir())}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()


def prepare(participant: SinkParticipant, epoch: int, start: int, data: bytes) -> str:
    txn = f"app-w-out-id-1.1.1:c_id={epoch}"
    if data:
        participant.append([start], [data])
    assert participant.phase1(txn, [(1, start, start + len(data))])
    return txn


def commit(participant: SinkParticipant, epoch: int, start: int, data: bytes) -> None:
    participant.phase2(prepare(participant, epoch, start, data), True)


def test_a_committed_epoch_is_a_file_and_names_sort_in_the_order_of_the_output(place: Place) -> None:
    participant = place.open()
    commit(participant, 0, 0, b"one\n")
    prepare(participant, 1, 4, b"two\n")
    assert place.shown() == {EPOCH_0: b"one\n"}, "a file is not visible at the vote"
    participant.phase2("app-w-out-id-1.1.1:c_id=1", True)
    for epoch in range(2, 20):
        commit(participant, epoch, participant.committed_end, b"x" * 10 ** (epoch % 5))
    assert list(place.shown())[:2] == [EPOCH_0, EPOCH_1]
    files = list(epoch_files(place.epochs))
    assert [file.start for file in files] == [0, *(file.end for file in files[:-1])]
    assert files[-1].end == participant.committed_end
    assert not place.pending.exists()


def test_an_epoch_without_output_has_a_file_only_on_request(place: Place) -> None:
    participant = place.open()
    for epoch in (0, 1):
        commit(participant, epoch, 0, b"")
    assert place.shown() == {}
    participant = place.open(is_empty_kept=True)
    for epoch in (2, 3):
        commit(participant, epoch, 0, b"")
    commit(participant, 4, 0, b"one\n")
    assert list(place.shown().values()) == [b"", b"", b"one\n"]
    assert [name.partition("-")[2][-6:-5] for name in place.shown()] == ["2", "3", "4"]


def test_a_file_that_a_reader_took_away_is_not_written_again(place: Place) -> None:
    participant = place.open()
    commit(participant, 0, 0, b"one\n")
    txn = prepare(participant, 1, 4, b"two\n")
    output = EpochsOutput(place.directory / "app")
    output.recover(4, Transaction(txn, 4, 8))
    output.commit(Transaction(txn, 4, 8))  # and then the sink dies before it logs the commit
    for path in place.epochs.iterdir():
        path.unlink()
    participant = place.open()
    assert participant.uncommitted == (txn,)
    participant.phase2(txn, True)
    assert place.shown() == {}
    commit(participant, 2, 8, b"three\n")
    assert list(place.shown().values()) == [b"three\n"]


def test_an_existing_foreign_file_is_not_overwritten(place: Place) -> None:
    participant = place.open()
    txn = prepare(participant, 0, 0, b"one\n")
    (place.epochs / EPOCH_0).write_bytes(b"somebody else's")
    with pytest.raises(StorageError, match="already exists") as caught:
        participant.phase2(txn, True)
    assert "Move it away" in caught.value.next_step
    (place.epochs / EPOCH_0).unlink()
    participant = place.open()
    participant.phase2(txn, True)
    assert place.shown() == {EPOCH_0: b"one\n"}


def test_a_renamed_file_that_has_both_names_after_a_power_cut_is_committed(place: Place) -> None:
    participant = place.open()
    txn = prepare(participant, 0, 0, b"one\n")
    (place.epochs / EPOCH_0).hardlink_to(place.pending)
    participant.phase2(txn, True)
    assert place.shown() == {EPOCH_0: b"one\n"}
    assert not place.pending.exists()


def test_a_file_that_became_shorter_after_the_vote_stops_the_sink(place: Place) -> None:
    participant = place.open()
    prepare(participant, 0, 0, b"one\n")
    place.pending.write_bytes(b"on")
    with pytest.raises(StorageError, match="has 2 bytes, but its log records 4"):
        place.open()


def test_bytes_after_those_of_the_vote_are_cut_off(place: Place) -> None:
    participant = place.open()
    txn = prepare(participant, 0, 0, b"one\n")
    with place.pending.open("ab") as file:
        file.write(b"torn")
    place.open().phase2(txn, True)
    assert place.shown() == {EPOCH_0: b"one\n"}


def test_files_with_other_names_are_ignored(place: Place) -> None:
    participant = place.open()
    commit(participant, 0, 0, b"one\n")
    (place.epochs / ".hidden").write_bytes(b"x")
    (place.epochs / "README").write_bytes(b"x")
    assert [file.path.name for file in epoch_files(place.epochs)] == [EPOCH_0]


def test_a_transaction_of_a_worker_without_epochs_has_a_file_name_too() -> None:
    assert file_name(Transaction("t1", 7, 9), ".csv") == "00000000000000000007-00000000000000000000.csv"


@pytest.mark.parametrize("attempt", [1, 2, 1001])
def test_the_name_of_a_file_has_the_epoch_and_not_the_attempt(attempt: int) -> None:
    name = file_name(Transaction(f"app-w-out-id-abc.e5.f{attempt}:c_id={attempt}", 7, 9))
    assert name == "00000000000000000007-00000000000000000005.data"
    assert name == file_name(Transaction("app-w-out-id-abc.1.1:c_id=5", 7, 9)), (
        "the file has the same name as with ids of the old form"
    )


def test_a_suffix_that_cannot_end_a_name_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    directory = tmp_path / "out"
    arguments = [sys.executable, "-m", "procession", "sink", "epochs", str(directory), "--suffix", "/../x"]
    done = subprocess.run(arguments, capture_output=True, check=False)
    assert done.returncode == 2
    assert b"'/../x' is not a valid suffix.\n  Next: Use a dot and letters or digits" in done.stderr
    assert not directory.exists()
