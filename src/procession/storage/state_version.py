"""A version of states: the files with the states of a stage after an epoch, their names and their encoding. Pure.

Invariant: a version names its files and never changes; no file is selected because it is the newest.
`storage/state_store` writes the files; the round record names the version that an epoch commits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from procession.errors import StorageError

FORMAT = 2
"""Format number of state files: batch files, whose keys are encoded with their type. Format 1: Arrow files, keys
without types."""

Files = tuple[tuple[str, int], ...]
"""A version of one task's states: the name of each file and its number of keys, oldest first."""


@dataclass(frozen=True)
class StateVersion:
    """A version of a whole stage: the files of each of its tasks. The hash of a key decides which task it belongs
    to."""

    tasks: tuple[Files, ...] = ()
    kind: str = ""
    """The kind of the stage. Another kind cannot use the states."""
    format: int = FORMAT
    identity: Mapping[str, str] = field(default_factory=dict)
    """The identity of the stage in addition to its name. Empty in records from before identities were stored."""

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
    """Return the prefix of the file names of one attempt at one task. It begins with the fence: see
    `StateStore.sweep`."""
    return f"{fence:010d}-{stage}-{task:06d}-{epoch:020d}-{attempt}"


@dataclass(frozen=True)
class StateCodec:
    """Encodes and decodes a state."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
