"""The state store: the states of the keys of one task, as a dictionary over files.

The one rule: a version is a list of files and is never changed; an epoch's work on top of it is in memory until
`finish` writes it, as one more file that holds the touched keys only. Files that have become small beside what is laid
on them are merged, so a version has few of them, and an epoch's cost goes with the keys that it touches. No file is
read because it is the newest: whoever opens a version says which. Before it `operators/keyed`, whose loop works on the
dictionary; after it the round record, which names the version that the epoch commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from procession.errors import StorageError
from procession.storage.durable import fsync_dir, make_directory
from procession.storage.state_file import Fresh, Sorted, StateFile, hashes_of, merged_pieces, write_file

KEYS_MAX = 1_000_000
"""So many keys' states a task holds in memory; the others are in its files and are read when they are touched."""

MERGE_RATIO = 2
"""A file is merged with what is laid on it when it holds at most so many times the keys."""

SUFFIX = ".state"

FORMAT = 2
"""What state files are now: batch files, whose keys are encoded with their type. 1: Arrow files, keys without."""

Files = tuple[tuple[str, int], ...]
"""A version of one task's states: the names of its files and how many keys each holds, the oldest first."""


@dataclass(frozen=True)
class Version:
    """A version of a whole stage: the files of each of its tasks. A key belongs to the task that its hash says."""

    tasks: tuple[Files, ...] = ()
    kind: str = ""
    """What kind of stage it is: its states are of use to no other."""
    format: int = FORMAT
    identity: Mapping[str, str] = field(default_factory=dict)
    """What the stage is known by beside its name; nothing in records from before this was kept."""

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Version:
        tasks = (tuple((str(name), int(count)) for name, count in files) for files in told["tasks"])
        identity = {str(what): str(text) for what, text in told.get("identity", {}).items()}
        return cls(tuple(tasks), str(told["kind"]), int(told.get("format", 1)), identity)

    def check_format(self, stage: str) -> None:
        """Raise StorageError if this version of the program cannot read these states."""
        if self.format == FORMAT or not self.names:
            return
        raise StorageError(
            f"the states of stage {stage!r} have format {self.format}, and this version reads format {FORMAT}"
            + (": keys had no types then, so that 7 and '7' were one" if self.format == 1 else ""),
            next_step="start the version that wrote them, or a later one"
            if self.format > FORMAT
            else "finish the work with the version that wrote them, or begin anew with another --dir (and an empty"
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
class Codec:
    """How a state becomes bytes and a state again."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


class States:
    """The states of one task's keys, from one version to the next."""

    def __init__(self, directory: Path, files: Files, codec: Codec, *, keys_max: int = KEYS_MAX) -> None:
        self._directory = directory
        self._codec = codec
        self.keys_max = keys_max
        self._opened = [self._open(name) for name, _ in files]
        self.files = files
        self.known: dict[bytes, Any] = {}
        self._touched: set[bytes] = set()
        self._prefix = ""
        self.serial = 0
        self._written = 0

    def begin(self, prefix: str, serial: int = 0) -> None:
        """From here on files are named so, by a name that nobody else uses: see `file_prefix`."""
        self._prefix = prefix
        self._written = 0
        self.serial = serial

    def take(self, keys: Sequence[bytes]) -> dict[bytes, Any]:
        """A dictionary with the states of these keys, and perhaps of others, to be worked on. A key that has no state
        is not in it. What was changed must be told with `touch` before the next call."""
        if len(self.known) > self.keys_max:
            self._write()
            self.known.clear()
        if self._opened:
            missing = [key for key in set(keys).difference(self.known) if key not in self._touched]
            if missing:
                self._fetch(missing)
        return self.known

    def touch(self, keys: Iterable[bytes]) -> None:
        """The states of these keys are other ones now, or gone."""
        self._touched.update(keys)

    def spill(self) -> None:
        """Keep nothing in memory: what was changed is written first."""
        self._write()
        self.known.clear()

    def all_keys(self) -> Iterator[list[bytes]]:
        """The keys that have a state, some at a time and in no order. Nothing may be changed before the last."""
        self._write()
        if self._opened:
            for piece in merged_pieces(list(reversed(self._opened)), is_oldest=True):
                yield piece.column("key").to_pylist()

    def finish(self) -> Files:
        """Write what was touched; gives the version that there is now. Durable when this returns."""
        self._write()
        if self._written:
            self._sync_names()
        if len(self.known) > self.keys_max:
            self.known.clear()
        return self.files

    def adopt(self, layers: Iterable[Files], share: tuple[int, int, int]) -> None:
        """Begin with what other tasks have left of the keys that are now this task's: there was another number of
        tasks."""
        for files in layers:
            found: list[Sorted] = [self._open(name) for name, _ in reversed(files)]
            # Tasks share no key, so it does not matter which of them lies above.
            if found:
                self._lay(found, is_oldest=True, share=share)

    def _fetch(self, missing: list[bytes]) -> None:
        hashes = hashes_of(missing)
        for file in reversed(self._opened):
            found = file.find(missing, hashes)
            if not found:
                continue
            decode = self._codec.decode
            self.known.update((key, decode(state)) for key, state in found.items() if state is not None)
            rest = [row for row, key in enumerate(missing) if key not in found]
            if not rest:
                return
            missing = [missing[row] for row in rest]
            hashes = hashes[rest]

    def _write(self) -> None:
        if not self._touched:
            return
        # In one order, whatever the order of a set is: the same work makes the same file.
        keys = sorted(self._touched)
        known, encode = self.known, self._codec.encode
        layers = [self._fresh(keys, [encode(known[key]) if key in known else None for key in keys])]
        total = len(keys)
        while self.files and self.files[-1][1] <= MERGE_RATIO * total:
            total += self.files[-1][1]
            layers.append(self._opened.pop())
            self.files = self.files[:-1]
        self._lay(layers, is_oldest=not self.files)
        self._touched.clear()

    def _lay(self, layers: Sequence[Sorted], *, is_oldest: bool, share: tuple[int, int, int] | None = None) -> None:
        name = f"{self._prefix}-{self._written}{SUFFIX}"
        count = self._put(name, layers, is_oldest, share)
        self._written += 1
        if count:
            self.files = (*self.files, (name, count))
            self._opened.append(self._open(name))
        else:
            self._remove(name)

    # The disk, and nothing else: the simulator has another, and remembers what it has merged.

    def _open(self, name: str) -> StateFile:
        return StateFile(self._directory / name)

    def _fresh(self, keys: Sequence[bytes], states: Sequence[bytes | None]) -> Sorted:
        return Fresh(keys, states)

    def _put(self, name: str, layers: Sequence[Sorted], is_oldest: bool, share: tuple[int, int, int] | None) -> int:
        return write_file(self._directory / name, merged_pieces(layers, is_oldest=is_oldest, share=share))

    def _remove(self, name: str) -> None:
        (self._directory / name).unlink()

    def _sync_names(self) -> None:
        fsync_dir(self._directory)


class StateStore:
    """The directory of a pipeline's state files, as the driver sees it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def make(self) -> None:
        make_directory(self.directory)

    def drop(self, names: Iterable[str]) -> None:
        """Remove files that no version to come will name."""
        for name in names:
            with suppress(OSError):  # what stays is swept by the next driver
                (self.directory / name).unlink()

    def sweep(self, kept: Iterable[Version], fence: int) -> None:
        """Remove what the last committed epoch does not name: it was begun and never committed. Only for the driver of
        this fence, before it starts anything, and only what earlier ones have made."""
        names = {name for version in kept for name in version.names}
        found = (path.name for path in self.directory.glob(f"[0-9]*{SUFFIX}"))
        self.drop(name for name in found if name not in names and int(name.partition("-")[0]) < fence)
