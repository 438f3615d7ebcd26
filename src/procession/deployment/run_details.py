"""Writes details of a `procession run` into the pipeline's directory for the dashboard: its settings and its events.

Invariant: the details are a report and decide nothing. They contain no secrets, only the paths of their files. The
events are bounded: at `EVENTS_BYTES_MAX` the file is rotated, and one older file is kept.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from procession.deployment.cluster_pipeline import ClusterPipeline
from procession.deployment.local_pipeline import LocalPipeline
from procession.driver.epoch_log import EpochTail, older
from procession.planner.graph import Kind, Order, PayloadCodec, SinkFraming
from procession.storage.driver_claim import CURRENT, checkpoint_of

DETAILS = "run-details.json"
PLAIN_CODECS = (PayloadCodec.BYTES, PayloadCodec.TEXT)
"""Codecs that write records unchanged."""
INPUTS_MAX = 1_000
"""Maximum number of input files of earlier runs that are remembered, for a rollback that reads them again."""
EVENTS = "run-events.jsonl"
EVENTS_BYTES_MAX = 1024 * 1024
"""Size at which the file of events is rotated."""


def write_details(local: LocalPipeline | ClusterPipeline, app: Path, inputs: Iterable[str] = ()) -> None:
    """Write the details of this run, with the files given as `inputs`. A failure does not end the run."""
    letters = local.graph.dead_letter
    before = read_details(local.directory)
    details = {
        "app": str(app),
        "gateways": None if local.gateways_in == local.directory else str(local.gateways_in),
        "settings": {
            name: value for name, value in local.settings.model_dump(mode="json").items() if value is not None
        },
        "sinks": {
            end.name: str(local.sink_directories[end.sink.name] / f"{end.instance}.txnlog")
            for end in local.graph.participants
            if end.sink.name in local.sink_directories
        },
        # If the start of an older program is refused, the places of later sinks must stay: a rollback needs them.
        "sink_places": before.get("sink_places", {})
        | {
            end.name: {
                "url": end.sink.url.text,
                "instance": end.instance,
                "directory": str(local.sink_directories[end.sink.name]),
                "base": str(local.base if isinstance(local, LocalPipeline) else local.gateways_in),
            }
            for end in local.graph.participants
            if end.sink.name in local.sink_directories
        },
        "source_places": before.get("source_places", {})
        | {
            source.name: {
                "source": source.name,
                "url": source.url.text,
                "directory": str(local.directory / "sources" / source.name),
                "base": str(local.base if isinstance(local, LocalPipeline) else local.gateways_in),
                "share": source.share,
            }
            for source in local.graph.connected
        },
        "inputs": list(dict.fromkeys([*before.get("inputs", []), *map(os.path.abspath, inputs)]))[-INPUTS_MAX:],
        "passthrough": _passthrough(local),
        "dead_letters": None
        if letters is None or letters.name not in local.sink_directories
        else {
            "directory": str(local.sink_directories[letters.name]),
            "instance": f"{local.graph.name}-{letters.name}",
        },
    }
    with suppress(OSError):
        draft = local.directory / f"{DETAILS}.draft"
        draft.write_text(json.dumps(details))
        draft.replace(local.directory / DETAILS)


def _passthrough(local: LocalPipeline | ClusterPipeline) -> dict[str, dict[str, str]]:
    """Return the outputs that equal the input byte for byte since the first epoch. Empty if an earlier program
    differed or is unknown."""
    graph = local.graph
    is_new = not (checkpoint_of(local.directory) / CURRENT).exists()
    is_plain = all(node.kind in (Kind.SOURCE, Kind.SINK) and node.codec in PLAIN_CODECS for node in graph.nodes)
    if not is_plain or graph.dead_letter is not None or graph.event_time is not None:
        return {}
    if not is_new and not read_details(local.directory).get("passthrough"):
        return {}
    return {
        end.name: {
            "directory": str(local.sink_directories[end.sink.name]),
            "instance": end.instance,
            "order": str(end.sink.order or graph.order),
        }
        for end in graph.participants
        if end.sink.name in local.sink_directories and end.sink.sink_traits.writes_record_file and not end.sink.lanes
        if end.sink.framing is SinkFraming.LINES and end.sink.connections == 1
        if (end.sink.order or graph.order) is not Order.KEY
    }


def read_details(directory: Path) -> dict[str, Any]:
    """Return the details of the last run. Empty if there are none."""
    try:
        found: dict[str, Any] = json.loads((directory / DETAILS).read_text())
        return found
    except (OSError, ValueError):
        return {}


class RunEvents:
    """Appends the events of a run: its start and end, and the restarts of its parts."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / EVENTS

    def add(self, event: str, part: str, sentence: str) -> None:
        line = {"at_s": round(time.time(), 3), "event": event, "part": part, "sentence": sentence}
        with suppress(OSError):  # a report must not fail the run
            if self._path.exists() and self._path.stat().st_size > EVENTS_BYTES_MAX:
                self._path.replace(older(self._path))
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def read_events(directory: Path) -> list[dict[str, Any]]:
    """Return the stored events in order."""
    path = directory / EVENTS
    return [*EpochTail(older(path)).new(), *EpochTail(path).new()]
