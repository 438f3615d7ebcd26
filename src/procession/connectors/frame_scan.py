"""Finds length-prefixed frames in compiled code. Each length gives the position of the next, so column operations
cannot find them.

Invariant: it never reads outside of its buffer. Importing this module imports numba, so only `framing` imports it, and
only for length-prefixed records.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from procession.compiled_kernels import compiled

_READ_ONLY = types.Array(types.uint8, 1, "C", readonly=True)
_LENGTH_BYTES = 4


@compiled(types.int64[::1](_READ_ONLY, types.int64))
def frame_starts(data: Any, payload_bytes_max: int) -> Any:
    """Return the start of each complete frame, and the end of the last one. A length over the limit ends the scan."""
    end = len(data)
    starts = np.empty(end // _LENGTH_BYTES + 1, np.int64)
    count, position = 0, 0
    starts[0] = 0
    while position + _LENGTH_BYTES <= end:
        length = (
            (np.int64(data[position]) << 24)
            | (np.int64(data[position + 1]) << 16)
            | (np.int64(data[position + 2]) << 8)
            | np.int64(data[position + 3])
        )
        if length > payload_bytes_max or length > end - position - _LENGTH_BYTES:
            break
        position += _LENGTH_BYTES + length  # type: ignore[assignment]  # numba has one integer type
        count += 1
        starts[count] = position
    return starts[: count + 1].copy()
