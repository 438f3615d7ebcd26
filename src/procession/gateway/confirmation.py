"""Confirmation: whether the log in a gateway's directory is the one that the driver was offered records from. Pure.

Invariant: a directory that was restored from an older copy, or created again, is refused before any producer is
admitted. The driver names the end of what it was offered, and the log: its incarnation and its running checksum at that
end. It also names the directory's identity, the committed epochs and, to the leader, the other gateways. The log may be
complete while the committed positions next to it are older. Then the driver sends the last commit before the gateway
admits producers; if that commit does not name everything that is missing, the gateway is refused. A gateway that starts
on a used directory, or on a new one in a pipeline that a driver has claimed, refuses every NOTIFY until a driver
confirms its log. Until then a leader grants no stream, and ignores reports about streams from gateways whose log is not
confirmed. It takes no commit before a driver's request has matched its log. `control` receives the driver's request.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple, Protocol

from procession.errors import StorageError
from procession.storage.log_ranges import LogOffset

FIRST_INCARNATION = f"{0:016x}"
"""The incarnation of a log that is older than incarnations."""


class KnownGateway(NamedTuple):
    """What a driver knows about a gateway, apart from the position up to which records were offered. The default:
    nothing."""

    epochs: int = 0
    """How many epochs are committed."""
    epochs_kept: int = 0
    """Number of committed epochs that the gateway has reported as on disk. The round record of the last epoch holds the
    committed positions of all later ones."""
    identity: str = ""
    """The identity of the gateway's directory."""
    gateways: tuple[str, ...] = ()
    """The other gateways that have ever joined, as far as the driver knows. Only the leader is asked about them."""


class KnownLog(Protocol):
    """A log, as far as it can be compared."""

    @property
    def start_sequence(self) -> int: ...

    @property
    def next_sequence(self) -> int: ...

    def offset(self, sequence: int) -> LogOffset: ...


def check_offered(log: KnownLog, offered: LogOffset, name: str) -> None:
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
        raise _another(name, "it was created again since")
    if offered.checksum and found.checksum != offered.checksum:
        raise _another(name, f"the records before {offered.sequence} are others")


def check_directory(identity: str, epochs: int, known: KnownGateway, name: str) -> None:
    """Raise StorageError unless this is the directory that the driver knows, with no fewer committed `epochs` in its
    snapshot than the driver can repeat."""
    if known.identity and identity != known.identity:
        raise _another(name, "its directory was created again since")
    check_epochs(epochs, known.epochs_kept, name)


def check_gateways(members: Container[str], known: KnownGateway, name: str) -> None:
    """Raise StorageError if the leader's list of `members` lacks a gateway that the driver knows. The list is on disk
    before a driver gets it, so the directory is a copy that was made before that gateway joined."""
    if lacking := [gateway for gateway in known.gateways if gateway not in members]:
        raise _another(name, f"its list of gateways lacks {', '.join(lacking)}")


def check_epochs(epochs: int, epochs_kept: int, name: str = "") -> None:
    """Raise StorageError if the snapshot has fewer committed `epochs` than the gateway once had."""
    if epochs < epochs_kept:
        raise _another(name, f"{epochs} epochs are committed in it, but {epochs_kept} were before")


def _another(name: str, why: str) -> StorageError:
    return StorageError(
        f"The log of {name or 'the gateway'} is not the one that records were offered from: {why}.",
        next_step="Put back the directory that this gateway had last, not an older copy; if it is lost, reset the"
        " pipeline and let its sources send again.",
    )
