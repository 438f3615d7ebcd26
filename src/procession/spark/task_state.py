"""Task state: where a task finds the states of its keys, and where it leaves them.

The one rule: epoch N begins with the version that the round record of N-1 names, and with no other; what a worker still
has in memory is used only if it is exactly that version. So an attempt that failed, an epoch that is run again and a
driver that was replaced leave nothing behind that anybody would read. Runs in Spark's Python workers. Before it the
round record; after it `storage/state_store`, and the manifest that names the new version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from procession.errors import PlanError
from procession.operators.buckets import SHARES
from procession.operators.value_codec import PLAIN, ValueCodec
from procession.storage.run_store import Manifest
from procession.storage.state_store import KEYS_MAX, Codec, States, Version, file_prefix

WARM_MAX = 16
"""So many tasks' states one worker keeps in memory from one epoch to the next."""


class Versions(Protocol):
    """Who knows what the epochs have committed: the round records."""

    def states(self, epoch: int) -> Mapping[str, Version]:
        """The version of each stage's states after this epoch. Raises StorageError if the epoch is not known."""


@dataclass(frozen=True)
class Keeping:
    """Where a pipeline's states are, for its tasks."""

    directory: Path
    versions: Versions
    fence: int
    keys_max: int = KEYS_MAX
    is_warm: bool = True
    """Whether a worker keeps states in memory from one epoch to the next; if not, every epoch reads them again."""

    def open(
        self,
        stage: str,
        task: int,
        tasks: int,
        epoch: int,
        attempt: int,
        *,
        is_whole: bool = False,
        values: ValueCodec = PLAIN,
    ) -> States:
        """The states of this task's keys, as the epoch before has left them. `is_whole`: some are not of a key, but of
        the task as a whole, and cannot be dealt out anew."""
        version = (self.versions.states(epoch - 1) if epoch else {}).get(stage, Version())
        codec = Codec(_Encoding(stage, values), values.thawed)
        prefix = file_prefix(self.fence, stage, task, epoch, attempt)
        if version.tasks and len(version.tasks) != tasks:
            if is_whole:
                raise PlanError(
                    f"stage {stage!r} has states of {len(version.tasks)} tasks, and is to run with {tasks}",
                    next_step=f"give it parallelism={len(version.tasks)}, as it had when the checkpoint was made",
                    stage=stage,
                )
            states = States(self.directory, (), codec, keys_max=self.keys_max)
            states.begin(prefix, epoch)
            states.adopt(version.tasks, (SHARES, tasks, task))
            return states
        files = version.tasks[task] if version.tasks else ()
        warm = _warm.pop((self.directory, stage, task), None)
        if warm is None or warm.files != files:
            warm = States(self.directory, files, codec, keys_max=self.keys_max)
        warm.begin(prefix, epoch)
        return warm

    def keep(self, stage: str, task: int, states: States, published: Manifest) -> None:
        """Keep these in memory, if theirs is the version that was published."""
        if self.is_warm and published.states == states.files:
            if len(_warm) >= WARM_MAX:
                _warm.pop(next(iter(_warm)))
            _warm[self.directory, stage, task] = states


# A worker lives for many tasks; whose they are is not its own choice.
_warm: dict[tuple[Path, str, int], States] = {}


@dataclass(frozen=True)
class _Encoding:
    """A state as bytes, with words for one that cannot be."""

    stage: str
    values: ValueCodec

    def __call__(self, state: Any) -> bytes:
        try:
            return self.values.packed(state)
        except (TypeError, ValueError, OverflowError) as error:
            raise PlanError(
                f"stage {self.stage!r} has a state that cannot be kept: {error}",
                next_step="make its states of such values, or list their classes in Pipeline(types=[…]); nothing of"
                " this epoch was committed, and it is run again when you start again",
                stage=self.stage,
            ) from error
