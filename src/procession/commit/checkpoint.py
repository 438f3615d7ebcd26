"""The checkpoint: Spark's directory, one copy per driver, and the fence that names the valid one.

Invariant: `CURRENT` names the one driver that may decide. A successor first replaces this file durably, then copies
offsets, commits and rounds, in this order, then decides. A driver reads `CURRENT` again after `commits/N` and before
phase 2. So a replaced driver writes only into a copy that is never read.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from procession.commit.abandoned_gateways import Abandoned, abandoned_before, are_voided
from procession.commit.declared_endpoints import check_codecs, other_endpoints
from procession.commit.log_locations import LogLocations
from procession.commit.round_files import RoundRecords, read_reserved, write_reserved
from procession.commit.round_record import RoundRecord
from procession.commit.spark_log import METADATA, OFFSETS, SparkLog, is_whole
from procession.commit.stop_reasons import fenced
from procession.errors import ConfigError, StorageError
from procession.format_number import check_format
from procession.planner.graph import SinkCodec
from procession.runtime.files import FileSystem, OpenMode
from procession.runtime.host_files import HOST_FILES
from procession.storage.driver_claim import CURRENT, check_replicas, claim_damaged, lock_checkpoint, read_claim
from procession.storage.durable import (
    fsync_dir,
    make_directory,
    read_if_there,
    remove,
    storage_error,
    write_durably,
)

PIPELINE = "pipeline.json"
CHANGE = "CHANGE"
"""The file of an incomplete change: the fence of its copy, and the new content of `pipeline.json`."""
ROLLBACK = "ROLLBACK"
"""The file of an incomplete rollback: the name of its savepoint."""
FORMAT = 2
"""Format number of `pipeline.json`, and of the parts of a checkpoint without their own number: its folders, `CURRENT`,
and this project's line in Spark's `offsets`. Without a number it is format 1, which means the same; the next claim
writes the number."""
EPOCHS_COPIED = 10
"""Number of epochs that a successor copies. It needs the last two. Each file costs a sync, and a restart should be
quick."""


def random_id() -> str:
    return uuid.uuid4().hex[:12]


@dataclass(frozen=True)
class Checkpoint:
    """One driver's copy of the checkpoint. `id` never changes, and is part of every transaction id."""

    root: Path
    id: str
    fence: int
    files: FileSystem = HOST_FILES

    @property
    def directory(self) -> Path:
        return self.root / f"{self.fence:010d}"

    @cached_property
    def log(self) -> SparkLog:
        return SparkLog(self.directory, self.files)

    @property
    def rounds(self) -> RoundRecords:
        return RoundRecords(self.directory / "rounds", self.files)

    def check_fence(self, *, asks: bool = False) -> None:
        """Raise FencedError if a later driver has taken over. With `asks`, the replicas are asked, if there are any,
        because a driver on another machine does not change `CURRENT` here."""
        current = read_claim(self.root, self.files)
        if current != self.fence:
            raise fenced(self.fence, current)
        check_replicas(self.root, self.files, asks=asks)

    @property
    def reserved(self) -> int:
        """The last attempt number that any driver so far may have used."""
        return read_reserved(self.directory, self.log.committed, self.files)

    def reserve(self, number: int) -> None:
        """Reserve the numbers of attempts up to this number. Raises FencedError if a later driver has taken over. That
        driver may not know this reservation, so the numbers must not be used."""
        write_reserved(self.directory, number, self.files)
        self.check_fence()

    @property
    def places(self) -> LogLocations:
        return LogLocations(self.root, self.files)

    @property
    def abandoned(self) -> Abandoned:
        """The gateways that this driver treats as lost for good."""
        return abandoned_before(self.places.abandoned, self.fence)

    @classmethod
    def claim(
        cls,
        root: Path,
        *,
        name: str,
        fingerprint: str,
        endpoints: Mapping[str, str] | None = None,
        codecs: Mapping[str, SinkCodec] | None = None,
        check: Callable[[RoundRecord], None] = lambda last: None,
        files: FileSystem = HOST_FILES,
        new_id: Callable[[], str] = random_id,
    ) -> Checkpoint:
        """Claim the pipeline in this directory, or create it, and fence off every earlier driver. `endpoints` are its
        sources and sinks, as in `Graph.endpoints`; `codecs` are the codecs of its sinks. If `check(last committed
        round)` raises, the claim has no effect, and a running driver continues."""
        make_directory(root, files)
        with closing(lock_checkpoint(root, files)):
            finish_change(root, files)
            check_rolled_back(root, files)
            document = _identified(root, name, fingerprint, endpoints or {}, codecs or {}, files, new_id)
            checkpoint = cls(root, str(document["id"]), read_claim(root, files) + 1, files)
            if (last := _last_committed(root, files)) is not None:
                check(last)
            if any(fence >= checkpoint.fence for fence in _copies(root, files)):
                raise claim_damaged(root)
            # The files that were read may not be synced, so they are written again before any step depends on them.
            write_durably(root / PIPELINE, json.dumps(document).encode(), files)
            places = checkpoint.places
            places.renew()
            abandoned = abandoned_before(places.abandoned, checkpoint.fence)
            write_durably(root / CURRENT, f"{checkpoint.fence}\n".encode(), files)
        try:
            checkpoint.copy_last(abandoned)
            checkpoint.log.check()
        except (OSError, StorageError) as error:
            checkpoint.check_fence()  # a successor has removed this driver's draft
            if isinstance(error, OSError):
                raise storage_error(checkpoint.directory, "copy the checkpoint to", error) from error
            raise
        # A driver that is replaced before its copy is complete may have copied less than its successor. It would remove
        # output as uncommitted that the successor needs. From here on, a successor copies this driver's copy.
        checkpoint.check_fence()
        return checkpoint

    def copy_last(
        self,
        abandoned: Abandoned,
        change: Callable[[RoundRecord | None], tuple[dict[str, Any], RoundRecord]] | None = None,
        offsets: bytes | None = None,
    ) -> None:
        """Copy the last complete copy for this driver, without an undecided epoch that has records of an abandoned
        gateway. `change` returns the new content of `pipeline.json` and of the last committed round record. `offsets`
        are Spark's offsets of that epoch, if they change. Then an undecided epoch is discarded, and so are the records
        of earlier epochs."""
        files, complete = self.files, _copies(self.root, self.files)
        draft = self.root / f"{self.fence:010d}.draft"
        files.make_directory(draft)
        if complete:
            last = self.root / f"{complete[-1]:010d}"
            # Offsets come before commits, and commits before rounds. Then an earlier driver that still writes can only
            # add entries that the later files explain.
            for part in ("offsets", "commits"):
                _copy_files(last / part, draft / part, files)
            committed = SparkLog(draft, files).committed
            SparkLog(draft, files).mark_decided(committed)
            self._void_undecided(draft, abandoned)
            _copy_files(last / "rounds", draft / "rounds", files, up_to=committed)
            write_reserved(draft, read_reserved(last, committed, files), files)
            if is_whole(last / METADATA, files):
                _copy_file(last / METADATA, draft / METADATA, files)
            if not files.exists(last):
                raise StorageError(f"{last} was removed while it was copied: two drivers start at the same time")
        if change is not None:
            rounds = RoundRecords(draft / "rounds", files)
            committed = SparkLog(draft, files).committed
            document, record = change(rounds.read(committed))
            if offsets is not None:
                write_durably(draft / "offsets" / str(committed), offsets, files)
                for number, path in _numbered(draft / "offsets", files).items():
                    if number > committed:
                        files.remove(path)
                for path in _numbered(draft / "rounds", files).values():
                    files.remove(path)
                fsync_dir(draft / "offsets", files)
            rounds.write(record)
            made = {"fence": self.fence, "pipeline": document}
            write_durably(self.root / CHANGE, json.dumps(made).encode(), files)
        fsync_dir(draft, files)
        files.rename(draft, self.directory)
        fsync_dir(self.root, files)
        for fence in complete[:-1]:
            # Removed by one rename, so that a driver that copies it notices.
            with suppress(OSError):
                files.rename(self.root / f"{fence:010d}", self.root / f"{fence:010d}.draft")
        for name in files.names(self.root):
            fence_text = name.removesuffix(".draft")
            # A later draft belongs to a running successor.
            if name.endswith(".draft") and fence_text.isdigit() and int(fence_text) < self.fence:
                files.remove_tree(self.root / name)

    def _void_undecided(self, draft: Path, abandoned: Abandoned) -> None:
        """Remove the undecided epoch if it has records of an abandoned gateway. Spark then begins an epoch of the same
        number, and the transactions that sinks have prepared are aborted."""
        log = SparkLog(draft, self.files)
        if not abandoned:
            return
        offered, committed = log.offered, log.committed
        if offered <= committed or not are_voided(log.ends(committed), log.ends(offered), abandoned):
            return
        self.files.remove(draft / OFFSETS / str(offered))
        fsync_dir(draft / OFFSETS, self.files)


def check_rolled_back(root: Path, files: FileSystem = HOST_FILES) -> None:
    """Raise ConfigError if a rollback was interrupted. Then some sinks and logs are rolled back, and others are not."""
    found = _fields(root / ROLLBACK, ("savepoint",), files)
    if found is not None:
        (name,) = found
        raise ConfigError(
            f"The rollback of this pipeline to savepoint {name!r} was interrupted.",
            next_step=f"Finish it: procession rollback {name}.",
        )


def finish_change(root: Path, files: FileSystem = HOST_FILES) -> None:
    """Finish an interrupted change of the checkpoint, or discard it if its copy is incomplete. The caller holds the
    lock."""
    found = _fields(root / CHANGE, ("fence", "pipeline"), files)
    if found is None:
        return
    fence, document = found
    if fence in _copies(root, files):
        write_durably(root / PIPELINE, json.dumps(document).encode(), files)
    try:
        remove(root / CHANGE, files)
    except OSError as error:
        raise storage_error(root / CHANGE, "remove", error) from error
    fsync_dir(root, files)


def _fields(path: Path, names: Sequence[str], files: FileSystem) -> list[Any] | None:
    """Return these fields of a JSON file; None if there is no file. Raises StorageError if it is damaged."""
    data = read_if_there(path, files)
    try:
        return None if data is None else [json.loads(data)[name] for name in names]
    except (ValueError, KeyError, TypeError) as error:
        raise _not_whole(path, error) from error


def _last_committed(root: Path, files: FileSystem) -> RoundRecord | None:
    """Return the record of the last epoch known to be committed. A running driver may have committed more."""
    complete = _copies(root, files)
    if not complete:
        return None
    last = root / f"{complete[-1]:010d}"
    return RoundRecords(last / "rounds", files).read(SparkLog(last, files).committed)


def _identified(
    root: Path,
    name: str,
    fingerprint: str,
    endpoints: Mapping[str, str],
    codecs: Mapping[str, SinkCodec],
    files: FileSystem,
    new_id: Callable[[], str],
) -> dict[str, Any]:
    """Return the description of the pipeline that the checkpoint has from this claim on."""
    path = root / PIPELINE
    if not files.exists(path):
        # Files of a checkpoint, and drafts of a claim that was killed, are allowed.
        others = [name for name in files.names(root) if name not in (CURRENT, "LOCK") and not name.endswith(".draft")]
        if others:
            raise ConfigError(
                f"{root} is not empty and not a checkpoint (it holds {others[0]!r})",
                next_step="give --dir an empty or a new directory",
            )
        made = {
            "format": FORMAT,
            "name": name,
            "id": new_id(),
            "fingerprint": fingerprint,
            "doors": dict(endpoints),
        }
        made |= {"codecs": {sink: codec.name for sink, codec in codecs.items()}}
        write_durably(path, json.dumps(made).encode(), files)
    found = read_pipeline(root, files)
    try:
        known, shape = str(found["name"]), str(found["fingerprint"])
        known_endpoints = {
            _endpoint(str(endpoint), str(what)): str(what) for endpoint, what in found.get("doors", {}).items()
        }
        known_codecs = {str(sink): str(codec) for sink, codec in found.get("codecs", {}).items()}
    except (KeyError, AttributeError) as error:
        raise _not_whole(path, error) from error
    if known != name:
        raise ConfigError(
            f"{root} is the checkpoint of pipeline {known!r}, not of {name!r}",
            next_step=f"give {name!r} a directory of its own with --dir",
        )
    if shape != fingerprint:
        raise other_endpoints(root, name, known_endpoints, endpoints)
    check_codecs(root, known_codecs, codecs)
    return {
        **found,
        "format": FORMAT,
        "doors": known_endpoints,
        "codecs": known_codecs | {sink: codec.name for sink, codec in codecs.items()},
    }


def _endpoint(name: str, what: str) -> str:
    """Return the key of a source or sink. Checkpoints from before a source and a sink could have the same name contain
    only the name."""
    return name if " " in name else f"{what.partition(' ')[0]} {name}"


def read_pipeline(root: Path, files: FileSystem = HOST_FILES) -> dict[str, Any]:
    """Read a checkpoint's description of its pipeline, with its `id`. Raises StorageError if it has a newer format or
    is damaged, and FileNotFoundError if there is none."""
    path = root / PIPELINE
    try:
        found: dict[str, Any] = json.loads(files.read(path))
        check_format(path, found.get("format", 1), FORMAT)
        return {**found, "id": str(found["id"])}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _not_whole(path, error) from error


def _not_whole(path: Path, error: Exception) -> StorageError:
    return StorageError(f"{path} is damaged: {error}", next_step="restore the checkpoint directory from a copy")


def _copies(root: Path, files: FileSystem) -> list[int]:
    """Return the fences of the drivers that have a complete copy here."""
    return sorted(_numbered(root, files))


def _numbered(directory: Path, files: FileSystem) -> dict[int, Path]:
    try:
        return {int(name): directory / name for name in files.names(directory) if name.isdigit()}
    except FileNotFoundError:
        return {}


def _copy_files(source: Path, target: Path, files: FileSystem, *, up_to: int | None = None) -> None:
    files.make_directory(target)
    named = _numbered(source, files)
    # Spark does not sync: a power failure may leave its newest file incomplete. No step was based on a file before it
    # was synced.
    while named and not is_whole(named[max(named)], files):
        del named[max(named)]
    for epoch in sorted(epoch for epoch in named if up_to is None or epoch <= up_to)[-EPOCHS_COPIED:]:
        _copy_file(named[epoch], target / named[epoch].name, files)
    fsync_dir(target, files)


def _copy_file(source: Path, target: Path, files: FileSystem) -> None:
    try:
        data = files.read(source)
        with files.open(target, OpenMode.NEW) as file:
            file.write(0, data)
            file.sync()
    except FileNotFoundError:
        pass  # Spark may purge its oldest files during the copy; only the newest are needed
    except OSError as error:
        raise storage_error(target, "write", error) from error
