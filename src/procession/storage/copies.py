"""Copies: what a file that changes has held, kept as long as an epoch may have to read it again.

The one rule: a copy is named by the file, its time and its size, is whole or not there, and never changed; so a name in
a round record says what was in the file then, whatever has become of it since. Before it whoever refreshes tables;
after it the tasks, which read the copy that the round record names.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from procession.storage.durable import fsync_dir, make_directory, storage_error, sync

DRAFT = ".draft"


class Copies:
    """The directory of a pipeline's copies."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def take(self, path: Path) -> str | None:
        """The name of a copy of the file as it is now, durable when this returns; None if it is changed meanwhile, or
        is not there."""
        try:
            name = _name(path)
        except OSError:
            return None
        if (self.directory / name).exists():
            return name
        draft = self.directory / f"{name}{DRAFT}"
        try:
            make_directory(self.directory)
            with open(path, "rb") as source, open(draft, "wb") as target:
                shutil.copyfileobj(source, target)
                target.flush()
                sync(target.fileno())
            if _name(path) != name:
                draft.unlink()
                return None
            draft.rename(self.directory / name)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(draft, "copy a table to", error) from error
        fsync_dir(self.directory)
        return name

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(OSError):  # what stays is swept by the next driver
                (self.directory / name).unlink()

    def sweep(self, kept: Iterable[str]) -> None:
        """Remove what no epoch to come will read. Only for a driver, before it starts anything."""
        if self.directory.exists():
            self.drop({path.name for path in self.directory.iterdir()} - set(kept))


def _name(path: Path) -> str:
    found = path.stat()
    return f"{crc32(str(path).encode()):08x}-{found.st_mtime_ns}-{found.st_size}{path.suffix}"
