"""Creates savepoints of a running or stopped pipeline.

Invariant: a savepoint is built in a draft, and becomes valid by one rename. Only one process at a time creates or
drops savepoints of a pipeline; it removes the drafts of a killed process, because their links keep files. The driver
is not involved. If an epoch is committed meanwhile and a file is deleted, the next epoch is used instead. With
`keep_input`, the log of the gateway is pinned before the epoch is chosen (`gateway/input_pins`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from procession.commit.checkpoint import PIPELINE, read_pipeline
from procession.commit.round_files import ATTEMPTS, RoundRecords
from procession.commit.round_record import RoundRecord
from procession.commit.spark_log import SparkLog, is_whole
from procession.deployment.part_arguments import GATEWAY
from procession.deployment.run_details import read_details
from procession.driver.table_versions import FIRST
from procession.errors import ConfigError, UsageError
from procession.gateway import retired_file
from procession.gateway.gateway_directory import SNAPSHOT, load_snapshot
from procession.gateway.input_pins import BYTES_MAX, InputPin, InputPins
from procession.gateway.snapshot import Position, Snapshot, encode_snapshot
from procession.runtime.host_files import HOST_FILES
from procession.savepoints.savepoint import (
    DRAFT,
    FOLDER,
    FORMAT,
    MANIFEST,
    TRIAL,
    Savepoint,
    check_name,
    damaged,
    folder_locked,
    gateway_directories,
    link_all,
    remove_tree,
)
from procession.storage.driver_claim import CHECKPOINT, checkpoint_of
from procession.storage.durable import fsync_dir, make_directory, write_durably
from procession.verify.decisions import TRIES, DecisionReader

RETAINED_EPOCHS = 2
"""Number of epochs to keep. Spark continues from the last epoch only if the previous one exists, too."""
CHANGE_S = 0.05
"""Pause before the next try while epochs are committed faster than files are linked."""
REPLAYED = "replayed.json"
"""File in a gateway's directory: the position up to which records are processed again after a rollback."""


def create(directory: Path, name: str, *, keep_input: bool = False, keep_input_bytes_max: int = BYTES_MAX) -> Savepoint:
    """Create a savepoint of the last committed epoch of the pipeline in this directory, whether it runs or not. With
    `keep_input`, records that are committed later stay in the log, up to `keep_input_bytes_max` bytes. Raises
    UsageError if the name is taken or invalid, ConfigError if no epoch is committed yet."""
    check_name(directory, name)
    with folder_locked(directory):
        check_name(directory, name)
        if keep_input:
            _pin(directory, name, keep_input_bytes_max)
        try:
            return _created(directory, name)
        except BaseException:
            for path in gateway_directories(directory).values():
                InputPins(path).drop(name)
            raise


@contextmanager
def trial(directory: Path) -> Iterator[Savepoint]:
    """Yield a savepoint of the last committed epoch without a name, which exists during the block. If the process is
    killed, the next process that creates a savepoint or runs the pipeline removes it."""
    name = f"{uuid.uuid4().hex}{TRIAL}"
    with folder_locked(directory):
        made = _created(directory, name)
        held = HOST_FILES.lock(made.directory)
    with closing(held):
        try:
            yield made
        finally:
            remove_tree(made.directory)


def _pin(directory: Path, name: str, bytes_max: int) -> None:
    """Keep the input from the current positions on, in the logs of all gateways. The savepoint's epoch is at these
    positions or later."""
    gateways = gateway_directories(directory)
    record = DecisionReader(checkpoint_of(directory)).last()
    if record is not None and (elsewhere := sorted(set(record.offsets) - gateways.keys())):
        raise ConfigError(
            f"The input cannot be kept: the log of {elsewhere[0]} is on another machine.",
            next_step="Make the savepoint without --keep-input.",
        )
    for path in gateways.values():
        snapshot = load_snapshot(path)
        InputPins(path).write(InputPin(name, 0 if snapshot is None else snapshot.end_sequence, bytes_max))


def _created(directory: Path, name: str) -> Savepoint:
    target = directory / FOLDER / name
    reader = DecisionReader(checkpoint_of(directory))
    draft = target.with_name(f"{name}{DRAFT}")
    for _ in range(TRIES):
        before = reader.copy(), reader.last()
        try:
            manifest = _filled(directory, draft, name, reader.id)
            break
        except FileNotFoundError as error:
            if (reader.copy(), reader.last()) == before:
                remove_tree(draft)
                raise damaged(directory, f"{error.filename} is missing") from error
            time.sleep(CHANGE_S)
        except BaseException:
            remove_tree(draft)
            raise
    else:
        remove_tree(draft)
        raise ConfigError(f"The files in {directory} change faster than they can be linked.", next_step="Try again.")
    write_durably(draft / MANIFEST, json.dumps(manifest).encode())
    try:
        draft.rename(target)
    except OSError as error:
        remove_tree(draft)
        raise UsageError(f"There is a savepoint {name!r} already.", next_step="Choose another name.") from error
    fsync_dir(target.parent)
    return Savepoint(target, manifest)


def marked_end(path: Path) -> int:
    """Return the position in the log that a rollback has written to this file, such as `REPLAYED`. 0 if there is
    none."""
    try:
        return int(json.loads(path.read_bytes())["end"])
    except FileNotFoundError:
        return 0


def _is_replaying(directory: Path, record: RoundRecord) -> bool:
    """Return whether records are being processed again after a rollback: the gateways' positions are ahead of the
    round."""
    return any(
        record.offsets.get(name, 0) < marked_end(path / REPLAYED)
        for name, path in gateway_directories(directory).items()
    )


def _filled(directory: Path, draft: Path, name: str, checkpoint_id: str) -> dict[str, Any]:
    """Fill the draft with the last committed epoch. Raises FileNotFoundError if a file is deleted meanwhile."""
    remove_tree(draft)
    make_directory(draft)
    # Read the positions before the round, so that no stream's position is after the round.
    gateways = [load_snapshot(path) for path in gateway_directories(directory).values()]
    retired = _retired(directory, gateways)
    copy = DecisionReader(checkpoint_of(directory)).copy()
    log = SparkLog(copy)
    record = RoundRecords(copy / "rounds").read(log.committed) if log.committed >= 0 else None
    if record is None:
        raise ConfigError(
            "No epoch of this pipeline is committed yet, so there is nothing to save.",
            next_step="Make the savepoint after the first commit.",
        )
    if any(snapshot is not None and snapshot.epoch > record.epoch for snapshot in gateways):
        raise FileNotFoundError(errno.ENOENT, "a later epoch is committed", str(copy))
    small = _spark_files(copy, record.epoch)
    small |= {f"{CHECKPOINT}/{PIPELINE}": (checkpoint_of(directory) / PIPELINE).read_bytes()}
    small |= {f"gateway/{file}": data for file, data in retired.items()}
    positions = RoundRecords(copy / "rounds").positions(record.epoch)
    small |= {f"gateway/{SNAPSHOT}": encode_snapshot(_joined(gateways, record, positions))}
    first = directory / "sides" / checkpoint_id / FIRST
    tables = {*record.sides.values()}
    if first.exists():
        small[f"sides/{FIRST}"] = first.read_bytes()
        tables |= set(json.loads(small[f"sides/{FIRST}"]).get("tables", {}).values())
    for path, data in small.items():
        make_directory((draft / path).parent)
        write_durably(draft / path, data)
    linked = {"state": {file for version in record.states.values() for file in version.names}, "sides": tables}
    for folder, names in linked.items():
        link_all(directory / folder / checkpoint_id, draft / folder, names)
    files: dict[str, dict[str, Any]] = {
        path: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for path, data in small.items()
    }
    for folder, names in linked.items():
        files |= {f"{folder}/{file}": {"bytes": (draft / folder / file).stat().st_size} for file in sorted(names)}
    return {
        "format": FORMAT,
        "name": name,
        "created_s": time.time(),
        "pipeline": read_pipeline(checkpoint_of(directory))["name"],
        "checkpoint_id": checkpoint_id,
        "epoch": record.epoch,
        "records_in": record.counters.get("records_in", 0),
        "has_streams": gateways[0] is not None and not _is_replaying(directory, record),
        "sink_places": read_details(directory).get("sink_places", {}),
        "log_positions": dict(record.offsets),
        "sinks": {sink: part.end for sink, part in record.parts.items()},
        "stages": {stage: version.kind for stage, version in record.states.items()},
        "files": files,
    }


def _spark_files(copy: Path, epoch: int) -> dict[str, bytes]:
    """Return the files of a checkpoint copy that a driver needs to continue after this epoch."""
    found: dict[str, bytes] = {}
    for number in range(max(0, epoch - RETAINED_EPOCHS + 1), epoch + 1):
        for part in ("offsets", "commits"):
            path = copy / part / str(number)
            if number == epoch and not is_whole(path):
                raise FileNotFoundError(errno.ENOENT, "it is gone", str(path))
            if path.exists():
                found[f"{CHECKPOINT}/{part}/{number}"] = path.read_bytes()
        path = copy / "rounds" / f"{number:020d}"
        if path.exists():
            found[f"{CHECKPOINT}/rounds/{path.name}"] = path.read_bytes()
    found |= {
        f"{CHECKPOINT}/{name}": (copy / name).read_bytes() for name in (ATTEMPTS, "metadata") if (copy / name).exists()
    }
    return found


def _retired(directory: Path, gateways: Iterable[Snapshot | None]) -> dict[str, bytes]:
    """Return the files of retired streams, by name. Only the first gateway's files are stored, because streams retire
    there."""
    first = next(iter(gateways))
    if first is None or first.retired is None:
        return {}
    path = retired_file.path_of(directory / GATEWAY, first.retired.number)
    return {path.name: path.read_bytes()}


def _joined(gateways: Iterable[Snapshot | None], record: RoundRecord, positions: Mapping[int, int]) -> Snapshot:
    """Return a snapshot for one gateway with the committed positions of all gateways' streams after this round."""
    found = [snapshot for snapshot in gateways if snapshot is not None]
    streams: dict[int, Position] = {}
    for snapshot in found:
        for stream_id, at in snapshot.streams.items():
            known = streams.get(stream_id)
            if known is None or at.committed > known.committed:
                streams[stream_id] = Position(at.name or (known.name if known else ""), at.committed)
    for stream_id, committed in positions.items():
        streams[stream_id] = Position(streams[stream_id].name if stream_id in streams else "", committed)
    end = record.offsets.get(f"{GATEWAY}-0", 0)
    first = found[0] if found else Snapshot()
    return Snapshot(record.fence, record.epoch, end, end, streams, first.point, first.clocks, first.retired)
