"""Rolls a stopped pipeline back to a savepoint, even after later epochs were committed.

Invariant: nothing changes before every check has passed: each sink can remove its later output, and the later input is
available again (`savepoints/rollback_input`). Then the file `ROLLBACK` in the checkpoint describes the rollback. While
it exists, no driver claims the pipeline. If the command is killed, running it again finishes the work, because each
step can be repeated. Epochs, fences, attempt numbers and sequence numbers never decrease. The last epoch keeps its
number, and gets the states and the ends of the savepoint.
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
from procession.connectors.sink_rollback import SinkPlace, SinkRollback
from procession.deployment.run_details import RunEvents, read_details
from procession.driver.driver_reports import EPOCHS
from procession.driver.epoch_log import EpochLog
from procession.errors import ConfigError, ProcessionError
from procession.format_number import check_format
from procession.planner.connector_registry import connector_of, load
from procession.savepoints.rollback_input import FORMAT as LEFT_FORMAT
from procession.savepoints.rollback_input import InputAgain, KeptInput, LaterInput, RewoundInput, possible
from procession.savepoints.savepoint import Savepoint, savepoints
from procession.savepoints.upgrade_steps import go_back, link_missing
from procession.storage.driver_claim import checkpoint_of
from procession.storage.durable import fsync_dir, read_if_there, remove, write_durably
from procession.verify.decisions import DecisionReader

LEFT = "rolled-back.json"
"""File in the pipeline's directory: savepoints of epochs that a rollback has undone."""
FORMAT = 2
"""Format of `ROLLBACK`. Format 1 has no field for the origin of the input, which is then the log."""
UPGRADE = (
    "Upgrade to a corrected program, or start a second pipeline from the savepoint: `procession savepoint restore`."
)


@dataclass(frozen=True)
class RollbackResult:
    """The result of a rollback."""

    epoch: int
    """The epoch of the savepoint."""
    epochs: int
    """Number of committed epochs that it removed."""
    records: int
    """Number of rows of the log that are processed again."""
    sinks: Mapping[str, int]
    """The new end of each output that was rolled back."""
    streams: int = 0
    """Number of streams whose sources send records again."""


def roll_back(directory: Path, savepoint: Savepoint, files: Sequence[Path] = ()) -> RollbackResult:
    """Roll the pipeline in this directory back. The caller holds its claim. `files` are inputs of producers that the
    pipeline does not start. Raises ConfigError, with the names, if a sink cannot remove its output, or if the input
    of a stream no longer exists."""
    reader = DecisionReader(checkpoint_of(directory))
    if savepoint.manifest["checkpoint_id"] != reader.id:
        raise ConfigError(
            f"Savepoint {savepoint.manifest['name']!r} is of another pipeline.",
            next_step="Restore it into another directory: `procession savepoint restore`.",
        )
    begun = _begun(directory, savepoint)
    if begun is None and _mark(savepoint) in _left(directory):
        raise ConfigError(
            f"Savepoint {savepoint.manifest['name']!r} was made in epochs that were rolled back since.",
            next_step="Start a second pipeline from it: `procession savepoint restore`.",
        )
    last = reader.last()
    assert last is not None  # a savepoint needs a committed epoch
    if last.epoch == savepoint.epoch and begun is None:
        go_back(directory, savepoint)
        return RollbackResult(savepoint.epoch, 0, 0, {})
    later = LaterInput(directory, savepoint, last)
    ways = [way for way in (KeptInput(later), RewoundInput(later, files)) if begun in (None, way.name)]
    return _Rollback(directory, savepoint, last, ways).perform()


class _Rollback:
    """A rollback after committed epochs."""

    def __init__(self, directory: Path, savepoint: Savepoint, last: RoundRecord, ways: Sequence[InputAgain]) -> None:
        """Prepare a rollback. `ways` are the ways to get the later input again: all, or the way that an interrupted
        rollback had chosen."""
        self._directory = directory
        self._savepoint = savepoint
        self._saved = savepoint.record
        self._last = last
        self._ways = ways

    def perform(self) -> RollbackResult:
        problems: list[str] = []
        sinks = self._sinks(problems)
        again: InputAgain | None = self._ways[0]
        if len(self._ways) > 1:
            again, found = possible(self._ways)
            problems += found
        if problems or again is None:
            epochs = f"Epochs {self._savepoint.epoch + 1:,} to {self._last.epoch:,}"
            raise ConfigError(
                f"{epochs} were committed after savepoint {self._savepoint.manifest['name']!r}, and cannot be rolled"
                f" back: {'; '.join(problems)}.",
                next_step=UPGRADE,
            )
        self._savepoint.verify()
        self._begin(again)
        again.prepare()
        checkpoint = self._change(again)
        faults.point("rollback:after-checkpoint")
        taken = again.perform()
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
        return RollbackResult(
            self._savepoint.epoch, self._last.epoch - self._savepoint.epoch, taken.rows, ends, taken.streams
        )

    # --- checks

    def _sinks(self, problems: list[str]) -> dict[str, SinkRollback]:
        """Return the sinks with later output. Sinks that are only in the savepoint must be at its position."""
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

    # --- steps, each of which can be repeated

    def _begin(self, again: InputAgain) -> None:
        left = _left(self._directory)
        left |= {_mark(other) for other in savepoints(self._directory) if other.epoch > self._savepoint.epoch}
        write_durably(self._directory / LEFT, json.dumps({"format": LEFT_FORMAT, "savepoints": sorted(left)}).encode())
        name = self._savepoint.manifest["name"]
        begun = {"format": FORMAT, "savepoint": name, "epoch": self._last.epoch, "input": again.name}
        write_durably(checkpoint_of(self._directory) / ROLLBACK, json.dumps(begun).encode())
        faults.point("rollback:begun")

    def _change(self, again: InputAgain) -> Checkpoint:
        def change(
            checkpoint: Checkpoint, _document: dict[str, Any], last: RoundRecord
        ) -> tuple[dict[str, Any], RoundRecord]:
            for folder in ("state", "sides"):
                link_missing(self._savepoint, folder, self._directory / folder / checkpoint.id)
            return self._savepoint.pipeline, again.changed(replace(self._saved, acknowledged=last.epoch))

        return change_checkpoint(checkpoint_of(self._directory), change, again.offsets)


def _mark(savepoint: Savepoint) -> tuple[str, float]:
    """Return a permanent id of a savepoint, because its name can be used again later."""
    return str(savepoint.manifest["name"]), float(savepoint.manifest["created_s"])


def _left(directory: Path) -> set[tuple[str, float]]:
    data = read_if_there(directory / LEFT)
    if data is None:
        return set()
    document = json.loads(data)
    check_format(directory / LEFT, document.get("format"), LEFT_FORMAT)
    return {(str(name), float(created_s)) for name, created_s in document["savepoints"]}


def _begun(directory: Path, savepoint: Savepoint) -> str | None:
    """Return the origin of the input of an interrupted rollback to this savepoint; None if there was none. Raises
    ConfigError if a rollback to another savepoint was interrupted."""
    path = checkpoint_of(directory) / ROLLBACK
    data = read_if_there(path)
    if data is None:
        return None
    document = json.loads(data)
    check_format(path, document.get("format"), FORMAT)
    name = document["savepoint"]
    if name != savepoint.manifest["name"]:
        raise ConfigError(
            f"A rollback to savepoint {name!r} was interrupted.", next_step=f"Finish it: procession rollback {name}."
        )
    return str(document.get("input", KeptInput.name))
