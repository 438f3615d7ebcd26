"""Heads, configurations and volumes for the tests of this room."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path

from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.sos.recovery import recover_volume
from procession.sos.volume import Volume
from procession.sos.volume_rules import ObjectHead, QuorumConfig

A, B, C = (bytes([number]) * 16 for number in (1, 2, 3))
T1, T2, T3 = (bytes([number]) * 16 for number in (11, 12, 13))
CONFIG = QuorumConfig((A, B, C), 2)
FIRST = ObjectHead(0, 0, 0, CONFIG)


def head(previous: int, data: bytes = b"", config: QuorumConfig = CONFIG) -> ObjectHead:
    """Return the head of an object that seals the previous one at this length."""
    return ObjectHead(previous, len(data), zlib.crc32(data), config)


def made(directory: Path, files: FileSystem = HOST_FILES) -> Volume:
    return Volume.make(directory, files, A)


def reopened(directory: Path, files: FileSystem = HOST_FILES) -> Volume:
    found = recover_volume(directory, files)
    assert found is not None
    return Volume(directory, files, *found)


def filled(volume: Volume, number: int, chunks: Iterable[bytes], fence: int, token: bytes) -> bytes:
    """Append these chunks, and return all bytes of the object."""
    known = volume.progress(number)
    offset, checksum = known.written, known.checksum
    data = b""
    for chunk in chunks:
        checksum = zlib.crc32(chunk, checksum)
        volume.append(fence, token, number, offset, checksum, chunk)
        offset += len(chunk)
        data += chunk
    return data
