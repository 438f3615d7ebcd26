"""Allocation: the C library is asked to keep memory that was freed, instead of giving it back at once.

The one rule: what is asked for changes speed, never results, and is bounded. Whoever works through a stream in blocks
frees as much as it takes again a moment later; glibc unmaps large blocks when they are freed, and fresh pages cost more
than what is written into them. The programs of `sdk` (sources and sinks) ask for it when they begin.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

KEPT_BYTES_MAX = 32 * 1024 * 1024
"""So much may stay with a process after it was freed, and blocks of up to this size are used again."""

# What glibc's mallopt calls them.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_memory() -> None:
    """For this process, from now on. Where the C library knows no such thing, nothing happens."""
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, KEPT_BYTES_MAX)
        library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX)
