"""Confirmation: whether a gateway's log is the one from which records were offered to the driver. Pure.

Invariant: a directory that was restored from an older copy, or created again, is refused before any producer is
admitted. The driver names the end of the offered records, and the log's incarnation and running checksum at this end.
It also names the directory's identity, the committed epochs and, to the leader, the other gateways.

- The log may be complete while the committed positions next to it are older. Then the driver sends the last commit
  before the gateway admits producers. If that commit lacks some of the missing positions, the gateway is refused.
- A gateway refuses every NOTIFY until a driver confirms its log. This holds for a used directory, and for a new
  directory if a driver has claimed the pipeline. An unconfirmed leader grants no stream. It ignores reports about
  streams from gateways whose log is not confirmed. It takes no commit before a driver's request has matched its log.
- The driver knows nothing about records that were never offered. But a stream moves only after its holder has committed
  all its records. So a log is an older copy if another gateway holds a stream of its uncommitted records, or has
  committed the stream further.
- A driver that was suspended and replaced knows less than its successor. So a driver that confirms a log repeats an id
  that the gateway has chosen at its start, and checks its own fence after it got the id.

`control` receives the driver's request.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from procession.errors import StorageError
from procession.storage.log_ranges import LogOffset
from procession.storage.segment import KIND_RECORD
from procession.wire.messages import NOTHING_COMMITTED

FIRST_INCARNATION = f"{0:016x}"
"""The incarnation of a log that was created before logs had incarnations."""


class KnownGateway(NamedTuple):
    """A driver's knowledge about a gateway, except for the end of the offered records. By default, the driver knows
    nothing."""

    epochs: int = 0
    """Number of committed epochs."""
    epochs_kept: int = 0
    """Number of committed epochs that the gateway has reported as on disk. The round record of the last epoch holds the
    committed positions of all later ones."""
    identity: str = ""
    """The identity of the gateway's directory."""
    gateways: tuple[str, ...] = ()
    """The other gateways that the driver knows to have joined at any time. The driver sends them only to the leader."""
    start: str = ""
    """The id of the gateway's start, if the driver has checked its fence since it got the id."""


class KnownLog(Protocol):
    """A log that can be compared with the driver's knowledge."""

    @property
    def start_sequence(self) -> int: ...

    @property
    def next_sequence(self) -> int: ...

    def offset(self, sequence: int) -> LogOffset: ...


def check_offered(log: KnownLog, offered: LogOffset, name: str) -> None:
    """Raise StorageError unless records were offered to the driver from this log."""
    if not offered.sequence:
        return
    if offered.sequence > log.next_sequence:
        raise _another(name, f"it ends at record {log.next_sequence}, but {offered.sequence} were offered to Spark")
    if offered.sequence < log.start_sequence:
        raise _another(
            name, f"it begins with record {log.start_sequence}, but the driver continues at {offered.sequence}"
        )
    found = log.offset(offered.sequence)
    if found.incarnation != (offered.incarnation or FIRST_INCARNATION):
        raise _another(name, "it was created again since")
    if offered.checksum and found.checksum != offered.checksum:
        raise _another(name, f"the records before {offered.sequence} are different")


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


def check_uncommitted(batches: Iterable[pa.RecordBatch], committed: Mapping[int, int], name: str) -> None:
    """Raise StorageError if one of these uncommitted rows has an id that is `committed` in its stream."""
    last_ids = {stream_id: at for stream_id, at in committed.items() if at != NOTHING_COMMITTED}
    for batch in batches:
        is_record = batch.column("kind").to_numpy() == KIND_RECORD
        streams = batch.column("stream_id").to_numpy()[is_record]
        ids = batch.column("message_id").to_numpy()[is_record]
        for stream_id in np.unique(streams).tolist():
            if stream_id in last_ids and (ids[streams == stream_id] <= np.uint64(last_ids[stream_id])).any():
                raise _another(name, f"it has records of stream {stream_id} that another gateway has committed")


def check_held(held: Iterable[int], holders: Mapping[int, str], name: str) -> None:
    """Raise StorageError if another gateway holds a stream that has uncommitted rows in this log."""
    for stream_id in held:
        if (holder := holders.get(stream_id, name)) != name:
            raise _another(name, f"it has records of stream {stream_id}, which {holder} holds now")


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
