"""The acknowledgement log: which message ids a gateway acknowledged, and when.

    {"format": 2}
    {"stream": stream id, "id": the last acknowledged message id, "time": seconds since 1970}

Invariant: the log records which acknowledgements arrived. No decision depends on the log, so it is not synced. The
verifier compares the output with the log: an acknowledged record that is missing from the output is lost data.
`sdk/source_session` writes the log through `storage/journal`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from procession.errors import StorageError
from procession.format_number import check_format
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.storage.journal import Entry, Journal, read_journal_from

FORMAT = 2
"""Format number, stored in the first entry of a log. A log without a format number has format 1, otherwise the same."""


class AckLog:
    """Appends acknowledgements to a file. A restarted source continues the file of its earlier process."""

    def __init__(self, path: Path, files: FileSystem = HOST_FILES) -> None:
        self._journal = Journal(path, files)
        self._journal.open(lambda entry: _check(entry, path))
        if self._journal.is_empty:
            self._journal.append({"format": FORMAT}, is_synced=False)

    def record(self, stream_id: int, message_id: int, now: float) -> None:
        self._journal.append({"stream": stream_id, "id": message_id, "time": round(now, 6)}, is_synced=False)

    def close(self) -> None:
        self._journal.close()


class AckTail:
    """Reads the logs of several sources and keeps the highest acknowledged message id of each stream."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._positions = dict.fromkeys(paths, 0)
        self._highest: dict[int, int] = {}

    def follow(self, path: Path) -> None:
        """Add one more log, which is read from its beginning."""
        self._positions.setdefault(path, 0)

    def poll(self) -> dict[int, int]:
        """Read the new entries of all logs. Returns the highest acknowledged message id of each stream."""
        for path in self._positions:
            for entry, end in read_journal_from(path, self._positions[path]):
                self._positions[path] = end
                self._take(entry, path)
        return dict(self._highest)

    def _take(self, entry: Entry, path: Path) -> None:
        match entry:
            case {"stream": int(stream_id), "id": int(message_id)}:
                self._highest[stream_id] = max(message_id, self._highest.get(stream_id, 0))
            case {"format": _}:
                _check(entry, path)
            case _:
                raise StorageError(
                    f"{path} is not a log of acknowledgements.",
                    next_step="Name the file that the source was given with --acks.",
                    path=str(path),
                )


def _check(entry: Entry, path: Path) -> None:
    """Raise StorageError if the log has a newer format than this program knows."""
    if "format" in entry:
        check_format(path, entry["format"], FORMAT)


def acknowledged(paths: Iterable[Path]) -> dict[int, int]:
    """Return the highest acknowledged message id of each stream over all these logs."""
    return AckTail(paths).poll()
