"""Deduplication: finds the new records among many received ones, on whole columns. Pure.

Invariant: the result is the same as that of `RegisteredStream.is_fresh` record by record. The records before an error
count. This module changes nothing: `gateway/state` updates the streams.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from procession.gateway.registry import RegisteredStream, Registry, reserved, went_back
from procession.wire.messages import NOTHING_COMMITTED, Ids


class FreshMessages(NamedTuple):
    mask: npt.NDArray[np.bool_]
    """Whether each record is new. After an error, only the records before it have a value."""
    last_ids: dict[int, int]
    """The last new id of each stream."""
    error: str | None = None


def fresh(stream_ids: Ids, message_ids: Ids, registry: Registry) -> FreshMessages:
    """Find the new records, in the order of their arrival. Every stream must be known."""
    is_one = len(stream_ids) > 0 and bool((stream_ids == stream_ids[0]).all())
    if is_one and _is_all_new(registry[int(stream_ids[0])], message_ids):
        return FreshMessages(np.ones(len(message_ids), np.bool_), {int(stream_ids[0]): int(message_ids[-1])})
    return _judge(stream_ids, message_ids, registry)


def _is_all_new(stream: RegisteredStream, ids: Ids) -> bool:
    """Whether all ids are new in one stream, which is the usual, fast case."""
    return (
        int(ids[0]) >= max(stream.floor, stream.next_id)
        and bool((ids[1:] > ids[:-1]).all())
        and int(ids[-1]) != NOTHING_COMMITTED
    )


def _judge(stream_ids: Ids, message_ids: Ids, registry: Registry) -> FreshMessages:
    # The records of each stream are side by side, in their order.
    order = np.argsort(stream_ids, kind="stable")
    ids = message_ids[order]
    distinct, numbers = np.unique(stream_ids[order], return_inverse=True)
    streams = [registry[stream_id] for stream_id in distinct.tolist()]
    floors = np.array([stream.floor for stream in streams], np.uint64)
    nexts = np.array([stream.next_id for stream in streams], np.uint64)

    is_new = ids >= floors[numbers]
    new, of = ids[is_new], numbers[is_new]
    # The minimum of each new id: the previous id plus one, or the next id that its stream expects.
    starts = np.flatnonzero(np.diff(of, prepend=-1))
    least = np.empty_like(new)
    least[1:] = new[:-1] + np.uint64(1)
    least[starts] = nexts[of[starts]]
    is_bad = (new < least) | (new == NOTHING_COMMITTED)
    if is_bad.any():
        row = int(order[is_new][is_bad].min())
        stream_id = int(stream_ids[row])
        error = reserved(stream_id) if message_ids[row] == NOTHING_COMMITTED else went_back(stream_id)
        return _judge(stream_ids[:row], message_ids[:row], registry)._replace(error=error.sentence)
    mask = np.empty(len(ids), np.bool_)
    mask[order] = is_new
    ends = np.append(starts[1:], len(new))[: len(starts)] - 1
    lasts = zip(distinct[of[ends]].tolist(), new[ends].tolist(), strict=True)
    return FreshMessages(mask, dict(lasts))
