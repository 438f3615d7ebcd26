"""Log locations: where the log of each gateway is that ever had a record for this pipeline, one small file for each.

Invariant: a location is on disk before a record of its gateway is offered to Spark. A name belongs to one directory for
ever, because sequence numbers belong to that directory. All drivers of a checkpoint share the files; `spark/log_source`
reads them.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from procession.errors import StorageError
from procession.format_number import check_format
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.storage.durable import fsync_dir, make_if_missing, storage_error, write_durably
from procession.storage.log_ranges import FIRST_GATEWAY, LogLocation

FOLDER = "gateways"
FORMAT = 2
"""A file without a format number is of format 1, which says the same."""
GATEWAY = "GATEWAY"
"""The identity alone, of the only gateway: what checkpoints had before there could be several."""


class LogLocations:
    """The locations, read from disk once. Two drivers that overlap on a checkpoint write the same content."""

    def __init__(self, root: Path, files: FileSystem = HOST_FILES) -> None:
        self._root = root
        self._files = files
        self._folder = root / FOLDER
        self._known = self._load()

    def all(self) -> dict[str, LogLocation]:
        return dict(self._known)

    def renew(self) -> None:
        """Rewrite every location: the last driver may have failed to sync what is read back here."""
        for gateway, place in self._known.items():
            self._write(gateway, place)

    def keep(self, gateway: str, place: LogLocation) -> None:
        """Raises StorageError if this gateway had another directory before."""
        known = self._known.get(gateway)
        if known == place:
            return
        identity = known.identity if known is not None else self._first_identity(gateway)
        if identity is not None and identity != place.identity:
            raise StorageError(
                f"the directory of {gateway} is not the one that this checkpoint was made with",
                next_step="restore the gateway's directory, or start over with another --dir (and an empty output)",
            )
        self._write(gateway, place)
        self._known[gateway] = place

    def _write(self, gateway: str, place: LogLocation) -> None:
        if gateway not in self._known:
            try:
                make_if_missing(self._folder, self._files)
            except OSError as error:
                raise storage_error(self._folder, "make the directory", error) from error
            fsync_dir(self._root, self._files)
        data = json.dumps({"format": FORMAT, **asdict(place)}).encode()
        write_durably(self._folder / f"{gateway}.json", data, self._files)

    def _first_identity(self, gateway: str) -> str | None:
        path = self._root / GATEWAY
        return self._files.read(path).decode() if gateway == FIRST_GATEWAY and self._files.exists(path) else None

    def _paths(self) -> list[Path]:
        try:
            return sorted(self._folder / name for name in self._files.names(self._folder) if name.endswith(".json"))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise storage_error(self._folder, "read", error) from error

    def _load(self) -> dict[str, LogLocation]:
        found = {}
        for path in self._paths():
            try:
                found[path.stem] = parse_location(self._files.read(path), path)
            except OSError as error:
                raise storage_error(path, "read", error) from error
        return found


def parse_location(data: bytes, path: Path) -> LogLocation:
    """Parse the file of a location. Raises StorageError if it is damaged, or if a later version wrote it."""
    try:
        document = json.loads(data)
        check_format(path, document.pop("format", 1), FORMAT)
        return LogLocation(**document)
    except (ValueError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{path} is damaged: {error}", next_step="restore the checkpoint directory from a copy"
        ) from error
