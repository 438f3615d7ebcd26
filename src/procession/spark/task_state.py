"""Opens, reads and writes the states of a task's keys.

Invariant: epoch N begins with exactly the version that the round record of epoch N-1 names. A state in a worker's
memory is used only if it has that version. So files of a failed attempt, of an epoch that is run again or of a
replaced driver are never read. This code runs in Spark's Python workers and uses `storage/state_store`; the task's
manifest names the new version.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from procession.errors import PlanError
from procession.operators.operator import StateObject
from procession.operators.partitioning import SHARES
from procession.operators.value_codec import PLAIN, ValueCodec
from procession.planner.ownership import shared_part
from procession.storage.run_store import Manifest
from procession.storage.shared_files import Folder, SharedFiles
from procession.storage.state_store import (
    KEYS_MAX,
    TaskStates,
)
from procession.storage.state_version import (
    Files,
    StateCodec,
    StateVersion,
    file_prefix,
)

WARM_MAX = 16
"""Maximum number of tasks whose states one worker keeps in memory between epochs."""


class Versions(Protocol):
    """The versions that epochs have committed: the round records."""

    def states(self, epoch: int) -> Mapping[str, StateVersion]:
        """Return the version of each stage's states after this epoch. Raises StorageError for an unknown epoch."""


@dataclass(frozen=True)
class TaskStateStore:
    """Opens the states of a pipeline's tasks."""

    directory: Path
    versions: Versions
    fence: int
    keys_max: int = KEYS_MAX
    shared: SharedFiles | None = None
    """The driver's file service, if tasks cannot read the driver's directory. States are then read and written in a
    local copy, and sent to the driver."""
    is_warm: bool = True
    """Whether a worker keeps states in memory between epochs; if not, every epoch reads them from disk."""

    def open(
        self,
        stage: str,
        task: int,
        tasks: int,
        epoch: int,
        attempt: int,
        *,
        is_whole: bool = False,
        is_made_by_user: bool = False,
        values: ValueCodec = PLAIN,
    ) -> TaskStates:
        """Open the states of this task's keys as of the previous epoch.

        `is_whole`: some states belong to the task as a whole, not to a key, and cannot be redistributed.
        `is_made_by_user`: a state is a value of the user's function, and is refused if decoding would change it."""
        version = (self.versions.states(epoch - 1) if epoch else {}).get(stage, StateVersion())
        codec = StateCodec(StateEncoding(stage, values, is_made_by_user), values.decoded_value)
        is_redistributed = bool(version.tasks) and len(version.tasks) != tasks
        mine = version.tasks[task : task + 1] if not is_redistributed else version.tasks
        directory = self._local(stage, task, {name for files in mine for name, _ in files})
        prefix = file_prefix(self.fence, stage, task, epoch, attempt)
        if is_redistributed:
            if is_whole:
                raise PlanError(
                    f"stage {stage!r} has states of {len(version.tasks)} tasks, but the pipeline runs it with {tasks}",
                    next_step=f"set its parallelism={len(version.tasks)}, as when the checkpoint was written",
                    stage=stage,
                )
            states = TaskStates(directory, (), codec, keys_max=self.keys_max)
            states.begin(prefix, epoch)
            states.adopt(version.tasks, (SHARES, tasks, task))
            return states
        files = version.tasks[task] if version.tasks else ()
        warm = _warm.pop((directory, stage, task), None)
        if warm is None or warm.files != files:
            warm = TaskStates(directory, files, codec, keys_max=self.keys_max)
        warm.begin(prefix, epoch)
        return warm

    def _local(self, stage: str, task: int, names: AbstractSet[str]) -> Path:
        """Return the directory that has these state files."""
        if self.shared is None:
            return self.directory
        directory = self.shared.copied(Folder.STATES, names)
        self.shared.forget_states(f"{stage}-{task:06d}", names)
        return directory

    def finish(self, states: TaskStates) -> Files:
        """Write the changed states. Return the new version, which is durable on the driver's disk."""
        files = states.finish()
        if self.shared is not None:
            for name in states.new_files:
                self.shared.put_state(name)
        return files

    def keep(self, stage: str, task: int, states: TaskStates, published: Manifest) -> None:
        """Keep these states in memory if their version is the published one."""
        if self.is_warm and published.states == states.files:
            if len(_warm) >= WARM_MAX:
                _warm.pop(next(iter(_warm)))
            _warm[states.directory, stage, task] = states


# A worker runs many tasks, and Spark decides which.
_warm: dict[tuple[Path, str, int], TaskStates] = {}


@dataclass(frozen=True)
class StateEncoding:
    """Encodes a state as bytes. Raises PlanError for a value that cannot be encoded."""

    stage: str
    values: ValueCodec
    is_made_by_user: bool = False

    def __call__(self, state: Any) -> bytes:
        try:
            if isinstance(state, StateObject):
                state = state.stored()
            if self.is_made_by_user and (part := shared_part(state)) is not None:
                raise TypeError(
                    f"it contains one {type(part).__name__} twice, which would be restored as two objects;"
                    " put a copy into each place"
                )
            return self.values.packed(state)
        except (TypeError, ValueError, OverflowError) as error:
            raise PlanError(
                f"stage {self.stage!r} has a state that cannot be stored: {error}",
                next_step="use such values in states, or list their classes in Pipeline(types=[…]); nothing of this"
                " epoch is committed, and the next start runs it again",
                stage=self.stage,
            ) from error
