"""The files port: the functions that code needs of a file system.

Invariant: every call either has its documented effect or raises the plain OSError that Linux would. Nothing is durable
before a sync: the bytes of a file need `OpenFile.sync`, its name needs `FileSystem.sync_directory`. After a failed
sync, the state of the bytes that it should have written is unknown, and a later success does not change that.
`runtime/host_files` implements the port on the operating system, `sim/simulated_files` on a simulated disk; one suite
of tests runs on both. `storage/durable` uses the port for writes that survive a crash. Pure.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from enum import Enum, auto
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    import pyarrow as pa

Part = bytes | memoryview


class OpenMode(Enum):
    """How a file is opened. All modes but READ allow writing."""

    READ = auto()
    WRITE = auto()
    """The file must exist."""
    CREATE = auto()
    """Creates the file if there is none."""
    REPLACE = auto()
    """Creates the file, or truncates the existing one."""
    NEW = auto()
    """Creates the file. Raises FileExistsError if it exists."""


class OpenFile(Protocol):
    """An open file. It stays the same file when its name is changed or removed."""

    @property
    def size(self) -> int:
        """Length in bytes."""

    def read(self, length: int, position: int) -> bytes:
        """Return the bytes from `position` on, at most `length`. Fewer bytes are returned only at the end of the
        file."""

    def write(self, position: int, *parts: Part) -> None:
        """Write all bytes of all parts, one part after the other. After an OSError some of them may be written."""

    def truncate(self, length: int) -> None:
        """Cut the file off at this length, or extend it with zeros."""

    def sync(self, *, is_data_only: bool = False) -> None:
        """Make the bytes durable. With `is_data_only`, the file's size and times are made durable only as far as
        reading needs them."""

    def close(self) -> None:
        """Close the file without a sync."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class HeldLock(Protocol):
    """A lock that this process holds."""

    def close(self) -> None:
        """Release the lock."""


class FileSystem(Protocol):
    """The files of one machine, as one process sees them."""

    @property
    def owner(self) -> str:
        """The name of this process among processes that may write the same files at the same time."""

    def open(self, path: Path, mode: OpenMode = OpenMode.READ) -> OpenFile: ...

    def read(self, path: Path) -> bytes:
        """Return all bytes of a file."""

    def map(self, path: Path) -> pa.Buffer:
        """Return all bytes of a file, without a copy. Data that is appended later is not included."""

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, in no particular order."""

    def exists(self, path: Path) -> bool: ...

    def is_directory(self, path: Path) -> bool: ...

    def make_directory(self, path: Path) -> None:
        """Create a directory, whose name is not durable. Raises FileExistsError if the name exists, FileNotFoundError
        if there is no parent."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file, and replace the file `new` if it exists. This is atomic, and durable when both directories are
        synced."""

    def link(self, old: Path, new: Path) -> None:
        """Give a file a second name. Raises FileExistsError if the name exists."""

    def remove(self, path: Path) -> None:
        """Remove a file."""

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and its content, as far as possible. Never raises: a part may be left."""

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""

    def free_bytes(self, path: Path) -> int:
        """Return the free bytes on the disk of this directory."""

    def mutex(self) -> AbstractContextManager[Any]:
        """Return a lock between the threads of this process, for calls that must not overlap."""

    def check_owner(self, *, asks: bool = False) -> None:
        """Raise OSError (ESTALE) if another process is known to have continued from the replicas of these files. With
        `asks`, the replicas are asked first. Does nothing without replicas."""

    def lock(self, path: Path, *, waits: bool = False) -> HeldLock:
        """Lock an existing file or directory for this process. Raises BlockingIOError if another process holds it,
        unless it `waits`. The lock is released when the process dies."""
