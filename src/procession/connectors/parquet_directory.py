"""Publishes epochs to a directory or prefix of Parquet files: one visible file per epoch, or per range of epochs.

Invariant: the create-only manifest `_procession/<output>/<start>.json` publishes an epoch: two sinks that race for
the same position cannot both write it. The epoch's file then gets its visible name in one step. An epoch is in one
file, so a reader that lists the directory sees only whole epochs. Upstream: `connectors/parquet_output`; downstream:
`connectors/object_store`, and `connectors/parquet_ranges` if epochs are held back to be shown together.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePath

import pyarrow as pa

from procession import faults
from procession.connectors.object_store import HIDDEN, ObjectStore
from procession.connectors.parquet_output import FILE_BYTES, LakeTable, LakeToken, Upload, safe_name
from procession.connectors.parquet_ranges import EpochRanges, HeldEpoch
from procession.errors import StorageError
from procession.format_number import check_format

FORMAT = 1
SCHEMA = f"{HIDDEN}/schema.arrow"
SCHEMA_BYTES_MAX = 16 * 1024 * 1024
MANIFEST_BYTES_MAX = 64 * 1024
PENDING = ".pending"
"""Suffix of files that are not visible yet: no glob for Parquet files finds them."""


class ParquetDirectory(LakeTable):
    """A directory of Parquet files. The names of visible files, `part-<output>-<position>-<attempt>.parquet`, sort in
    output order.

    Args:
        store: The directory.
        epochs_per_file: Epochs that become visible together, as one file.
        file_bytes: Size at which they become visible earlier.
    """

    def __init__(self, store: ObjectStore, *, epochs_per_file: int = 1, file_bytes: int = FILE_BYTES) -> None:
        self.store = store
        self.url = store.url
        self._epochs_per_file = epochs_per_file
        self._file_bytes = file_bytes
        self._merge_path = Path()
        self._ranges: EpochRanges | None = None

    def check_place(self) -> None:
        self.store.check()

    def schema(self) -> pa.Schema | None:
        data = self.store.read(SCHEMA, SCHEMA_BYTES_MAX)
        if data is None:
            return None
        try:
            return pa.ipc.read_schema(pa.BufferReader(data))
        except (pa.ArrowException, OSError) as error:
            raise StorageError(
                f"{self.store.url}/{SCHEMA} is not a schema: {error}.",
                next_step="Restore the file from a copy, or begin with a new directory.",
            ) from error

    def create(self, schema: pa.Schema) -> pa.Schema:
        self.store.create(SCHEMA, schema.serialize().to_pybytes())
        found = self.schema()
        assert found is not None
        return found

    def spool_path(self, spare: Path) -> Path:
        path = self.store.spool_path(spare)
        self._merge_path = path.with_suffix(".merge")
        return path

    def upload_name(self, stem: str) -> str:
        return f"{HIDDEN}/uploads/{stem}{PENDING}"

    def token(self, instance: str, position: int, last_start: int) -> LakeToken:
        folder = _folder(instance)
        names = list(self.store.names(folder, _manifest_name(position - 1) if position else ""))
        if not names and last_start >= 0:
            names = [_manifest_name(last_start)]
        elif not names and position:
            names = list(self.store.names(folder))
        return self._manifest(f"{folder}/{names[-1]}") if names else LakeToken()

    def publish(self, instance: str, upload: Upload) -> None:
        ranges = self._opened(instance)
        if self._epochs_per_file == 1:
            ranges.show()  # a sink with more epochs per file has held these back
        name = f"{_folder(instance)}/{_manifest_name(upload.start)}"
        manifest = {
            "format": FORMAT,
            "transaction": upload.txn_id,
            "start": upload.start,
            "end": upload.end,
            "file": _visible_name(upload.name),
            "rows": upload.facts.rows,
            "bytes": upload.facts.bytes,
        }
        if self._epochs_per_file > 1:
            manifest["held"] = upload.name
        if not self.store.create(name, json.dumps(manifest).encode()):
            raise StorageError(
                f"Another sink has written the output {instance} from position {upload.start} on to {self.store.url}.",
                next_step="Stop one of the two sinks, or give each a table of its own.",
                instance=instance,
            )
        faults.point("sink:manifest-written")

    def settle(self, instance: str, upload: Upload, *, is_fresh: bool) -> None:
        ranges = self._opened(instance)
        if ranges.is_held(upload.start) or (is_fresh and self._epochs_per_file > 1):
            if not is_fresh:
                self.store.renew(f"{_folder(instance)}/{_manifest_name(upload.start)}")
            ranges.add(HeldEpoch(upload.start, upload.end, upload.name, upload.facts.bytes))
            return
        if not self.store.has(upload.name):
            return  # it became visible under another name; a reader may have removed that since
        visible = _visible_name(upload.name)
        if not is_fresh:
            self.store.renew(f"{_folder(instance)}/{_manifest_name(upload.start)}")
        if not self.store.publish(upload.name, visible):
            self.store.renew(visible)
        faults.point("sink:file-visible")
        self.store.delete(upload.name)

    def tidy(self) -> None:
        """Do nothing: programs that list this directory would notice a replaced file."""

    def close(self) -> None:
        if self._ranges is not None:
            self._ranges.show()

    def _opened(self, instance: str) -> EpochRanges:
        if self._ranges is None:
            self._ranges = EpochRanges(
                self.store,
                _folder(instance),
                self._epochs_per_file,
                self._file_bytes,
                self._merge_path,
                self.schema,
                _visible_name,
            )
        return self._ranges

    def _manifest(self, name: str) -> LakeToken:
        data = self.store.read(name, MANIFEST_BYTES_MAX)
        if data is None:
            return LakeToken()
        try:
            found = json.loads(data)
            token = LakeToken(int(found["end"]), str(found["transaction"]))
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{self.store.url}/{name} is not a manifest.",
                next_step="Restore the file from a copy, or begin with a new directory.",
            ) from error
        check_format(PurePath(name), found.get("format"), FORMAT)
        return token


def _folder(instance: str) -> str:
    return f"{HIDDEN}/{safe_name(instance)}"


def _manifest_name(start: int) -> str:
    return f"{start:020d}.json"


def _visible_name(upload_name: str) -> str:
    stem = upload_name.rpartition("/")[2].removesuffix(PENDING)
    return f"part-{stem}.parquet"
