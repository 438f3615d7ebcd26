"""Tables that a stream is joined with, from values or files, the same for every task."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle

from procession import Pipeline, PlanError, ProcessionError, tables
from tests.spark.test_plans import check

ROWS = [{"id": "a", "n": 1}, {"id": "b", "n": 2}, {"id": "a", "n": 3}]


def made(kind: str, directory: Path, **options: Any) -> tables.Table:
    if kind == "rows":
        return tables.of_rows(ROWS, by="id")
    if kind == "json":
        (directory / "side.json").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        return tables.of_json_lines(directory / "side.json", by=lambda row: row["id"], **options)
    pq.write_table(pa.Table.from_pylist(ROWS), directory / "side.parquet")
    return tables.of_parquet(directory / "side.parquet", by="id", **options)


@pytest.mark.parametrize("kind", ["rows", "json", "parquet"])
def test_a_table_returns_the_rows_of_a_key_in_order_in_any_process(kind: str, tmp_path: Path) -> None:
    side = made(kind, tmp_path)
    read = len(tables._read)
    for one in (side, cloudpickle.loads(cloudpickle.dumps(side)), cloudpickle.loads(cloudpickle.dumps(side))):
        assert [row["n"] for row in one.matches("a")] == [1, 3]
        assert [row["n"] for row in one.matches("b")] == [2]
        assert one.matches("c") == []
    assert len(tables._read) - read <= 1, "a worker reads a table once, not for each task"


def test_a_file_that_changes_is_an_error_unless_refresh_is_set(tmp_path: Path) -> None:
    fixed, refreshed = made("parquet", tmp_path), made("parquet", tmp_path, refresh=True)
    pq.write_table(pa.Table.from_pylist([{"id": "c", "n": 9}]), tmp_path / "side.parquet")
    os.utime(tmp_path / "side.parquet", ns=(1, 1))
    assert [row["n"] for row in refreshed.matches("c")] == [9]
    with pytest.raises(PlanError, match="has changed"):
        fixed.matches("c")


def test_joins_keep_the_order_and_give_a_result_for_each_match() -> None:
    side = tables.of_rows([{"id": str(number % 7), "n": number} for number in range(10)], by="id")
    pipeline = Pipeline("p", parallelism=3)
    source = pipeline.source("numbers", codec="text")
    keyed = {"key": lambda value: value[-1], "and_key": lambda value: value[0]}
    left = source.hash_join(side, key=keyed["key"], join=lambda value, row: f"{value} {row and row['n']}")
    left.rebalance(parallelism=2).sink("left", to="file:out")
    both = source.inner_hash_join(
        side, and_side=side, join=lambda value, one, other: f"{value} {one['n']} {other['n']}", **keyed
    )
    source.merge(both).sink("both", to="file:out")
    wanted = check(pipeline, [b"%d" % number for number in range(60)])
    assert wanted["left"].splitlines()[:4] == [b"0 0", b"0 7", b"1 1", b"1 8"]
    assert wanted["left"].count(b"None") == 18
    assert b"10 0 1\n10 0 8\n10 7 1\n10 7 8\n" in wanted["both"]


@pytest.mark.parametrize(
    "mistake",
    [
        lambda path: tables.of_rows([{"id": "a"}], by="name"),
        lambda path: tables.of_rows([{"id": [1.5]}], by="id"),
        lambda path: tables.of_parquet(path / "none.parquet", by="id"),
        lambda path: tables.of_json_lines(_torn(path), by="id"),
        lambda path: Pipeline("p").source().hash_join({}, key=bytes, join=max),
        lambda path: Pipeline("p").source().hash_join(made("rows", path), key="id", join=max),
        lambda path: Pipeline("p").source().hash_join(made("rows", path), key=bytes, join=None),
    ],
)
def test_a_mistake_is_reported_where_it_was_made_and_with_a_next_step(mistake: Any, tmp_path: Path) -> None:
    with pytest.raises(ProcessionError) as caught:
        mistake(tmp_path)
    assert caught.value.next_step


def _torn(directory: Path) -> Path:
    (directory / "torn").write_text("{")
    return directory / "torn"
