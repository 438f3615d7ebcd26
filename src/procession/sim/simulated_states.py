"""Simulates the states of Spark's tasks: the shipped `TaskStates` on the simulated disk, in files of the round
record.

Invariant, as in `spark/task_state`: epoch N starts with exactly the version in `rounds/N-1`. A worker uses its state
in memory only if it has that version. The oracle checks every file that is written and read. Upstream:
`simulated_tasks`. Downstream: `simulated_files`.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from procession.commit.checkpoint import Checkpoint
from procession.operators.partitioning import SHARES
from procession.runtime.files import OpenMode
from procession.sim.disk import Disk, File, SimulatedPath
from procession.sim.oracle import STATES, Oracle
from procession.sim.simulated_files import SimulatedFile, SimulatedFileSystem
from procession.sim.simulated_process import SimulatedProcess
from procession.storage.driver_claim import read_claim
from procession.storage.state_store import TaskStates
from procession.storage.state_version import Files, StateCodec, StateVersion, file_prefix

STAGE, KIND = "count", "fold"
KEYS_MAX = 2
"""Maximum number of keys in memory; low, so that tasks do not hold all their keys in memory."""
CODEC = StateCodec(lambda count: b"%d" % count, int)


class ObservedStateFiles(SimulatedFileSystem):
    """The simulated disk. Reports to the oracle which state files an attempt writes, and which files of others it
    reads."""

    def __init__(self, process: SimulatedProcess, disk: Disk, checkpoint: Checkpoint, oracle: Oracle) -> None:
        super().__init__(process, disk)
        self._checkpoint = checkpoint
        self._oracle = oracle
        self._epoch = 0
        self._own: set[str] = set()
        """Files that the current attempt has written."""

    def begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._own.clear()

    def open(self, path: Path, mode: OpenMode = OpenMode.READ) -> ObservedStateFile:
        self._own.add(path.name)
        return ObservedStateFile(self, self.opened(path, mode), path.name)

    def written(self, name: str, data: bytes) -> None:
        self._oracle.state_written(self._epoch, name, data)

    def map(self, path: Path) -> pa.Buffer:
        # A replaced driver may find any files, but decides nothing.
        if path.name not in self._own and self._is_current():
            self._oracle.state_read(self._epoch, path.name, self.read(path) if self.exists(path) else None)
        return super().map(path)

    def _is_current(self) -> bool:
        return read_claim(self._checkpoint.root, self) == self._checkpoint.fence


class ObservedStateFile(SimulatedFile):
    __slots__ = ("_name", "_observer")

    def __init__(self, files: ObservedStateFiles, node: File, name: str) -> None:
        super().__init__(files, node)
        self._observer = files
        self._name = name

    def close(self) -> None:
        self._observer.written(self._name, self._node.data)


class SimulatedStateStore:
    """The state store of the workers of one Spark, like `spark.task_state.TaskStateStore`."""

    def __init__(self, process: SimulatedProcess, disk: Disk, checkpoint: Checkpoint, oracle: Oracle) -> None:
        self.files = ObservedStateFiles(process, disk, checkpoint, oracle)
        self._checkpoint = checkpoint
        self._warm: dict[int, TaskStates] = {}

    def version(self, epoch: int) -> StateVersion:
        """Return the version with which the epoch begins."""
        if not epoch:
            return StateVersion()
        return self._checkpoint.rounds.states(epoch - 1).get(STAGE, StateVersion())

    def open(self, task: int, tasks: int, epoch: int, attempt: int) -> TaskStates:
        self.files.begin(epoch)
        version = self.version(epoch)
        prefix = file_prefix(self._checkpoint.fence, STAGE, task, epoch, attempt)
        if version.tasks and len(version.tasks) != tasks:
            states = self._opened(())
            states.begin(prefix, epoch)
            states.adopt(version.tasks, (SHARES, tasks, task))
            return states
        names = version.tasks[task] if version.tasks else ()
        warm = self._warm.pop(task, None)
        if warm is None or warm.files != names:
            warm = self._opened(names)
        warm.begin(prefix, epoch)
        return warm

    def _opened(self, names: Files) -> TaskStates:
        return TaskStates(SimulatedPath(STATES), names, CODEC, keys_max=KEYS_MAX, file_system=self.files)

    def keep(self, task: int, states: TaskStates) -> None:
        self._warm[task] = states
