"""Savepoints: named, complete states of a pipeline after a committed epoch, kept until they are dropped.

Invariant: a savepoint is complete or absent: it is built in a draft and renamed. It names one committed epoch and
contains everything that the next epoch needs: Spark's offsets, the round record, state files, copies of tables, the
reserved attempts and the committed positions of the streams. State files and copies never change, so they are linked,
not copied. A link is a pin: whatever a driver drops or clears away, the link keeps. It is made beside a running driver,
which is not asked. If an epoch is committed meanwhile and a file is dropped, the next epoch is taken instead.
`supervisor/savepoint_restore` starts a pipeline from one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from procession.commit.checkpoint import PIPELINE, read_pipeline
from procession.commit.round_files import ATTEMPTS, RoundRecords
from procession.commit.round_record import RoundRecord
from procession.commit.spark_log import SparkLog, is_whole
from procession.driver.table_versions import FIRST
from procession.errors import ConfigError, StorageError, UsageError
from procession.format_number import check_format
from procession.gateway import retired_file
from procession.gateway.gateway_directory import SNAPSHOT, load_snapshot
from procession.gateway.snapshot import Position, Snapshot, decode_snapshot, encode_snapshot
from procession.storage.durable import fsync_dir, make_directory, replace_durably, storage_error, write_durably
from procession.storage.state_file import StateFile
from procession.storage.table_copies import check_copy
from procession.supervisor.local_pipeline import GATEWAY
from procession.verify.decisions import TRIES, DecisionReader

FOLDER = "savepoints"
"""The directory of a pipeline's savepoints, in the pipeline's directory."""
MANIFEST = "savepoint.json"
FORMAT = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
DRAFT = ".draft"
RETAINED_EPOCHS = 2
"""Spark continues from the last epoch only if it finds the one before, too."""
CHANGE_S = 0.05
"""Pause before the next try while epochs are committed faster than files are linked."""
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
        """The round record of its epoch."""
        found = RoundRecords(self.directory / "checkpoint" / "rounds").read(self.epoch)
        if found is None:
            raise _damaged(self.directory, "the round record is missing")
        return found

    @property
    def pipeline(self) -> dict[str, Any]:
        """What the checkpoint says about the pipeline."""
        return read_pipeline(self.directory / "checkpoint")

    @property
    def snapshot(self) -> Snapshot:
        """The committed positions of all streams."""
        path = self.directory / "gateway" / SNAPSHOT
        return decode_snapshot(path.read_bytes(), path)

    @property
    def size_bytes(self) -> int:
        return sum(int(file["bytes"]) for file in self.manifest["files"].values())

    def described(self) -> dict[str, Any]:
        """What `describe --json` prints."""
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
        }

    def verify(self) -> int:
        """Read all files and compare them with their checksums. Returns their number. Raises StorageError."""
        for name, known in self.manifest["files"].items():
            path = self.directory / name
            try:
                size = path.stat().st_size
            except OSError as error:
                raise _damaged(self.directory, f"{name} is missing") from error
            if size != known["bytes"]:
                raise _damaged(self.directory, f"{name} has {size} bytes instead of {known['bytes']}")
            if "sha256" in known:
                if _digest(path) != known["sha256"]:
                    raise _damaged(self.directory, f"{name} does not match its checksum")
            elif name.startswith("state/"):
                StateFile(path).verify()
            else:
                check_copy(path)
        named = {f"state/{file}" for version in self.record.states.values() for file in version.names}
        if lacking := named - self.manifest["files"].keys():
            raise _damaged(self.directory, f"{min(lacking)} is not in its manifest")
        return len(self.manifest["files"])

    def copy(self, to: Path) -> Savepoint:
        """Copy it to a new directory, which may be on another disk. The copy is verified and durable."""
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
        """Remove it. Files that the pipeline still uses stay in the pipeline's own directories."""
        gone = self.directory.with_name(f"{self.directory.name}{DRAFT}")
        _remove(gone)
        try:
            self.directory.rename(gone)
        except OSError as error:
            raise storage_error(self.directory, "remove", error) from error
        fsync_dir(gone.parent)
        _remove(gone)


@contextmanager
def draft_of(to: Path) -> Iterator[Path]:
    """A new directory, which is renamed to this one at the end, or removed after an error. No other is touched."""
    make_directory(to.parent)
    draft = Path(tempfile.mkdtemp(prefix=f".{to.name}-", suffix=DRAFT, dir=to.parent))
    try:
        yield draft
        draft.rename(to)
    except BaseException:
        _remove(draft)
        raise
    fsync_dir(to.parent)


def check_name(directory: Path, name: str) -> None:
    """Raise UsageError for a name that is taken or not allowed."""
    if not NAME.fullmatch(name) or name.endswith(DRAFT):
        raise UsageError(
            f"{name!r} cannot be the name of a savepoint.",
            next_step="Use up to 64 letters, digits, dots, dashes and underscores; begin with a letter or digit.",
        )
    if (directory / FOLDER / name).exists():
        raise UsageError(f"There is a savepoint {name!r} already.", next_step="Choose another name, or drop it first.")


def create(directory: Path, name: str) -> Savepoint:
    """Make a savepoint of the last committed epoch of the pipeline in this directory, whether it runs or not. Raises
    UsageError for a name that is taken or not allowed, ConfigError if nothing is committed yet."""
    check_name(directory, name)
    target = directory / FOLDER / name
    reader = DecisionReader(directory / "checkpoint")
    draft = target.with_name(f"{name}.{os.getpid()}{DRAFT}")
    for _ in range(TRIES):
        before = reader.copy(), reader.last()
        try:
            manifest = _filled(directory, draft, name, reader.id)
            break
        except FileNotFoundError as error:
            if (reader.copy(), reader.last()) == before:
                _remove(draft)
                raise _damaged(directory, f"{error.filename} is missing") from error
            time.sleep(CHANGE_S)
        except BaseException:
            _remove(draft)
            raise
    else:
        _remove(draft)
        raise ConfigError(f"The files in {directory} change faster than they can be linked.", next_step="Try again.")
    write_durably(draft / MANIFEST, json.dumps(manifest).encode())
    try:
        draft.rename(target)
    except OSError as error:
        _remove(draft)
        raise UsageError(f"There is a savepoint {name!r} already.", next_step="Choose another name.") from error
    fsync_dir(target.parent)
    return Savepoint(target, manifest)


def savepoints(directory: Path) -> list[Savepoint]:
    """The savepoints of a pipeline, the oldest first."""
    found = [_load(path) for path in (directory / FOLDER).glob(f"*/{MANIFEST}") if not path.parent.name.endswith(DRAFT)]
    return sorted(found, key=lambda savepoint: (savepoint.manifest["created_s"], savepoint.manifest["name"]))


def find(directory: Path, name: str) -> Savepoint:
    """The savepoint of this name. Raises UsageError if there is none."""
    path = directory / FOLDER / name / MANIFEST
    if NAME.fullmatch(name) and path.exists():
        return _load(path)
    known = ", ".join(str(savepoint.manifest["name"]) for savepoint in savepoints(directory)) or "none"
    raise UsageError(f"There is no savepoint {name!r} in {directory}.", next_step=f"Savepoints: {known}.")


def load(directory: Path) -> Savepoint:
    """The savepoint in this directory, such as a copy. Raises UsageError if there is none."""
    if not (directory / MANIFEST).exists():
        raise UsageError(f"{directory} is not a savepoint.", next_step=f"Name a directory that contains {MANIFEST}.")
    return _load(directory / MANIFEST)


def _load(path: Path) -> Savepoint:
    try:
        manifest = json.loads(path.read_bytes())
        check_format(path, manifest["format"], FORMAT)
        if outside := [name for name in manifest["files"] if name.startswith("/") or ".." in name.split("/")]:
            raise ValueError(f"it names {outside[0]!r}, which is not in it")
        return Savepoint(path.parent, {**manifest, "epoch": int(manifest["epoch"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path.parent, f"{path.name} cannot be read: {error}") from error


def _filled(directory: Path, draft: Path, name: str, checkpoint_id: str) -> dict[str, Any]:
    """Fill the draft with the last committed epoch. Raises FileNotFoundError if a file is dropped meanwhile."""
    _remove(draft)
    make_directory(draft)
    # The positions before the round: then no stream is further on than the round says.
    gateways = [load_snapshot(path) for path in _gateways(directory)]
    retired = _retired(directory, gateways)
    copy = DecisionReader(directory / "checkpoint").copy()
    log = SparkLog(copy)
    record = RoundRecords(copy / "rounds").read(log.committed) if log.committed >= 0 else None
    if record is None:
        raise ConfigError(
            "No epoch of this pipeline is committed yet, so there is nothing to save.",
            next_step="Make the savepoint after the first commit.",
        )
    if any(snapshot is not None and snapshot.epoch > record.epoch for snapshot in gateways):
        raise FileNotFoundError(errno.ENOENT, "a later epoch is committed", str(copy))
    small = _spark_files(copy, record.epoch)
    small |= {"checkpoint/" + PIPELINE: (directory / "checkpoint" / PIPELINE).read_bytes()}
    small |= {f"gateway/{file}": data for file, data in retired.items()}
    positions = RoundRecords(copy / "rounds").positions(record.epoch)
    small |= {f"gateway/{SNAPSHOT}": encode_snapshot(_joined(gateways, record, positions))}
    first = directory / "sides" / checkpoint_id / FIRST
    tables = {*record.sides.values()}
    if first.exists():
        small[f"sides/{FIRST}"] = first.read_bytes()
        tables |= set(json.loads(small[f"sides/{FIRST}"]).get("tables", {}).values())
    for path, data in small.items():
        make_directory((draft / path).parent)
        write_durably(draft / path, data)
    linked = {"state": {file for version in record.states.values() for file in version.names}, "sides": tables}
    for folder, names in linked.items():
        link_all(directory / folder / checkpoint_id, draft / folder, names)
    files: dict[str, dict[str, Any]] = {
        path: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for path, data in small.items()
    }
    for folder, names in linked.items():
        files |= {f"{folder}/{file}": {"bytes": (draft / folder / file).stat().st_size} for file in sorted(names)}
    return {
        "format": FORMAT,
        "name": name,
        "created_s": time.time(),
        "pipeline": read_pipeline(directory / "checkpoint")["name"],
        "checkpoint_id": checkpoint_id,
        "epoch": record.epoch,
        "records_in": record.counters.get("records_in", 0),
        "has_streams": gateways[0] is not None,
        "log_positions": dict(record.offsets),
        "sinks": {sink: part.end for sink, part in record.parts.items()},
        "stages": {stage: version.kind for stage, version in record.states.items()},
        "files": files,
    }


def _spark_files(copy: Path, epoch: int) -> dict[str, bytes]:
    """The files of a driver's copy of the checkpoint from which a driver continues after this epoch."""
    found: dict[str, bytes] = {}
    for number in range(max(0, epoch - RETAINED_EPOCHS + 1), epoch + 1):
        for part in ("offsets", "commits"):
            path = copy / part / str(number)
            if number == epoch and not is_whole(path):
                raise FileNotFoundError(errno.ENOENT, "it is gone", str(path))
            if path.exists():
                found[f"checkpoint/{part}/{number}"] = path.read_bytes()
        path = copy / "rounds" / f"{number:020d}"
        if path.exists():
            found[f"checkpoint/rounds/{path.name}"] = path.read_bytes()
    found |= {
        f"checkpoint/{name}": (copy / name).read_bytes() for name in (ATTEMPTS, "metadata") if (copy / name).exists()
    }
    return found


def _gateways(directory: Path) -> list[Path]:
    """The directories of the gateways on this machine, the first one first."""
    return [directory / GATEWAY, *sorted(directory.glob(f"{GATEWAY}-[0-9]*"))]


def _retired(directory: Path, gateways: Iterable[Snapshot | None]) -> dict[str, bytes]:
    """The files of retired streams, by name. Only the first gateway's are kept: streams retire where they are known."""
    first = next(iter(gateways))
    if first is None or first.retired is None:
        return {}
    path = retired_file.path_of(directory / GATEWAY, first.retired.number)
    return {path.name: path.read_bytes()}


def _joined(gateways: Iterable[Snapshot | None], record: RoundRecord, positions: Mapping[int, int]) -> Snapshot:
    """One gateway's snapshot of the committed positions after this round, of the streams of all gateways."""
    found = [snapshot for snapshot in gateways if snapshot is not None]
    streams: dict[int, Position] = {}
    for snapshot in found:
        for stream_id, at in snapshot.streams.items():
            known = streams.get(stream_id)
            if known is None or at.committed > known.committed:
                streams[stream_id] = Position(at.name or (known.name if known else ""), at.committed)
    for stream_id, committed in positions.items():
        streams[stream_id] = Position(streams[stream_id].name if stream_id in streams else "", committed)
    end = record.offsets.get(f"{GATEWAY}-0", 0)
    first = found[0] if found else Snapshot()
    return Snapshot(record.fence, record.epoch, end, end, streams, first.point, first.clocks, first.retired)


def link_all(source: Path, target: Path, names: Iterable[str]) -> None:
    """Link files that never change into another directory, or copy them where links are not possible. Durable when this
    returns. Raises FileNotFoundError if one is not there."""
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


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


def _damaged(directory: Path, why: str) -> StorageError:
    return StorageError(f"The savepoint {directory} is damaged: {why}.", next_step="Use another savepoint, or a copy.")
