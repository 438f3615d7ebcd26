"""The transaction: its name says whose it is, and can be read back.

The one rule: a name is used for one content only. It carries the pipeline's id, the fence of the driver and the
attempt, so that none of them can repeat one; then `:c_id=<epoch>`, the shape that existing sinks know. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SHAPE = re.compile(
    r"(?P<pipeline>[^:]+)-w-(?P<sink>[^:]+)-id-(?P<checkpoint>[0-9a-f]+)\.(?P<fence>\d+)\.(?P<attempt>\d+):c_id=(?P<epoch>\d+)"
)


@dataclass(frozen=True, order=True)
class Transaction:
    """One attempt of one driver to bring one epoch to one sink."""

    epoch: int
    fence: int
    attempt: int
    checkpoint: str
    pipeline: str
    sink: str

    def __str__(self) -> str:
        number = f"{self.checkpoint}.{self.fence}.{self.attempt}"
        return f"{self.pipeline}-w-{self.sink}-id-{number}:c_id={self.epoch}"

    @classmethod
    def parse(cls, text: str) -> Transaction | None:
        """The transaction of this name; None if the name is not of our shape."""
        match = SHAPE.fullmatch(text)
        if match is None:
            return None
        return cls(
            epoch=int(match["epoch"]),
            fence=int(match["fence"]),
            attempt=int(match["attempt"]),
            checkpoint=match["checkpoint"],
            pipeline=match["pipeline"],
            sink=match["sink"],
        )
