"""Batch files: columns that are zero in a batch use no space, and readers still get them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from procession.storage.batch_file import OMITTED_MAX, BatchFile, BatchWriter


def written(path: Path, batches: list[pa.RecordBatch], *, omits_zeros: bool = True) -> Path:
    with path.open("wb") as file:
        writer = BatchWriter(file, batches[0].schema, omits_zeros=omits_zeros)
        for mark, batch in enumerate(batches):
            writer.write(batch, mark=mark)
        writer.close()
    return path


def read(path: Path) -> list[pa.RecordBatch]:
    return list(BatchFile(path, what="the file").batches())


def batch(rows: int, **columns: list[int | None]) -> pa.RecordBatch:
    arrays = {name: pa.array(values, pa.int64()) for name, values in columns.items()}
    return pa.record_batch({"payload": pa.array([b"x"] * rows, pa.binary()), **arrays})


@pytest.mark.parametrize(
    "columns",
    [
        {"a": [0, 0, 0], "b": [1, 2, 3]},
        {"a": [0, 5, 0], "b": [0, 0, 0]},
        {"a": [0, None, 0], "b": [0, 0, 0]},
        {"a": [0, 0, 0], "b": [0, 0, 0]},
        {"a": [7, 7, 7], "b": [-1, 0, 0]},
    ],
)
def test_what_is_read_is_what_was_written(tmp_path: Path, columns: dict[str, list[int | None]]) -> None:
    first = batch(3, **columns)
    batches = [first, batch(1, a=[0], b=[9]), first.slice(1), first.slice(0, 0)]
    for omits_zeros in (True, False):
        assert read(written(tmp_path / f"{omits_zeros}", batches, omits_zeros=omits_zeros)) == batches


def test_columns_of_zeros_take_no_room(tmp_path: Path) -> None:
    rows = 100_000  # more than the zeros that are shared at first
    zeros = pa.array(np.zeros(rows, np.int64))
    numbers = pa.array(np.arange(rows, dtype=np.int64))
    payload = pa.array([b""] * rows, pa.binary())
    made = pa.record_batch({"payload": payload, "order_0": numbers, "order_1": zeros, "order_2": zeros})
    whole = written(tmp_path / "whole", [made], omits_zeros=False).stat().st_size
    assert whole - written(tmp_path / "small", [made]).stat().st_size > 15 * rows
    assert read(tmp_path / "small") == [made]
    assert BatchFile(tmp_path / "small", what="the file").rows == rows


def test_marks_select_batches_as_before(tmp_path: Path) -> None:
    batches = [batch(2, a=[0, 0]), batch(2, a=[1, 2]), batch(2, a=[0, 0])]
    file = BatchFile(written(tmp_path / "file", batches), what="the file")
    assert file.marks == [0, 1, 2]
    assert list(file.batches(mark=2)) == batches[2:]


def test_columns_beyond_the_bits_and_files_of_numbers_alone_are_written_whole(tmp_path: Path) -> None:
    wide = pa.record_batch({f"c{number}": pa.array([0, 0], pa.int64()) for number in range(OMITTED_MAX + 3)})
    assert read(written(tmp_path / "alone", [wide])) == [wide]
    mixed = wide.append_column("payload", pa.array([b"a", b"b"], pa.binary()))
    assert read(written(tmp_path / "mixed", [mixed])) == [mixed]
