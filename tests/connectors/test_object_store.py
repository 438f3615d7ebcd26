"""A local directory as an object store: what readers of the directory see of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from procession.connectors.object_store import LocalStore


def visible(directory: Path) -> list[str]:
    """What Spark and pandas read: every file whose name does not begin with a dot or an underscore."""
    return [path.name for path in directory.iterdir() if not path.name.startswith((".", "_"))]


def test_a_file_that_is_renewed_is_visible_once_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "part-1.parquet").write_bytes(b"rows")
    seen: list[list[str]] = []
    rename = os.rename

    def rename_and_look(source: Path, target: Path) -> None:
        seen.append(visible(tmp_path))
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_and_look)
    before = (tmp_path / "part-1.parquet").stat().st_ino
    LocalStore(tmp_path).renew("part-1.parquet")
    assert seen == [["part-1.parquet"]]
    assert visible(tmp_path) == ["part-1.parquet"]
    assert (tmp_path / "part-1.parquet").read_bytes() == b"rows"
    assert (tmp_path / "part-1.parquet").stat().st_ino != before
