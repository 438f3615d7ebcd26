"""Deduplication of many records at once gives the same result as one record at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.errors import RemoteProtocolError
from procession.gateway.dedupe import fresh
from procession.gateway.log_rows import LogTail
from procession.gateway.registry import Registry
from procession.gateway.snapshot import Position
from procession.wire.messages import NOTHING_COMMITTED

STREAMS = (7, 8, 9)
position = st.one_of(st.none(), st.integers(0, 12))
ids = st.one_of(st.integers(0, 15), st.integers(0, 15), st.sampled_from([NOTHING_COMMITTED - 1, NOTHING_COMMITTED]))


@st.composite
def registries(draw: st.DrawFn) -> Registry:
    """Generate registries as in the middle of a session: streams that are committed, were seen before, or were seen in
    it."""
    registry = Registry({}, LogTail())
    for stream_id in STREAMS:
        stream = registry.get_or_add(stream_id)
        committed, before, since = draw(position), draw(position), draw(position)
        if committed is not None:
            stream.commit(committed)
        stream.seen = max((at for at in (committed, before) if at is not None), default=None)
        stream.open(1, "s")
        stream.seen = max((at for at in (stream.seen, since) if at is not None), default=None)
    return registry


def one_by_one(records: list[tuple[int, int]], registry: Registry) -> tuple[list[bool], dict[int, int], str | None]:
    mask: list[bool] = []
    lasts: dict[int, int] = {}
    try:
        for stream_id, message_id in records:
            is_fresh = registry[stream_id].is_fresh(message_id)
            mask.append(is_fresh)
            if is_fresh:
                registry[stream_id].seen = lasts[stream_id] = message_id
    except RemoteProtocolError as error:
        return mask, lasts, error.sentence
    return mask, lasts, None


@settings(max_examples=1000)
@given(st.lists(st.tuples(st.sampled_from(STREAMS), ids), max_size=12), st.booleans(), st.booleans(), registries())
def test_many_records_at_once_are_deduplicated_as_one_by_one(
    records: list[tuple[int, int]], is_sorted: bool, is_one: bool, registry: Registry
) -> None:
    if is_sorted:
        records = sorted(records, key=lambda record: record[1])
    if is_one:
        records = [(7, message_id) for _, message_id in records]
    stream_ids, message_ids = (np.array([record[at] for record in records], np.uint64) for at in (0, 1))
    judged = fresh(stream_ids, message_ids, registry)
    assert (judged.mask.tolist(), judged.last_ids, judged.error) == one_by_one(records, registry)


def test_deduplication_does_not_change_the_registry() -> None:
    registry = Registry({7: Position("s", 3)}, LogTail())
    registry[7].open(1, "s")
    assert fresh(np.array([7], np.uint64), np.array([5], np.uint64), registry).last_ids == {7: 5}
    assert registry[7].seen == 3
