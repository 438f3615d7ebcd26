"""Table copies: earlier contents of a changing file, kept as long as an epoch may have to read them again.

Invariant: a copy is named by the fence of the driver that made it, and by the file, its time, its size and its
checksum. It is complete or absent, and never changes. So a name in a round record identifies the contents at that time,
even if the file has changed since, and no driver uses or removes a copy of a later driver. Tasks read the copy that the
round record names.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from isal.isal_zlib import crc32  # zlib's, in the same values and a tenth of the time

from procession.errors import StorageError
from procession.runtime.host_files import sync
from procession.storage.durable import fsync_dir, make_directory, storage_error

DRAFT = ".draft"
PIECE_BYTES = 1024 * 1024
CHECKED_MAX = 1024
"""Maximum number of verified copies that a process remembers."""

CHECKED_DASHES = 3
"""Number of dashes in a name with a checksum."""
FENCE_DIGITS = 10


class TableCopies:
    """The directory of a pipeline's copies."""

    def __init__(self, directory: Path, fence: int = 0) -> None:
        self.directory = directory
        self._fence = fence

    def take(self, path: Path, known: str | None = None) -> str | None:
        """Copy the current file. Returns the name of the copy, which is durable when this returns. None: the file
        changed meanwhile, or does not exist. If the copy `known` still has the current content, returns `known`."""
        try:
            stem = _stem(path)
        except OSError:
            return None
        if known is not None and _is_of(known, stem):
            return known
        prefix = f"{self._fence:0{FENCE_DIGITS}d}-{stem}"
        for made in self.directory.glob(f"{prefix}-*{path.suffix}"):
            return made.name
        draft = self.directory / f"{prefix}{DRAFT}"
        checksum = 0
        try:
            make_directory(self.directory)
            with open(path, "rb") as source, open(draft, "wb") as target:
                while piece := source.read(PIECE_BYTES):
                    checksum = crc32(piece, checksum)
                    target.write(piece)
                target.flush()
                sync(target.fileno())
            if _stem(path) != stem:
                draft.unlink()
                return None
            name = f"{prefix}-{checksum:08x}{path.suffix}"
            draft.rename(self.directory / name)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(draft, "copy a table to", error) from error
        fsync_dir(self.directory)
        return name

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(OSError):  # the next driver removes copies that are left
                (self.directory / name).unlink()

    def sweep(self, kept: Iterable[str]) -> None:
        """Remove copies of earlier drivers that no later epoch reads. Only a driver calls this, before its first step.
        Copies of a later driver stay."""
        if self.directory.exists():
            names = {path.name for path in self.directory.iterdir()} - set(kept)
            self.drop(name for name in names if _fence(name) < self._fence)


@lru_cache(CHECKED_MAX)
def check_copy(path: Path) -> None:
    """Raise StorageError if a copy does not match its name. Checked once per process, because a copy never changes."""
    stem = path.name.removesuffix(path.suffix) if path.suffix else path.name
    *_, expected = stem.split("-")
    if stem.count("-") < CHECKED_DASHES:
        return  # written by a version without checksums
    checksum = 0
    try:
        with open(path, "rb") as file:
            while piece := file.read(PIECE_BYTES):
                checksum = crc32(piece, checksum)
    except OSError as error:
        raise storage_error(path, "read the copy of a table from", error) from error
    if f"{checksum:08x}" != expected:
        raise StorageError(
            f"the copy of a table {path} is damaged: it does not match its checksum",
            next_step="restore the pipeline's directory, the whole of it, from a copy",
            path=str(path),
        )


def _fence(name: str) -> int:
    """Return the fence of the driver that made a copy; -1 for a name without a fence, from an earlier version."""
    digits, dash, _ = name.partition("-")
    return int(digits) if dash and len(digits) == FENCE_DIGITS and digits.isdigit() else -1


def _is_of(name: str, stem: str) -> bool:
    """Whether a copy is of this version of its file, made by any driver."""
    rest = name.partition("-")[2] if _fence(name) >= 0 else name
    return rest.startswith((f"{stem}-", f"{stem}.")) or rest == stem


def _stem(path: Path) -> str:
    found = path.stat()
    return f"{crc32(str(path).encode()):08x}-{found.st_mtime_ns}-{found.st_size}"
