"""The writer: rows on their way into the log, gathered to larger entries and written by a thread beside the loop.

The one rule: rows are written in the order in which they came, one entry at a time, and whoever brings more than may
wait waits himself: that bounds memory, and lets producers feel a slow disk. Before it `core`, which is told how far the
log reaches; after it `storage.log`, whose `append` nobody else calls.

On its way from the wire to the file a payload is copied four times: by the kernel out of the socket, by the decoder
into its column, by Arrow into the entry, by the kernel into the file's pages; and once more where several reads make
one entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from procession import faults
from procession.storage.log import IngressLog


class Writer:
    """Lives in the loop, with one thread of its own. `appended` (with the end of the log) and `failed` are called in
    the loop; after a failure nothing more is written."""

    def __init__(
        self,
        log: IngressLog,
        *,
        entry_bytes: int,
        waiting_bytes_max: int,
        delay_s: float,
        appended: Callable[[int], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._log = log
        self._entry_bytes = entry_bytes
        self._waiting_bytes_max = waiting_bytes_max
        self._delay_s = delay_s
        self._appended = appended
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "log-writer")
        self._waiting: list[pa.RecordBatch] = []
        self._leaving: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writing: Future[int] | None = None
        self._has_failed = False
        self._added = self._begun = self._ended = 0
        """How many batches came, how many of them went to the thread, how many are in the log."""

    def add(self, batch: pa.RecordBatch, size_bytes: int) -> None:
        """Rows wait for others, so that many are one entry of the log; never long, and never many bytes."""
        self._waiting.append(batch)
        self._waiting_bytes += size_bytes
        self._added += 1
        if self._writing is not None and self._waiting_bytes >= self._waiting_bytes_max:
            self._end(self._writing)
        if self._waiting_bytes >= self._entry_bytes:
            self._begin()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._delay_s, self._begin)

    async def flushed(self) -> None:
        """Return when all that was added before is in the log, or never will be."""
        target = self._added
        while not self._has_failed and self._ended < target:
            self._begin()
            if self._writing is not None:
                await asyncio.wait([asyncio.wrap_future(self._writing)])

    def close(self) -> None:
        self._thread.shutdown()

    def _begin(self) -> None:
        """Write what waits, if nothing is being written: what comes meanwhile is the next entry."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None or not self._waiting or self._has_failed:
            return
        # Kept here until they are written: memory is best let go of by the thread that has made it.
        self._leaving, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._begun = self._added
        self._writing = self._thread.submit(self._write, self._leaving)
        self._writing.add_done_callback(lambda written: self._loop.call_soon_threadsafe(self._end, written))

    def _write(self, batches: list[pa.RecordBatch]) -> int:
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        faults.point("gateway:before-append")
        end = self._log.append(batch) + int(batch.num_rows)
        faults.point("gateway:after-append")
        return end

    def _end(self, written: Future[int]) -> None:
        """An entry is in the log; if it is still being written, the loop waits for it here."""
        if written is not self._writing:
            return
        try:
            end = written.result()
        except Exception as error:
            self._has_failed = True
            self._failed(error)
            return
        finally:
            self._writing = None
            self._leaving = []
        self._ended = self._begun
        self._appended(end)
        if self._waiting_bytes >= self._entry_bytes or self._timer is None:
            self._begin()
