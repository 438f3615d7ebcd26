"""Checks before a rollback whether sources still have the input that they must send again.

Invariant: the check changes nothing. A source that passes it sends the records after an earlier position again as
soon as the gateway reports that position as committed. No frame or option is needed. The supervisor asks before a
rollback (`savepoints/rollback_input`); a connector without a `rewind` in its SourceTraits cannot be read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from procession.connectors.file_source import Cursor, FileSource
from procession.connectors.framing import LineFraming
from procession.planner.connector_url import ConnectorUrl


@dataclass(frozen=True)
class SourcePlace:
    """The location from which a source of the pipeline reads."""

    source: str
    """The source's name, for messages."""
    url: str
    directory: Path
    """The directory of the source's state."""
    base: Path
    """The directory that a relative place of the URL is relative to."""
    share: int | None = None
    """The share of stream ids for its streams. None: they keep their ids."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> SourcePlace:
        """Return the place that a run has written down, as in `deployment/run_details`."""
        directory, base = Path(document["directory"]), Path(document["base"])
        return cls(document["source"], document["url"], directory, base, document["share"])

    @classmethod
    def of_file(cls, path: str) -> SourcePlace:
        """Return the place of a file that a producer sends, as `procession source file` does."""
        return cls(path, f"file:{path}", Path(path).parent, Path(path).parent)


class SourceRewind(Protocol):
    """Checks whether a source can send records again."""

    def __init__(self, place: SourcePlace, url: ConnectorUrl) -> None: ...

    @property
    def stream_ids(self) -> frozenset[int]:
        """The ids of its current streams, as the source itself numbers them (see `sdk/source_share`)."""

    def check(self, stream_id: int, after: int | None, last: int | None) -> None:
        """Raise a ProcessionError unless the source has all records of this stream after message `after` up to
        `last`. `after` is None to begin with the first record, `last` is None if no record was committed."""


class FileRewind:
    """The rewind of files: a message id is the position of a line."""

    def __init__(self, place: SourcePlace, url: ConnectorUrl) -> None:
        self._files = FileSource([place.base / url.place])

    @property
    def stream_ids(self) -> frozenset[int]:
        return self._files.stream_ids

    def check(self, stream_id: int, after: int | None, last: int | None) -> None:
        with Cursor(Path(self._files.paths[stream_id]), LineFraming()) as cursor:
            cursor.go_after(after)
            cursor.go_after(last)
