"""Plausibility: checks a driver's requests against what the gateway knows. Pure.

Invariant: no request makes the gateway lose, skip or invent records. A commit ends within what was offered, and names
only message ids that were received. The snapshot is written only for requests that pass these checks.
"""

from __future__ import annotations

from collections.abc import Mapping

from procession.errors import StorageError
from procession.gateway.registry import Registry
from procession.gateway.stream_leases import StreamLeases
from procession.wire.messages import NOTHING_COMMITTED


def check_start(start: int, next_sequence: int) -> None:
    """Raise StorageError if the driver has read more records than the log has."""
    if start > next_sequence:
        raise StorageError(
            f"The driver has read up to record {start}, but this log ends at {next_sequence}.",
            next_step="Restore the gateway's directory: it has fewer records than it had offered.",
        )


def check_end(epoch: int, end: int, offered_end: int) -> None:
    """Raise StorageError if a commit ends after the last offered record."""
    if end > offered_end:
        raise StorageError(
            f"Epoch {epoch} ends at {end}, but no record from {offered_end} on was offered.",
            next_step="Check that driver and gateway belong to the same pipeline.",
        )


def check_positions(positions: Mapping[int, int], registry: Registry, claims: StreamLeases | None) -> None:
    """Raise StorageError if a commit names a message id that was never received. Each gateway checks only the streams
    that it has opened, because no other gateway receives their records. A stream that is only in the log after a
    restart is not checked, because it may have moved."""
    is_alone = claims is None or claims.is_alone
    for stream_id, message_id in positions.items():
        if not is_alone and (claims is None or not claims.has_opened(stream_id)):
            continue
        seen = registry[stream_id].seen if stream_id in registry else registry.committed(stream_id)
        if seen is None and not is_alone:
            continue  # it moved here, and after a restart only its end is known
        if seen is None or message_id > seen:
            received = "none was received" if seen is None else f"the last received id is {seen}"
            raise StorageError(
                f"Message {message_id} of stream {stream_id} was reported as committed, but {received}.",
                next_step="Check that driver and gateway belong to the same pipeline, and restore the gateway's"
                " directory if it was lost.",
            )


def advanced_positions(positions: Mapping[int, int], registry: Registry, *, is_late: bool) -> dict[int, int]:
    """Return the new positions of a commit. Omits streams that were retired with these positions. If the commit is
    repeated, it also omits unknown streams, which have been dropped since."""
    committed = {stream_id: at for stream_id, at in positions.items() if at != NOTHING_COMMITTED}
    away = {stream_id: registry.committed(stream_id) for stream_id in committed if stream_id not in registry}
    old = {stream_id for stream_id, at in away.items() if (is_late if at is None else committed[stream_id] <= at)}
    return {stream_id: at for stream_id, at in committed.items() if stream_id not in old}
