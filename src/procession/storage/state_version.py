"""A version of states: which files hold the states of a stage after an epoch, how they are named and encoded. Pure.

Invariant: a version names its files and never changes; no file is selected because it is the newest.
`storage/state_store` writes the files; the round record names the version that an epoch commits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from procession.errors import StorageError

FORMAT = 2
"""What state files are now: batch files, whose keys are encoded with their type. 1: Arrow files, keys without."""

Files = tuple[tuple[str, int], ...]
"""A version of one task's states: the names of its files and how many keys each holds, the oldest first."""


@dataclass(frozen=True)
class StateVersion:
    """A version of a whole stage: the files of each of its tasks. A key belongs to the task that its hash says."""

    tasks: tuple[Files, ...] = ()
    kind: str = ""
    """What kind of stage it is: its states are of use to no other."""
    format: int = FORMAT
    identity: Mapping[str, str] = field(default_factory=dict)
    """What the stage is known by beside its name; nothing in records from before this was kept."""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> StateVersion:
        tasks = (tuple((str(name), int(count)) for name, count in files) for files in fields["tasks"])
        identity = {str(what): str(text) for what, text in fields.get("identity", {}).items()}
        return cls(tuple(tasks), str(fields["kind"]), int(fields.get("format", 1)), identity)

    def check_format(self, stage: str) -> None:
        """Raise StorageError if this version of the program cannot read these states."""
        if self.format == FORMAT or not self.names:
            return
        raise StorageError(
            f"the states of stage {stage!r} have format {self.format}, and this version reads format {FORMAT}"
            + (": keys had no types then, so that 7 and '7' were one" if self.format == 1 else ""),
            next_step="start the version that wrote them, or a later one"
            if self.format > FORMAT
            else "finish the work with the version that wrote them, or start over with another --dir (and an empty"
            " output)",
            stage=stage,
        )

    @property
    def names(self) -> set[str]:
        return {name for files in self.tasks for name, _ in files}


def file_prefix(fence: int, stage: str, task: int, epoch: int, attempt: int) -> str:
    """How the files of one attempt at one task are named. The fence stands first: see `StateStore.sweep`."""
    return f"{fence:010d}-{stage}-{task:06d}-{epoch:020d}-{attempt}"


@dataclass(frozen=True)
class StateCodec:
    """How a state becomes bytes and a state again."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
