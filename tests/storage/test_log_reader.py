"""A reader of a log gives exactly the rows that it is asked for, or an error."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from procession.errors import StorageError
from procession.storage.log import IngressLog
from procession.storage.log_reader import LogReader
from procession.storage.segment import segment_name
from tests.storage.test_incarnation import fill, ids


def drained(batches: Iterator[pa.RecordBatch]) -> None:
    """Read all batches, or so many that there is no end."""
    assert len(list(islice(batches, 100))) < 100


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of five segments with four rows each."""
    with IngressLog(tmp_path, segment_bytes_max=1400) as log:
        fill(log, 20)
    assert len(list(tmp_path.glob("*.segment"))) == 5
    return tmp_path


def test_an_entry_that_is_damaged_after_it_was_indexed_is_an_error(log: Path) -> None:
    reader = LogReader(log)
    assert ids(reader.read(0, 4)) == [0, 1, 2, 3]
    path = log / segment_name(0)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - 1)
        file.write(b"\xff")
    assert ids(reader.read(0, 2)) == [0, 1]
    with pytest.raises(StorageError, match="is damaged"):
        drained(reader.read(0, 4))


@pytest.mark.parametrize(("start", "end"), [(16, 21), (20, 21), (0, 21)])
def test_rows_beyond_the_end_are_an_error(log: Path, start: int, end: int) -> None:
    with pytest.raises(StorageError):
        drained(LogReader(log).read(start, end))


def test_rows_before_the_first_segment_are_an_error(log: Path) -> None:
    (log / segment_name(0)).unlink()
    assert ids(LogReader(log).read(4, 6)) == [4, 5]
    for start, end in ((0, 4), (2, 6)):
        with pytest.raises(StorageError):
            drained(LogReader(log).read(start, end))


def test_a_gap_between_segments_is_an_error(log: Path) -> None:
    (log / segment_name(8)).unlink()
    with pytest.raises(StorageError):
        drained(LogReader(log).read(4, 14))
