"""Ranges of epochs in a Parquet directory: one file has several epochs, and each epoch is visible once, whenever the
sink is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from procession.connectors.parquet_sink import LakeOptions, lake_opener, open_parquet
from procession.sdk.participant import SinkParticipant
from procession.sdk.transaction_log import TransactionLog

POINTS = ("sink:range-uploaded", "sink:range-written", "sink:range-visible")


class Killed(Exception):
    """The sink is killed at this point."""


class Directory:
    """An output over several runs."""

    def __init__(self, directory: Path) -> None:
        self.sink = directory / "sink"
        self.table = directory / "table"
        self.sink.mkdir()
        self._epochs = 0
        self._participant: SinkParticipant | None = None

    def open(self, epochs_per_file: int, file_bytes: int = 10_000_000) -> None:
        def open_table() -> object:
            return open_parquet(str(self.table), epochs_per_file=epochs_per_file, file_bytes=file_bytes)

        txnlog = TransactionLog(self.sink / "app.txnlog")
        txnlog.open()
        self._participant = SinkParticipant(lake_opener(self.sink, open_table, LakeOptions())("app"), txnlog)  # type: ignore[arg-type]
        self._participant.begin()
        for txn_id in self._participant.list_uncommitted():
            self._participant.phase2(txn_id, True)

    def epoch(self) -> None:
        """Commit epoch n, which has the record n."""
        participant = self._participant
        assert participant is not None
        self._epochs += 1
        payload = json.dumps({"id": self._epochs}).encode()
        start, txn_id = participant.committed_end, f"app-w-out-id-1.e{self._epochs}.f1:c_id={self._epochs}"
        participant.append([start], [payload])
        assert participant.phase1(txn_id, [(1, start, start + len(payload))])
        participant.phase2(txn_id, True)

    def close(self) -> None:
        if self._participant is not None:
            self._participant.close()
        self._participant = None

    def kill(self) -> None:
        self._participant = None

    def files(self) -> list[list[int]]:
        """Return the records of each visible file."""
        return [pq.read_table(path).column("id").to_pylist() for path in sorted(self.table.glob("*.parquet"))]

    def ids(self) -> list[int]:
        if not any(self.table.glob("*.parquet")):
            return []
        return sorted(ds.dataset(self.table, format="parquet").to_table().column("id").to_pylist())

    def pending(self) -> list[str]:
        return [path.name for path in self.table.rglob("*.pending")]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    directory = Directory(tmp_path)
    yield directory
    directory.close()


def test_epochs_become_visible_together_as_one_file_and_the_rest_when_the_sink_stops(directory: Directory) -> None:
    directory.open(3)
    for _ in range(5):
        directory.epoch()
    assert directory.files() == [[1, 2, 3]]
    directory.close()
    assert directory.files() == [[1, 2, 3], [4, 5]]
    assert directory.pending() == []


def test_a_killed_sink_continues_with_the_epochs_that_it_held_back(directory: Directory) -> None:
    directory.open(3)
    for _ in range(5):
        directory.epoch()
    directory.kill()
    directory.open(3)
    directory.epoch()
    assert directory.files() == [[1, 2, 3], [4, 5, 6]]


def test_epochs_of_the_size_of_a_file_become_visible_at_once(directory: Directory) -> None:
    directory.open(100, file_bytes=1)
    for _ in range(3):
        directory.epoch()
    assert directory.files() == [[1], [2], [3]]
    assert directory.pending() == []


def test_a_file_has_no_more_epochs_than_its_size_allows(directory: Directory) -> None:
    directory.open(1)
    directory.epoch()
    [file] = directory.table.glob("*.parquet")
    directory.close()
    directory.open(100, file_bytes=file.stat().st_size * 3 // 2)
    for _ in range(3):
        directory.epoch()
    assert directory.files() == [[1], [2], [3]]


def test_the_number_of_epochs_may_change(directory: Directory) -> None:
    for epochs_per_file in (1, 3, 1, 2):
        directory.open(epochs_per_file)
        directory.epoch()
        directory.epoch()
        directory.kill()
    directory.open(1)
    directory.epoch()
    assert directory.ids() == list(range(1, 10))
    assert directory.files() == [[1], [2], [3, 4], [5], [6], [7, 8], [9]]
    assert directory.pending() == []


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("again", [1, 3])
def test_a_sink_that_is_killed_while_a_range_becomes_visible_shows_each_epoch_once(
    directory: Directory, point: str, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(name: str) -> None:
        if name == point:
            raise Killed

    directory.open(3)
    directory.epoch()
    directory.epoch()
    with monkeypatch.context() as patched:
        patched.setattr("procession.connectors.parquet_ranges.faults.point", die)
        with pytest.raises(Killed):
            directory.epoch()
    directory.kill()
    directory.open(again)
    directory.epoch()
    directory.close()
    assert directory.ids() == [1, 2, 3, 4]
    if point != POINTS[0]:
        assert directory.pending() == []


def test_a_visible_range_that_a_reader_took_away_is_not_written_again(directory: Directory) -> None:
    directory.open(2)
    directory.epoch()
    directory.epoch()
    for path in directory.table.glob("*.parquet"):
        path.unlink()
    directory.kill()
    directory.open(2)
    directory.epoch()
    directory.close()
    assert directory.files() == [[3]]
