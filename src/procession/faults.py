"""Fault points: named places where a test makes the process die, exactly there; or its disk fail.

The one rule: off unless the environment names a point or a file, and then it costs one look. `PROCESSION_FAULT` holds
`name` or `name@k` (the k-th time the point is reached), comma-separated for several. `PROCESSION_FAULT_FILE` names a
file that a test writes a point's name into while the process runs; whoever dies of it takes the file away first, so
that it happens once, and can be seen to have happened. `pause:name` stops the process at the point with SIGSTOP. A file
that says `disk:full` or `disk:sync` stays, and every write, or every sync, fails as long as it is there, or from the
k-th on (`disk:sync@k`); `disk:torn` ends the process in the middle of its next write. It imports nothing of ours.
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
"""How often a bad disk was asked, since the file says that it is bad."""
_points = _armed(os.environ.get(VARIABLE, ""))
_file = Path(os.environ[FILE_VARIABLE]) if os.environ.get(FILE_VARIABLE) else None


def point(name: str) -> None:
    """Die here by SIGKILL if this point is armed and this is the armed visit."""
    if not _points and _file is None:
        return
    if name in _points:
        _points[name] -= 1
    if _points.get(name) == 0 or (_file is not None and _is_taken(_file, name)):
        die()
    if _file is not None and _is_taken(_file, f"pause:{name}"):
        os.kill(os.getpid(), signal.SIGSTOP)  # until somebody sends SIGCONT


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody survives this")


def is_torn() -> bool:
    """Whether the process is to die in the middle of the write that it is about to do."""
    return _file is not None and _is_taken(_file, "disk:torn")


def _is_taken(file: Path, name: str) -> bool:
    """Whether the file named this point, and it was this process that took the file away."""
    try:
        if file.read_text().strip() != name:
            return False
        file.unlink()
    except FileNotFoundError:
        return False
    return True


def disk(what: str) -> None:
    """Raise the OSError of a disk that is full (before a write), or that fails to sync, if the file says so."""
    if _file is None:
        return
    try:
        said, _, first = _file.read_text().strip().partition("@")
    except FileNotFoundError:
        _occasions.clear()
        return
    if said == f"disk:{what}":
        _occasions[what] += 1
        if _occasions[what] >= int(first or 1):
            raise OSError(_DISK[what], os.strerror(_DISK[what]))
