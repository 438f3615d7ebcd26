"""Recovery of a sink's output: reads from its transaction log which bytes are committed and which wait for a decision.

Invariant: the log alone defines which bytes of an output are visible:

- bytes below `committed_end` are committed, or must become visible now;
- one transaction may be prepared: its bytes are kept until the driver decides;
- all other bytes had no vote, and are dropped.

Used only when a session starts. `sdk/transaction_log` reads the file; `sdk/participant` passes the result to
`Output.recover`.
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
    """Read the state of the output. Raises StorageError if more than one transaction is open, because a sink decides
    each transaction before it votes on the next."""
    if len(txnlog.prepared) > 1:
        names = ", ".join(transaction.txn_id for transaction in txnlog.prepared)
        raise StorageError(
            f"{txnlog.path} has more than one open transaction: {names}.",
            next_step="Restore the file from a copy; Procession's sinks do not write such a log.",
            path=str(txnlog.path),
        )
    return RecoveredOutput(txnlog.committed_end, next(iter(txnlog.prepared), None))


def remove_drafts(directory: Path, files: FileSystem = HOST_FILES) -> None:
    """Remove drafts of files. A crash during a replacement leaves such a draft; the original file is intact."""
    for name in files.names(directory):
        suffixes = Path(name).suffixes
        if name.endswith(".draft") and suffixes[-3:-2] in ([".txnlog"], [".json"]):
            files.remove(directory / name)
