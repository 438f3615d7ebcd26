"""Plausibility: checks a driver's requests against what the gateway knows. Pure.

The one rule: no request makes the gateway lose, skip or invent records. A commit ends where something was offered, and
names only message ids that were received. Before it `gateway/control`, by way of `performer` and `state`; after it the
snapshot, which is written only for requests that have passed.
"""

from __future__ import annotations

from collections.abc import Mapping

from procession.errors import StorageError
from procession.gateway.registry import Registry
from procession.gateway.stream_leases import Claims
from procession.wire.messages import NOTHING_COMMITTED


def check_start(start: int, next_sequence: int) -> None:
    """Raises StorageError if the driver has read more than there is."""
    if start > next_sequence:
        raise StorageError(
            f"The driver has read up to record {start}, but this log ends at {next_sequence}.",
            next_step="Restore the gateway's directory: it has less than it had offered.",
        )


def check_end(epoch: int, end: int, offered_end: int) -> None:
    """Raises StorageError if a commit ends behind all that was ever offered."""
    if end > offered_end:
        raise StorageError(
            f"Epoch {epoch} ends at {end}, but nothing behind {offered_end} was offered.",
            next_step="Check that driver and gateway belong to the same pipeline.",
        )


def check_positions(positions: Mapping[int, int], registry: Registry, claims: Claims | None) -> None:
    """Raise StorageError if a message id was never seen. What came to another gateway is not known here: it is judged
    there. While this gateway holds a stream, nothing of it comes to another one; of a stream that it only found in its
    log after a restart, that is not sure."""
    is_alone = claims is None or claims.is_alone
    for stream_id, message_id in positions.items():
        if not is_alone and (claims is None or not claims.has_opened(stream_id)):
            continue
        seen = registry[stream_id].seen if stream_id in registry else registry.committed(stream_id)
        if seen is None and not is_alone:
            continue  # it came from another gateway, and since a restart only its end is known here
        if seen is None or message_id > seen:
            came = "none came" if seen is None else f"the last that came is {seen}"
            raise StorageError(
                f"Message {message_id} of stream {stream_id} is said to be committed, but {came}.",
                next_step="Check that driver and gateway belong to the same pipeline, and restore the gateway's"
                " directory if it was lost.",
            )


def news_of(positions: Mapping[int, int], registry: Registry, *, is_late: bool) -> dict[int, int]:
    """The positions of a commit that are to be taken up. Not those of streams that were retired with them; nor, if the
    commit is told again, those of streams that are not known: they were, and are forgotten since."""
    told = {stream_id: at for stream_id, at in positions.items() if at != NOTHING_COMMITTED}
    away = {stream_id: registry.committed(stream_id) for stream_id in told if stream_id not in registry}
    old = {stream_id for stream_id, at in away.items() if (is_late if at is None else told[stream_id] <= at)}
    return {stream_id: at for stream_id, at in told.items() if stream_id not in old}
