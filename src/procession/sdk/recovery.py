"""Recovery of a sink's output: says, from its transaction log, what is committed and what waits for a decision.

Invariant: the log alone says what is visible of an output. Log and output together mean:

- bytes below `committed_end` are committed, or must become visible now;
- one transaction may be prepared: its bytes are kept until the driver decides;
- all other bytes were never voted for, and are dropped.

Not used in the steady state. `sdk/transaction_log` reads the file; `sdk/participant` passes the result to
`Output.recover` at the start of each session.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from procession.errors import StorageError
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.sdk.transaction_log import Transaction, TransactionLog


class RecoveredOutput(NamedTuple):
    """The state that an output continues with."""

    committed_end: int
    prepared: Transaction | None


def recover(txnlog: TransactionLog) -> RecoveredOutput:
    """Raises StorageError if more than one transaction is open: nothing is voted on before what was prepared earlier is
    decided."""
    if len(txnlog.prepared) > 1:
        names = ", ".join(transaction.txn_id for transaction in txnlog.prepared)
        raise StorageError(
            f"{txnlog.path} has more than one open transaction: {names}.",
            next_step="Restore the file from a copy; Procession's sinks do not write such a log.",
            path=str(txnlog.path),
        )
    return RecoveredOutput(txnlog.committed_end, next(iter(txnlog.prepared), None))


def remove_drafts(directory: Path, files: FileSystem = HOST_FILES) -> None:
    """Removes what a replacement left that a crash cut short: the file that it was for is whole."""
    for name in files.names(directory):
        suffixes = Path(name).suffixes
        if name.endswith(".draft") and suffixes[-3:-2] in ([".txnlog"], [".json"]):
            files.remove(directory / name)
