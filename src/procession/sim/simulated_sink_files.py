"""A sink's files on a virtual disk: its output, and its transaction log.

Invariant: the same calls in the same order as `connectors/file_sink` (output in place, cut at each session) and
`storage/journal` (one line an entry, written whole, then synced; a torn tail is cut off at open; replaced by a draft
that is renamed) under the real `TransactionLog`, which is made to compact often. Used by the
real `SinkParticipant` in `simulated_sink`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import cast

from procession.errors import StorageError
from procession.sdk.transaction_log import Transaction, TransactionLog, TransactionStates
from procession.sim.disk import Disk
from procession.sim.disk_calls import Files
from procession.sim.oracle import MEMORY, Oracle
from procession.storage.journal import Entry, Journal, encode

# So few that even a short run compacts several times.
ENTRIES_MAX = 4
TRANSACTIONS_KEPT = 1


class SimulatedFileOutput:
    """As `connectors.file_sink.FileOutput`."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder
        self._is_named = False
        self.path = f"{folder}/data"
        files.make_directory(folder)
        files.sync_directory("")

    @property
    def data(self) -> bytes:
        return self._files.read(self.path) or b""

    def recover(self, committed_end: int, prepared: Transaction | None) -> None:
        end = max(committed_end, prepared.end if prepared else 0)
        if len(self.data) < end:
            raise StorageError(f"The output has {len(self.data)} bytes, but {end} were promised.")
        if not self._is_named and not end:
            # Nothing was voted for: the file's name may be one that was never put on disk.
            self._files.remove(self._folder, "data")
            self._files.truncate(self.path, 0)
            self._files.sync_directory(self._folder)
        self._is_named = True
        self._files.truncate(self.path, end)

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        payload = b"".join(payloads)
        if position == len(self.data):
            self._files.append(self.path, payload)
        else:
            self._files.write_at(self.path, position, payload)

    def prepare(self, transaction: Transaction) -> None:
        self._files.sync(self.path)

    def commit(self, transaction: Transaction) -> None:
        """Nothing: the transaction log's entry is what makes it visible."""

    def abort(self, transaction: Transaction) -> None:
        self._files.truncate(self.path, transaction.start)

    def close(self) -> None:
        """Nothing is held."""


class SimulatedJournal:
    """As `storage.journal.Journal`, with its own lines. Calls `hear` with each entry just before it is written."""

    def __init__(self, files: Files, folder: str, hear: Callable[[Entry], None]) -> None:
        self._files = files
        self._folder = folder
        self._hear = hear
        self.path = f"{folder}/txnlog"

    def open(self, take: Callable[[Entry], object]) -> None:
        data, end = self._files.read(self.path) or b"", 0
        for line in data.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            if line[:9] != b"%08x " % zlib.crc32(line[9:-1]):
                raise StorageError(f"{self.path} is damaged at byte {end}.")
            end += len(line)
            take(_entry(line))
        self._files.write_durably(self._folder, "txnlog", data[:end])

    def append(self, entry: Entry) -> None:
        self._hear(entry)
        self._files.append(self.path, encode(entry))
        self._files.sync(self.path)

    def replace(self, entries: Iterable[Entry]) -> None:
        self._files.write_durably(self._folder, "txnlog", b"".join(map(encode, entries)))

    def read(self) -> Iterable[Entry]:
        return map(_entry, (self._files.read(self.path) or b"").splitlines(keepends=True))

    def close(self) -> None:
        """Nothing is held."""


class SimulatedTransactionLog(TransactionLog):
    """The real transaction log on a virtual journal. Reports votes and visible output to the oracle."""

    def __init__(self, files: Files, output: SimulatedFileOutput, oracle: Oracle, sink: str) -> None:
        super().__init__(Path(sink), entries_max=ENTRIES_MAX, transactions_kept=TRANSACTIONS_KEPT)
        self._sim = SimulatedJournal(files, sink, self._synced)
        self._journal = cast(Journal, self._sim)
        self._files = files
        self._output = output
        self._oracle = oracle
        self._sink = sink

    def open(self) -> None:
        super().open()
        # What the last life wrote, and died before anybody could see it, is visible now.
        output, ledger = self._output.data, TransactionStates()
        for entry in self._sim.read():
            transaction = ledger.take(entry)
            if transaction is not None and transaction.end > len(self._oracle.outputs[self._sink]):
                self._oracle.visible(self._sink, transaction.txn_id, output[: transaction.end])
        self._oracle.recovered(self._sink, output[: self.committed_end])

    def decide(self, txn_id: str, commit: bool) -> None:
        super().decide(txn_id, commit)
        if commit:
            self._oracle.visible(self._sink, txn_id, self._output.data[: self.committed_end])

    def _read(self) -> Iterable[Entry]:
        return self._sim.read()

    def _synced(self, entry: Entry) -> None:
        match entry:
            case {"op": "phase1", "txn": txn_id, "start": start, "end": end, "vote": vote}:
                self._oracle.voted(self._sink, txn_id, vote, self._output.data[start:end] if vote else b"")
            case {"op": "phase2", "txn": txn_id, "commit": True}:
                self._oracle.about_to_commit(self._sink, txn_id, "the sink")

    def is_durable(self, txn_id: str) -> bool:
        """Whether a vote on this transaction, and its bytes, would survive a power cut now."""
        entries = self._files.disk.durable_file(self._sim.path) or b""
        prepared = self._ledger.prepared.get(txn_id)
        output = self._files.disk.durable_file(self._output.path) or b""
        is_whole = prepared is None or output[: prepared.end] == self._output.data[: prepared.end]
        return is_whole and f'"txn":"{txn_id}"'.encode() in entries


@lru_cache(MEMORY)
def _entry(line: bytes) -> Entry:
    """What a line says: to be read only, for it is remembered."""
    entry: Entry = json.loads(line[9:])
    return entry


def durable_output(disk: Disk, sink: str) -> bytes:
    """What of the sink's output is committed, and would survive a power cut now."""
    ledger = TransactionStates()
    for line in (disk.durable_file(f"{sink}/txnlog") or b"").splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        ledger.take(_entry(line))
    return (disk.durable_file(f"{sink}/data") or b"")[: ledger.committed_end]
