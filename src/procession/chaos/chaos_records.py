"""Generates the records of a chaos run: unique, about 50 bytes, each with its stream, number and key. Pure.

    s0007 0000123 D 5f0c…        stream 7, record 123, key D, a checksum

Invariant: a record depends only on its stream's tag and its number, so an input can be generated again. The app adds a
salt that differs each time an epoch is run again: outputs are correct only if all sinks have the same salt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

KEYS = b"ABCDEFGHIJ"
TAG_BYTES = 5
SALT_BYTES = 9
KEY_AT = 14
RECORD_BYTES = 50

SALTED = '''"""Copies records and adds a salt, which differs each time that an epoch is run again."""

import os

from procession import Pipeline


def salted(payload: bytes) -> bytes:
    return payload + b" " + os.urandom(4).hex().encode()


pipeline = Pipeline("chaos", parallelism=2)
lines = pipeline.source("lines").map(salted)
'''
"""The text of an app, without its sinks."""
APP = (
    SALTED
    + """lines.sink("left", to="file:left")
lines.sink("right", to="file:right")
"""
)


def tag(number: int) -> str:
    return f"s{number:04d}"


def record(stream: str, number: int) -> bytes:
    check = hashlib.blake2b(f"{stream} {number}".encode(), digest_size=17).digest()
    return b"%s %07d %c %s" % (stream.encode(), number, KEYS[check[0] % len(KEYS)], check.hex().encode())


def key_of(line: bytes) -> bytes:
    """Return the key of a record, with or without its salt."""
    return line[KEY_AT : KEY_AT + 1]


def records(stream: str, count: int) -> Iterator[bytes]:
    return (record(stream, number) for number in range(count))


def unsalted(lines: Iterable[bytes]) -> dict[str, list[bytes]]:
    """Return the output lines without their salt, by stream, each stream in order."""
    found: dict[str, list[bytes]] = {}
    for line in lines:
        found.setdefault(line[:TAG_BYTES].decode(errors="replace"), []).append(line[:-SALT_BYTES])
    return found
