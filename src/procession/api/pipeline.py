"""The pipeline: the words in which people write their application.

The one rule: building is all it does; a mistake is a `PlanError` at the line that made it. Before it stands the user's
file, after it `planner/graph`, the planner and the driver that runs the plan.

    >>> from procession import Pipeline
    >>> pipeline = Pipeline("doubler")
    >>> numbers = pipeline.source("numbers", codec="text")
    >>> doubled = numbers.map(lambda n: f"{n}:{int(n) * 2}").sink("doubled", to="file:out")
    >>> [node.name for node in pipeline.graph().nodes]
    ['numbers', 'map-1', 'doubled']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from posixpath import normpath
from typing import Any, Literal

from procession.api.stage import Stage
from procession.errors import PlanError
from procession.operators.named_types import NamedTypes
from procession.planner.event_order import check_declared, event_time
from procession.planner.explain import explain
from procession.planner.graph import Codec, Exchange, Graph, Kind, Node, OnError, Order
from procession.planner.guarantee import POLICIES, Guarantee
from procession.planner.keyed_spec import RecordKey
from procession.planner.rules import make_plan
from procession.planner.validation import checked_choice, checked_count, checked_flag, checked_name, checked_target
from procession.record import stream_id

PARALLELISM_MAX = 1024

GIVING_PAYLOADS = frozenset({Kind.MAP_BATCHES, Kind.TRANSFORM})
"""Their functions are given bytes and give bytes, whatever the codec of the source is."""
KEEPING_KEY = frozenset(
    {Kind.MAP, Kind.FILTER, Kind.FLAT_MAP, Kind.MAP_BATCHES, Kind.MAP_ASYNC, Kind.ADD_TIMESTAMPS, Kind.PEEK}
    | {Kind.HASH_JOIN, Kind.MERGE, Kind.REBALANCE}
)
"""Behind them records have the key that they had before; a rebalance by key gives them another."""
KEEPING_KEY_GIVEN = frozenset(
    {Kind.MAP_STATEFUL, Kind.FILTER_STATEFUL, Kind.FLAT_MAP_STATEFUL, Kind.REDUCE, Kind.ROLLING, Kind.DISTINCT}
)
"""So it is behind these, if they have no key of their own. Windows, joins and totals make records of their own."""


class Pipeline:
    """A pipeline: sources, stages in plain Python, one or more sinks.

    `order` is what every sink is promised: "total" (the default, and what `preserve_order=True` means): exactly the
    sequence of a run that takes one record after the other; "key" or "stream": that only for the records of one key or
    of one stream; "none": nothing. See docs/order.md. With `strict=True` an exchange that would have to be merged
    afterwards is refused. `exchange` says how records change their task: "runs" through files in a directory that all
    tasks share, "spark" inside Spark's own shuffle, for clusters without one.

    `parallelism` is how many tasks work on an epoch. With `dead_letter="file:DIR"` a record on which a function raises
    goes there, as a line of JSON, in the same transaction as the rest; without it, the pipeline stops and names it.
    `guarantee` may ask for less than the default, "effectively-once": see docs/guarantees.md. `deterministic=True` says
    that the functions give the same output for the same input whenever they are run; only then may sinks be idempotent.

    `order_by` puts the records of several streams in order: "arrival" (the default), or "event_time": by event time,
    stream id and message id, so that two runs over the same inputs give the same bytes. Each source then names its
    `streams`, and output waits for the slowest of them. `lateness_s` is how far a record may be behind the latest of
    its own stream; `late` is what becomes of one that is further behind: "fail" (the default), "drop" (and count), or
    "dead-letter". With `idle_timeout_s` nobody waits longer for a silent stream, and two runs may differ.

    `types` lists the dataclasses, named tuples and enums whose values go over exchanges, into states or are keys. See
    docs/values.md.
    """

    def __init__(
        self,
        name: str,
        *,
        order: Literal["total", "key", "stream", "none"] | None = None,
        preserve_order: bool | None = None,
        strict: bool = False,
        exchange: Literal["runs", "spark"] = "runs",
        parallelism: int = 2,
        dead_letter: str | None = None,
        guarantee: Literal["effectively-once", "at-least-once", "at-most-once", "none"] = "effectively-once",
        deterministic: bool = False,
        order_by: Literal["arrival", "event_time"] = "arrival",
        lateness_s: float | None = None,
        late: Literal["fail", "drop", "dead-letter"] | None = None,
        idle_timeout_s: float | None = None,
        types: Iterable[type[Any]] = (),
    ) -> None:
        self.name = checked_name(name, "a pipeline")
        owner = f"pipeline {name!r}"
        if preserve_order is not None:
            checked_flag(preserve_order, "preserve_order", owner)
        self.order = _order(order, preserve_order)
        self.is_strict = checked_flag(strict, "strict", owner)
        self.parallelism = checked_count(parallelism, "parallelism", owner, PARALLELISM_MAX)
        self.guarantee: Guarantee = checked_choice(Guarantee, guarantee, "guarantee")
        self.is_deterministic = checked_flag(deterministic, "deterministic", owner)
        self.exchange: Exchange = checked_choice(Exchange, exchange, "exchange")
        self.event_time = event_time(order_by, lateness_s, late, idle_timeout_s, owner)
        self.types = NamedTypes.of(types)
        self._nodes: list[Node] = []
        self._dead_letter = dead_letter
        if dead_letter is not None:
            checked_target(dead_letter, "dead-letter")

    def source(
        self,
        name: str = "source",
        *,
        codec: Literal["bytes", "text", "json", "msgpack", "arrow"] = "bytes",
        streams: Iterable[int | str | Path] | None = None,
        ends: bool | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Where records come in: connectors send to the gateway. `codec` is what the functions are handed.

        All producers' streams come in at the one source, in the order of their arrival. To treat some of them
        differently, declare several sources and name the `streams` of each, by their names or ids (a file as
        `Path("a.log")`); one source may be without, and takes the rest. `merge` puts sources together again, in the
        order of arrival.

        `ends=True`: the source ends when all its streams have (those that have begun; with `streams`, all of them).
        Windows that are open then fire, and only such a source can be sorted, or put together without windows. Without
        it, a source ends if the app is run with `--input`; with `ends=False` it never does.
        """
        taken = None if streams is None else _streams(streams, name)
        for other in self._nodes:
            if other.kind is Kind.SOURCE and (
                other.streams is taken is None or (other.streams or frozenset()) & (taken or frozenset())
            ):
                raise PlanError(
                    f"pipeline {self.name!r} has a second source {name!r} for the streams of {other.name!r}",
                    next_step="let all producers send to the one source; each sends its own streams. Or name the"
                    " streams of each source: source(…, streams=[…])",
                )
        return self._add(
            Node(
                Kind.SOURCE,
                checked_name(name, "a source"),
                codec=checked_choice(Codec, codec, "codec"),
                streams=taken,
                ends=None if ends is None else checked_flag(ends, "ends", f"source {name!r}"),
                awaited=taken or frozenset() if ends else frozenset(),
                parallelism=_parallelism(parallelism, name),
            )
        )

    @property
    def size(self) -> int:
        """How many stages there are."""
        return len(self._nodes)

    def graph(self) -> Graph:
        """The pipeline, frozen and checked."""
        nodes = list(self._nodes)
        if not nodes:
            raise PlanError(f"pipeline {self.name!r} has no source", next_step="begin with pipeline.source(…)")
        if not any(node.kind is Kind.SINK for node in nodes):
            raise PlanError(f"pipeline {self.name!r} has no sink", next_step='end with .sink("name", to="file:DIR")')
        if self.event_time is not None:
            undeclared = [node.name for node in nodes if node.kind is Kind.SOURCE and node.streams is None]
            check_declared(self.name, undeclared, self.event_time, has_letters=self._dead_letter is not None)
        for node in nodes:
            if self._dead_letter is None and node.stateful is not None and node.stateful.sets_late_aside:
                raise PlanError(
                    f"stage {node.name!r} makes dead letters of late records, but pipeline {self.name!r} has nowhere to"
                    " put them",
                    next_step='say Pipeline(…, dead_letter="file:DIR"), or late="drop"',
                    stage=node.name,
                )
        on_error = OnError.STOP
        if self._dead_letter is not None:
            nodes.append(Node(Kind.SINK, "dead-letter", target=self._dead_letter))
            on_error = OnError.DEAD_LETTER
        return Graph(
            self.name,
            tuple(nodes),
            self.parallelism,
            on_error,
            self.guarantee,
            self.order,
            is_strict=self.is_strict,
            exchange=self.exchange,
            event_time=self.event_time,
            types=self.types,
        )

    def stage_name(self, index: int) -> str:
        """The id of a stage, by its place."""
        return self._nodes[index].name

    def codec_at(self, index: int, sink: str) -> Codec:
        """What a sink behind this stage writes if it does not say: the codec of the source. Raises PlanError if there
        are several that differ."""
        nearest = self._nearest(index, lambda node: node.kind is Kind.SOURCE or node.kind in GIVING_PAYLOADS)
        found = {node.codec: node.name for node in nearest}  # of stages that are no sources it is bytes
        # Bytes and text are written alike.
        if len(found.keys() - {Codec.TEXT, Codec.BYTES}) + bool(found.keys() & {Codec.TEXT, Codec.BYTES}) > 1:
            told = " and ".join(f'{source!r} (codec="{codec.value}")' for codec, source in found.items())
            raise PlanError(
                f"sink {sink!r} does not say its codec, and gets records of {told}",
                next_step='name what is to be written, as sink(…, codec="json")',
                stage=sink,
            )
        return Codec.BYTES if len(found) > 1 else next(iter(found))

    def key_at(self, index: int, word: str) -> RecordKey | None:
        """The key that records have at this place, if `key_by` gave it to them. Raises PlanError if it did so on some
        of the ways to here only."""
        nearest = self._nearest(index, lambda node: not _is_keeping_key(node))
        given = [node.function for node in nearest if node.kind is Kind.KEY_BY and node.function is not None]
        if given and len(given) < len(nearest):
            other = next(node.name for node in nearest if node.kind is not Kind.KEY_BY)
            raise PlanError(
                f".{word}() gets records with a key of key_by, and others, of {other!r}, without one",
                next_step="write key_by behind the merge, or on each way to it; or give the stage its own key=",
            )
        return RecordKey(tuple(given)) if given else None

    def _nearest(self, index: int, is_one: Callable[[Node], bool]) -> list[Node]:
        """The nearest stages before this place, itself among them, of which this is true; on each way to it one."""
        found, seen, left = set(), {index}, [index]
        while left:
            place = left.pop()
            if is_one(self._nodes[place]):
                found.add(place)
                continue
            parents = set(self._nodes[place].parents) - seen
            seen |= parents
            left += parents
        return [self._nodes[place] for place in sorted(found)]

    def explain(self) -> str:
        """How the order is kept, edge by edge, and why; what `procession explain` prints."""
        return explain(make_plan(self.graph()))

    def check_idempotent(self, sink: str) -> None:
        """Raise PlanError unless what comes to a sink again would be the same bytes."""
        if not self.is_deterministic:
            raise PlanError(
                f"sink {sink!r} is idempotent, but pipeline {self.name!r} is not declared deterministic: run again, an"
                " epoch might have other bytes for the same positions",
                next_step="if the functions always give the same output for the same input, say"
                f" Pipeline({self.name!r}, deterministic=True); otherwise leave idempotent=True away, and the sink"
                " takes part in the commit",
            )
        if not POLICIES[self.guarantee].is_sent_again:
            raise PlanError(
                f"sink {sink!r} is idempotent, but with guarantee={self.guarantee.value!r} nothing is ever sent again",
                next_step='leave idempotent=True away, or ask for "effectively-once" or "at-least-once"',
            )

    def _add(self, node: Node) -> Stage:
        """Put a stage at the end; one that was given no name is called by its kind and place."""
        if not node.name:
            node = replace(node, name=f"{node.kind.value.replace('_', '-')}-{len(self._nodes)}", is_named=False)
        if any(other.name == node.name for other in self._nodes) or node.name == "dead-letter":
            raise PlanError(
                f"pipeline {self.name!r} has two stages named {node.name!r}", next_step="give one of them another name"
            )
        if node.parallelism is not None:
            node = replace(node, parallelism=_parallelism(node.parallelism, node.name))
        self._nodes.append(node)
        return Stage(self, len(self._nodes) - 1, self._add)


def _is_keeping_key(node: Node) -> bool:
    if node.kind is Kind.REBALANCE:
        return node.function is None
    return node.kind in KEEPING_KEY or (node.kind in KEEPING_KEY_GIVEN and isinstance(node.key, RecordKey))


def _streams(streams: Iterable[int | str | Path], name: str) -> frozenset[int]:
    named = list(streams) if isinstance(streams, Iterable) and not isinstance(streams, str) else [streams]
    found = [_stream(stream) for stream in named]
    if not found or None in found:
        raise PlanError(
            f"source {name!r} takes streams {streams!r}, which are not all ids or names of streams",
            next_step="name the streams in a list: by the names or numbers that their producers use, a file as Path(…)",
        )
    return frozenset(stream for stream in found if stream is not None)


def _stream(stream: object) -> int | None:
    """The id of a stream; None: it names none."""
    if isinstance(stream, Path):
        # As the file source does: the same file is the same stream, wherever it is named.
        return stream_id(bytes(Path(normpath(stream.absolute()))))
    if isinstance(stream, str):
        return stream_id(stream.encode()) if stream else None
    return stream if type(stream) is int and 0 <= stream < 2**64 else None


def _parallelism(parallelism: int | None, name: str) -> int | None:
    return (
        None if parallelism is None else checked_count(parallelism, "parallelism", f"stage {name!r}", PARALLELISM_MAX)
    )


def _order(order: str | None, preserve_order: bool | None) -> Order:
    if order is None:
        return Order.NONE if preserve_order is False else Order.TOTAL
    if preserve_order is not None:
        raise PlanError(
            f"order={order!r} and preserve_order={preserve_order!r} both say what is promised",
            next_step='say order="total" or order="none" alone',
        )
    chosen: Order = checked_choice(Order, order, "order")
    return chosen
