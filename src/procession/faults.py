"""Fault points: named points at which a test makes the process die or its disk fail.

Invariant: without the environment variables, fault points are off and nearly free. `PROCESSION_FAULT` has `name` or
`name@k` (the k-th time that the point is reached), or several of them, separated by commas. `PROCESSION_FAULT_FILE`
names a file into which a test writes the name of a point at run time. The process removes the file before it dies, so
that the fault happens once and the test can see it. `pause:name` stops the process at the point with SIGSTOP. With
`disk:full` or `disk:sync` the file stays, and every write or sync fails while it exists, or from the k-th on
(`disk:sync@k`). `disk:torn` kills the process in the middle of its next write.
"""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter
from pathlib import Path
from typing import NoReturn

VARIABLE = "PROCESSION_FAULT"
FILE_VARIABLE = "PROCESSION_FAULT_FILE"


def _armed(text: str) -> dict[str, int]:
    points: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, count = part.partition("@")
        points[name] = int(count or 1)
    return points


_DISK = {"full": errno.ENOSPC, "sync": errno.EIO}
_occasions: Counter[str] = Counter()
"""Number of disk operations since the file made the disk fail."""
_points = _armed(os.environ.get(VARIABLE, ""))
_file = Path(os.environ[FILE_VARIABLE]) if os.environ.get(FILE_VARIABLE) else None


def point(name: str) -> None:
    """Kill the process with SIGKILL if this point is armed and this is the armed visit."""
    if not _points and _file is None:
        return
    if name in _points:
        _points[name] -= 1
    if _points.get(name) == 0 or (_file is not None and _is_taken(_file, name)):
        die()
    if _file is not None and _is_taken(_file, f"pause:{name}"):
        os.kill(os.getpid(), signal.SIGSTOP)  # the process stops here until SIGCONT


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached after SIGKILL")


def is_torn() -> bool:
    """Whether the process must die in the middle of its next write."""
    return _file is not None and _is_taken(_file, "disk:torn")


def _is_taken(file: Path, name: str) -> bool:
    """Whether the file names this point and this process has removed it."""
    try:
        if file.read_text().strip() != name:
            return False
        file.unlink()
    except FileNotFoundError:
        return False
    return True


def disk(what: str) -> None:
    """Raise the OSError of a full disk (before a write) or of a failed sync, if the fault file requests it."""
    if _file is None:
        return
    try:
        fault, _, first = _file.read_text().strip().partition("@")
    except FileNotFoundError:
        _occasions.clear()
        return
    if fault == f"disk:{what}":
        _occasions[what] += 1
        if _occasions[what] >= int(first or 1):
            raise OSError(_DISK[what], os.strerror(_DISK[what]))
