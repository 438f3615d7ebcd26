"""Starts a pipeline from a savepoint, in another directory.

Invariant: the new directory is complete or absent. It has a new checkpoint id, so that sinks do not confuse its
transactions with those of the original. Fences and attempt numbers continue above those of the savepoint. The input
continues after the savepoint's epoch: a new log begins there, and producers get the committed positions of their
streams. Outputs must be empty, unless the caller wants to continue them; when the driver connects, it refuses a sink
that is not at the expected position.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from procession.commit.checkpoint import PIPELINE, random_id
from procession.commit.round_files import ATTEMPTS, RoundRecords
from procession.deployment.part_arguments import GATEWAY
from procession.errors import ConfigError, UsageError
from procession.gateway.gateway_directory import save_snapshot
from procession.savepoints.savepoint import Savepoint, draft_of, link_all
from procession.storage.driver_claim import CHECKPOINT, CURRENT, checkpoint_of
from procession.storage.durable import make_directory, write_durably
from procession.storage.log import IngressLog
from procession.storage.log_ranges import FIRST_GATEWAY
from procession.storage.secret import make_pipeline_private


def restore(savepoint: Savepoint, to: Path, *, continues_outputs: bool) -> str:
    """Create a pipeline's directory that continues from this savepoint. Return its checkpoint id. Raises StorageError
    if the savepoint is damaged, UsageError if the directory exists, ConfigError for a pipeline in event-time
    order."""
    if to.exists():
        raise UsageError(f"{to} exists already.", next_step="Name a new directory for the restored pipeline.")
    snapshot = savepoint.snapshot
    if snapshot.point is not None:
        raise ConfigError(
            f"The pipeline of savepoint {savepoint.manifest['name']!r} is in event-time order: records that wait for"
            " their turn are in its log, which a savepoint does not contain.",
            next_step="Restore a copy of the whole directory instead: docs/how-to/backup.md.",
        )
    if not savepoint.manifest["has_streams"] and any(savepoint.record.offsets.values()):
        raise ConfigError(
            "The first gateway of the pipeline was on another machine, so the savepoint does not know which records of"
            " its streams are committed.",
            next_step="Restore a copy of all directories instead: docs/how-to/backup.md.",
        )
    savepoint.verify()
    checkpoint_id = random_id()
    with draft_of(to) as draft:
        make_pipeline_private(draft)
        for folder in ("state", "sides"):
            names = [name.partition("/")[2] for name in savepoint.manifest["files"] if name.startswith(f"{folder}/")]
            if names:
                link_all(savepoint.directory / folder, draft / folder / checkpoint_id, names)
        make_directory(draft / GATEWAY)
        save_snapshot(draft / GATEWAY, snapshot)
        for path in (savepoint.directory / GATEWAY).glob("retired-*"):
            write_durably(draft / GATEWAY / path.name, path.read_bytes())
        with IngressLog(draft / GATEWAY / "log", committed_end=snapshot.end_sequence) as log:
            begins = log.offset(snapshot.end_sequence).as_json()
        record = savepoint.record
        record = replace(
            record, acknowledged=record.epoch, parts=record.parts if continues_outputs else {}, positions={}
        )
        checkpoint = checkpoint_of(draft)
        make_directory(checkpoint)
        copy = checkpoint / f"{record.fence:010d}"
        for folder in ("offsets", "commits", "rounds"):
            make_directory(copy / folder)
        for name in savepoint.manifest["files"]:
            folder, _, number = name.removeprefix(f"{CHECKPOINT}/").partition("/")
            if folder in ("offsets", "commits"):
                data = (savepoint.directory / name).read_bytes()
                if folder == "offsets" and int(number) == record.epoch:
                    *head, last = data.decode().splitlines()
                    offsets = json.loads(last)
                    offsets = offsets | {FIRST_GATEWAY: begins} if FIRST_GATEWAY in offsets else offsets
                    data = "\n".join([*head, json.dumps(offsets)]).encode()
                write_durably(copy / folder / number, data)
            elif folder in (ATTEMPTS, "metadata"):
                write_durably(copy / folder, (savepoint.directory / name).read_bytes())
        RoundRecords(copy / "rounds").write(record)
        write_durably(checkpoint / PIPELINE, json.dumps({**savepoint.pipeline, "id": checkpoint_id}).encode())
        write_durably(checkpoint / CURRENT, f"{record.fence}\n".encode())
    return checkpoint_id
