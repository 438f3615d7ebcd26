"""Stores savepoints in an object store: `s3://BUCKET/PREFIX`.

Invariant: a savepoint there is complete or absent: its manifest is written last, and no existing savepoint is
overwritten. Fetched files are verified before they are used. Files are sent and fetched in parts, so memory is bounded.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from procession.connectors.object_store_remote import RemoteStore
from procession.errors import UsageError
from procession.savepoints.savepoint import MANIFEST, Savepoint, load
from procession.storage.durable import make_directory, write_durably

MANIFEST_BYTES_MAX = 64 * 1024 * 1024


def is_remote(place: str) -> bool:
    """Return whether this names an object store, not a directory."""
    return "://" in place


def upload(savepoint: Savepoint, url: str) -> None:
    """Copy a savepoint to a store, and verify the copy. Raises UsageError if the store already has one there."""
    store = RemoteStore(url)
    taken = UsageError(f"There is a savepoint at {url} already.", next_step="Name another prefix.")
    if store.has(MANIFEST):
        raise taken
    savepoint.verify()
    for name in savepoint.manifest["files"]:
        store.put_file(savepoint.directory / name, name)
    with tempfile.TemporaryDirectory(prefix="procession-savepoint-") as scratch:
        _fetched(store, savepoint, Path(scratch)).verify()
    if not store.create(MANIFEST, json.dumps(dict(savepoint.manifest)).encode()):
        raise taken


@contextmanager
def downloaded(url: str, beside: Path | None = None) -> Iterator[Savepoint]:
    """Yield a local copy of a savepoint in a store. The copy is on the same disk as the directory `beside`, and
    removed at the end. Raises UsageError if there is no savepoint, StorageError if it is damaged."""
    store = RemoteStore(url)
    data = store.read(MANIFEST, MANIFEST_BYTES_MAX)
    if data is None:
        raise UsageError(f"There is no savepoint at {url}.", next_step=f"Name a prefix that contains {MANIFEST}.")
    if beside is not None:
        make_directory(beside)
    with tempfile.TemporaryDirectory(prefix=".savepoint-", dir=beside) as scratch:
        write_durably(Path(scratch) / MANIFEST, data)
        yield _fetched(store, load(Path(scratch)), Path(scratch))


def _fetched(store: RemoteStore, savepoint: Savepoint, directory: Path) -> Savepoint:
    for name in savepoint.manifest["files"]:
        make_directory((directory / name).parent)
        store.fetch(name, directory / name)
    return Savepoint(directory, savepoint.manifest)
