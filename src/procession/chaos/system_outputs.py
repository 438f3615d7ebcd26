"""Compares the outputs of a chaos run in other systems with the input, continuously.

Invariant: a thread reads new visible records and appends them to a file, so a system that does not answer does not
stop the monitor. Every record must be the next one of its stream. No record may be visible after the position that
the checkpoint has decided, and every transaction in the sink's log must be decided. At the end the whole output is
read once more from the beginning, so records that have vanished are detected.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from procession.chaos.output_monitor import Decide, MonitoredOutput, MonitoredStream, lines_of, read
from procession.chaos.visible_records import VisibleRecords, WrongRecord
from procession.sdk.transaction_log import TransactionTail
from procession.verify.decided import is_decided, is_named
from procession.verify.order import PromisedOrder

POLL_INTERVAL_S = 0.1
CLOSE_TIMEOUT_S = 10.0
TRIES_MAX = 20
TRY_AGAIN_S = 1.0


class RecordReader:
    """Reads an output in a separate thread. `end` and `position` only grow."""

    def __init__(self, records: VisibleRecords, path: Path) -> None:
        self.records = records
        self.path = path
        self.end = 0
        """Number of bytes in the file."""
        self.position = -1
        self.wrong = ""
        """A violation, as a sentence."""
        self.why_not = ""
        """The reason why the last poll failed."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"reader {path.stem}", daemon=True)

    def start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(CLOSE_TIMEOUT_S)
        self.records.close()

    def _run(self) -> None:
        with self.path.open("ab", buffering=0) as file:
            while not self._stop.wait(POLL_INTERVAL_S):
                try:
                    seen = self.records.new()
                    self.why_not = ""
                except WrongRecord as error:
                    self.wrong = str(error)
                    return
                except Exception as error:  # each client has its own errors; output that cannot be read is never clean
                    self.why_not = f"{type(error).__name__}: {error}"
                    continue
                data = b"".join(line + b"\n" for line in seen.lines)
                file.write(data)
                self.position = seen.position
                self.end += len(data)


class SystemOutput(MonitoredOutput):
    """An output in another system. `instance` returns the path of the sink's transaction log, which a race may
    change."""

    def __init__(
        self,
        name: str,
        reader: RecordReader,
        instance: Callable[[], Path],
        decided_end: Callable[[str], int | None],
        order: PromisedOrder = PromisedOrder.TOTAL,
    ) -> None:
        super().__init__(name, reader.path)
        self.order = order
        self._reader = reader
        self._again = reader.path.with_suffix(".again")
        self._instance = instance
        self._decided_end = decided_end
        self._position = -1
        self._log_end = 0
        self._tail = TransactionTail(instance().with_suffix(".txnlog"))

    def poll(self, streams: Mapping[str, MonitoredStream], decide: Decide | None) -> Iterator[str]:
        if self._reader.wrong:
            yield f"{self.name}: {self._reader.wrong}"
        # Read the position before its decision, and the records after their position.
        position, end = self._reader.position, self._reader.end
        yield from self._poll_log(decide)
        if position > self._position:
            self._position = position
            decided = self._decided_end(self.name)
            if decided is not None and position >= decided:
                yield f"{self.name}: position {position} is visible, but only those below {decided} are decided"
        data = read(self.data, self.end, end)
        self.end = end
        yield from self.take(data.splitlines(), streams)

    def _poll_log(self, decide: Decide | None) -> Iterator[str]:
        log = self._instance().with_suffix(".txnlog")
        if log != self._tail.path:
            self._tail = TransactionTail(log)
        new = [transaction for transaction in self._tail.poll() if transaction.start >= self._log_end]
        decisions = decide(new) if new and decide else None
        for transaction in new:
            self._log_end = max(self._log_end, transaction.end)
            self.named += decisions is not None and is_named(transaction.txn_id, decisions)
            if decisions is not None and not is_decided(*transaction, decisions):
                yield f"{self.name}: {transaction.txn_id} is committed, but no round decided that"

    def refresh(self) -> None:
        """Read everything again. A system that has just been killed may need a moment."""
        for count in range(TRIES_MAX):
            try:
                with self._again.open("wb") as file:
                    for lines in self._reader.records.all():
                        file.write(b"".join(line + b"\n" for line in lines))
                return
            except WrongRecord as error:
                self.wrong = f"{self.name}: {error}"
                return
            except Exception:  # as above; the last error is a failure of the harness itself, and the verdict is unknown
                if count == TRIES_MAX - 1:
                    raise
                time.sleep(TRY_AGAIN_S)

    def whole(self) -> Iterator[list[bytes]]:
        return lines_of(self._again, self._again.stat().st_size)
