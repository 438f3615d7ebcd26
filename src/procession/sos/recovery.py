"""Recovery of a volume: reads the directory that an earlier process left, and returns the state that the volume starts
with.

Invariant: data that was reported as synced is kept, or the volume is refused. The read data may not be on disk yet, so
it is written into new files before any step relies on it. The files together mean:

- no `volume.json`, and no object: the copy was never finished, and no client knows of it. It does not exist;
- no `volume.json`, but an object: the directory is damaged;
- a `.draft` file: its writer died before the file had its name. It is removed;
- an object below the mark: its deletion was interrupted. It is removed;
- an object that a later object of the newest history seals: it was synced before. It stays unchanged;
- any other object: it is kept up to its last intact chunk. After that, a crash leaves a part of a chunk, zeros, or
later chunks without earlier ones. If one of these says that the missing bytes had been synced, it is damaged.

Used only at the start. `sos/volume` continues with the result.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from procession.errors import StorageError
from procession.format_number import check_format
from procession.runtime.files import FileSystem
from procession.sos.object_file import (
    ObjectFile,
    chunks_after,
    damaged_object,
    number_of,
    object_path,
    read_head,
    scan,
)
from procession.sos.volume_rules import IDENTITY_BYTES, TOKEN_BYTES, ObjectHead
from procession.storage.durable import fsync_dir, renew_durably, storage_error, write_durably

RECORD = "volume.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class VolumeRecord:
    """The promises of a volume's copy, apart from its objects."""

    identity: bytes
    promised: int = 0
    token: bytes = b""
    mark: int = 0

    def write(self, directory: Path, files: FileSystem) -> None:
        """Write the record. It is durable when this returns."""
        document = {
            "format": FORMAT,
            "identity": self.identity.hex(),
            "promised": self.promised,
            "token": self.token.hex(),
            "mark": self.mark,
        }
        write_durably(directory / RECORD, json.dumps(document).encode(), files)


def read_record(directory: Path, files: FileSystem) -> VolumeRecord:
    """Read the record. Raises StorageError if it is damaged, FileNotFoundError if there is none."""
    path = directory / RECORD
    try:
        found = json.loads(files.read(path))
        check_format(path, found["format"], FORMAT)
        record = VolumeRecord(
            bytes.fromhex(found["identity"]), int(found["promised"]), bytes.fromhex(found["token"]), int(found["mark"])
        )
        if len(record.identity) != IDENTITY_BYTES or len(record.token) != (TOKEN_BYTES if record.promised else 0):
            raise ValueError("its identity or token has another length")
    except (ValueError, KeyError, TypeError) as error:
        raise damaged_object(path, str(error)) from error
    return record


def recover_volume(directory: Path, files: FileSystem) -> tuple[VolumeRecord, dict[int, ObjectFile]] | None:
    """Read and renew a copy of a volume. Returns None if there is none. Raises StorageError if it is damaged."""
    try:
        names = files.names(directory)
        numbers = sorted(number for name in names if (number := number_of(name)) is not None)
        if RECORD not in names:
            if numbers:
                raise damaged_object(directory / RECORD, "it is missing")
            return None
        record = read_record(directory, files)
        gone = [name for name in names if name.endswith(".draft")]
        gone += [object_path(directory, number).name for number in numbers if number < record.mark]
        for name in gone:
            files.remove(directory / name)
    except OSError as error:
        raise storage_error(directory, "read", error) from error
    record.write(directory, files)  # the last writer may have failed to sync the data that is read here
    objects = _recover_objects(directory, [number for number in numbers if number >= record.mark], files)
    fsync_dir(directory, files)
    return record, objects


def _recover_objects(directory: Path, numbers: list[int], files: FileSystem) -> dict[int, ObjectFile]:
    heads: dict[int, ObjectHead] = {}
    for number in numbers:
        path = object_path(directory, number)
        try:
            with files.open(path) as file:
                heads[number], _ = read_head(file, path, number)
        except OSError as error:
            raise storage_error(path, "read", error) from error
    sealed = set()
    newest = max(heads, default=0)
    while newest in heads:
        newest = heads[newest].previous
        sealed.add(newest)
    return {
        number: ObjectFile(object_path(directory, number), number, head, files)
        if number in sealed
        else recover_object(object_path(directory, number), number, files)
        for number, head in heads.items()
    }


def recover_object(path: Path, number: int, files: FileSystem) -> ObjectFile:
    """Keep an object up to its last intact chunk, in a new file. Raises StorageError if synced bytes are missing."""
    try:
        with files.open(path) as file:
            head, head_bytes = read_head(file, path, number)
            index, _ = scan(file, head_bytes)
            end = index.position(len(index.ends))
            if any(later.synced > index.written for later in chunks_after(file, end)):
                raise damaged_object(path, f"bytes after {index.written} were synced and are not intact")
    except OSError as error:
        raise storage_error(path, "read", error) from error
    renew_durably(path, end, files)
    return ObjectFile(path, number, head, files, index)


def open_volumes(
    directory: Path, files: FileSystem
) -> tuple[dict[str, tuple[VolumeRecord, dict[int, ObjectFile]]], dict[str, StorageError]]:
    """Open all copies in a directory. Also returns the damaged volumes with their errors: a damaged volume does not
    stop the others."""
    found, damaged = {}, {}
    try:
        names = sorted(name for name in files.names(directory) if files.is_directory(directory / name))
    except OSError as error:
        raise storage_error(directory, "read", error) from error
    for name in names:
        try:
            recovered = recover_volume(directory / name, files)
        except StorageError as error:
            if "errno" in error.fields:
                raise  # an error of the disk, not of the volume
            damaged[name] = error
        else:
            if recovered is not None:
                found[name] = recovered
    return found, damaged
