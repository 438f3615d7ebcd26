"""An open file whose changes are journalled.

Invariant: a change is on this disk before it is in the journal, and a sync waits for both. If the name of a file is not
durable yet, its sync does not wait for the quorum; the sync of its directory does. `sos/replicated_files` opens it.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from procession.runtime.files import OpenFile, Part

if TYPE_CHECKING:
    from procession.sos.replicated_files import ReplicatedFiles


class JournalledFile:
    """An open file whose changes are journalled."""

    __slots__ = ("_files", "_inner", "_named_at", "_number")

    def __init__(self, files: ReplicatedFiles, inner: OpenFile, number: int, *, is_new: bool) -> None:
        """`is_new`: the file's name becomes durable only when its directory is synced."""
        self._files = files
        self._inner = inner
        self._number = number
        self._named_at = files.directory_syncs if is_new else -1

    @property
    def size(self) -> int:
        return self._inner.size

    def read(self, length: int, position: int) -> bytes:
        return self._inner.read(length, position)

    def write(self, position: int, *parts: Part) -> None:
        self._files.touch(self._number, position, position + sum(map(len, parts)))
        self._inner.write(position, *parts)
        self._files.written(self._number, position, parts)

    def truncate(self, length: int) -> None:
        self._files.touch(self._number, length, 1 << 63)
        self._inner.truncate(length)
        self._files.truncated(self._number, length)

    def sync(self, *, is_data_only: bool = False) -> None:
        barrier = self._files.journal.barrier()
        self._inner.sync(is_data_only=is_data_only)
        if self._named_at != self._files.directory_syncs:
            self._files.journal.wait(barrier)
        # Otherwise no process relies on the file before its directory is synced, which waits for the quorum.

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
