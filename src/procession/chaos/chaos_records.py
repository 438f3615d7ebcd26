"""The records of a chaos run: about 50 bytes, each unique, each telling its stream, its number and its key. Pure.

    s0007 0000123 D 5f0c…        stream 7, record 123, key D, a check of its own

The one rule: a record is made from its stream's tag and its number alone, so an input can be made again. The app adds a
salt that differs each time an epoch is run again: outputs are right only if all sinks have the same one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

KEYS = b"ABCDEFGHIJ"
TAG_BYTES = 5
SALT_BYTES = 9
RECORD_BYTES = 50

APP = '''"""What comes in goes out, with a salt: made anew whenever an epoch is run again."""

import os

from procession import Pipeline


def salted(payload: bytes) -> bytes:
    return payload + b" " + os.urandom(4).hex().encode()


pipeline = Pipeline("chaos", parallelism=2)
lines = pipeline.source("lines").map(salted)
lines.sink("left", to="file:left")
lines.sink("right", to="file:right")
'''


def tag(number: int) -> str:
    return f"s{number:04d}"


def record(stream: str, number: int) -> bytes:
    check = hashlib.blake2b(f"{stream} {number}".encode(), digest_size=17).digest()
    return b"%s %07d %c %s" % (stream.encode(), number, KEYS[check[0] % len(KEYS)], check.hex().encode())


def records(stream: str, count: int) -> Iterator[bytes]:
    return (record(stream, number) for number in range(count))


def unsalted(lines: Iterable[bytes]) -> dict[str, list[bytes]]:
    """Output lines without their salt, by stream, each stream's in order."""
    found: dict[str, list[bytes]] = {}
    for line in lines:
        found.setdefault(line[:TAG_BYTES].decode(errors="replace"), []).append(line[:-SALT_BYTES])
    return found
