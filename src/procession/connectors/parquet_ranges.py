"""Combines ranges of epochs into one visible Parquet file, so that short epochs do not create small files.

Invariant: a committed epoch whose manifest says `held` is not visible until it is part of a range. The create-only file
`_procession/<output>/ranges/<start>.json` records the decision on a range. After that the range's file becomes
visible, then the files of its epochs are removed, and last the hidden name of the range's file. After a crash these
steps are repeated, so each epoch becomes visible once, with its range. Upstream: `connectors/parquet_directory`;
downstream: `connectors/object_store`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa
import structlog

from procession import faults
from procession.connectors.object_store import ObjectStore
from procession.connectors.parquet_spool import merge_files
from procession.errors import StorageError
from procession.format_number import check_format

FORMAT = 1
MANIFEST_BYTES_MAX = 1024 * 1024

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HeldEpoch:
    """A committed epoch that is not visible yet, and its file."""

    start: int
    end: int
    upload: str
    bytes: int


class EpochRanges:
    """The ranges of one output.

    Args:
        store: The directory.
        folder: Folder of the output's manifests.
        epochs_max: Number of epochs after which a range becomes visible.
        bytes_max: Size at which a range becomes visible earlier.
        merge_path: Where a range's file is written, before it is uploaded.
        schema: The schema of the table.
        visible_name: The visible name of an uploaded file.
    """

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        epochs_max: int,
        bytes_max: int,
        merge_path: Path,
        schema: Callable[[], pa.Schema | None],
        visible_name: Callable[[str], str],
    ) -> None:
        self._store = store
        self._folder = folder
        self._epochs_max = epochs_max
        self._bytes_max = bytes_max
        self._merge_path = merge_path
        self._schema = schema
        self._visible_name = visible_name
        self._held: list[HeldEpoch] = self._load()

    def _load(self) -> list[HeldEpoch]:
        """Return the epochs that are held back. First complete a range whose sink was killed after the decision."""
        end = 0
        for name in list(self._store.names(f"{self._folder}/ranges"))[-1:]:
            path = f"{self._folder}/ranges/{name}"
            found = self._read(path)
            check_format(PurePath(path), found.get("format"), FORMAT)
            end = int(found["end"])
            if self._store.has(found["merged"]):
                self._store.renew(path)
                self._show(found)
        names = list(self._store.names(self._folder, f"{end - 1:020d}.json" if end else ""))
        held: list[HeldEpoch] = []
        for name in reversed(names):
            manifest = self._read(f"{self._folder}/{name}")
            if not manifest.get("held"):
                break
            held.append(HeldEpoch(manifest["start"], manifest["end"], manifest["held"], int(manifest["bytes"])))
        return held[::-1]

    def is_held(self, start: int) -> bool:
        """Return whether the epoch that starts here is committed and not visible."""
        return any(epoch.start == start for epoch in self._held)

    def add(self, epoch: HeldEpoch) -> None:
        """Add a committed epoch. Publish the range if it is large enough."""
        if not self.is_held(epoch.start):
            if self._held and self._size() + epoch.bytes > self._bytes_max:
                self.show()
            self._held.append(epoch)
        if len(self._held) >= self._epochs_max or self._size() >= self._bytes_max:
            self.show()

    def show(self) -> None:
        """Make all epochs that are held back visible, as one file."""
        held = self._held
        if not held:
            return
        merged = held[0].upload
        if len(held) > 1:
            folder, _, _ = merged.rpartition("/")
            stem = self._folder.rpartition("/")[2]
            merged = f"{folder}/{stem}-{held[0].start:020d}-{held[-1].end:020d}-{secrets.token_hex(4)}.pending"
            schema = self._schema()
            assert schema is not None
            merge_files((self._store.open_input(epoch.upload) for epoch in held), schema, self._merge_path)
            self._store.upload(self._merge_path, merged)
        faults.point("sink:range-uploaded")
        decided = {
            "format": FORMAT,
            "start": held[0].start,
            "end": held[-1].end,
            "merged": merged,
            "file": self._visible_name(merged),
            "uploads": [epoch.upload for epoch in held],
        }
        name = f"{self._folder}/ranges/{held[0].start:020d}.json"
        if not self._store.create(name, json.dumps(decided).encode()):
            raise StorageError(
                f"Another sink has shown the epochs from position {held[0].start} on in {self._store.url}.",
                next_step="Stop one of the two sinks, or give each a table of its own.",
            )
        faults.point("sink:range-written")
        self._held = []
        self._show(decided)

    def _show(self, decided: Mapping[str, Any]) -> None:
        if not self._store.publish(decided["merged"], decided["file"]):
            self._store.renew(decided["file"])
        faults.point("sink:range-visible")
        for upload in decided["uploads"]:
            if upload != decided["merged"]:
                self._store.delete(upload)
        self._store.delete(decided["merged"])

    def _size(self) -> int:
        return sum(epoch.bytes for epoch in self._held)

    def _read(self, name: str) -> dict[str, Any]:
        data = self._store.read(name, MANIFEST_BYTES_MAX)
        try:
            found = json.loads(data or b"")
            if not isinstance(found, dict):
                raise ValueError(name)
            return found
        except ValueError as error:
            raise StorageError(
                f"{self._store.url}/{name} is not a manifest.",
                next_step="Restore the file from a copy, or begin with a new directory.",
            ) from error
