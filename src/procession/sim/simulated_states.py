"""States on a virtual disk: the real `TaskStates`, in files that the round record names, as `spark/task_state` has it.

Invariant, as there: epoch N starts with the version that `rounds/N-1` names and with no other. A worker uses its state
in memory only if it is that version. Files and their names are synced before the task is done. The file format, the
layering of files and the redistribution of keys to tasks are the real ones. Upstream: `tasks`. Downstream:
`disk_calls`, and the oracle, which checks every file that is written and read.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from procession.commit.round_record import RoundRecord
from procession.errors import StorageError
from procession.operators.partitioning import SHARES
from procession.sim.disk_calls import Files
from procession.sim.oracle import STATES, Oracle
from procession.sim.simulated_checkpoint import SimulatedCheckpoint
from procession.sim.simulated_process import Steps
from procession.storage.state_file import SortedStates, StateFile, UnwrittenStates, merged_pieces, write_pieces
from procession.storage.state_store import TaskStates
from procession.storage.state_version import (
    StateCodec,
    StateVersion,
    file_prefix,
)

STAGE, KIND = "count", "fold"
KEYS_MAX = 2
"""So few that even these tasks do not hold all their keys in memory."""
FILES_MAX = 4_096
"""So many are remembered, over all runs: runs are small, and much alike."""

Share = tuple[int, int, int]

CODEC = StateCodec(lambda count: b"%d" % count, int)


class SimulatedStates(TaskStates):
    """The real states of one task, on the simulated disk."""

    def __init__(self, keeping: SimulatedStateStore, names: tuple[tuple[str, int], ...]) -> None:
        self._keeping = keeping
        super().__init__(Path(STATES), names, CODEC, keys_max=KEYS_MAX)

    def _open(self, name: str) -> StateFile:
        return self._keeping.read(name)

    def _fresh(self, keys: Sequence[bytes], states: Sequence[bytes | None]) -> SortedStates:
        return _fresh(tuple(keys), tuple(states))

    def _put(self, name: str, layers: Sequence[SortedStates], is_oldest: bool, share: Share | None) -> int:
        data, count = _merged(tuple(layers), is_oldest, share)
        self._keeping.write(name, data)
        return count

    def _remove(self, name: str) -> None:
        self._keeping.files.remove(STATES, name)

    def _sync_names(self) -> None:
        self._keeping.sync_names()


class SimulatedStateStore:
    """As `spark.keeping.Keeping`, for the workers of one Spark."""

    def __init__(self, files: Files, checkpoint: SimulatedCheckpoint, oracle: Oracle) -> None:
        self.files = files
        self._checkpoint = checkpoint
        self._oracle = oracle
        self._warm: dict[int, SimulatedStates] = {}
        self._epoch = 0
        self._written: set[str] = set()
        """What the attempt at hand has written."""

    def version(self, epoch: int) -> StateVersion:
        """What the epoch begins with."""
        if not epoch:
            return StateVersion()
        return self._checkpoint.round(epoch - 1).states.get(STAGE, StateVersion())

    def open(self, task: int, tasks: int, epoch: int, attempt: int) -> SimulatedStates:
        self._epoch = epoch
        self._written.clear()
        version = self.version(epoch)
        prefix = file_prefix(self._checkpoint.fence, STAGE, task, epoch, attempt)
        if version.tasks and len(version.tasks) != tasks:
            states = SimulatedStates(self, ())
            states.begin(prefix, epoch)
            states.adopt(version.tasks, (SHARES, tasks, task))
            return states
        names = version.tasks[task] if version.tasks else ()
        warm = self._warm.pop(task, None)
        if warm is None or warm.files != names:
            warm = SimulatedStates(self, names)
        warm.begin(prefix, epoch)
        return warm

    def keep(self, task: int, states: SimulatedStates) -> None:
        self._warm[task] = states

    # The disk

    def read(self, name: str) -> StateFile:
        data = self.files.read(f"{STATES}/{name}")
        # A replaced driver may find any files, and decides nothing.
        if name not in self._written and self._checkpoint.is_current:
            self._oracle.state_read(self._epoch, name, data)
        if data is None:
            raise StorageError(f"state file {name} is gone", next_step="restore the pipeline's directory")
        return _opened(data)

    def write(self, name: str, data: bytes) -> None:
        self._written.add(name)
        self.files.write(f"{STATES}/{name}", data)
        self._oracle.state_written(self._epoch, name, data)
        self.files.sync(f"{STATES}/{name}")

    def sync_names(self) -> None:
        self.files.sync_directory(STATES)


@lru_cache(FILES_MAX)
def _opened(data: bytes) -> StateFile:
    """A file of these bytes; nothing changes one."""
    return StateFile(Path(STATES), data)


@lru_cache(FILES_MAX)
def _fresh(keys: tuple[bytes, ...], states: tuple[bytes | None, ...]) -> UnwrittenStates:
    return UnwrittenStates(keys, states)


@lru_cache(FILES_MAX)
def _merged(layers: tuple[SortedStates, ...], is_oldest: bool, share: Share | None) -> tuple[bytes, int]:
    file = io.BytesIO()
    count = write_pieces(file, merged_pieces(layers, is_oldest=is_oldest, share=share))
    return file.getvalue(), count


# The driver's side, as `storage.states.StateStore`


def make_and_sweep(files: Files, last: RoundRecord | None, fence: int) -> Steps:
    """Before anything is started: what the last epoch does not name was never committed."""
    files.make_directory(STATES)
    files.sync_directory("")
    yield
    kept = names_in(last)
    for name in files.names(STATES):
        if name not in kept and int(name.partition("-")[0]) < fence:
            files.remove(STATES, name)
            yield


def drop_states(files: Files, rounds: Mapping[int, RoundRecord], record: RoundRecord) -> None:
    """The files that this epoch was the last to need."""
    for name in sorted(names_in(rounds.get(record.epoch - 1)) - names_in(record)):
        files.remove(STATES, name)


def names_in(record: RoundRecord | None) -> set[str]:
    versions = () if record is None else record.states.values()
    return {name for version in versions for name in version.names}
