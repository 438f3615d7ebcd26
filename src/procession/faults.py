"""Fault points: named places where a test makes the process die, exactly there.

The one rule: off unless the environment names a point, and then it costs one dictionary look-up. `PROCESSION_FAULT` holds
`name` or `name@k` (the k-th time the point is reached), comma-separated for several. Imports nothing of ours.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "PROCESSION_FAULT"


def _armed(text: str) -> dict[str, int]:
    points: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, count = part.partition("@")
        points[name] = int(count or 1)
    return points


_points = _armed(os.environ.get(VARIABLE, ""))


def point(name: str) -> None:
    """Die here by SIGKILL if this point is armed and this is the armed visit."""
    if not _points or name not in _points:
        return
    _points[name] -= 1
    if _points[name] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
