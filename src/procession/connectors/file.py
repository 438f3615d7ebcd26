"""Files as source: lines in.

The one rule: a record is a line, and its message id is the position of the line's first byte, so that a file needs no
memory of how far it was read. Before it on the walk: the input files. After it: the gateway. The sink that writes
files is `connectors/file_sink`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from procession.address import parse_address
from procession.errors import ConfigError, StorageError
from procession.sdk.batch import Batch, Stream
from procession.sdk.options import SourceOptions
from procession.sdk.program import run_program
from procession.sdk.source import SourceClient
from procession.storage.durable import storage_error

CHUNK_BYTES = 1024 * 1024
LINE_BYTES_MAX = 16 * 1024 * 1024 - 64  # what a frame takes, less its own fields
NEWLINE = 10


class FileSource:
    """Each file is a stream, each line a record without its newline. A last line without one is a record too."""

    def __init__(self, paths: Sequence[Path], *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._chunk_bytes = chunk_bytes
        self._paths: dict[int, Path] = {}
        for path in paths:
            if not path.is_file() or not os.access(path, os.R_OK):
                why = "there is no such file" if not path.exists() else "it is not a file that this user may read"
                raise ConfigError(f"Cannot read {path}: {why}.", next_step="Give the names of files that can be read.")
            if self._paths.setdefault(stream_id_of(path), path) is not path:
                raise ConfigError(f"{path} is named twice.", next_step="Name each file once.")

    def streams(self) -> list[Stream]:
        return [Stream(stream_id, str(path)) for stream_id, path in self._paths.items()]

    def read(self, stream: Stream, after: int | None) -> Iterator[Batch]:
        path = self._paths[stream.id]
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise storage_error(path, "read", error) from error
        try:
            if after is not None:
                self._check_line_at(descriptor, after, path)
            # The line at `after` is read once more, only to find its end.
            skip = 0 if after is None else 1
            for batch in self._lines(descriptor, after or 0, path):
                yield batch.slice(skip, len(batch))
                skip = 0
        except OSError as error:
            raise storage_error(path, "read", error) from error
        finally:
            os.close(descriptor)

    def _lines(self, descriptor: int, position: int, path: Path) -> Iterator[Batch]:
        wanted = self._chunk_bytes
        while chunk := os.pread(descriptor, wanted, position):
            is_end = len(chunk) < wanted
            newlines = np.flatnonzero(np.frombuffer(chunk, np.uint8) == NEWLINE)
            if is_end and chunk[-1] != NEWLINE:
                newlines = np.append(newlines, len(chunk))
            if len(newlines):
                batch = _batch(chunk, newlines, position)
                position += int(newlines[-1]) + 1
                wanted = self._chunk_bytes
                yield batch
                if is_end:
                    return
            elif wanted > LINE_BYTES_MAX:
                raise ConfigError(
                    f"The line at byte {position} of {path} is longer than {LINE_BYTES_MAX} bytes.",
                    next_step="Give a file of shorter lines.",
                )
            else:
                wanted = min(wanted * 2, LINE_BYTES_MAX + 1)

    def _check_line_at(self, descriptor: int, position: int, path: Path) -> None:
        before = os.pread(descriptor, 2, position - 1) if position else b"\n" + os.pread(descriptor, 1, 0)
        if len(before) < 2 or before[0] != NEWLINE:
            raise StorageError(
                f"{path} is not the file that was read before: no line begins at byte {position}.",
                next_step="Put the file back, or give the new one another name.",
                path=str(path),
            )


def stream_id_of(path: Path) -> int:
    """64 bits of the absolute name: the same file is the same stream in every run."""
    name = os.fsencode(os.path.abspath(path))
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())


def _batch(chunk: bytes, newlines: npt.NDArray[np.int64], position: int) -> Batch:
    """The lines that end at `newlines`: the bytes without newlines, and where each line ends among them."""
    count = len(newlines)
    ends = newlines - np.arange(count)
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    text = pa.py_buffer(chunk[: newlines[-1]].replace(b"\n", b""))
    payloads = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), text])
    starts = np.concatenate(([0], newlines[:-1] + 1)) + position
    return Batch(starts.astype(np.uint64), np.zeros(count, np.int64), payloads)


def run_source(
    paths: Sequence[Path],
    to: str,
    *,
    cookie: bytes = b"",
    rate: float | None = None,
    is_stamping: bool = False,
    acks: Path | None = None,
) -> bool:
    """Send every line of every file; True when all of it is committed, False if a signal came first."""
    options = SourceOptions("procession source file", paths[0].name, cookie, rate, is_stamping, acks)
    client = SourceClient(FileSource(paths), parse_address(to), options)
    return run_program(_all_of(client)) is True


async def _all_of(client: SourceClient) -> bool:
    await client.run()
    return True
