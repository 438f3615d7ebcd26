"""The file that names the replicas' volume of a directory, and the fences under which this machine has written objects.

Invariant: a fence is in the file before its object is created, and only if this machine has won the fence. If the
replicas end with another fence, another machine has continued from them, so this directory is not the newest. The file
is not replicated.
"""

from __future__ import annotations

import json
from pathlib import Path

from procession.errors import ConfigError, StorageError
from procession.format_number import check_format
from procession.runtime.files import FileSystem
from procession.sos.replicated_files import MARKER
from procession.storage.durable import read_if_there, write_durably

FORMAT = 1
FENCES_MAX = 64
"""Maximum number of newest fences that are remembered. Each fence seals those before it."""


class ReplicaMarker:
    """The marker of one directory, which must exist before a fence is added."""

    def __init__(self, directory: Path, volume: str, files: FileSystem) -> None:
        """Read the marker. Raises ConfigError if the directory belongs to another volume, StorageError if the file is
        damaged."""
        self._path = directory / MARKER
        self._volume = volume
        self._files = files
        self.fences: list[int] = []
        self.has_begun = False
        """Whether the replicas had the directory at some time. If they are empty after that, their data was lost."""
        found = read_if_there(self._path, files)
        if found is None:
            return
        try:
            document = json.loads(found)
            check_format(self._path, document["format"], FORMAT)
            named, self.fences = str(document["volume"]), [int(fence) for fence in document["fences"]]
            self.has_begun = bool(document["has_begun"])
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"The file {self._path} is damaged.",
                next_step="Move the directory away, and restore it with `procession restore`.",
                path=str(self._path),
            ) from error
        if named != volume:
            raise ConfigError(
                f"The directory {directory} belongs to the volume {named} of its replicas, not to {volume}.",
                next_step=f"Use {named}, or a new directory.",
            )

    def add(self, fence: int) -> None:
        """Add a fence. It is durable when this returns."""
        self.fences = [*self.fences, fence][-FENCES_MAX:]
        self._write()

    def begun(self) -> None:
        """Record that the replicas have the directory."""
        if not self.has_begun:
            self.has_begun = True
            self._write()

    def _write(self) -> None:
        document = {
            "format": FORMAT,
            "volume": self._volume,
            "fences": self.fences,
            "has_begun": self.has_begun,
        }
        write_durably(self._path, json.dumps(document).encode(), self._files)
