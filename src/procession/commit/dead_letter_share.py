"""Dead letters: counts them over the life of a checkpoint, and stops the pipeline if there are too many.

Invariant: dead letters are counted in the round record, so the count is exact over crashes and restarts. Their share is
computed over blocks of epochs with at least `records_min` records. The epoch that completes a block above the limit is
not committed, so its records are processed again at the next start. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from procession.errors import PlanError

DEAD_LETTERS = "dead_letters"
BLOCK_RECORDS = "block_records"
BLOCK_DEAD_LETTERS = "block_dead_letters"

OWN = frozenset({DEAD_LETTERS, BLOCK_RECORDS, BLOCK_DEAD_LETTERS})
"""Counters that are omitted while they are 0."""


@dataclass(frozen=True)
class DeadLetterLimit:
    """Maximum share of the records that may become dead letters. 1.0 allows all of them."""

    sink: str
    share_max: float = 0.5
    records_min: int = 1000

    def is_over(self, records: int, letters: int) -> bool:
        # After a flat_map, one record can cause several dead letters; the share is at most 1.
        return min(letters, records) > self.share_max * records


def judged(
    before: Mapping[str, int],
    counters: Mapping[str, int],
    limit: DeadLetterLimit,
    letters: int,
    first_letter: Callable[[], bytes],
) -> dict[str, int]:
    """Add the epoch's dead letters to these counters; `before` are the counters of the previous epoch. Raises PlanError
    if there are too many."""
    found = {**counters, DEAD_LETTERS: before.get(DEAD_LETTERS, 0) + letters}
    records = before.get(BLOCK_RECORDS, 0) + counters["records_in"] - before.get("records_in", 0)
    letters += before.get(BLOCK_DEAD_LETTERS, 0)
    if records >= limit.records_min:
        if limit.is_over(records, letters):
            raise _too_many(limit, records, letters, first_letter())
        records = letters = 0
    found |= {BLOCK_RECORDS: records, BLOCK_DEAD_LETTERS: letters}
    return {name: count for name, count in found.items() if count or name not in OWN}


def _too_many(limit: DeadLetterLimit, records: int, letters: int, first: bytes) -> PlanError:
    share = f"{min(letters, records):,} of {records:,} records were set aside as dead letters"
    return PlanError(
        f"{share}, more than the share of {limit.share_max:g} that dead_letter_share_max allows{_reason(first)}",
        next_step="correct the function and start again: nothing of this epoch was committed, and its records are run"
        f" again; dead letters of earlier epochs are in sink {limit.sink!r}. If this many are expected, raise"
        " dead_letter_share_max",
        sink=limit.sink,
        records=records,
        dead_letters=letters,
    )


def _reason(first: bytes) -> str:
    """Return the reason in the epoch's first dead letter, or an empty text if it has another format."""
    try:
        letter = json.loads(first)
        return (
            f"; the first of this epoch: stage {letter['stage']!r} raised {letter['error']} on message"
            f" {letter['message_id']} of stream {letter['stream_id']}"
        )
    except (ValueError, KeyError, TypeError):
        return ""
