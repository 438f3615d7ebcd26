"""The states of a stage for another number of tasks, if some of them belong to a task and not to a key.

Invariant: what is held for a key goes to the task that its hash says, and so does each of its timers. What a task knows
of the input as a whole is the same in all tasks (`operators/watermark`): the watermark, the inputs, the ends, the
latest broadcast. Each new task gets it; if tasks differ there, the change is refused. Existing files are not changed;
new ones are durable when this returns. Memory is bounded by `keys_max` entries. States of `map_stateful` and its
relatives need none of this: they are redistributed when they are read. Used by `driver/changed_states`.
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
"""Prefixes of names: what is held for a key, and a list of keys that are due at a step."""
REDISTRIBUTED = 1
"""The number of the attempt in the names of these files. `driver/changed_states` uses 0."""
KEYS_MAX = 100_000
"""Maximum number of entries of each new task that are in memory."""

_AS_IT_IS = StateCodec(bytes, bytes)


def redistributed(
    stage: str, tasks: Sequence[Files], count: int, directory: Path, fence: int, epoch: int, values: ValueCodec
) -> tuple[Files, ...]:
    """The states of these tasks for `count` tasks. `fence` is that of the caller, which no file there has. Raises
    PlanError if the tasks do not agree on what they have in common."""
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
                    f"the tasks of stage {stage!r} have seen different parts of the input, so what they hold cannot be"
                    " redistributed now",
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
        """Serial numbers of tasks are epochs, so negative ones are free."""
        if keys:
            self.put(b"t%d/%d" % (step, serial), self._values.packed(list(keys)))
            self._lists.setdefault(step, []).append(serial)

    def finish(self, shared: dict[bytes, bytes], reached: int | None) -> Files:
        for name, stored in shared.items():
            self.put(name, stored)
        if reached is not None or self._lists:
            self.put(WATERMARK, self._values.packed({"at": reached, "lists": self._lists}))
        return self._states.finish()
