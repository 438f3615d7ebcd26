"""A host whose files below one directory are replicated. The volume has its own thread and event loop.

Invariant: when `replicated_host` yields the host, only this process may write to the volume, and the quorum has all
files of the directory. No other process may change them. When the journal is much larger than the files, a thread takes
a snapshot and deletes the earlier journal.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import structlog

from procession.errors import ProcessionError
from procession.log_format import note
from procession.runtime.host import HOST, Host
from procession.sos.adopted_folder import ForeignChanges
from procession.sos.file_journal import FileJournal
from procession.sos.replica_marker import ReplicaMarker
from procession.sos.replicated_files import SNAPSHOT_BYTES_MIN, ReplicatedFiles
from procession.sos.replicated_volume import ReplicaOptions, ReplicatedVolume
from procession.storage.durable import make_directory

STOP_TIMEOUT_S = 5.0

log = structlog.get_logger("replicas")


class ReplicaThread:
    """Opens a volume and sends its journal, in a thread. `start` returns when the volume is open."""

    def __init__(self, volume_name: str, options: ReplicaOptions, marker: ReplicaMarker, host: Host) -> None:
        self._volume_name = volume_name
        self._options = options
        self._marker = marker
        self._host = host
        self._loop = asyncio.new_event_loop()
        self._is_open = threading.Event()
        self._error: BaseException | None = None
        self._work: asyncio.Task[None]
        self._thread = threading.Thread(target=self._run, name="replicas", daemon=True)
        self.journal: FileJournal
        self.fence = 0

    def start(self) -> None:
        self._thread.start()
        self._is_open.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Close the connections. Unsynced records are not sent."""
        with suppress(RuntimeError):  # the loop has already ended
            self._loop.call_soon_threadsafe(self._work.cancel)
        self._thread.join(STOP_TIMEOUT_S)

    def replace_journal(self, files: ReplicatedFiles) -> None:
        """Take a snapshot, and delete the earlier journal. Called in a separate thread."""
        try:
            mark = asyncio.run_coroutine_threadsafe(self.journal.roll(), self._loop).result()
            files.snapshot()
            asyncio.run_coroutine_threadsafe(self.journal.retain(mark), self._loop).result()
            log.info("replicas.snapshot_taken", volume=self._volume_name, mark=mark)
        except (OSError, ProcessionError) as error:
            # The next sync fails with the same error.
            log.warning("replicas.snapshot_failed", volume=self._volume_name, reason=str(error))

    def retain(self, mark: int) -> None:
        asyncio.run_coroutine_threadsafe(self.journal.retain(mark), self._loop).result()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._work = self._loop.create_task(self._serve())
        try:
            self._loop.run_until_complete(self._work)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._error = error
            log.error("replicas.failed", volume=self._volume_name, reason=str(error))
        finally:
            rest = asyncio.all_tasks(self._loop)
            for task in rest:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
            self._loop.close()
            self._is_open.set()

    async def _serve(self) -> None:
        marker = self._marker
        volume = ReplicatedVolume(
            self._volume_name,
            self._options,
            may_begin=not marker.has_begun,
            own_fences=marker.fences,
            on_create=marker.add,
            host=self._host,
        )
        try:
            await volume.open(_warn)
            self.fence = volume.fence
            self.journal = FileJournal(volume, threading.Condition(), self._loop)
            self._is_open.set()
            await self.journal.run(_warn)
        finally:
            await volume.close()


def _warn(sentence: str) -> None:
    log.warning("replicas.waiting", reason=sentence)
    note(sentence)  # the supervisor shows it to the operator


@contextmanager
def replicated_host(
    directory: Path,
    volume_name: str,
    options: ReplicaOptions,
    *,
    name: str = "",
    only: Collection[str] = (),
    adopted: Mapping[str, tuple[ForeignChanges, ...]] | None = None,
    host: Host = HOST,
    snapshot_bytes_min: int = SNAPSHOT_BYTES_MIN,
) -> Iterator[Host]:
    """Yield a host whose files below `directory` are replicated. The other arguments are those of `ReplicatedFiles`.

    Raises ConfigError, StorageError, or FencedError if another process has continued from the replicas.
    """
    make_directory(directory, host.files)
    marker = ReplicaMarker(directory, volume_name, host.files)
    thread = ReplicaThread(volume_name, options, marker, host)
    thread.start()

    def begin_snapshot() -> None:
        threading.Thread(target=thread.replace_journal, args=(files,), name="snapshot", daemon=True).start()

    files = ReplicatedFiles(
        host.files,
        directory,
        thread.journal,
        name=name,
        only=only,
        adopted=adopted,
        on_snapshot_due=begin_snapshot,
        snapshot_bytes_min=snapshot_bytes_min,
    )
    try:
        files.begin()
        marker.begun()
        thread.retain(thread.fence)
        log.info("replicas.ready", directory=str(directory), fence=thread.fence)
        yield replace(host, files=files, has_replicas=True, unreplicated_bytes=lambda: thread.journal.pending_bytes)
    finally:
        thread.stop()
