"""The journal of a process's files on a replicated volume: many threads add records, one event loop sends them.

Invariant: records are appended in the order in which they were added, each record whole in one append. `wait` returns
only when the write quorum has synced every record up to the barrier. The bytes of unsynced records are bounded by
`PENDING_BYTES_MAX`, because `room` waits. After the volume has failed, or another process has claimed it, every call
raises OSError, as a disk would. `sos/replicated_files` adds records; `sos/replicated_volume` appends them. Threads wait
on `condition`; the simulator passes its own.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Protocol

import structlog

from procession.errors import FencedError, ProcessionError
from procession.sos.file_operations import NOTHING
from procession.sos.replicated_volume import WARN_AFTER_S, ReplicatedVolume

APPEND_BYTES = 1024 * 1024
"""Approximate maximum bytes of waiting records that are appended together."""
BARRIER_BYTES = 4 * 1024 * 1024
"""Number of bytes after which the replicas are asked to sync, even if no thread waits."""
PENDING_BYTES_MAX = 32 * 1024 * 1024

log = structlog.get_logger("replicas")


class JournalCondition(Protocol):
    """The condition on which threads wait: `threading.Condition`, or the simulator's condition."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wait_for(self, predicate: Callable[[], bool]) -> bool: ...

    def notify_all(self) -> None: ...


class FileJournal:
    """Sends the records of one volume. Call `run`, `roll` and `retain` in the event loop of the volume. Call the other
    methods in any other thread."""

    def __init__(self, volume: ReplicatedVolume, condition: JournalCondition, loop: asyncio.AbstractEventLoop) -> None:
        self._volume = volume
        self._condition = condition
        self._loop = loop
        self._wake = asyncio.Event()
        self._is_waking = False
        self._queue: deque[tuple[tuple[bytes, ...], int]] = deque()
        """Records that are not appended yet, each with its size."""
        self._added = self._sent = self._synced = self._wanted = 0
        """Numbers of records: added, appended, synced by the quorum, and the last one that a thread waits for."""
        self._barrier_at = 0
        """The last record that was sent before or together with a request to sync."""
        self._bytes_since_barrier = 0
        self._on_way: deque[tuple[int, int, int]] = deque()
        """Appends that are not synced: number of the append, number of its last record, bytes."""
        self._has_way = asyncio.Event()
        self._pending_bytes = 0
        self._error: ProcessionError | None = None
        self.bytes_added = 0
        """Bytes that were added since the journal was opened."""

    # For threads

    def add(self, parts: tuple[bytes, ...]) -> None:
        """Add a record."""
        size = sum(map(len, parts))
        with self._condition:
            self._raise()
            self._queue.append((parts, size))
            self._added += 1
            self.bytes_added += size
            self._pending_bytes += size
            self._ask()

    def room(self) -> None:
        """Wait until unsynced records take less than `PENDING_BYTES_MAX`."""
        if self._pending_bytes > PENDING_BYTES_MAX:
            with self._condition:
                self._wanted = self._added
                self._ask()
                self._condition.wait_for(lambda: self._error is not None or self._pending_bytes <= PENDING_BYTES_MAX)
                self._raise()

    def check(self) -> None:
        """Raise if the volume has failed, or another process is known to have claimed it."""
        with self._condition:
            self._raise()

    def barrier(self) -> int:
        """Ask the quorum to sync all records added so far. Returns the argument of `wait`."""
        with self._condition:
            self._raise()
            if self._wanted < self._added:
                self._wanted = self._added
                self._ask()
            return self._added

    def wait(self, barrier: int) -> None:
        """Wait until the quorum has synced all records before the barrier."""
        with self._condition:
            self._condition.wait_for(lambda: self._error is not None or self._synced >= barrier)
            if self._synced < barrier:
                self._raise()

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    def _raise(self) -> None:
        if self._error is not None:
            number = errno.ESTALE if isinstance(self._error, FencedError) else errno.EIO
            raise OSError(number, self._error.sentence)

    def _ask(self) -> None:
        if not self._is_waking:
            self._is_waking = True
            with suppress(RuntimeError):  # the loop is closed: the process ends
                self._loop.call_soon_threadsafe(self._wake.set)

    # Called in the event loop

    async def run(self, say: Callable[[str], None]) -> None:
        """Send until cancelled, or until the volume fails."""
        settling = asyncio.ensure_future(self._settle(say))
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                with self._condition:
                    self._is_waking = False
                if self._send():
                    self._wake.set()  # lets replies arrive in between
                    await asyncio.sleep(0)
        except ProcessionError as error:
            self.fail(error)
        finally:
            settling.cancel()

    def fail(self, error: ProcessionError) -> None:
        with self._condition:
            if self._error is None:
                self._error = error
            self._condition.notify_all()

    def _send(self) -> bool:
        """Append some of the waiting records. Returns whether more records wait."""
        with self._condition:
            parts: list[bytes] = []
            size = 0
            while self._queue and size < APPEND_BYTES:
                record, record_bytes = self._queue.popleft()
                parts += record
                size += record_bytes
                self._sent += 1
            if not parts and self._barrier_at < self._wanted:
                parts = [NOTHING]  # all records are sent, but no replica was asked to sync them
            if not parts:
                return False
            self._bytes_since_barrier += size
            is_barrier = self._sent >= self._wanted > self._barrier_at or self._bytes_since_barrier >= BARRIER_BYTES
            if is_barrier:
                self._barrier_at, self._bytes_since_barrier = self._sent, 0
            number = self._volume.append(b"".join(parts), is_barrier=is_barrier)
            self._on_way.append((number, self._sent, size))
            self._has_way.set()
            return bool(self._queue)

    async def _settle(self, say: Callable[[str], None]) -> None:
        """Record the progress of the quorum's syncs, and warn if a thread waits too long."""
        is_told = False
        try:
            while True:
                await self._has_way.wait()
                try:
                    async with asyncio.timeout(None if is_told else WARN_AFTER_S):
                        await self._volume.until(self._on_way[0][0])
                    is_told = False
                except TimeoutError:
                    if self._wanted > self._synced:
                        say(self._volume.waiting)
                        is_told = True
                self._note()
        except ProcessionError as error:
            self.fail(error)

    def _note(self) -> None:
        """Record the progress of the quorum's syncs, and wake waiting threads."""
        acknowledged = self._volume.acknowledged
        with self._condition:
            before = self._synced
            while self._on_way and self._on_way[0][0] <= acknowledged:
                _, self._synced, size = self._on_way.popleft()
                self._pending_bytes -= size
            if self._synced > before:
                self._condition.notify_all()
        if not self._on_way:
            self._has_way.clear()

    async def roll(self) -> int:
        return await self._volume.roll()

    async def retain(self, mark: int) -> None:
        await self._volume.retain_from(mark)
