"""Translates the declared order of streams between the app and the gateway's command line.

Invariant: app and gateway must declare the same order; the driver checks this before it reads a record. The user
declares it with `planner/event_order`; the gateway applies it with `merge/event_time`.
"""

from __future__ import annotations

from collections.abc import Mapping

from procession.errors import ConfigError
from procession.merge.event_time import DeclaredOrder, declared_of
from procession.planner.graph import Graph


def declared_by(graph: Graph) -> DeclaredOrder | None:
    """Return the event-time order that the app declares; None for arrival order."""
    if (event_time := graph.event_time) is None:
        return None
    return declared_of(graph.streams, event_time.lateness_s, event_time.idle_timeout_s)


def order_of(graph: Graph) -> str:
    """Return the app's order as the text that a gateway reports; empty for arrival order."""
    declared = declared_by(graph)
    return "" if declared is None else str(declared)


def check_gateways(graph: Graph, gateways: int) -> None:
    """Raise ConfigError if this number of gateways cannot provide the app's order."""
    if graph.event_time is not None and graph.event_time.idle_timeout_s is not None and gateways > 1:
        raise ConfigError(
            f"pipeline {graph.name!r} has idle_timeout_s, which supports one gateway only: the others do not know"
            " that a stream is idle",
            next_step="remove idle_timeout_s, or remove --gateways",
        )


def check_inputs(graph: Graph, files: Mapping[int, str]) -> None:
    """Raise ConfigError if the app orders by event time and does not declare the stream of each of these files."""
    if graph.event_time is None:
        return
    for stream_id, path in files.items():
        if stream_id not in graph.streams:
            raise ConfigError(
                f"pipeline {graph.name!r} is ordered by event time, and no source declares the file {path}",
                next_step=f"declare it by its path: source(…, streams=[Path({path!r})]); a text is the name of a"
                " stream, not of a file",
            )


def order_arguments(graph: Graph) -> list[str]:
    """Return the gateway's command-line options for the app's order."""
    return order_arguments_of(declared_by(graph))


def order_arguments_of(declared: DeclaredOrder | None) -> list[str]:
    """Return the gateway's command-line options for a declared order."""
    if declared is None:
        return []
    options = ["--event-time-streams", written(declared.streams), "--lateness-s", repr(declared.lateness_ns / 1e9)]
    return options + (
        ["--idle-timeout-s", repr(declared.idle_timeout_s)] if declared.idle_timeout_s is not None else []
    )


def written(streams: frozenset[int]) -> str:
    """Format streams as a list of ids and ranges: `1,4-7`."""
    parts: list[list[int]] = []
    for stream_id in sorted(streams):
        if parts and parts[-1][1] == stream_id - 1:
            parts[-1][1] = stream_id
        else:
            parts.append([stream_id, stream_id])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in parts)


def read(text: str, streams_max: int) -> frozenset[int]:
    """Parse a list of ids and ranges."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()) or int(last or first) >= 2**64:
            raise ConfigError(
                f"{part!r} is not a stream id", next_step="use ids and ranges of ids, as in --event-time-streams 1,4-7"
            )
        if int(last or first) - int(first) >= streams_max:
            raise ConfigError(
                f"{part!r} names more than {streams_max} streams", next_step="name only the streams that exist"
            )
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
