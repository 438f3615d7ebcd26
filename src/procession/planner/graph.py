"""The graph: a pipeline as the user wrote it, immutable.

The one rule: nothing here runs anything. `api/pipeline` builds a graph, `planner/rules` decides how its order is kept,
`operators/chain` runs it over batches, and the driver compares its fingerprint with that of the checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import Any, NamedTuple

from procession.operators.named_types import NO_TYPES, NamedTypes
from procession.planner.event_order import EventTime
from procession.planner.guarantee import POLICIES, Guarantee, Policy
from procession.planner.keyed_spec import RecordKey, Stateful
from procession.planner.sink_schemes import SinkScheme, sink_scheme
from procession.times import Unit


class Kind(Enum):
    """What a stage is."""

    SOURCE = "source"
    MAP = "map"
    FILTER = "filter"
    FLAT_MAP = "flat_map"
    MAP_BATCHES = "map_batches"
    MAP_ASYNC = "map_async"
    KEY_BY = "key_by"
    ADD_TIMESTAMPS = "add_timestamps"
    PEEK = "peek"
    MERGE = "merge"
    REBALANCE = "rebalance"
    TRANSFORM = "transform"
    MAP_STATEFUL = "map_stateful"
    FILTER_STATEFUL = "filter_stateful"
    FLAT_MAP_STATEFUL = "flat_map_stateful"
    REDUCE = "reduce"
    ROLLING = "rolling"
    DISTINCT = "distinct"
    WINDOW = "window"
    WINDOW_BY_KEY = "window_by_key"
    HASH_JOIN = "hash_join"
    JOIN = "join"
    AGGREGATE = "aggregate"
    AGGREGATE_BY_KEY = "aggregate_by_key"
    SORT = "sort"
    SINK = "sink"


class Order(StrEnum):
    """What is promised about the order of an output."""

    TOTAL = "total"
    KEY = "key"
    STREAM = "stream"
    NONE = "none"


class Codec(Enum):
    """What a payload's bytes are to the functions, and what becomes bytes again at a sink."""

    BYTES = "bytes"
    TEXT = "text"
    JSON = "json"
    MSGPACK = "msgpack"
    ARROW = "arrow"


class Exchange(StrEnum):
    """How records come from the tasks before an exchange to those behind it."""

    RUNS = "runs"
    """In files of the run store; Spark moves their names."""
    SPARK = "spark"
    """Inside Spark's rows, as cells: for clusters whose machines share no directory."""


class Framing(Enum):
    """How records become the bytes of an output: each with a newline after it, or as they are."""

    LINES = "lines"
    RAW = "raw"


FRAMED = {Framing.LINES: "lines", Framing.RAW: "raw bytes"}


class OnError(Enum):
    """What happens to a record on which a user's function raises."""

    STOP = "stop"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True)
class Node:
    """A stage or a sink. Its name is unique among stages, sources included, or among sinks; `id` is unique among all.
    `parents` are the stages before it; a source has none, a merge has several."""

    kind: Kind
    name: str
    parents: tuple[int, ...] = ()
    function: Callable[..., Any] | None = None
    parallelism: int | None = None
    """How many tasks the user asked for, if any."""
    codec: Codec = Codec.BYTES
    is_codec_inherited: bool = False
    """A sink that does not say its codec, and has that of its source."""
    framing: Framing = Framing.LINES
    target: str = ""
    is_idempotent: bool = False
    """A sink that takes the same positions again, with the same bytes: it needs no two-phase commit."""
    knows_workers_left: bool = False
    """A sink that is told which gateways have left."""
    order: Order | None = None
    """What is promised at a sink."""
    connections: int = 1
    """How many connections a sink has; each takes the records of its share of the keys or streams."""
    streams: frozenset[int] | None = None
    """The streams that a source takes; None: all that no other source takes."""
    ends: bool | None = None
    """Whether a source ends when its streams have; None: if it is run with inputs."""
    awaited: frozenset[int] = frozenset()
    """The streams that a source waits for before it ends, even if they have not begun."""
    concurrency: int = 0
    """How many calls of an asynchronous function may be under way at a time in one task."""
    timeout_s: float = 0.0
    key: Callable[[Any], Any] | RecordKey | None = None
    """What a keyed stage tells records apart by."""
    time: Callable[[Any], Any] | None = None
    """What a stage with windows takes for a record's event time; None: the one that it came with."""
    unit: Unit = "s"
    """What the numbers are that a function gives as times."""
    stateful: Stateful | None = None
    """What a keyed stage does."""
    is_named: bool = True
    """Whether the user gave the name; else it says the stage's kind and place."""
    is_asking: bool = False
    """Whether the function has a second parameter, for what the record has beside its value."""

    @property
    def id(self) -> str:
        """What it is called where stages and sinks stand beside each other, as in the runs of a task. It does not
        depend on what else the pipeline has: a sink's is its name, a stage's has a dot, which is in no name."""
        return self.name if self.kind is Kind.SINK else f"{self.name}.stage"

    @property
    def scheme(self) -> SinkScheme:
        """What follows from the form of a sink's target."""
        scheme = sink_scheme(self.target)
        assert scheme, f"the target {self.target!r} was not checked"
        return scheme


class SinkCodec(NamedTuple):
    """What a sink writes, and whether it has that from its source."""

    name: str
    is_inherited: bool = False


@dataclass(frozen=True)
class Participant:
    """One connection to a sink: it has an output of its own and votes on its own in every round. `name` is what the
    round calls it, `bucket` its share of the sink's records (None: all of them)."""

    name: str
    sink: Node
    instance: str
    """What the sink calls our output, for the pipeline's life: it names its files by it."""
    bucket: int | None = None


@dataclass(frozen=True)
class Graph:
    """A whole pipeline. Nodes stand in declaration order, parents before children."""

    name: str
    nodes: tuple[Node, ...]
    parallelism: int
    on_error: OnError = OnError.STOP
    guarantee: Guarantee = Guarantee.EFFECTIVELY_ONCE
    order: Order = Order.TOTAL
    is_strict: bool = False
    """Whether an exchange that must be merged afterwards is refused."""
    exchange: Exchange = Exchange.RUNS
    event_time: EventTime | None = None
    """How streams are merged, if not in the order of arrival."""
    types: NamedTypes = NO_TYPES
    """The classes whose values may go over exchanges and into states."""

    @property
    def streams(self) -> frozenset[int]:
        """All streams that sources name."""
        return frozenset().union(*(source.streams or () for source in self.sources))

    @property
    def policy(self) -> Policy:
        return POLICIES[self.guarantee]

    @property
    def idempotent(self) -> tuple[str, ...]:
        """The sinks that take the same positions again."""
        return tuple(sink.name for sink in self.sinks if sink.is_idempotent)

    @property
    def participants(self) -> tuple[Participant, ...]:
        """Who takes part in each round: every connection of every sink."""
        return tuple(
            Participant(
                # A dot is in no sink's name; one connection alone is called as the sink.
                sink.name if sink.connections == 1 else f"{sink.name}.{number}",
                sink,
                f"{self.name}-{sink.name}-{number}",
                None if sink.connections == 1 else number,
            )
            for sink in self.sinks
            for number in range(sink.connections)
        )

    def shown_name(self, node: Node) -> str:
        """What people are shown: its name, with its kind if a stage and a sink have the same one."""
        is_shared = any(other.name == node.name and other.id != node.id for other in self.nodes)
        return f"{node.name} ({node.kind.value})" if is_shared else node.name

    def children(self, index: int) -> tuple[int, ...]:
        """The stages that go on from this one, in the order in which they were written."""
        return tuple(number for number, node in enumerate(self.nodes) if index in node.parents)

    @property
    def sources(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.kind is Kind.SOURCE)

    def with_inputs(self, streams: frozenset[int]) -> Graph:
        """The same, to be run with inputs that have these streams: sources end with them, unless they are said not
        to."""
        nodes = list(self.nodes)
        named = frozenset().union(*(source.streams or () for source in self.sources))
        for index, node in enumerate(nodes if streams else ()):
            if node.kind is Kind.SOURCE and node.ends is not False:
                own = streams - named if node.streams is None else streams & node.streams
                nodes[index] = replace(node, ends=True, awaited=node.awaited | own)
        return replace(self, nodes=tuple(nodes))

    @property
    def sinks(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.kind is Kind.SINK)

    @property
    def dead_letter(self) -> Node | None:
        """The sink that takes the records on which a function raised: the one sink without a parent."""
        return next((node for node in self.sinks if not node.parents), None)

    def order_at(self, sink: Node) -> Order:
        """What is promised at this sink."""
        return sink.order or self.order

    @property
    def letters_order(self) -> Order:
        return Order.NONE if self.dead_letter is None else self.order_at(self.dead_letter)

    def doors(self) -> dict[str, str]:
        """What a checkpoint knows sources and sinks by, `source NAME` and `sink NAME`, and what each is, for a sentence
        that must name one."""
        sources = {f"source {source.name}": "source" for source in self.sources}
        sinks = [sink for sink in self.sinks if sink is not self.dead_letter]
        return sources | {f"sink {sink.name}": f"sink of {FRAMED[sink.framing]}{self._shared(sink)}" for sink in sinks}

    def sink_codecs(self) -> dict[str, SinkCodec]:
        """What each sink writes. A checkpoint remembers it, but it may change if the program says so."""
        sinks = [sink for sink in self.sinks if sink is not self.dead_letter]
        return {sink.name: SinkCodec(sink.codec.value, sink.is_codec_inherited) for sink in sinks}

    def _shared(self, sink: Node) -> str:
        by = {Order.KEY: " by key", Order.STREAM: " by stream"}.get(self.order_at(sink), "")
        return "" if sink.connections == 1 else f" over {sink.connections} connections{by}"

    def fingerprint(self) -> str:
        """What a checkpoint depends on. Stateless code may change between two runs, and dead letters may be added;
        sources and sinks may not."""
        sinks = [sink for sink in self.sinks if sink is not self.dead_letter]
        shape: dict[str, Any] = {"sinks": sorted((sink.name, sink.framing.value) for sink in sinks)}
        names = sorted(source.name for source in self.sources)
        # One source is written as in checkpoints from before there could be several, and less than effectively-once
        # only where it is asked for.
        shape |= {"source": names[0]} if len(names) == 1 else {"sources": names}
        if self.guarantee is not Guarantee.EFFECTIVELY_ONCE or self.idempotent:
            shape |= {"guarantee": self.guarantee, "idempotent": sorted(self.idempotent)}
        # Which connection a key goes to is for good: else its later records would be in another output.
        parted = {sink.name: [sink.connections, self.order_at(sink)] for sink in sinks if sink.connections > 1}
        if parted:
            shape |= {"connections": parted}
        if self.event_time is not None:
            shape |= {"event_time": sorted(self.streams), "lateness_s": self.event_time.lateness_s}
        return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]
