"""Fences: which driver has claimed the pipeline last, as its checkpoint says.

The one rule: a gateway raises its fence only to one that a driver has claimed; else a number from nowhere would shut
out every driver to come. Before it: `performer`, when somebody names a fence that is new. After it: the snapshot.
"""

from __future__ import annotations

from pathlib import Path

from procession.errors import ConfigError
from procession.storage.driver_claim import read_claim


def check_claimed(fence: int, checkpoint: Path | None) -> None:
    """Raise ConfigError if no driver has claimed this fence in the checkpoint. None: the checkpoint is elsewhere."""
    if checkpoint is None:
        return
    claimed = read_claim(checkpoint)
    if fence > claimed:
        raise ConfigError(
            f"Driver {fence} has not claimed the checkpoint {checkpoint}, whose last driver is {claimed}.",
            next_step="Start the driver with the --dir in which this gateway's directory is.",
        )
