"""Writes a pipeline's checkpoint and state files for tests, without a driver or tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from procession.commit.checkpoint import Checkpoint
from procession.commit.round_record import RoundRecord
from procession.operators.value_codec import PLAIN
from procession.storage.state_store import TaskStates
from procession.storage.state_version import Files, StateCodec, StateVersion, file_prefix

CODEC = StateCodec(PLAIN.packed, PLAIN.decoded_value)
TASKS = 2


class StoredPipeline:
    """The checkpoint and the state files of a pipeline, written as a driver and its tasks would."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.checkpoint = Checkpoint.claim(directory / "checkpoint", name="app", fingerprint="f")
        self.states = directory / "state" / self.checkpoint.id
        self.states.mkdir(parents=True)
        self.epoch = -1
        self.versions: dict[str, list[Files]] = {}

    def write(self, stage: str, changes: dict[bytes, Any]) -> None:
        """Change states in the tasks of a stage. A value of None removes the key."""
        files = self.versions.setdefault(stage, [()] * TASKS)
        for task in range(TASKS):
            names = [name for name in changes if sum(name) % TASKS == task]
            states = TaskStates(self.states, files[task], CODEC)
            states.begin(file_prefix(1, stage, task, self.epoch + 1, 0))
            known = states.take(names)
            for name in names:
                if changes[name] is None:
                    known.pop(name, None)
                else:
                    known[name] = changes[name]
            states.touch(names)
            files[task] = states.finish()

    def commit(self) -> None:
        self.epoch += 1
        versions = {stage: StateVersion(tuple(files), "map_stateful") for stage, files in self.versions.items()}
        self.checkpoint.rounds.write(RoundRecord(self.epoch, self.checkpoint.fence, "f", 0, 0, {}, states=versions))
        for name in ("offsets", "commits"):
            (self.checkpoint.directory / name).mkdir(exist_ok=True)
            (self.checkpoint.directory / name / str(self.epoch)).write_text("v1\n{}\n{}")
