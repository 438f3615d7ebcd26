"""Allocation: makes the C library and Arrow keep freed memory instead of returning it to the system at once.

Invariant: it changes speed, never results, and the kept memory is bounded. A program that processes a stream in blocks
frees and allocates the same amount repeatedly. glibc unmaps large blocks when they are freed, Arrow's allocator
returns pages after 10 ms, and new pages cost more than writing to them. The command, and the sources and sinks of
`sdk`, call it at startup.
"""

from __future__ import annotations

import os
from contextlib import suppress

KEPT_BYTES_MAX = 32 * 1024 * 1024
"""Maximum freed memory that a process keeps, and maximum size of a block that is reused."""

ARROW_VARIABLE = "MIMALLOC_PURGE_DELAY"
ARROW_KEPT_MS = 10_000
"""How long Arrow's allocator keeps freed memory: longer than the time between two epochs."""

# Parameters of glibc's mallopt.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_memory() -> None:
    """Make the C library of this process keep freed memory. Does nothing with other C libraries than glibc."""
    import ctypes

    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, KEPT_BYTES_MAX)
        library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX)


def keep_arrow_memory() -> None:
    """Make Arrow keep freed memory in this process and its children. Has no effect if Arrow is loaded. The user's own
    setting stays."""
    os.environ.setdefault(ARROW_VARIABLE, str(ARROW_KEPT_MS))
