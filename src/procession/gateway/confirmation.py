"""Confirmation: whether the log in a gateway's directory is the one that the driver was offered records from. Pure.

The one rule: a directory that was set back to an older copy, or begun anew, is refused before any producer is admitted.
The driver names how far it was offered records, and of which log: its incarnation and its running checksum there. A
gateway that was started on a directory of an earlier life, or on a new one in a pipeline that a driver has claimed,
refuses every NOTIFY until a driver has done so; a leader grants no stream until then, and takes nobody's word about
streams whose log is not confirmed. Before it: `control`, which hears the driver. After it: `performer`.
"""

from __future__ import annotations

from typing import Protocol

from procession.errors import StorageError
from procession.storage.log_ranges import Offset

FIRST_INCARNATION = f"{0:016x}"
"""That of a log which was begun before logs had incarnations."""


class Known(Protocol):
    """A log, as far as it can be compared."""

    @property
    def start_sequence(self) -> int: ...

    @property
    def next_sequence(self) -> int: ...

    def offset(self, sequence: int) -> Offset: ...


def check_offered(log: Known, offered: Offset, name: str) -> None:
    """Raise StorageError unless this is the log that the driver was offered records from."""
    if not offered.sequence:
        return
    if offered.sequence > log.next_sequence:
        raise _another(name, f"it ends at record {log.next_sequence}, but {offered.sequence} were offered to Spark")
    if offered.sequence < log.start_sequence:
        raise _another(
            name, f"it begins with record {log.start_sequence}, but the driver reads on at {offered.sequence}"
        )
    found = log.offset(offered.sequence)
    if found.incarnation != (offered.incarnation or FIRST_INCARNATION):
        raise _another(name, "it was begun anew since")
    if offered.checksum and found.checksum != offered.checksum:
        raise _another(name, f"the records before {offered.sequence} are others")


def _another(name: str, why: str) -> StorageError:
    return StorageError(
        f"The log of {name or 'the gateway'} is not the one that records were offered from: {why}.",
        next_step="Put back the directory that this gateway had last, not an older copy; if it is lost, reset the"
        " pipeline and let its sources send again.",
    )
