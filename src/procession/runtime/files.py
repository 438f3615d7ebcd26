"""The files port: what our code asks of a file system.

Invariant: every call either has its documented effect or raises the plain OSError that Linux would. Nothing is durable
before a sync: the bytes of a file need `OpenFile.sync`, its name needs `FileSystem.sync_directory`. After a failed sync
nothing is known about the bytes that it should have written, and a later success says nothing about them.
`runtime/host_files` implements the port on the operating system, `sim/simulated_files` on a simulated disk; one suite
of tests runs on both. `storage/durable` builds the writes that survive a crash on it. Pure.
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
    """How a file is opened. All but READ allow writing."""

    READ = auto()
    WRITE = auto()
    """The file must exist."""
    CREATE = auto()
    """Creates the file if there is none."""
    REPLACE = auto()
    """Creates the file, or truncates the existing one."""
    NEW = auto()
    """Creates the file. FileExistsError if there is one."""


class OpenFile(Protocol):
    """An open file. It stays the same file when its name is changed or removed."""

    @property
    def size(self) -> int:
        """Length in bytes."""

    def read(self, length: int, position: int) -> bytes:
        """The bytes from `position` on, at most `length`; fewer only at the end of the file."""

    def write(self, position: int, *parts: Part) -> None:
        """Write all bytes of all parts, one part behind the other. After an OSError some of them may be written."""

    def truncate(self, length: int) -> None:
        """Cut the file off, or extend it with zeros."""

    def sync(self, *, is_data_only: bool = False) -> None:
        """Make the bytes durable; with `is_data_only`, of the file's size and times only what reading needs."""

    def close(self) -> None:
        """Let go of the file. Syncs nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class HeldLock(Protocol):
    """A lock that this process holds."""

    def close(self) -> None:
        """Release it."""


class FileSystem(Protocol):
    """The files of one machine, as one process sees them."""

    @property
    def owner(self) -> str:
        """Names this process among those that may write the same files at the same time."""

    def open(self, path: Path, mode: OpenMode = OpenMode.READ) -> OpenFile: ...

    def read(self, path: Path) -> bytes:
        """All bytes of a file."""

    def map(self, path: Path) -> pa.Buffer:
        """All bytes of a file, without a copy. Data that is appended later is not included."""

    def names(self, directory: Path) -> list[str]:
        """The names in a directory, in no particular order."""

    def exists(self, path: Path) -> bool: ...

    def is_directory(self, path: Path) -> bool: ...

    def make_directory(self, path: Path) -> None:
        """FileExistsError if there is something, FileNotFoundError if there is no parent. Its name is not durable."""

    def rename(self, old: Path, new: Path) -> None:
        """Replaces the file `new`, if there is one. Atomic; not durable before both directories are synced."""

    def link(self, old: Path, new: Path) -> None:
        """A second name for a file. FileExistsError if there is something."""

    def remove(self, path: Path) -> None:
        """Removes a file."""

    def remove_tree(self, path: Path) -> None:
        """Removes a directory and all that is in it, as far as possible. Raises nothing: some of it may be left."""

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""

    def free_bytes(self, path: Path) -> int:
        """What is free on the disk of this directory."""

    def mutex(self) -> AbstractContextManager[Any]:
        """A lock between the threads of this process, for calls that must not overlap."""

    def check_owner(self, *, asks: bool = False) -> None:
        """OSError (ESTALE) if another process is known to have continued from the replicas of these files. With `asks`
        the replicas are asked first. Does nothing without replicas."""

    def lock(self, path: Path, *, waits: bool = False) -> HeldLock:
        """Lock a file or directory that exists for this process. BlockingIOError if another holds it, unless it
        `waits`. The lock of a process that dies is released."""
