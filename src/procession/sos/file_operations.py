"""Changes to the files of a directory, as records of a journal, and the tree of names that results. Pure.

    append of the volume:  record, record, …
    record:  u8 tag | fields        (names: u16 length and UTF-8; data: u32 length and bytes)

A file has a number, so that it stays the same file when its name changes. `GiveName` makes a file, or gives an existing
file a further name. A snapshot begins with `BeginSnapshot`, names every directory and file, writes their bytes, and
ends with `EndSnapshot`. Other operations may come in between. Each write of the snapshot has the bytes that the file
has at this point of the journal. So a reader that has the whole journal can apply it like any other write.

Invariant: a record decodes to the operation that was encoded. A name leads only to a place below the directory; any
other name is a RemoteProtocolError. `sos/replicated_files` writes the journal, `sos/directory_restore` reads it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from procession.errors import RemoteProtocolError
from procession.wire.frame_codec import Reader, short_bytes

FORMAT = 1
WRITE_BYTES_MAX = 2 * 1024 * 1024
"""Maximum data of one record. A longer write becomes several records."""
NAME_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class BeginSnapshot:
    root: str
    """The name of the writing process's directory. Empty: the directory that is restored."""
    is_reset: bool
    """Whether earlier files are void, because a process has started with the files that it found."""
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class EndSnapshot:
    """Ends a snapshot. All its bytes come before this record."""


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    name: str


@dataclass(frozen=True, slots=True)
class GiveName:
    name: str
    file: int


@dataclass(frozen=True, slots=True)
class WriteBytes:
    file: int
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class TruncateFile:
    file: int
    length: int


@dataclass(frozen=True, slots=True)
class RenameEntry:
    """Renames a file, or a directory with its content. Replaces the file that has the new name."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class RemoveEntry:
    """Removes a file, or a directory with its content."""

    name: str


FileOperation = (
    BeginSnapshot | EndSnapshot | MakeDirectory | GiveName | WriteBytes | TruncateFile | RenameEntry | RemoveEntry
)

NOTHING = bytes([9])
"""A record without an operation, for a sync when no other record waits."""
_BEGIN, _END, _DIRECTORY, _NAME, _WRITE, _TRUNCATE, _RENAME, _REMOVE = range(1, 9)
_WRITE_HEAD = struct.Struct(">BQQI")
_TWO = struct.Struct(">BQQ")


def encode_operation(operation: FileOperation) -> tuple[bytes, ...]:
    """Encode a record, in parts. The data of a write is a separate part, which is not copied."""
    match operation:
        case WriteBytes(file, position, data):
            return _WRITE_HEAD.pack(_WRITE, file, position, len(data)), data
        case TruncateFile(file, length):
            return (_TWO.pack(_TRUNCATE, file, length),)
        case GiveName(name, file):
            return (struct.pack(">BQ", _NAME, file) + _named(name),)
        case MakeDirectory(name):
            return (bytes([_DIRECTORY]) + _named(name),)
        case RenameEntry(old, new):
            return (bytes([_RENAME]) + _named(old) + _named(new),)
        case RemoveEntry(name):
            return (bytes([_REMOVE]) + _named(name),)
        case BeginSnapshot(root, is_reset, number):
            return (struct.pack(">BHB", _BEGIN, number, is_reset) + _named(root),)
        case EndSnapshot():
            return (bytes([_END]),)


def decode_operations(data: bytes) -> Iterator[FileOperation]:
    """Decode the operations of one append. Raises RemoteProtocolError."""
    reader = Reader(data)
    while reader.remaining:
        if (tag := reader.u8()) != NOTHING[0]:
            yield _decoded(reader, tag)


def _decoded(reader: Reader, tag: int) -> FileOperation:
    match tag:
        case 1:
            number, is_reset = reader.u16(), reader.boolean()
            if number != FORMAT:
                raise RemoteProtocolError(f"the journal has format {number}, and this version reads format {FORMAT}")
            root = _name_of(reader, is_root=True)
            return BeginSnapshot(root, is_reset, number)
        case 2:
            return EndSnapshot()
        case 3:
            return MakeDirectory(_name_of(reader))
        case 4:
            file = reader.u64()
            return GiveName(_name_of(reader), file)
        case 5:
            file, position = reader.u64(), reader.u64()
            return WriteBytes(file, position, reader.bytes_of(reader.u32()))
        case 6:
            return TruncateFile(reader.u64(), reader.u64())
        case 7:
            return RenameEntry(_name_of(reader), _name_of(reader))
        case 8:
            return RemoveEntry(_name_of(reader))
    raise RemoteProtocolError(f"an operation of unknown tag {tag}")


def _named(name: str) -> bytes:
    return short_bytes(name.encode("utf-8", "surrogateescape"))


def _name_of(reader: Reader, *, is_root: bool = False) -> str:
    name = reader.short_bytes().decode("utf-8", "surrogateescape")
    if not (is_root and not name) and not is_below(name):
        raise RemoteProtocolError(f"the name {name[:80]!r} leads out of the directory")
    return name


def is_below(name: str) -> bool:
    """Whether a name leads to a place below the directory, in its only valid spelling."""
    parts = name.split("/")
    return len(name) <= NAME_BYTES_MAX and "\0" not in name and not {"", ".", ".."}.intersection(parts)


@dataclass
class FileTree:
    """The names in a directory, and the sizes of its files."""

    directories: dict[str, None] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    """The file number of each name."""
    sizes: dict[int, int] = field(default_factory=dict)
    """The sizes of the files that have a name."""
    _names: dict[int, int] = field(default_factory=dict)
    """The number of names of each file."""

    def apply(self, operation: FileOperation) -> list[int]:
        """Apply an operation. Returns the files that have lost their last name. An operation on such a file changes
        nothing."""
        match operation:
            case WriteBytes(file, position, data):
                if file in self.sizes:
                    self.sizes[file] = max(self.sizes[file], position + len(data))
            case TruncateFile(file, length):
                if file in self.sizes:
                    self.sizes[file] = length
            case MakeDirectory(name):
                self.directories[name] = None
            case GiveName(name, file):
                return self._give(name, file)
            case RenameEntry(old, new):
                return self._rename(old, new)
            case RemoveEntry(name):
                return self._remove(name)
        return []

    def _give(self, name: str, file: int) -> list[int]:
        if self.files.get(name) == file:
            return []
        self._names[file] = self._names.get(file, 0) + 1
        self.sizes.setdefault(file, 0)
        lost = self._remove(name)
        self.files[name] = file
        return lost

    def _rename(self, old: str, new: str) -> list[int]:
        if (file := self.files.get(old)) is not None:
            # Linux does nothing if both are names of one file.
            return [] if self.files.get(new) == file else self._give(new, file) + self._remove(old)
        if old not in self.directories or old == new:
            return []
        lost = self._remove(new)
        for name in [name for name in self.directories if _is_in(name, old)]:
            self.directories[new + name[len(old) :]] = None
            del self.directories[name]
        for name in [name for name in self.files if _is_in(name, old)]:
            self.files[new + name[len(old) :]] = self.files.pop(name)
        return lost

    def _remove(self, name: str) -> list[int]:
        """Remove a name, and all names below it."""
        if name in self.files:
            names = [name]
        elif name in self.directories:
            names = [other for other in self.files if _is_in(other, name)]
            for other in [other for other in self.directories if _is_in(other, name)]:
                del self.directories[other]
        else:
            return []
        lost = []
        for other in names:
            file = self.files.pop(other)
            self._names[file] -= 1
            if not self._names[file]:
                del self._names[file], self.sizes[file]
                lost.append(file)
        return lost


def _is_in(name: str, directory: str) -> bool:
    return name == directory or name.startswith(f"{directory}/")
