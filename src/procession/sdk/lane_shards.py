"""Shards of a merger: each of several mergers emits the records of its own keys, in order.

Invariant: a key is always in the same shard, by the same hash that splits keys over the connections of a sink. If the
lanes were written by key (`order="key"`) and the number of shards divides the number of lanes, a merger reads only the
lanes of its shard; otherwise it reads all lanes and skips the other keys. Used by `sdk/lane_merge`. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from procession.errors import UsageError
from procession.operators.partitioning import split_by_key
from procession.wire.lane_blocks import LaneIdentity

_SHARD = re.compile(r"([0-9]{1,4})/([1-9][0-9]{0,3})")


@dataclass(frozen=True, slots=True)
class KeyShard:
    """Shard `number`, counted from 0, of `count` shards."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> KeyShard:
        """Parse a shard such as `1/4`. Raises UsageError."""
        match = _SHARD.fullmatch(text)
        if match is None or int(match[1]) >= int(match[2]):
            raise UsageError(
                f"{text!r} is not a shard.", next_step="Write the shard and the number of shards: 0/4 to 3/4."
            )
        return cls(int(match[1]), int(match[2]))

    def is_in(self, identity: LaneIdentity) -> bool:
        """Whether a lane may have records of this shard."""
        return not self._is_split(identity) or any(lane % self.count == self.number for lane in identity.covers)

    def lanes(self, identity: LaneIdentity, lanes: Iterable[int]) -> set[int]:
        """Return the lanes among `lanes` that may have records of this shard."""
        return {lane for lane in lanes if not self._is_split(identity) or lane % self.count == self.number}

    def _is_split(self, identity: LaneIdentity) -> bool:
        return identity.order == "key" and identity.lanes % self.count == 0

    def filtered(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of this shard, in their order."""
        keys = pc.fill_null(rows.column("key"), b"")
        for bucket, indexes in split_by_key(keys, self.count):
            if bucket == self.number:
                return rows if len(indexes) == rows.num_rows else rows.take(pa.array(indexes))
        return rows.slice(0, 0)
