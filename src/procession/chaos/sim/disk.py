"""A machine's disk: what is in the page cache, what is on the platter, and what a power cut makes of the difference.

The one rule: a killed process loses nothing that it wrote; a power cut loses, keeps or tears anything that was not
synced. A file's bytes are durable after `fsync` of the file, its name after `fsync` of the directory; of the names that
were changed in one directory a power cut keeps the first few, in order, as a journaling file system does. Before it:
`files`, a process's hands. After it: `oracle`, which looks at what is durable.
"""

from __future__ import annotations

from procession.chaos.sim.chance import Chance


class File:
    __slots__ = ("data", "durable", "lost_s")

    def __init__(self, data: bytes = b"") -> None:
        self.data = data
        self.durable = b""
        self.lost_s: float | None = None
        """When a sync failed and the kernel dropped the pages. Every process of that time hears of it when it syncs the
        file; one that starts later finds what is left. (A real kernel tells those only that had the file open.)"""

    def cut_power(self, chance: Chance) -> None:
        self.lost_s = None
        if self.data is self.durable:
            return
        old, new = self.durable, self.data
        if new.startswith(old):
            # Appended: any prefix of what came after the last sync may be there, and often none of it or all.
            kept = chance.choice((len(old), len(new), chance.randrange(len(old), len(new) + 1)))
            self.data = new[:kept]
        else:
            self.data = chance.choice((old, new))
        self.durable = self.data


class Directory:
    __slots__ = ("durable", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[str, File | Directory] = {}
        self.durable: dict[str, File | Directory] = {}
        self.pending: list[dict[str, File | Directory | None]] = []
        """Changes of names since the last sync, each of them all or nothing."""

    def change(self, changes: dict[str, File | Directory | None]) -> None:
        _apply(self.names, changes)
        self.pending.append(changes)

    def sync(self) -> None:
        if self.pending:
            self.durable = dict(self.names)
            self.pending = []

    def cut_power(self, chance: Chance) -> None:
        if self.pending:
            for changes in self.pending[: chance.randrange(0, len(self.pending) + 1)]:
                _apply(self.durable, changes)
            self.names = dict(self.durable)
            self.pending = []
        for node in self.names.values():
            node.cut_power(chance)


def _apply(names: dict[str, File | Directory], changes: dict[str, File | Directory | None]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Disk:
    """Paths are relative, with `/` between names."""

    def __init__(self) -> None:
        self.root = Directory()
        self.is_full = False
        self.fsync_failures = 0
        """So many of the next syncs fail."""
        self.syncs = 0
        """How often something became durable, or was lost: whoever looks at what is durable need not look again before
        this has changed."""
        self._found: dict[str, Directory] = {}
        """Directories by their paths, as long as none is moved."""

    def directory(self, path: str) -> Directory | None:
        return self._found.get(path) or self._find(path)

    def _find(self, path: str) -> Directory | None:
        node: File | Directory | None = self.root
        if path:
            for name in path.split("/"):
                if type(node) is not Directory:
                    return None
                node = node.names.get(name)
        if type(node) is not Directory:
            return None
        self._found[path] = node
        return node

    def moved(self, node: File | Directory) -> None:
        """It has another name now, or none."""
        if type(node) is Directory:
            self._found.clear()

    def file(self, path: str) -> File | None:
        folder, _, name = path.rpartition("/")
        directory = self._found.get(folder) or self._find(folder)
        node = directory.names.get(name) if directory is not None else None
        return node if type(node) is File else None

    def durable_directory(self, path: str) -> Directory | None:
        """The directory that would be at `path` if the power were cut now, whatever is not synced being lost."""
        node: File | Directory | None = self.root
        for name in path.split("/"):
            if type(node) is not Directory:
                return None
            node = node.durable.get(name)
        return node if type(node) is Directory else None

    def durable_file(self, path: str) -> bytes | None:
        folder, _, name = path.rpartition("/")
        directory = self.durable_directory(folder) if folder else self.root
        node = directory.durable.get(name) if directory is not None else None
        return node.durable if type(node) is File else None

    def cut_power(self, chance: Chance) -> None:
        self.root.cut_power(chance)
        self.syncs += 1
        self._found.clear()
        self.is_full = False
        self.fsync_failures = 0
