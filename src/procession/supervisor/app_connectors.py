"""The connectors that an app names: whether they can be started, what they read, and whether they end.

Invariant: errors that can be found before anything is started are reported then. Used by `supervisor/run_app`; uses the
registry (`planner/connector_registry`).
"""

from __future__ import annotations

from collections.abc import Sequence

from procession.planner.connector_registry import check_installed, load
from procession.planner.graph import Graph, Node
from procession.record import id_in_share
from procession.supervisor.local_pipeline import SOURCE


def check_connectors(graph: Graph) -> None:
    """Raise ConfigError, with the command that helps, if a package is missing that a connector of this app needs."""
    started = [sink for sink in graph.sinks if sink.sink_traits.is_started]
    for node in (*graph.connected, *started):
        check_installed(node.connector, f"{node.kind.value} {node.name!r}", node.url)


def connected_streams(graph: Graph) -> frozenset[int]:
    """The streams of sources that end and read a URL. Raises ConfigError if there is nothing to read."""
    found: set[int] = set()
    for source in graph.connected:
        if _ends(source) and source.share is not None and source.source_traits.streams:
            streams = load(source.source_traits.streams)(source.url)
            found |= source.streams or {id_in_share(source.share, stream) for stream in streams}
    return frozenset(found)


def ending_parts(graph: Graph, senders: Sequence[str]) -> list[str]:
    """The parts after whose end the run is done; empty: it runs until it is stopped. `senders` are the parts that send
    the inputs of the run. Without inputs, a source without a URL gets records from producers, which may never end."""
    if not all(map(_ends, graph.connected)) or (not senders and len(graph.connected) < len(graph.sources)):
        return []
    return [*senders] + [f"{SOURCE}-{source.name}" for source in graph.connected]


def connector_lines(graph: Graph) -> list[str]:
    """One line for each connector of the app that reads or writes a URL of another system."""
    reads = [f"source {source.name!r} reads {source.target}" for source in graph.connected]
    return reads + [f"sink {sink.name!r} writes to {sink.target}" for sink in graph.sinks if sink.is_in_blocks]


def _ends(source: Node) -> bool:
    is_endless = source.ends is False and bool(source.source_traits.endless_arguments)
    return not is_endless and source.source_traits.ends(source.url)
