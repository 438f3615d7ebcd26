"""The graph: a pipeline as the user wrote it, immutable.

Invariant: a graph is a value and runs nothing. `api/pipeline` builds it, `planner/rules` decides how its order is
kept, `operators/chain` runs it over batches, and the driver compares its fingerprint with that of the checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import Any, NamedTuple

from procession.operators.named_types import NO_TYPES, NamedTypes
from procession.operators.operator import Operator
from procession.operators.record_schema import SchemaJson
from procession.operators.typed_json import TypedJson
from procession.planner.connector import Connector, SinkTraits, SourceTraits
from procession.planner.connector_registry import sink_of, source_of
from procession.planner.connector_url import ConnectorUrl
from procession.planner.event_order import EventTime
from procession.planner.guarantee import POLICIES, Guarantee, Policy
from procession.planner.keys import RecordKey
from procession.planner.source_streams import streams_of
from procession.times import Unit


class Kind(Enum):
    """The kinds of stages."""

    SOURCE = "source"
    MAP = "map"
    FILTER = "filter"
    FLAT_MAP = "flat_map"
    MAP_BATCHES = "map_batches"
    MAP_ASYNC = "map_async"
    KEY_BY = "key_by"
    ADD_TIMESTAMPS = "add_timestamps"
    PEEK = "peek"
    SPLIT = "split"
    OUTPUT = "output"
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
    PROCESS = "process"
    BROADCAST = "with_broadcast"
    AS_OF = "as_of"
    MATCH = "match"
    AGGREGATE = "aggregate"
    AGGREGATE_BY_KEY = "aggregate_by_key"
    SORT = "sort"
    SINK = "sink"


class Order(StrEnum):
    """The orders that an output can have."""

    TOTAL = "total"
    KEY = "key"
    STREAM = "stream"
    NONE = "none"


class PayloadCodec(Enum):
    """How the bytes of a payload become a value for the functions, and how a value becomes bytes at a sink."""

    BYTES = "bytes"
    TEXT = "text"
    JSON = "json"
    MSGPACK = "msgpack"
    ARROW = "arrow"


BINARY = frozenset({PayloadCodec.MSGPACK, PayloadCodec.ARROW})
"""Codecs whose bytes may contain a newline, so that lines would be ambiguous."""


class Exchange(StrEnum):
    """How records get from the tasks before an exchange to the tasks after it."""

    RUNS = "runs"
    """In files of the run store. Spark moves only their names."""
    SPARK = "spark"
    """In the rows of Spark, for clusters whose machines share no directory."""


class SinkFraming(Enum):
    """How records become the bytes of an output: each followed by a newline, or unchanged."""

    LINES = "lines"
    RAW = "raw"


FRAMED = {SinkFraming.LINES: "lines", SinkFraming.RAW: "raw bytes"}


class OnError(Enum):
    """The rules for a record on which a user's function raises."""

    STOP = "stop"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True)
class Node:
    """A stage or a sink. Its name is unique among stages, including sources, or among sinks; `id` is unique among all
    nodes. `parents` are the stages before it; a source has no parents, a merge has several."""

    kind: Kind
    name: str
    parents: tuple[int, ...] = ()
    function: Callable[..., Any] | None = None
    parallelism: int | None = None
    """The number of tasks that the user requested, if any."""
    codec: PayloadCodec = PayloadCodec.BYTES
    typed: TypedJson | SchemaJson | None = None
    """The class or the schema of a source's records, if it has one. Its codec is then JSON."""
    is_codec_inherited: bool = False
    """Whether a sink has the codec of its source, because the user gave none."""
    framing: SinkFraming = SinkFraming.LINES
    target: str = ""
    """The URL of a sink, or of a source that reads a URL."""
    is_in_blocks: bool = False
    """Whether a sink gets blocks of records with key and event time."""
    is_idempotent: bool = False
    """Whether a sink accepts the same positions again with the same bytes, so that it needs no two-phase commit."""
    knows_workers_left: bool = False
    """Whether a sink is notified of gateways that have left."""
    order: Order | None = None
    """The order at a sink. None: that of the pipeline."""
    connections: int = 1
    """The number of connections of a sink. Each gets the records of a share of the keys or streams."""
    lanes: int = 0
    """The number of lanes of a sink, each a connection: sorted paths with order keys, which readers merge. 0: none."""
    streams: frozenset[int] | None = None
    """The streams of a source. None: all streams that no other source has, or those of its share."""
    patterns: tuple[str, ...] = ()
    """The patterns of files among the streams of a source. The files of each pattern are one stream."""
    share: int | None = None
    """The share of the stream ids of a source that reads the URL `target`: see `planner/source_streams`."""
    ends: bool | None = None
    """Whether a source ends with its streams. None: only if it runs with `--input`."""
    awaited: frozenset[int] = frozenset()
    """The streams that must end before a source ends, even if they have not begun."""
    concurrency: int = 0
    """Maximum number of concurrent calls of an asynchronous function in one task."""
    timeout_s: float = 0.0
    key: Callable[[Any], Any] | RecordKey | None = None
    """The key of a keyed stage. For a sink in blocks: the key that a record is written with, if it is not the record's
    own key."""
    time: Callable[[Any], Any] | None = None
    """The event time of a record for a stage with a watermark. None: the time that the record was sent with."""
    time_field: str = ""
    """The field of JSON payloads with the event time, for the connector of a source. Empty: the connector defines
    it."""
    unit: Unit = "s"
    """The unit of times that a function returns, or of that field."""
    operator: Operator | None = None
    """The operator of a stage with state."""
    output: int = 0
    """The number of an output among the outputs of its split."""
    is_named: bool = True
    """Whether the user gave the name. Otherwise it consists of the kind and position of the stage."""
    group: str = ""
    """The reusable piece that the stage belongs to, and the pieces around it: "outer/inner"."""
    is_asking: bool = False
    """Whether the function has a second parameter, a `Context`."""

    @property
    def id(self) -> str:
        """The name that is unique among stages and sinks, as in the runs of a task. It does not depend on other nodes.
        The id of a sink is its name; that of a stage contains a dot, which no name contains."""
        return self.name if self.kind is Kind.SINK else f"{self.name}.stage"

    @property
    def connector(self) -> Connector:
        """The connector of a sink, or of a source that reads a URL."""
        return self._target[0]

    @property
    def url(self) -> ConnectorUrl:
        """The place that a sink writes to, or a source reads from."""
        return self._target[1]

    @property
    def _target(self) -> tuple[Connector, ConnectorUrl]:
        return (sink_of if self.kind is Kind.SINK else source_of)(self.target, f"{self.kind.value} {self.name!r}")

    @property
    def sink_traits(self) -> SinkTraits:
        """The properties of a sink that the pipeline may rely on."""
        traits = self.connector.sink
        assert traits, f"the target {self.target!r} was not checked"
        return traits

    @property
    def source_traits(self) -> SourceTraits:
        """How the connector of a source that reads a URL starts, and whether the source ends."""
        traits = self.connector.source
        assert traits, f"the target {self.target!r} was not checked"
        return traits


class SinkCodec(NamedTuple):
    """The codec of a sink, and whether it is inherited from its source."""

    name: str
    is_inherited: bool = False


@dataclass(frozen=True)
class SinkConnection:
    """One connection to a sink, with its own output and its own vote in every round. `name` is its name in the round,
    `bucket` its share of the sink's records (None: all records)."""

    name: str
    sink: Node
    instance: str
    """The name of the pipeline's output at the sink, by which the sink names its files. It never changes."""
    bucket: int | None = None


@dataclass(frozen=True)
class Graph:
    """A whole pipeline. Nodes are in declaration order, parents before children."""

    name: str
    nodes: tuple[Node, ...]
    parallelism: int
    on_error: OnError = OnError.STOP
    guarantee: Guarantee = Guarantee.EFFECTIVELY_ONCE
    order: Order = Order.TOTAL
    is_strict: bool = False
    """Whether an exchange that needs a merge is refused."""
    is_fused: bool = True
    """Whether consecutive functions of one record run as one loop, with expressions inlined."""
    exchange: Exchange = Exchange.RUNS
    event_time: EventTime | None = None
    """How streams are merged. None: in the order of arrival."""
    types: NamedTypes = NO_TYPES
    """The classes whose values may be exchanged and stored."""
    settings: tuple[Any, ...] = ()
    """The settings that the app has read: see `api/app_settings`."""

    @property
    def streams(self) -> frozenset[int]:
        """All streams that sources name."""
        return frozenset().union(*(source.streams or () for source in self.sources))

    @property
    def policy(self) -> Policy:
        return POLICIES[self.guarantee]

    @property
    def idempotent(self) -> tuple[str, ...]:
        """The sinks that accept the same positions again."""
        return tuple(sink.name for sink in self.sinks if sink.is_idempotent)

    @property
    def participants(self) -> tuple[SinkConnection, ...]:
        """The participants of each round: every connection of every sink."""
        return tuple(
            SinkConnection(
                # No name of a sink contains a dot. A single connection has the name of the sink.
                sink.name if sink.connections == 1 else f"{sink.name}.{number}",
                sink,
                f"{self.name}-{sink.name}-{number}",
                None if sink.connections == 1 else number,
            )
            for sink in self.sinks
            for number in range(sink.connections)
        )

    def shown_name(self, node: Node) -> str:
        """Return the name for people: with the kind, if a stage and a sink have the same name."""
        is_shared = any(other.name == node.name and other.id != node.id for other in self.nodes)
        return f"{node.name} ({node.kind.value})" if is_shared else node.name

    def children(self, index: int) -> tuple[int, ...]:
        """Return the stages and sinks directly after this stage, in declaration order."""
        return tuple(number for number, node in enumerate(self.nodes) if index in node.parents)

    @property
    def sources(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.kind is Kind.SOURCE)

    def with_inputs(self, streams: frozenset[int]) -> Graph:
        """Return the same graph for a run with inputs that have these streams: sources end with them, unless `ends` is
        False. The streams of connectors for sources that read a URL end only those sources."""
        nodes = list(self.nodes)
        has_others = not all(map(streams_of(self, self.connected).takes, streams))
        for index, node in enumerate(nodes if streams else ()):
            if node.kind is Kind.SOURCE and node.ends is not False and (has_others or node.share is not None):
                own_streams = frozenset(filter(streams_of(self, [node]).takes, streams))
                nodes[index] = replace(node, ends=True, awaited=node.awaited | own_streams)
        return replace(self, nodes=tuple(nodes))

    @property
    def connected(self) -> tuple[Node, ...]:
        """The sources that read a URL."""
        return tuple(source for source in self.sources if source.share is not None)

    @property
    def sinks(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.kind is Kind.SINK)

    @property
    def dead_letter(self) -> Node | None:
        """The sink for records on which a function raised: the only sink without a parent."""
        return next((node for node in self.sinks if not node.parents), None)

    def order_at(self, sink: Node) -> Order:
        """Return the order at this sink."""
        return sink.order or self.order

    @property
    def dead_letters_order(self) -> Order:
        return Order.NONE if self.dead_letter is None else self.order_at(self.dead_letter)

    def endpoints(self) -> dict[str, str]:
        """Return the names of sources and sinks in a checkpoint, `source NAME` and `sink NAME`, each with a description
        for error messages."""
        sources = {
            f"source {source.name}": "source" if source.share is None else "source that reads a URL"
            for source in self.sources
        }
        sinks = [sink for sink in self.sinks if sink is not self.dead_letter]
        return sources | {f"sink {sink.name}": f"sink of {FRAMED[sink.framing]}{self._shared(sink)}" for sink in sinks}

    def sink_codecs(self) -> dict[str, SinkCodec]:
        """Return the codec of each sink. A checkpoint stores it; it may change only if the program names the new
        codec."""
        sinks = [sink for sink in self.sinks if sink is not self.dead_letter]
        return {sink.name: SinkCodec(sink.codec.value, sink.is_codec_inherited) for sink in sinks}

    def _shared(self, sink: Node) -> str:
        by = {Order.KEY: " by key", Order.STREAM: " by stream"}.get(self.order_at(sink), "")
        if sink.lanes:
            return f" in {sink.lanes} lanes{by}"
        return "" if sink.connections == 1 else f" over {sink.connections} connections{by}"

    def fingerprint(self) -> str:
        """Return a digest of the parts that a checkpoint depends on: sources and sinks. Stateless code may change
        between two runs, and dead letters may be added."""
        sinks = [sink for sink in self.sinks if sink is not self.dead_letter]
        shape: dict[str, Any] = {"sinks": sorted((sink.name, sink.framing.value) for sink in sinks)}
        names = sorted(source.name for source in self.sources)
        # A single source, and effectively-once, have the same form as in checkpoints of the first versions.
        shape |= {"source": names[0]} if len(names) == 1 else {"sources": names}
        # The streams of a source that reads a URL have other ids than those of other producers.
        if connected := sorted(source.name for source in self.sources if source.share is not None):
            shape |= {"connected": connected}
        if self.guarantee is not Guarantee.EFFECTIVELY_ONCE or self.idempotent:
            shape |= {"guarantee": self.guarantee, "idempotent": sorted(self.idempotent)}
        # The connection of a key must not change. Otherwise later records of the key would be in another output.
        parted = {sink.name: [sink.connections, self.order_at(sink)] for sink in sinks if sink.connections > 1}
        if parted:
            shape |= {"connections": parted}
        if lanes := {sink.name: sink.lanes for sink in sinks if sink.lanes}:
            shape |= {"lanes": lanes}
        if self.event_time is not None:
            shape |= {"event_time": sorted(self.streams), "lateness_s": self.event_time.lateness_s}
        return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]
