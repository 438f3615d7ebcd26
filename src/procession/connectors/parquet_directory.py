"""A directory or prefix of Parquet files as table: one visible file for each epoch.

Invariant: the create-only manifest `_procession/<output>/<start>.json` is the step that publishes an epoch: two sinks
that race for the same position cannot both write it. The epoch's file then gets its visible name in one step, so a
reader that lists the directory sees whole epochs only. An epoch has one file, so none is seen in part. Upstream:
`connectors/parquet_output`; downstream: `connectors/object_store`.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePath

import pyarrow as pa

from procession import faults
from procession.connectors.object_store import HIDDEN, ObjectStore
from procession.connectors.parquet_output import LakeTable, LakeToken, Upload, safe_name
from procession.errors import StorageError
from procession.format_number import check_format

FORMAT = 1
SCHEMA = f"{HIDDEN}/schema.arrow"
SCHEMA_BYTES_MAX = 16 * 1024 * 1024
MANIFEST_BYTES_MAX = 64 * 1024
PENDING = ".pending"
"""Suffix of files that are not visible yet: no glob for Parquet files finds them."""


class ParquetDirectory(LakeTable):
    """Visible files are `part-<output>-<position>-<attempt>.parquet`: their names sort in the order of the output."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.url = store.url

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
        return self.store.spool_path(spare)

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
        name = f"{_folder(instance)}/{_manifest_name(upload.start)}"
        manifest = {
            "format": FORMAT,
            "transaction": upload.txn_id,
            "start": upload.start,
            "end": upload.end,
            "file": _visible_name(upload),
            "rows": upload.facts.rows,
            "bytes": upload.facts.bytes,
        }
        if not self.store.create(name, json.dumps(manifest).encode()):
            raise StorageError(
                f"Another sink has written the output {instance} from position {upload.start} on to {self.store.url}.",
                next_step="Stop one of the two sinks, or give each a table of its own.",
                instance=instance,
            )
        faults.point("sink:manifest-written")

    def settle(self, instance: str, upload: Upload, *, is_fresh: bool) -> None:
        if not self.store.has(upload.name):
            return  # it became visible, and was removed here; a reader may have taken the visible file away since
        visible = _visible_name(upload)
        if not is_fresh:
            self.store.renew(f"{_folder(instance)}/{_manifest_name(upload.start)}")
        if not self.store.publish(upload.name, visible):
            self.store.renew(visible)
        faults.point("sink:file-visible")
        self.store.delete(upload.name)

    def tidy(self) -> None:
        """Nothing: a file of a directory that anybody may list cannot be replaced unseen."""

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


def _visible_name(upload: Upload) -> str:
    stem = upload.name.rpartition("/")[2].removesuffix(PENDING)
    return f"part-{stem}.parquet"
