"""Determines the inputs of a run: the files of `--input`, and the patterns of files that the app declares as one
stream.

Invariant: only the app determines whether a pattern is one stream, or each of its files is a stream. Used by
`jobs/run_app` and `procession explain`; the files are read by `connectors/file_source` and
`connectors/file_sequence`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from procession.connectors.file_source import FileSource, stream_id_of
from procession.errors import ConfigError
from procession.planner.graph import Graph


@dataclass(frozen=True)
class FilePattern:
    """A pattern whose files form one stream, in the order of their names."""

    pattern: str
    """The absolute path, which is the name of the stream."""
    stream: int
    source: str
    """The name of the source that declares it."""
    is_endless: bool
    """Whether the source waits for further files."""


@dataclass(frozen=True)
class RunInputs:
    """The inputs of a run, as its app declares them."""

    files: tuple[Path, ...]
    """Files, and patterns where each file is a stream."""
    paths: dict[int, str]
    """These files, by the ids of their streams."""
    patterns: tuple[FilePattern, ...]

    @property
    def streams(self) -> frozenset[int]:
        return frozenset(self.paths) | {pattern.stream for pattern in self.patterns}


def read_inputs(graph: Graph, names: Sequence[Path]) -> RunInputs:
    """Return the files and patterns that a run with these inputs reads. Raises ConfigError if a file cannot be read,
    or belongs to a pattern."""
    declared = {
        stream_id_of(Path(pattern)): FilePattern(
            os.path.abspath(pattern), stream_id_of(Path(pattern)), source.name, source.ends is False
        )
        for source in graph.sources
        for pattern in source.patterns
    }
    files = tuple(name for name in names if stream_id_of(name) not in declared)
    patterns = tuple({stream: declared[stream] for stream in map(stream_id_of, names) if stream in declared}.values())
    paths = FileSource(files).paths
    for path in paths.values():
        for pattern in declared.values():
            if fnmatch(os.path.abspath(path), pattern.pattern):
                shown = os.path.relpath(pattern.pattern)
                raise ConfigError(
                    f"The file {path} belongs to the pattern {shown}, which source {pattern.source!r} declares as one"
                    " stream.",
                    next_step=f"Name the pattern instead of its files, in quotes: --input '{shown}'.",
                )
    FileSource([pattern.pattern for pattern in patterns if not pattern.is_endless])  # refuses a pattern without files
    return RunInputs(files, paths, patterns)
