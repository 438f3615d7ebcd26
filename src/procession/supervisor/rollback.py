"""Sets a stopped pipeline back to a savepoint, also after later epochs were committed.

Invariant: nothing changes before every check has passed: each sink can remove its later output, and the gateway's log
still has the later input. Then the file `ROLLBACK` in the checkpoint describes the rollback. While it exists, no driver
claims the pipeline. If the command is killed, running it again finishes the work, because each step can be repeated.
Epochs, fences, attempt numbers and positions that were reported to producers never decrease. The last epoch keeps its
number, and gets the states, the offsets and the ends of the savepoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from procession import faults
from procession.commit.checkpoint import ROLLBACK, Checkpoint
from procession.commit.checkpoint_change import change_checkpoint
from procession.commit.round_record import RoundRecord
from procession.commit.spark_log import parse_offsets
from procession.connectors.sink_rollback import SinkPlace, SinkRollback
from procession.driver.driver_reports import EPOCHS
from procession.driver.epoch_log import EpochLog
from procession.errors import ConfigError, ProcessionError
from procession.format_number import check_format
from procession.gateway.confirmation import check_offered
from procession.gateway.gateway_directory import load_snapshot, save_snapshot
from procession.planner.connector_registry import connector_of, load
from procession.storage.driver_claim import checkpoint_of
from procession.storage.durable import fsync_dir, read_if_there, remove, write_durably
from procession.storage.log_ranges import FIRST_GATEWAY, LogOffset
from procession.storage.recovery import recover_log
from procession.storage.segment import SegmentIndex
from procession.supervisor.local_pipeline import GATEWAY
from procession.supervisor.run_details import RunEvents, read_details
from procession.supervisor.savepoint import Savepoint, savepoints
from procession.supervisor.savepoint_create import REPLAYED, replayed_end
from procession.supervisor.upgrade_steps import go_back, link_missing
from procession.verify.decisions import DecisionReader

LEFT = "rolled-back.json"
"""In the pipeline's directory: the savepoints of epochs that a rollback has taken back."""
FORMAT = 1
"""Of that file, of `ROLLBACK` and of `replayed.json`."""
UPGRADE = (
    "Upgrade to a corrected program, or start a second pipeline from the savepoint: `procession savepoint restore`."
)


@dataclass(frozen=True)
class RollbackResult:
    """What a rollback did."""

    epoch: int
    """The epoch of the savepoint."""
    epochs: int
    """Number of committed epochs that it took back."""
    records: int
    """Number of rows of the log that are processed again."""
    sinks: Mapping[str, int]
    """The end of each sink's output, of those that took output back."""


def roll_back(directory: Path, savepoint: Savepoint) -> RollbackResult:
    """Set the pipeline in this directory back. The caller holds its claim. Raises ConfigError if a sink cannot take its
    output back, or if the input is gone; it names the sinks and the streams."""
    reader = DecisionReader(checkpoint_of(directory))
    if savepoint.manifest["checkpoint_id"] != reader.id:
        raise ConfigError(
            f"Savepoint {savepoint.manifest['name']!r} is of another pipeline.",
            next_step="Restore it into a directory of its own: `procession savepoint restore`.",
        )
    begun = _begun(directory, savepoint)
    if not begun and _mark(savepoint) in _left(directory):
        raise ConfigError(
            f"Savepoint {savepoint.manifest['name']!r} was made in epochs that were rolled back since.",
            next_step="Start a second pipeline from it: `procession savepoint restore`.",
        )
    last = reader.last()
    assert last is not None  # a savepoint needs a committed epoch
    if last.epoch == savepoint.epoch and not begun:
        go_back(directory, savepoint)
        return RollbackResult(savepoint.epoch, 0, 0, {})
    return _Rollback(directory, savepoint, last).perform()


@dataclass(frozen=True)
class _FoundLog:
    """A log as its files are, without opening it."""

    segments: Sequence[SegmentIndex]

    @property
    def start_sequence(self) -> int:
        return self.segments[0].base if self.segments else 0

    @property
    def next_sequence(self) -> int:
        return self.segments[-1].end if self.segments else 0

    def offset(self, sequence: int) -> LogOffset:
        segment = next(segment for segment in reversed(self.segments) if segment.base <= sequence)
        return LogOffset(sequence, f"{segment.header.incarnation:016x}", f"{segment.checksum_at(sequence):016x}")


class _Rollback:
    """A rollback behind committed epochs."""

    def __init__(self, directory: Path, savepoint: Savepoint, last: RoundRecord) -> None:
        self._directory = directory
        self._gateway = directory / GATEWAY
        self._savepoint = savepoint
        self._saved = savepoint.record
        self._last = last
        path = checkpoint_of(savepoint.directory) / "offsets" / str(savepoint.epoch)
        self._offsets = path.read_bytes()
        self._from: LogOffset = parse_offsets(self._offsets, path).get(FIRST_GATEWAY, LogOffset())

    def perform(self) -> RollbackResult:
        problems: list[str] = []
        sinks = self._sinks(problems)
        self._check_input(problems)
        if problems:
            epochs = f"Epochs {self._savepoint.epoch + 1:,} to {self._last.epoch:,}"
            raise ConfigError(
                f"{epochs} were committed after savepoint {self._savepoint.manifest['name']!r}, and cannot be taken"
                f" back: {'; '.join(problems)}.",
                next_step=UPGRADE,
            )
        self._savepoint.verify()
        self._begin()
        checkpoint = self._change()
        faults.point("rollback:after-checkpoint")
        records = self._set_log_back()
        faults.point("rollback:after-gateway")
        ends = {}
        for name, sink in sinks.items():
            part = self._saved.parts.get(name)
            ends[name] = 0 if part is None else part.end
            sink.perform(ends[name], "" if part is None else part.txn)
            faults.point("rollback:after-sink")
        record = checkpoint.rounds.read(self._last.epoch)
        assert record is not None
        EpochLog(self._directory / EPOCHS, checkpoint=checkpoint.id).rolled_back(record, self._savepoint.epoch)
        name = self._savepoint.manifest["name"]
        RunEvents(self._directory).add("run.rolled_back", "run", f"was rolled back to savepoint {name!r}")
        faults.point("rollback:before-end")
        remove(checkpoint_of(self._directory) / ROLLBACK)
        fsync_dir(checkpoint_of(self._directory))
        return RollbackResult(self._savepoint.epoch, self._last.epoch - self._savepoint.epoch, records, ends)

    # --- checks

    def _sinks(self, problems: list[str]) -> dict[str, SinkRollback]:
        """The sinks that have later output. Those that only the savepoint has must be where it left them."""
        places = {
            **self._savepoint.manifest.get("sink_places", {}),
            **read_details(self._directory).get("sink_places", {}),
        }
        found: dict[str, SinkRollback] = {}
        for name in dict.fromkeys([*self._last.parts, *self._saved.parts]):
            document = places.get(name)
            connector = None if document is None else connector_of(document["url"])
            traits = None if connector is None else connector.sink
            if document is None:
                problems.append(f"where sink {name!r} writes is not known here")
            elif traits is None or not traits.rollback:
                problems.append(
                    f"sink {name!r} ({connector.name if connector else document['url']}) cannot take output back"
                )
            else:
                part = self._saved.parts.get(name)
                try:
                    sink: SinkRollback = load(traits.rollback)(SinkPlace.of(name, document))
                    sink.check(0 if part is None else part.end)
                except ProcessionError as error:
                    problems.append(error.sentence.rstrip("."))
                else:
                    found[name] = sink
        return found

    def _check_input(self, problems: list[str]) -> None:
        snapshot = load_snapshot(self._gateway)
        names = {*self._last.offsets, *self._saved.offsets}
        if snapshot is None:
            problems.append("the log of the gateway is on another machine")
        elif snapshot.point is not None:
            problems.append("the pipeline is in event-time order, and its records would have to be sorted again")
        elif names != {FIRST_GATEWAY}:
            problems.append(f"the records are in the logs of several gateways ({', '.join(sorted(names))})")
        else:
            try:
                check_offered(_FoundLog(recover_log(self._gateway / "log").segments), self._from, GATEWAY)
            except ProcessionError:
                problems.append(
                    f"the later records of {self._streams()} are not in the log any more; `procession savepoint create"
                    " --keep-input` keeps them"
                )

    def _streams(self) -> str:
        """The streams with later records, for the sentence."""
        now, before = load_snapshot(self._gateway), self._savepoint.snapshot.streams
        known = {} if now is None else now.streams
        later = [
            at.name or str(stream)
            for stream, at in known.items()
            if stream not in before or before[stream].committed < at.committed
        ]
        shown = ", ".join(later[:10]) + (f" and {len(later) - 10} more" if len(later) > 10 else "")
        return f"streams {shown}" if later else "all streams"

    # --- steps, each of which can be repeated

    def _begin(self) -> None:
        left = _left(self._directory)
        left |= {_mark(other) for other in savepoints(self._directory) if other.epoch > self._savepoint.epoch}
        write_durably(self._directory / LEFT, json.dumps({"format": FORMAT, "savepoints": sorted(left)}).encode())
        begun = {"format": FORMAT, "savepoint": self._savepoint.manifest["name"], "epoch": self._last.epoch}
        write_durably(checkpoint_of(self._directory) / ROLLBACK, json.dumps(begun).encode())
        faults.point("rollback:begun")

    def _change(self) -> Checkpoint:
        def change(
            checkpoint: Checkpoint, _document: dict[str, Any], last: RoundRecord
        ) -> tuple[dict[str, Any], RoundRecord]:
            for folder in ("state", "sides"):
                link_missing(self._savepoint, folder, self._directory / folder / checkpoint.id)
            return self._savepoint.pipeline, replace(self._saved, acknowledged=last.epoch)

        return change_checkpoint(checkpoint_of(self._directory), change, self._offsets)

    def _set_log_back(self) -> int:
        """Offer the later records again. Their producers keep what they were told: they may have dropped them."""
        snapshot = load_snapshot(self._gateway)
        assert snapshot is not None
        end = max(replayed_end(self._directory), snapshot.end_sequence)
        write_durably(self._gateway / REPLAYED, json.dumps({"format": FORMAT, "end": end}).encode())
        faults.point("rollback:before-snapshot")
        changed = replace(snapshot, epoch=self._last.epoch, end_sequence=self._from.sequence)
        save_snapshot(self._gateway, changed)
        return end - self._from.sequence


def _mark(savepoint: Savepoint) -> tuple[str, float]:
    """Names a savepoint for ever: another one may get the same name."""
    return str(savepoint.manifest["name"]), float(savepoint.manifest["created_s"])


def _left(directory: Path) -> set[tuple[str, float]]:
    data = read_if_there(directory / LEFT)
    if data is None:
        return set()
    document = json.loads(data)
    check_format(directory / LEFT, document.get("format"), FORMAT)
    return {(str(name), float(created_s)) for name, created_s in document["savepoints"]}


def _begun(directory: Path, savepoint: Savepoint) -> bool:
    """Whether a rollback to this savepoint was interrupted. Raises ConfigError if it was to another one."""
    data = read_if_there(checkpoint_of(directory) / ROLLBACK)
    if data is None:
        return False
    name = json.loads(data)["savepoint"]
    if name != savepoint.manifest["name"]:
        raise ConfigError(
            f"A rollback to savepoint {name!r} was interrupted.", next_step=f"Finish it: procession rollback {name}."
        )
    return True
