"""Allocation: makes the C library keep freed memory instead of returning it to the system at once.

Invariant: it changes speed, never results, and is bounded. A program that processes a stream in blocks frees and
allocates the same amount again and again. glibc unmaps large blocks when they are freed, and new pages cost more than
writing to them. Sources and sinks of `sdk` call it at startup.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

KEPT_BYTES_MAX = 32 * 1024 * 1024
"""Maximum freed memory that a process keeps, and maximum size of a block that is reused."""

# Parameters of glibc's mallopt.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_memory() -> None:
    """Apply to this process. Does nothing with other C libraries."""
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, KEPT_BYTES_MAX)
        library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX)
