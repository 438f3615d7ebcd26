"""The declared order of streams, translated between the app and the gateway's command line.

The one rule: app and gateway must declare the same order; the driver checks this before it reads a record. The user
declares it with `planner/event_order`; the gateway applies it with `merge/event_time`.
"""

from __future__ import annotations

from procession.errors import ConfigError
from procession.merge.event_time import Declared, declared_of
from procession.planner.graph import Graph


def declared_by(graph: Graph) -> Declared | None:
    """What the app declares; None: the order of arrival."""
    if (asked := graph.event_time) is None:
        return None
    return declared_of(graph.streams, asked.lateness_s, asked.idle_timeout_s)


def order_of(graph: Graph) -> str:
    """The same, in the gateway's words."""
    declared = declared_by(graph)
    return "" if declared is None else str(declared)


def check_gateways(graph: Graph, gateways: int) -> None:
    """Raise ConfigError if so many gateways cannot put the app's streams in order."""
    if graph.event_time is not None and graph.event_time.idle_timeout_s is not None and gateways > 1:
        raise ConfigError(
            f"pipeline {graph.name!r} has idle_timeout_s, which takes one gateway: no other knows that a stream is"
            " silent",
            next_step="leave idle_timeout_s away, or --gateways",
        )


def order_words(graph: Graph) -> list[str]:
    """What the command line of a gateway says about the order."""
    return order_words_of(declared_by(graph))


def order_words_of(declared: Declared | None) -> list[str]:
    """The same of what a gateway has declared."""
    if declared is None:
        return []
    words = ["--event-time-streams", written(declared.streams), "--lateness-s", repr(declared.lateness_ns / 1e9)]
    return words + (["--idle-timeout-s", repr(declared.idle_timeout_s)] if declared.idle_timeout_s is not None else [])


def written(streams: frozenset[int]) -> str:
    """Streams as a list of ids and ranges: `1,4-7`."""
    parts: list[list[int]] = []
    for stream_id in sorted(streams):
        if parts and parts[-1][1] == stream_id - 1:
            parts[-1][1] = stream_id
        else:
            parts.append([stream_id, stream_id])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in parts)


def read(text: str, streams_max: int) -> frozenset[int]:
    """The streams of such a list."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()) or int(last or first) >= 2**64:
            raise ConfigError(
                f"{part!r} names no stream", next_step="write ids and ranges of ids, as in --event-time-streams 1,4-7"
            )
        if int(last or first) - int(first) >= streams_max:
            raise ConfigError(f"{part!r} names more than {streams_max} streams", next_step="name those there are")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
