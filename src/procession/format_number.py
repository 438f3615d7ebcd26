"""Format numbers: the version of a file or message format, so that another release knows whether it can read it. Pure.

Invariant: a newer or invalid number is refused with one sentence that names the release to start. Data without a number
is older than format numbers; its reader passes the number that such data has. `docs/reference/formats.md` lists all
formats.
"""

from __future__ import annotations

from pathlib import PurePath

from procession.errors import StorageError


def is_known_format(number: object, newest: int) -> bool:
    """Whether this is a format number up to the newest number. `True` is not a format number, although it equals 1."""
    return isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= newest


def check_format(path: PurePath, number: object, newest: int) -> None:
    """Raise StorageError if a file has a format that this version does not know."""
    if not is_known_format(number, newest):
        raise StorageError(
            f"{path} has format {str(number)[:20]}, and this version reads formats 1 to {newest}.",
            next_step="Start the version that wrote it, or a later one.",
            path=str(path),
        )
