"""Allocation: makes the C library and Arrow keep freed memory instead of returning it to the system at once.

Invariant: it changes speed, never results, and is bounded. A program that processes a stream in blocks frees and
allocates the same amount again and again. glibc unmaps large blocks when they are freed, Arrow's allocator returns
pages after 10 ms, and new pages cost more than writing to them. The command and sources and sinks of `sdk` call it at
startup.
"""

from __future__ import annotations

import os
from contextlib import suppress

KEPT_BYTES_MAX = 32 * 1024 * 1024
"""Maximum freed memory that a process keeps, and maximum size of a block that is reused."""

ARROW_VARIABLE = "MIMALLOC_PURGE_DELAY"
ARROW_KEPT_MS = 10_000
"""How long Arrow's allocator keeps what was freed: longer than the time between two epochs."""

# Parameters of glibc's mallopt.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_memory() -> None:
    """Apply to this process. Does nothing with other C libraries."""
    import ctypes

    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, KEPT_BYTES_MAX)
        library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX)


def keep_arrow_memory() -> None:
    """Apply to this process and those that it starts, if Arrow is not loaded yet. A value of the user stays."""
    os.environ.setdefault(ARROW_VARIABLE, str(ARROW_KEPT_MS))
