"""The runs of a driver's epochs: in the driver's own store, and on the machines of the executors.

Invariant: the driver fetches the runs that it sends itself to its own store, before it sends anything. The runs of
other sinks stay on the executors' machines, from which emitters fetch them, until the epoch is confirmed: an epoch that
is aborted is sent again from the same runs. `spark/query` lets an epoch be gathered; `commit/performer` reads and drops
it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from procession.errors import StorageError
from procession.storage.host_runs import HostRuns
from procession.storage.run_store import Manifest, Run, RunStore

FETCHES_MAX = 4
"""Maximum number of runs that the driver fetches at the same time."""


class EpochRuns:
    """The runs of one driver.

    Args:
        store: The driver's own store.
        hosts: The host services of the executors' machines. None: all runs are in the store.
        left: Ids of the sinks whose runs stay on the executors' machines.
    """

    def __init__(self, store: RunStore, hosts: HostRuns | None = None, left: Collection[str] = ()) -> None:
        self.store = store
        self._hosts = hosts
        self._left = left
        self._cleaner = None if hosts is None else EpochCleaner(hosts)
        self._lock = threading.Lock()
        self._kept: dict[int, set[str]] = {}
        """The hosts of each epoch whose runs are still needed there."""
        self.fetched_bytes = 0
        """Bytes of the runs that were fetched from host services."""

    def gathered(self, epoch: int, manifests: Sequence[Manifest]) -> list[Manifest]:
        """Fetch the runs that the driver sends itself. Returns the manifests that name the copies.

        The data is streamed, a batch at a time for each of FETCHES_MAX runs. Raises StorageError if a run is lost.
        """
        if self._hosts is None or self._cleaner is None:
            return list(manifests)
        fetched = [run for manifest in manifests for run in manifest.runs if run.to not in self._left]
        with ThreadPoolExecutor(FETCHES_MAX, "fetch") as pool:
            copies = dict(zip(fetched, list(pool.map(partial(self._fetch, self._hosts, epoch), fetched)), strict=True))
        found = [replace(each, runs=tuple(copies.get(run, run) for run in each.runs)) for each in manifests]
        hosts = {manifest.host for manifest in manifests if manifest.host}
        with self._lock:
            # A host deletes an epoch together with all earlier ones.
            is_kept = bool(self._kept) or any(run.host for manifest in found for run in manifest.runs)
            if is_kept:
                self._kept[epoch] = hosts
        if not is_kept:
            self._cleaner.done_with(epoch, hosts)
        return found

    def _fetch(self, hosts: HostRuns, epoch: int, run: Run) -> Run:
        copy = replace(run, file=f"{Path(run.file).stem}-{run.bucket}.arrow", host="")
        self.store.land(epoch, copy, self._counted(hosts, epoch, run))
        return copy

    def _counted(self, hosts: HostRuns, epoch: int, run: Run) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in hosts.read(epoch, run):
            rows += batch.num_rows
            with self._lock:
                self.fetched_bytes += batch.nbytes
            yield batch
        if rows != run.count:
            raise StorageError(f"run {run.file} of epoch {epoch} has {rows} rows, its manifest says {run.count}")

    def read_all(self, epoch: int, runs: Sequence[Run]) -> list[Iterator[pa.RecordBatch]]:
        """Return the rows of these runs of the driver's own store, each batch by batch."""
        return self.store.read_all(epoch, runs)

    def drop(self, epoch: int) -> None:
        """Remove an epoch, because it is confirmed: from the store, and in the background from the host services."""
        self.store.drop(epoch)
        with self._lock:
            hosts = [self._kept.pop(each) for each in sorted(self._kept) if each <= epoch]
        if hosts and self._cleaner is not None:
            self._cleaner.done_with(epoch, set().union(*hosts))


class EpochCleaner:
    """Lets the hosts delete runs in the background, with one request at a time. A later request includes the earlier
    ones."""

    def __init__(self, runs: HostRuns) -> None:
        self._runs = runs
        self._hosts: set[str] = set()
        self._thread: threading.Thread | None = None

    def done_with(self, epoch: int, hosts: Iterable[str]) -> None:
        """Let these hosts, and those of earlier epochs, delete the epochs up to this one."""
        self._hosts = self._hosts.union(hosts)
        if self._thread is None or not self._thread.is_alive():
            arguments = epoch, sorted(self._hosts)
            self._thread = threading.Thread(target=self._runs.drop, args=arguments, name="drop runs", daemon=True)
            self._thread.start()
