"""Fences: which driver has claimed the pipeline last, according to its checkpoint.

The one rule: a gateway accepts only fences that a driver has claimed; otherwise an invented number would lock out every
later driver. Before it `gateway/performer`, when a request names a new fence; after it the snapshot.
"""

from __future__ import annotations

from pathlib import Path

from procession.errors import ConfigError
from procession.storage.driver_claim import read_claim


def is_claimed(checkpoint: Path | None) -> bool:
    """Whether a driver has ever claimed the checkpoint, and so may have been offered records. None: the checkpoint is
    elsewhere, and nothing is known of it here."""
    return checkpoint is not None and read_claim(checkpoint) > 0


def check_claimed(fence: int, checkpoint: Path | None) -> None:
    """Raises ConfigError if no driver has claimed this fence. `checkpoint` is None if it is on another machine."""
    if checkpoint is None:
        return
    claimed = read_claim(checkpoint)
    if fence > claimed:
        raise ConfigError(
            f"Driver {fence} has not claimed the checkpoint {checkpoint}, whose last driver is {claimed}.",
            next_step="Start the driver with the --dir in which this gateway's directory is.",
        )
