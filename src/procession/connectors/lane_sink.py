"""The lane sink: writes each lane of a sink to DIR/<instance>.lane.

Invariant: as in the file sink, a lane file has each byte at the position that the round assigned to it, and
DIR/<instance>.txnlog lists the committed transactions. Blocks are checked when they arrive, so a sender that does not
send lanes is refused before the vote. `sdk/lane_files` reads the files.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from procession.connectors.file_sink import FileOutput
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.sdk.lane_files import LANE_SUFFIX
from procession.sdk.output import OpenOutput
from procession.sdk.payloads import Payloads
from procession.sdk.sink_directory import LISTEN, OnOutcome, run_sink
from procession.tls import ServerTls
from procession.wire.lane_blocks import decode_blocks

INSTANCES_MAX = 2048
"""Maximum number of lanes that one process writes. Each has two open files, and a thread while it votes."""


class LaneOutput(FileOutput):
    """One lane."""

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        messages = Payloads.of(payloads)
        edges, joined = messages.edges.tolist(), messages.joined
        for start, end in itertools.pairwise(edges):
            for _ in decode_blocks(joined[start:end]):
                pass
        super().append(position, messages)


def run_lane_sink(
    directory: Path,
    listen: str = LISTEN,
    *,
    cookie: bytes | None = None,
    tls: ServerTls | None = None,
    on_outcome: OnOutcome | None = None,
    files: FileSystem = HOST_FILES,
) -> None:
    """Serve the sink until a signal stops it. Raises the StorageError that stops it otherwise."""
    run_sink(
        lane_opener(directory, files),
        directory,
        listen,
        cookie=cookie,
        tls=tls,
        on_outcome=on_outcome,
        instances_max=INSTANCES_MAX,
        files=files,
    )


def lane_opener(directory: Path, files: FileSystem = HOST_FILES) -> OpenOutput:
    """Return a function that opens the output of an instance in this directory."""
    return lambda instance: LaneOutput(directory / f"{instance}{LANE_SUFFIX}", files)
