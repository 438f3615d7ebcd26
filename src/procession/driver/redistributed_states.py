"""Redistributes the states of a stage to another number of tasks, if some of these states belong to a task, not to a
key.

Invariant: the state and the timers of a key go to the task that the key's hash selects. The state that concerns the
whole input is the same in all tasks (`operators/watermark`): the watermark, the inputs, the ends and the latest
broadcast. Each new task gets a copy; if the tasks differ, the change is refused. Existing files are not changed; new
files are durable when `redistributed` returns. Memory is bounded by `KEYS_MAX` entries. Stages such as `map_stateful`
do not need this module: their states are redistributed when they are read. Used by `driver/changed_states`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from procession.errors import PlanError
from procession.operators.partitioning import share_of
from procession.operators.value_codec import ValueCodec
from procession.operators.watermark_timers import WATERMARK
from procession.storage.state_file import StateFile, merged_pieces
from procession.storage.state_store import TaskStates
from procession.storage.state_version import Files, StateCodec, file_prefix

OF_KEY, OF_TIMERS = b"k", b"t"
"""Name prefixes: of the state of a key, and of a list of keys that are due at a step."""
REDISTRIBUTED = 1
"""Attempt number in the names of these files. `driver/changed_states` uses 0."""
KEYS_MAX = 100_000
"""Maximum number of entries in memory for each new task."""

_AS_IT_IS = StateCodec(bytes, bytes)


def redistributed(
    stage: str, tasks: Sequence[Files], count: int, directory: Path, fence: int, epoch: int, values: ValueCodec
) -> tuple[Files, ...]:
    """Write the states of `tasks` for `count` tasks, and return the new files. `fence` is the caller's fence, which
    no existing file has in its name. Raises PlanError if the tasks differ in state about the whole input."""
    writers = [_Task(directory, file_prefix(fence, stage, task, epoch, REDISTRIBUTED), values) for task in range(count)]
    shared: dict[bytes, bytes] = {}
    reached: int | None = None
    serial = 0
    for files in tasks:
        for name, stored in _entries(directory, files):
            if name.startswith(OF_KEY):
                writers[share_of(name[len(OF_KEY) :]) % count].put(name, stored)
            elif name == WATERMARK:
                at = values.decoded_value(stored)["at"]
                reached = at if reached is None else max(reached, reached if at is None else at)
            elif name.startswith(OF_TIMERS):
                serial += 1
                keys: list[list[bytes]] = [[] for _ in writers]
                for key in values.decoded_value(stored):
                    keys[share_of(key) % count].append(key)
                step = int(name[len(OF_TIMERS) :].partition(b"/")[0])
                for writer, some in zip(writers, keys, strict=True):
                    writer.put_timers(step, -serial, some)
            elif shared.setdefault(name, stored) != stored:
                raise PlanError(
                    f"the tasks of stage {stage!r} have seen different parts of the input, so their states cannot be"
                    " redistributed",
                    next_step=f"keep parallelism={len(tasks)}, or drop its states",
                    stage=stage,
                )
    return tuple(writer.finish(shared, reached) for writer in writers)


def _entries(directory: Path, files: Files) -> Iterator[tuple[bytes, bytes]]:
    layers = [StateFile(directory / name) for name, _ in reversed(files)]
    if layers:
        for piece in merged_pieces(layers, is_oldest=True):
            yield from zip(piece.column("key").to_pylist(), piece.column("state").to_pylist(), strict=True)


class _Task:
    """The states of one new task."""

    def __init__(self, directory: Path, prefix: str, values: ValueCodec) -> None:
        self._states = TaskStates(directory, (), _AS_IT_IS, keys_max=KEYS_MAX)
        self._states.begin(prefix)
        self._values = values
        self._lists: dict[int, list[int]] = {}

    def put(self, name: bytes, stored: bytes) -> None:
        self._states.take(())[name] = stored
        self._states.touch((name,))

    def put_timers(self, step: int, serial: int, keys: Sequence[Any]) -> None:
        """Store a list of keys that are due. `serial` is negative: a task's own lists use its epochs as numbers."""
        if keys:
            self.put(b"t%d/%d" % (step, serial), self._values.packed(list(keys)))
            self._lists.setdefault(step, []).append(serial)

    def finish(self, shared: dict[bytes, bytes], reached: int | None) -> Files:
        for name, stored in shared.items():
            self.put(name, stored)
        if reached is not None or self._lists:
            self.put(WATERMARK, self._values.packed({"at": reached, "lists": self._lists}))
        return self._states.finish()
