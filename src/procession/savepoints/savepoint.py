"""Reads and drops savepoints: named, complete states of a pipeline after a committed epoch, kept until dropped.

Invariant: a savepoint is complete or absent: it is built in a draft and renamed. It names one committed epoch and
contains everything that the next epoch needs: Spark's offsets, the round record, state files, copies of tables, the
reserved attempts and the committed positions of the streams. State files and copies never change, so they are linked,
not copied. A linked file stays even if a driver deletes its own link. `savepoints/savepoint_create` creates
savepoints, `savepoints/savepoint_restore` starts a pipeline from one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from procession.commit.checkpoint import read_pipeline
from procession.commit.round_files import RoundRecords
from procession.commit.round_record import RoundRecord
from procession.deployment.part_arguments import GATEWAY
from procession.errors import StorageError, UsageError
from procession.format_number import check_format
from procession.gateway.gateway_directory import SNAPSHOT, load_snapshot
from procession.gateway.input_pins import InputPin, InputPins
from procession.gateway.snapshot import Snapshot, decode_snapshot
from procession.runtime.files import OpenMode
from procession.runtime.host_files import HOST_FILES
from procession.storage.driver_claim import checkpoint_of
from procession.storage.durable import fsync_dir, make_directory, replace_durably, storage_error
from procession.storage.log_ranges import FIRST_GATEWAY
from procession.storage.log_reader import segment_bases
from procession.storage.segment import segment_name
from procession.storage.state_file import StateFile
from procession.storage.table_copies import check_copy

FOLDER = "savepoints"
"""The directory of a pipeline's savepoints, in the pipeline's directory."""
MANIFEST = "savepoint.json"
FORMAT = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
DRAFT = ".draft"
TRIAL = ".trial"
"""Suffix of a savepoint on which `procession upgrade` tries the first epoch. It exists while the process holds its
lock."""
LOCK = "savepoints.lock"
"""Lock file in the pipeline's directory, held by the process that creates or drops a savepoint."""
PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Savepoint:
    """A complete savepoint."""

    directory: Path
    manifest: Mapping[str, Any]

    @property
    def epoch(self) -> int:
        return int(self.manifest["epoch"])

    @property
    def record(self) -> RoundRecord:
        """The round record of the savepoint's epoch."""
        found = RoundRecords(checkpoint_of(self.directory) / "rounds").read(self.epoch)
        if found is None:
            raise damaged(self.directory, "the round record is missing")
        return found

    @property
    def pipeline(self) -> dict[str, Any]:
        """The checkpoint's description of the pipeline."""
        return read_pipeline(checkpoint_of(self.directory))

    @property
    def snapshot(self) -> Snapshot:
        """The committed positions of all streams."""
        path = self.directory / "gateway" / SNAPSHOT
        return decode_snapshot(path.read_bytes(), path)

    @property
    def size_bytes(self) -> int:
        return sum(int(file["bytes"]) for file in self.manifest["files"].values())

    def described(self) -> dict[str, Any]:
        """Return the output of `describe --json`."""
        return {
            "name": self.manifest["name"],
            "directory": str(self.directory),
            "pipeline": self.manifest["pipeline"],
            "checkpoint_id": self.manifest["checkpoint_id"],
            "created_s": self.manifest["created_s"],
            "epoch": self.epoch,
            "records_in": self.manifest["records_in"],
            "log_positions": self.manifest["log_positions"],
            "sinks": self.manifest["sinks"],
            "stages": self.manifest["stages"],
            "files": len(self.manifest["files"]),
            "bytes": self.size_bytes,
            "kept_input": self._kept_input(),
        }

    def _kept_input(self) -> dict[str, Any] | None:
        """Return how much of the log is kept for a rollback to this savepoint. None if the savepoint keeps no
        input."""
        if self.directory.parent.name != FOLDER:
            return None
        found = [
            (pin, _held_bytes(gateway, pin))
            for gateway in gateway_directories(self.directory.parent.parent).values()
            if (pin := InputPins(gateway).all().get(self.directory.name)) is not None
        ]
        if not found:
            return None
        is_released = any(pin.is_released for pin, _ in found)
        held_bytes = 0 if is_released else sum(size for _, size in found)
        bytes_max = sum(pin.bytes_max for pin, _ in found)
        return {"state": "released" if is_released else "kept", "bytes": held_bytes, "bytes_max": bytes_max}

    def verify(self) -> int:
        """Read all files and compare them with their checksums. Return their number. Raises StorageError."""
        for name, known in self.manifest["files"].items():
            path = self.directory / name
            try:
                size = path.stat().st_size
            except OSError as error:
                raise damaged(self.directory, f"{name} is missing") from error
            if size != known["bytes"]:
                raise damaged(self.directory, f"{name} has {size} bytes instead of {known['bytes']}")
            if "sha256" in known:
                if _digest(path) != known["sha256"]:
                    raise damaged(self.directory, f"{name} does not match its checksum")
            elif name.startswith("state/"):
                StateFile(path).verify()
            else:
                check_copy(path)
        named = {f"state/{file}" for version in self.record.states.values() for file in version.names}
        if lacking := named - self.manifest["files"].keys():
            raise damaged(self.directory, f"{min(lacking)} is not in its manifest")
        return len(self.manifest["files"])

    def copy(self, to: Path) -> Savepoint:
        """Copy the savepoint to a new directory, which may be on another disk. The copy is verified and durable."""
        if to.exists():
            raise UsageError(f"{to} exists already.", next_step="Name a new directory.")
        with draft_of(to) as draft:
            for name in self.manifest["files"]:
                make_directory((draft / name).parent)
                _copy(self.directory / name, draft / name)
            _copy(self.directory / MANIFEST, draft / MANIFEST)
            Savepoint(draft, self.manifest).verify()
        return Savepoint(to, self.manifest)

    def drop(self) -> None:
        """Remove the savepoint and its pin on the input. Files that the pipeline still uses stay in the pipeline's
        directories."""
        pipeline = self.directory.parent.parent
        with folder_locked(pipeline):
            self._drop()
            for gateway in gateway_directories(pipeline).values():
                InputPins(gateway).drop(self.directory.name)

    def _drop(self) -> None:
        gone = self.directory.with_name(f"{self.directory.name}{DRAFT}")
        remove_tree(gone)
        try:
            self.directory.rename(gone)
        except OSError as error:
            raise storage_error(self.directory, "remove", error) from error
        fsync_dir(gone.parent)
        remove_tree(gone)


def gateway_directories(directory: Path) -> dict[str, Path]:
    """Return the directories of a pipeline's gateways on this machine by name, the first gateway first."""
    others = sorted(directory.glob(f"{GATEWAY}-[0-9]*"))
    return {FIRST_GATEWAY: directory / GATEWAY, **{path.name: path for path in others}}


def _held_bytes(gateway: Path, pin: InputPin) -> int:
    """Return the number of bytes of committed records that a pin keeps in the log."""
    snapshot = load_snapshot(gateway)
    if snapshot is None:
        return 0
    log = gateway / ("log" if snapshot.point is None else "ordered")
    bases = segment_bases(log)
    held = [base for base, end in zip(bases, [*bases[1:], None], strict=True) if end is None or end > pin.sequence]
    return sum((log / segment_name(base)).stat().st_size for base in held if base < snapshot.end_sequence)


@contextmanager
def folder_locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a pipeline's savepoints. Remove what killed processes have left: drafts and trials, whose
    links keep files, and pins without a savepoint."""
    try:
        HOST_FILES.open(directory / LOCK, OpenMode.CREATE).close()
        held = HOST_FILES.lock(directory / LOCK, waits=True)
    except OSError as error:
        raise storage_error(directory / LOCK, "lock", error) from error
    with closing(held):
        for draft in (directory / FOLDER).glob(f"*{DRAFT}"):
            remove_tree(draft)
        for trial in (directory / FOLDER).glob(f"*{TRIAL}"):
            with suppress(BlockingIOError, FileNotFoundError), closing(HOST_FILES.lock(trial)):
                remove_tree(trial)
        for gateway in gateway_directories(directory).values():
            pins = InputPins(gateway)
            for name in pins.all():
                if not (directory / FOLDER / name / MANIFEST).exists():
                    pins.drop(name)
        yield


def clear_drafts(directory: Path) -> None:
    """Remove unfinished savepoints of killed processes. Waits while a savepoint is being created."""
    if (directory / FOLDER).exists() or any(InputPins(path).all() for path in gateway_directories(directory).values()):
        with folder_locked(directory):
            pass


@contextmanager
def draft_of(to: Path) -> Iterator[Path]:
    """Yield a new directory, which is renamed to `to` at the end, or removed after an error."""
    make_directory(to.parent)
    draft = Path(tempfile.mkdtemp(prefix=f".{to.name}-", suffix=DRAFT, dir=to.parent))
    try:
        yield draft
        draft.rename(to)
    except BaseException:
        remove_tree(draft)
        raise
    fsync_dir(to.parent)


def check_name(directory: Path, name: str) -> None:
    """Raise UsageError for a name that is taken or not allowed."""
    if not NAME.fullmatch(name) or name.endswith((DRAFT, TRIAL)):
        raise UsageError(
            f"{name!r} cannot be the name of a savepoint.",
            next_step="Use up to 64 letters, digits, dots, dashes and underscores; begin with a letter or digit.",
        )
    if (directory / FOLDER / name).exists():
        raise UsageError(f"There is a savepoint {name!r} already.", next_step="Choose another name, or drop it first.")


def savepoints(directory: Path) -> list[Savepoint]:
    """Return the savepoints of a pipeline, the oldest first."""
    paths = (directory / FOLDER).glob(f"*/{MANIFEST}")
    found = [_load(path) for path in paths if not path.parent.name.endswith((DRAFT, TRIAL))]
    return sorted(found, key=lambda savepoint: (savepoint.manifest["created_s"], savepoint.manifest["name"]))


def find(directory: Path, name: str) -> Savepoint:
    """Return the savepoint of this name. Raises UsageError if there is none."""
    path = directory / FOLDER / name / MANIFEST
    if NAME.fullmatch(name) and not name.endswith((DRAFT, TRIAL)) and path.exists():
        return _load(path)
    known = ", ".join(str(savepoint.manifest["name"]) for savepoint in savepoints(directory))
    raise UsageError(
        f"There is no savepoint {name!r} in {directory}.",
        next_step=f"Name one of: {known}." if known else "Make one with `procession savepoint create`.",
    )


def load(directory: Path) -> Savepoint:
    """Return the savepoint in this directory, such as a copy. Raises UsageError if there is none."""
    if not (directory / MANIFEST).exists():
        raise UsageError(
            f"There is no savepoint in {directory}.", next_step=f"Name a directory that contains {MANIFEST}."
        )
    return _load(directory / MANIFEST)


def _load(path: Path) -> Savepoint:
    try:
        manifest = json.loads(path.read_bytes())
        check_format(path, manifest["format"], FORMAT)
        if outside := [name for name in manifest["files"] if name.startswith("/") or ".." in name.split("/")]:
            raise ValueError(f"it names {outside[0]!r}, which is not in it")
        return Savepoint(path.parent, {**manifest, "epoch": int(manifest["epoch"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(path.parent, f"{path.name} cannot be read: {error}") from error


def link_all(source: Path, target: Path, names: Iterable[str]) -> None:
    """Link files that never change into another directory, or copy them where links are not possible. Durable when this
    returns. Raises FileNotFoundError if a file is missing."""
    make_directory(target)
    for name in sorted(names):
        try:
            os.link(source / name, target / name)
        except FileNotFoundError:
            raise
        except OSError:  # another disk, or a file system without links
            _copy(source / name, target / name)
    fsync_dir(target)


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as file:
        replace_durably(target, iter(lambda: file.read(PIECE_BYTES), b""))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_tree(path: Path) -> None:
    """Remove a directory if it exists."""
    if path.exists():
        shutil.rmtree(path)


def damaged(directory: Path, why: str) -> StorageError:
    """Return the error for a savepoint that cannot be used."""
    return StorageError(f"The savepoint {directory} is damaged: {why}.", next_step="Use another savepoint, or a copy.")
