"""A local directory as an object store: what readers of the directory see of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from procession.connectors.delta_table import DeltaLakeTable
from procession.connectors.object_store import LocalStore
from procession.connectors.parquet_output import LakeTable
from procession.connectors.parquet_sink import LakeOptions, open_parquet, run_lake_sink
from procession.errors import StorageError


def visible(directory: Path) -> list[str]:
    """Return the files that Spark and pandas read: those whose names do not begin with a dot or an underscore."""
    return [path.name for path in directory.iterdir() if not path.name.startswith((".", "_"))]


def test_a_file_that_is_replaced_is_visible_exactly_once_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "part-1.parquet").write_bytes(b"rows")
    seen: list[list[str]] = []
    rename = os.rename

    def rename_and_check(source: Path, target: Path) -> None:
        seen.append(visible(tmp_path))
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_and_check)
    before = (tmp_path / "part-1.parquet").stat().st_ino
    LocalStore(tmp_path).renew("part-1.parquet")
    assert seen == [["part-1.parquet"]]
    assert visible(tmp_path) == ["part-1.parquet"]
    assert (tmp_path / "part-1.parquet").read_bytes() == b"rows"
    assert (tmp_path / "part-1.parquet").stat().st_ino != before


def test_a_synced_file_is_not_synced_again_unless_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, synced = LocalStore(tmp_path / "table"), []
    monkeypatch.setattr("procession.connectors.object_store.sync", synced.append)
    for name, is_synced in (("a", True), ("b", False)):
        spool = store.spool_path(tmp_path / "spool")
        spool.write_bytes(b"rows")
        store.upload(spool, name, is_synced=is_synced)
        assert len(synced) == (not is_synced)


@pytest.mark.parametrize("open_table", [open_parquet, DeltaLakeTable])
def test_a_sink_does_not_start_where_it_cannot_write(open_table: Callable[[str], LakeTable], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"Cannot .*/file/table.*: Not a directory"):
        run_lake_sink(tmp_path / "sink", lambda: open_table(f"{tmp_path}/file/table"), LakeOptions(), "127.0.0.1:0")
    store = LocalStore(tmp_path / "table")
    store.check()
    assert list((tmp_path / "table").iterdir()) == [], "a check leaves nothing behind"
