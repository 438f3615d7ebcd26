"""Format numbers: what a file or a message carries so that another version can tell whether it understands it. Pure.

The one rule: what is newer than this version, or is no number, is refused with one sentence that names the version to
start. What has no number was written before there were any; whoever reads it passes the number that stands for it.
Before it: every reader of a file or message of ours (`docs/reference/formats.md` lists them). After it: the user,
if it is refused.
"""

from __future__ import annotations

from pathlib import PurePath

from procession.errors import StorageError


def is_known_format(found: object, newest: int) -> bool:
    """Whether this is the number of a format up to the newest one. `True` is none, though it equals 1."""
    return isinstance(found, int) and not isinstance(found, bool) and 1 <= found <= newest


def check_format(path: PurePath, found: object, newest: int) -> None:
    """Raise StorageError if a file is of a format that this version does not know."""
    if not is_known_format(found, newest):
        raise StorageError(
            f"{path} has format {str(found)[:20]}, and this version reads formats 1 to {newest}.",
            next_step="Start the version that wrote it, or a later one.",
            path=str(path),
        )
