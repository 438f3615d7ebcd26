"""The Output: a file is written under a hidden name, synced before the vote, and renamed at the commit."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from procession.sdk import Output, Transaction
from procession.sdk.record_blocks import RecordForm, record_batches


class JsonLines(Output):
    def __init__(self, target: Path, name: str, form: RecordForm) -> None:
        self._directory = target / name  # each output has its own directory
        self._directory.mkdir(parents=True, exist_ok=True)
        self._form = form
        self._draft = self._directory / ".draft"

    def recover(self, committed_end: int, prepared: Transaction | None) -> None:
        self._draft.unlink(missing_ok=True)
        kept = None if prepared is None else self._pending(prepared)
        for path in self._directory.glob(".*.pending"):
            if path != kept:
                path.unlink()
        if prepared is not None and not self._pending(prepared).exists() and not self._final(prepared).exists():
            raise OSError(f"{self._pending(prepared)} is gone, and its records with it")

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        with self._draft.open("a") as file:
            for batch in record_batches(payloads, self._form):
                for record in batch.to_pylist():
                    key = None if record["key"] is None else _text(record["key"])
                    line = {"key": key, "time": record["event_time_ns"], "value": _text(record["payload"])}
                    file.write(json.dumps(line) + "\n")

    def prepare(self, transaction: Transaction) -> None:
        with self._draft.open("a") as file:
            os.fsync(file.fileno())
        self._draft.rename(self._pending(transaction))
        self._sync_names()

    def commit(self, transaction: Transaction) -> None:
        if self._pending(transaction).exists():  # otherwise an earlier commit was interrupted after the rename
            self._pending(transaction).rename(self._final(transaction))
        self._sync_names()

    def abort(self, transaction: Transaction) -> None:
        self._pending(transaction).unlink(missing_ok=True)

    def _pending(self, transaction: Transaction) -> Path:
        return self._directory / f".{transaction.start:020d}-{transaction.end:020d}.pending"

    def _final(self, transaction: Transaction) -> Path:
        return self._directory / f"{transaction.start:020d}.jsonl"

    def _sync_names(self) -> None:
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")
