"""Log locations: the directory of the log of each gateway that ever had a record for this pipeline, one small file
each, and which of these gateways were abandoned.

Invariant: a location is on disk before a record of its gateway is offered to Spark. A name belongs to one directory
forever, because sequence numbers belong to that directory. All drivers of a checkpoint share the files, even a replaced
driver that does not know it yet. The first driver that learns of a gateway creates its file, and no other driver
replaces it by another directory. `spark/log_source` reads the files.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from procession.commit.abandoned_gateways import SUFFIX, AbandonedGateway
from procession.errors import ConfigError, StorageError
from procession.format_number import check_format
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.storage.driver_claim import lock_checkpoint, read_claim
from procession.storage.durable import create_durably, fsync_dir, make_if_missing, storage_error, write_durably
from procession.storage.log_ranges import FIRST_GATEWAY, LogLocation

FOLDER = "gateways"
FORMAT = 2
"""Format number. A file without a number has format 1, which means the same."""
GATEWAY = "GATEWAY"
"""The file with the identity of the only gateway, from before there could be several gateways."""


class LogLocations:
    """The locations, read from disk once. A location that another driver creates later is read at first use."""

    def __init__(self, root: Path, files: FileSystem = HOST_FILES) -> None:
        self._root = root
        self._files = files
        self._folder = root / FOLDER
        self._known: dict[str, LogLocation] = {}
        self.abandoned: dict[str, AbandonedGateway] = {}
        """The gateways that are lost for good, whichever driver carries it out."""
        self._load()

    def all(self) -> dict[str, LogLocation]:
        return dict(self._known)

    def renew(self) -> None:
        """Rewrite every file, because the process that wrote it may have failed to sync it."""
        for gateway, place in self._known.items():
            self._write(gateway, place)
        for lost in self.abandoned.values():
            write_durably(self._folder / f"{lost.name}{SUFFIX}", lost.as_json(), self._files)

    def abandon(self, lost: AbandonedGateway) -> None:
        """Store that a gateway is lost for good. It is durable when this returns."""
        self._make_folder()
        write_durably(self._folder / f"{lost.name}{SUFFIX}", lost.as_json(), self._files)
        self.abandoned[lost.name] = lost

    def keep(self, gateway: str, place: LogLocation) -> None:
        """Store the location of a gateway. Raises StorageError if the gateway had another directory before."""
        if gateway not in self._known:
            self._known[gateway] = self._create(gateway, place)
        known = self._known[gateway]
        if known == place:
            return
        if known.identity != place.identity:
            raise _another_directory(gateway)
        self._write(gateway, place)
        self._known[gateway] = place

    def _create(self, gateway: str, place: LogLocation) -> LogLocation:
        """Write the location, unless another driver has written it. Returns the location that is on disk."""
        if self._first_identity(gateway) not in (None, place.identity):
            raise _another_directory(gateway)
        self._make_folder()
        path = self._path(gateway)
        return parse_location(create_durably(path, _written(place), self._files), path)

    def _make_folder(self) -> None:
        try:
            make_if_missing(self._folder, self._files)
        except OSError as error:
            raise storage_error(self._folder, "make the directory", error) from error
        fsync_dir(self._root, self._files)

    def _write(self, gateway: str, place: LogLocation) -> None:
        write_durably(self._path(gateway), _written(place), self._files)

    def _path(self, gateway: str) -> Path:
        return self._folder / f"{gateway}.json"

    def _first_identity(self, gateway: str) -> str | None:
        path = self._root / GATEWAY
        return self._files.read(path).decode() if gateway == FIRST_GATEWAY and self._files.exists(path) else None

    def _load(self) -> None:
        try:
            paths = sorted(self._folder / name for name in self._files.names(self._folder))
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(self._folder, "read", error) from error
        for path in paths:
            try:
                if path.suffix == ".json":
                    self._known[path.stem] = parse_location(self._files.read(path), path)
                elif path.suffix == SUFFIX:
                    self.abandoned[path.stem] = AbandonedGateway.from_json(self._files.read(path), path)
            except OSError as error:
                raise storage_error(path, "read", error) from error


def _written(place: LogLocation) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(place)}).encode()


def _another_directory(gateway: str) -> StorageError:
    return StorageError(
        f"the directory of {gateway} is not the one that this checkpoint was made with",
        next_step="restore the gateway's directory, or start over with another --dir (and an empty output)",
    )


def parse_location(data: bytes, path: Path) -> LogLocation:
    """Parse the file of a location. Raises StorageError if it is damaged or has a newer format."""
    try:
        document = json.loads(data)
        check_format(path, document.pop("format", 1), FORMAT)
        return LogLocation(**document)
    except (ValueError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{path} is damaged: {error}", next_step="restore the checkpoint directory from a copy"
        ) from error


def abandon(root: Path, name: str, identity: str, files: FileSystem = HOST_FILES) -> AbandonedGateway:
    """Abandon a gateway, unless it is abandoned already. The next driver that claims the checkpoint carries it out.
    Raises ConfigError for the first gateway."""
    if name == FIRST_GATEWAY:
        raise ConfigError(
            f"{name} is the first gateway, and cannot be abandoned.",
            next_step="Put back its directory, or reset the pipeline and let its sources send again.",
        )
    with closing(lock_checkpoint(root, files)):
        places = LogLocations(root, files)
        if name not in places.abandoned:
            # No driver claims while the lock is held. So every driver with a higher fence finds the file.
            places.abandon(AbandonedGateway(name, identity, read_claim(root, files)))
        return places.abandoned[name]
