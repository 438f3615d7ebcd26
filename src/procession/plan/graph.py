"""The graph: a pipeline as it was written, frozen.

The one rule: nothing here runs anything. `plan/pipeline` builds a graph, `plan/chain` runs it over batches, and the
driver compares its fingerprint with the one the checkpoint was made with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from procession.plan.guarantee import POLICIES, Guarantee, Policy


class Kind(Enum):
    SOURCE = "source"
    MAP = "map"
    FILTER = "filter"
    FLAT_MAP = "flat_map"
    MAP_BATCHES = "map_batches"
    SINK = "sink"


class Codec(Enum):
    """What a user's function is handed: the payload's bytes, or its text."""

    BYTES = "bytes"
    TEXT = "text"


class Framing(Enum):
    """How records become the bytes of an output: each with a newline after it, or as they are."""

    LINES = "lines"
    RAW = "raw"


class OnError(Enum):
    """What happens to a record on which a user's function raises."""

    STOP = "stop"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True)
class Node:
    """One stage. `parent` is the index of the stage before it; a source has none."""

    kind: Kind
    name: str
    parent: int | None = None
    function: Callable[..., Any] | None = None
    codec: Codec = Codec.BYTES
    framing: Framing = Framing.LINES
    target: str = ""
    is_idempotent: bool = False
    """A sink that takes the same positions again, with the same bytes: it needs no two-phase commit."""


@dataclass(frozen=True)
class Graph:
    """A whole pipeline. Nodes stand in declaration order, parents before children."""

    name: str
    nodes: tuple[Node, ...]
    parallelism: int
    on_error: OnError = OnError.STOP
    guarantee: Guarantee = Guarantee.EFFECTIVELY_ONCE

    @property
    def policy(self) -> Policy:
        return POLICIES[self.guarantee]

    @property
    def idempotent(self) -> tuple[str, ...]:
        """The sinks that take the same positions again."""
        return tuple(sink.name for sink in self.sinks if sink.is_idempotent)

    def instance_of(self, sink: str) -> str:
        """What a sink calls our output, for the pipeline's life: it names its files by it."""
        return f"{self.name}-{sink}-0"

    @property
    def source(self) -> Node:
        return self.nodes[0]

    @property
    def sinks(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.kind is Kind.SINK)

    @property
    def dead_letter(self) -> Node | None:
        """The sink that takes the records on which a function raised: the one sink without a parent."""
        return next((node for node in self.sinks if node.parent is None), None)

    def fingerprint(self) -> str:
        """What a checkpoint depends on. Stateless code may change between two runs, and dead letters may be added;
        source and sinks may not."""
        sinks = [sink for sink in self.sinks if sink is not self.dead_letter]
        shape: dict[str, Any] = {
            "source": self.source.name,
            "sinks": sorted((sink.name, sink.framing.value) for sink in sinks),
        }
        # Only where less is asked for, so that checkpoints from before there were levels stay what they are.
        if self.guarantee is not Guarantee.EFFECTIVELY_ONCE or self.idempotent:
            shape |= {"guarantee": self.guarantee, "idempotent": sorted(self.idempotent)}
        return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]
