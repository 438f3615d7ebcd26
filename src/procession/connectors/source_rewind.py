"""Sources that can send their input again: whether they still have it, before a rollback relies on that.

Invariant: the check changes nothing. A source that passes it sends the records after an earlier position again as soon
as the gateway names that position as committed: no frame and no option asks for it. The supervisor asks before a
rollback (`supervisor/rollback_input`); a connector without a `rewind` in its SourceTraits cannot be read again.
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
    """Where a source that the pipeline starts reads from."""

    source: str
    """Its name, for people."""
    url: str
    directory: Path
    """The directory of its state."""
    base: Path
    """The directory that a relative place of the URL is relative to."""
    share: int | None = None
    """The share of stream ids that its streams get. None: they keep their ids."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> SourcePlace:
        """The place that a run has written down, as in `supervisor/run_details`."""
        directory, base = Path(document["directory"]), Path(document["base"])
        return cls(document["source"], document["url"], directory, base, document["share"])

    @classmethod
    def of_file(cls, path: str) -> SourcePlace:
        """A file that a producer sends, as `procession source file` does."""
        return cls(path, f"file:{path}", Path(path).parent, Path(path).parent)


class SourceRewind(Protocol):
    """Says whether a source can send records again."""

    def __init__(self, place: SourcePlace, url: ConnectorUrl) -> None: ...

    @property
    def stream_ids(self) -> frozenset[int]:
        """The streams that it has now, before they get a share of ids."""

    def check(self, stream_id: int, after: int | None, last: int | None) -> None:
        """Raise a ProcessionError unless it has all records of this stream after message `after` up to `last`. `after`
        is None if it is to begin with the first one, `last` if nothing was committed so far."""


class FileRewind:
    """Files: a message id is the position of a line."""

    def __init__(self, place: SourcePlace, url: ConnectorUrl) -> None:
        self._files = FileSource([place.base / url.place])

    @property
    def stream_ids(self) -> frozenset[int]:
        return self._files.stream_ids

    def check(self, stream_id: int, after: int | None, last: int | None) -> None:
        with Cursor(Path(self._files.paths[stream_id]), LineFraming()) as cursor:
            cursor.go_after(after)
            cursor.go_after(last)
