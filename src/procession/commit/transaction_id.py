"""Transaction ids: each names its pipeline, sink, driver and epoch, and can be parsed.

Invariant: an id is used for one content only. It carries the pipeline's id, the epoch and the fence of the driver, then
`:c_id=<attempt>`. The attempt number grows with every attempt and never repeats at a sink, over all drivers, because
existing sinks have rules such as `:c_id=3` that mean one attempt. Ids of the older form, with the epoch after `:c_id=`,
are still parsed, because a sink may hold one. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SHAPE = re.compile(
    r"(?P<pipeline>[^:]+)-w-(?P<sink>[^:]+)-id-(?P<checkpoint>[0-9a-f]+)"
    r"\.e(?P<epoch>\d+)\.f(?P<fence>\d+):c_id=(?P<attempt>\d+)"
)
SHAPE_BEFORE = re.compile(
    r"(?P<pipeline>[^:]+)-w-(?P<sink>[^:]+)-id-(?P<checkpoint>[0-9a-f]+)"
    r"\.(?P<fence>\d+)\.(?P<attempt>\d+):c_id=(?P<epoch>\d+)"
)


@dataclass(frozen=True, order=True)
class TransactionId:
    """Identifies one attempt of a driver to send an epoch to a sink."""

    epoch: int
    fence: int
    attempt: int
    checkpoint: str
    pipeline: str
    sink: str
    has_old_form: bool = False

    def __str__(self) -> str:
        prefix = f"{self.pipeline}-w-{self.sink}-id-{self.checkpoint}"
        if self.has_old_form:
            return f"{prefix}.{self.fence}.{self.attempt}:c_id={self.epoch}"
        return f"{prefix}.e{self.epoch}.f{self.fence}:c_id={self.attempt}"

    @classmethod
    def parse(cls, text: str) -> TransactionId | None:
        """Parse the name of a transaction. Returns None if the name has another form."""
        match = SHAPE.fullmatch(text) or SHAPE_BEFORE.fullmatch(text)
        if match is None:
            return None
        return cls(
            epoch=int(match["epoch"]),
            fence=int(match["fence"]),
            attempt=int(match["attempt"]),
            checkpoint=match["checkpoint"],
            pipeline=match["pipeline"],
            sink=match["sink"],
            has_old_form=match.re is SHAPE_BEFORE,
        )
