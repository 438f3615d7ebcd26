"""Changes a checkpoint's last committed round record and its description of the pipeline, for an upgrade or a rollback.

Invariant: the change is atomic and fenced. A change claims a fence, so that no earlier driver can commit any more, and
holds the checkpoint's lock until the change is complete. The changed round record is in the new copy of the checkpoint,
which becomes valid by one rename. The changed `pipeline.json` is in `CHANGE` before that rename; the next claim
finishes a change whose copy is complete, and discards one whose copy is not. Fences and attempt numbers never go back.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from procession.commit.abandoned_gateways import abandoned_before
from procession.commit.checkpoint import Checkpoint, finish_change, read_pipeline
from procession.commit.round_record import RoundRecord
from procession.errors import ConfigError
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.storage.driver_claim import CURRENT, lock_checkpoint, read_claim
from procession.storage.durable import write_durably

Change = Callable[[Checkpoint, dict[str, Any], RoundRecord], tuple[dict[str, Any], RoundRecord]]
"""Takes the new copy, the content of `pipeline.json` and the last committed record. Returns the new versions of both.
If it raises, only the fence changes."""


def change_checkpoint(
    root: Path, change: Change, offsets: bytes | None = None, files: FileSystem = HOST_FILES
) -> Checkpoint:
    """Fence off every earlier driver, and change the checkpoint. If `offsets` are given, also replaces Spark's offsets
    of the last committed epoch. Raises ConfigError if no epoch is committed."""
    with closing(lock_checkpoint(root, files)):
        finish_change(root, files)
        document = read_pipeline(root, files)
        checkpoint = Checkpoint(root, str(document["id"]), read_claim(root, files) + 1, files)
        places = checkpoint.places
        places.renew()
        write_durably(root / CURRENT, f"{checkpoint.fence}\n".encode(), files)

        def changed(last: RoundRecord | None) -> tuple[dict[str, Any], RoundRecord]:
            if last is None:
                raise ConfigError(
                    "No epoch of this pipeline is committed yet.", next_step="Start it with `procession run`."
                )
            made, record = change(checkpoint, document, last)
            return made, replace(record, epoch=last.epoch)

        checkpoint.copy_last(abandoned_before(places.abandoned, checkpoint.fence), changed, offsets)
        checkpoint.log.check()
        finish_change(root, files)
    return checkpoint
