"""Stores savepoints in object services: `sos://HOST:PORT,HOST:PORT,HOST:PORT/NAME`. Each savepoint is a volume.

Invariant: a savepoint there is complete or absent: its last append marks the end, and a complete savepoint is never
changed. Fetched data is verified before it is used. Files are sent and fetched in pieces, so memory is bounded. The
appends
are: `B` and the format number; `F`, the length of a name, the name and a piece of that file, in order; `E`. A copy
that was interrupted starts again after the existing data, with another `B`.
"""

from __future__ import annotations

import asyncio
import json
import struct
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path, PurePosixPath

from procession.errors import StorageError, UsageError
from procession.format_number import check_format
from procession.savepoints.savepoint import MANIFEST, Savepoint, load, remove_tree
from procession.sos.replicated_volume import ReplicaOptions, ReplicatedVolume
from procession.storage.durable import make_directory

SCHEME = "sos://"
FORMAT = 1
PIECE_BYTES = 1024 * 1024
BEGIN, FILE, END = b"B", b"F", b"E"
_NAME_LENGTH = struct.Struct(">H")

Say = Callable[[str], None]


def split_place(place: str) -> tuple[str, str]:
    """Return the addresses and the name of the volume. Raises UsageError."""
    addresses, _, volume = place.removeprefix(SCHEME).partition("/")
    if not volume:
        raise UsageError(
            f"{place!r} names no volume.", next_step="Write it as sos://HOST:PORT,HOST:PORT,HOST:PORT/NAME."
        )
    return addresses, volume


def send(savepoint: Savepoint, volume: str, options: ReplicaOptions, say: Say | None = None) -> None:
    """Copy a savepoint to a volume, and verify the copy. Raises UsageError if the volume already has a savepoint."""
    savepoint.verify()
    asyncio.run(_send(savepoint, volume, options, say))
    with fetched(volume, options, say=say) as copy:
        copy.verify()


@contextmanager
def fetched(
    volume: str, options: ReplicaOptions, beside: Path | None = None, say: Say | None = None
) -> Iterator[Savepoint]:
    """Yield a local copy of a savepoint in a volume. The copy is on the same disk as the directory `beside`, and
    removed at the end. Raises UsageError if there is no savepoint, StorageError if it is damaged."""
    if beside is not None:
        make_directory(beside)
    with tempfile.TemporaryDirectory(prefix=".savepoint-", dir=beside) as scratch:
        if not asyncio.run(_fetch(Path(scratch), volume, options, say)):
            raise UsageError(f"There is no savepoint in the volume {volume!r}.", next_step="Name another volume.")
        yield load(Path(scratch))


@asynccontextmanager
async def _opened(
    volume: str, options: ReplicaOptions, say: Say | None, *, may_begin: bool
) -> AsyncIterator[ReplicatedVolume]:
    opened = ReplicatedVolume(volume, options, may_begin=may_begin)
    try:
        await opened.open(say)
        yield opened
    finally:
        await opened.close()


async def _send(savepoint: Savepoint, name: str, options: ReplicaOptions, say: Say | None) -> None:
    async with _opened(name, options, say, may_begin=True) as volume:
        last = b""
        async for _, data in volume.history():
            if not last and data[:1] != BEGIN:
                raise _other(name)
            last = data[:1]
        if last == END:
            raise UsageError(f"There is a savepoint in the volume {name!r} already.", next_step="Name another volume.")
        begins = await volume.roll()
        volume.append(BEGIN + json.dumps({"format": FORMAT}).encode())
        for file in [*savepoint.manifest["files"], MANIFEST]:
            head = FILE + _NAME_LENGTH.pack(len(file.encode())) + file.encode()
            with (savepoint.directory / file).open("rb") as source:
                piece = source.read(PIECE_BYTES)
                while True:
                    volume.append(head + piece)
                    await volume.room()
                    if not (piece := source.read(PIECE_BYTES)):
                        break
        await volume.write(END, say)
        await volume.retain_from(begins)


async def _fetch(directory: Path, name: str, options: ReplicaOptions, say: Say | None) -> bool:
    """Write the files of a savepoint to this directory. Return False if the savepoint is incomplete."""
    is_complete = False
    async with _opened(name, options, say, may_begin=False) as volume:
        async for _, data in volume.history():
            is_complete = data[:1] == END
            if data[:1] == BEGIN:
                check_format(Path(name), json.loads(data[1:])["format"], FORMAT)
                _clear(directory)
            elif data[:1] == FILE:
                end = 1 + _NAME_LENGTH.size + _NAME_LENGTH.unpack_from(data, 1)[0]
                _add(directory, data[1 + _NAME_LENGTH.size : end].decode(), data[end:], name)
            elif not is_complete:
                raise _other(name)
    return is_complete


def _clear(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir():
            remove_tree(path)
        else:
            path.unlink()


def _add(directory: Path, file: str, piece: bytes, volume: str) -> None:
    path = PurePosixPath(file)
    if path.is_absolute() or ".." in path.parts:
        raise StorageError(f"The savepoint in the volume {volume!r} is damaged: it names {file!r}.")
    make_directory((directory / path).parent)
    with (directory / path).open("ab") as target:
        target.write(piece)


def _other(volume: str) -> StorageError:
    return StorageError(f"The volume {volume!r} is not one of a savepoint.", next_step="Name another volume.")
