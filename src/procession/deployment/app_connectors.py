"""Checks the connectors of an app: whether they can be started, which streams they read, and whether they end.

Invariant: errors that can be detected before the start are reported before any process starts. Used by
`jobs/run_app`; uses the registry (`planner/connector_registry`).
"""

from __future__ import annotations

from collections.abc import Sequence

from procession.deployment.local_pipeline import SOURCE
from procession.planner.connector_registry import check_installed, load
from procession.planner.graph import Graph, Node
from procession.record import id_in_share


def check_connectors(graph: Graph) -> None:
    """Raise ConfigError with an install command if a connector of this app needs a package that is missing."""
    started = [sink for sink in graph.sinks if sink.sink_traits.is_started]
    for node in (*graph.connected, *started):
        check_installed(node.connector, f"{node.kind.value} {node.name!r}", node.url)


def connected_streams(graph: Graph) -> frozenset[int]:
    """Return the stream ids of sources that read a URL and end. Raises ConfigError if a source finds no input."""
    found: set[int] = set()
    for source in graph.connected:
        if _ends(source) and source.share is not None and source.source_traits.streams:
            streams = load(source.source_traits.streams)(source.url)
            found |= source.streams or {id_in_share(source.share, stream) for stream in streams}
    return frozenset(found)


def ending_parts(graph: Graph, senders: Sequence[str]) -> list[str]:
    """Return the parts that must end before the run ends; empty if it runs until it is stopped. `senders` are the
    parts that send the inputs of the run. Without inputs, a source without a URL gets records from producers, which
    may never end."""
    if not all(map(_ends, graph.connected)) or (not senders and len(graph.connected) < len(graph.sources)):
        return []
    return [*senders] + [f"{SOURCE}-{source.name}" for source in graph.connected]


def connector_lines(graph: Graph) -> list[str]:
    """Return one line for each connector of the app that reads or writes a URL of another system."""
    reads = [f"source {source.name!r} reads {source.target}" for source in graph.connected]
    return reads + [f"sink {sink.name!r} writes to {sink.target}" for sink in graph.sinks if sink.is_in_blocks]


def _ends(source: Node) -> bool:
    is_endless = source.ends is False and bool(source.source_traits.endless_arguments)
    return not is_endless and source.source_traits.ends(source.url)
