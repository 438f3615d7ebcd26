"""Writes and reads Spark's files in a checkpoint as Spark does: `offsets/N` and `commits/N`.

Invariant, as in Spark: a file is written as a draft and renamed without a sync. So a power cut can leave a file's
name without its bytes. Used by `simulated_spark`; shipped code reads these files with `commit/spark_log`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from procession.errors import StorageError
from procession.runtime.files import OpenMode
from procession.sim.simulated_files import SimulatedFileSystem
from procession.sim.simulated_process import Steps
from procession.storage.durable import make_if_missing, storage_error
from procession.storage.log_ranges import LogOffset, read_offsets


class SparkFiles:
    def __init__(self, directory: Path, files: SimulatedFileSystem) -> None:
        self._directory = directory
        self._files = files

    def offset(self, epoch: int) -> dict[str, LogOffset]:
        """Return the end of the epoch at each gateway. An unreadable file stops Spark and Procession."""
        try:
            text = self._files.read(self._directory / "offsets" / str(epoch))
            return read_offsets(json.loads(text.splitlines()[-1]))
        except (OSError, ValueError, IndexError, AttributeError, TypeError) as error:
            raise StorageError(f"offsets/{epoch} is damaged: {error!r}", next_step="restore the checkpoint") from error

    def write_offset(self, epoch: int, ends: Mapping[str, LogOffset]) -> Steps:
        offsets = {name: end.as_json() for name, end in ends.items()}
        yield from self._write("offsets", epoch, b"v1\n{}\n" + json.dumps(offsets).encode())

    def write_commit(self, epoch: int) -> Steps:
        yield from self._write("commits", epoch, b'v1\n{"nextBatchWatermarkMs":0}')

    def _write(self, part: str, epoch: int, data: bytes) -> Steps:
        files, folder = self._files, self._directory / part
        if not files.exists(self._directory):
            raise StorageError(f"{self._directory} is gone")  # a successor has removed it
        draft = folder / f".{epoch}.tmp"
        try:
            make_if_missing(folder, files)
            with files.open(draft, OpenMode.REPLACE) as file:
                file.write(0, data)
            yield
            files.rename(draft, folder / str(epoch))
            yield
        except FileNotFoundError as error:
            raise StorageError(f"{self._directory} is gone") from error
        except OSError as error:
            raise storage_error(folder, "write", error) from error
