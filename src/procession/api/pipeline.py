"""The pipeline that an app declares.

Invariant: building a pipeline only records the declarations. A mistake raises `PlanError` at the line of the mistake.
The planner reads the resulting `planner/graph`, and the driver runs the plan.

    >>> from procession import Pipeline
    >>> pipeline = Pipeline("doubler")
    >>> numbers = pipeline.source("numbers", codec="text")
    >>> doubled = numbers.map(lambda n: f"{n}:{int(n) * 2}").sink("doubled", to="file:out")
    >>> [node.name for node in pipeline.graph().nodes]
    ['numbers', 'map-1', 'doubled']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from procession.api.app_settings import NO_DEFAULT, Setting, read_setting
from procession.api.finished_run import FinishedRun
from procession.api.sources import Sources
from procession.api.stage import Stage
from procession.errors import PlanError
from procession.operators.named_types import NamedTypes
from procession.planner.connector import Packing
from procession.planner.connector_registry import load, sink_of
from procession.planner.event_order import check_declared, event_time
from procession.planner.explain import explain
from procession.planner.graph import Exchange, Graph, Kind, Node, OnError, Order, PayloadCodec
from procession.planner.guarantee import POLICIES, Guarantee
from procession.planner.keys import RecordKey
from procession.planner.rules import make_plan
from procession.planner.validation import checked_choice, checked_count, checked_flag, checked_name, checked_target

PARALLELISM_MAX = 1024

DEAD_LETTER = "dead-letter"
"""The name of the sink of dead letters. No other sink may have this name."""

GIVING_PAYLOADS = frozenset({Kind.MAP_BATCHES, Kind.TRANSFORM})
"""Stages whose functions take and return bytes, regardless of the codec of the source."""
KEEPING_KEY = frozenset(
    {Kind.MAP, Kind.FILTER, Kind.FLAT_MAP, Kind.MAP_BATCHES, Kind.MAP_ASYNC, Kind.ADD_TIMESTAMPS, Kind.PEEK}
    | {Kind.HASH_JOIN, Kind.MERGE, Kind.REBALANCE, Kind.SPLIT, Kind.OUTPUT}
)
"""Stages that do not change a record's key. A rebalance by key sets another key."""
KEEPING_KEY_GIVEN = frozenset(
    {Kind.MAP_STATEFUL, Kind.FILTER_STATEFUL, Kind.FLAT_MAP_STATEFUL, Kind.REDUCE, Kind.ROLLING, Kind.DISTINCT}
    | {Kind.PROCESS}
)
"""Stages that do not change a record's key unless they have `key=`. Windows, joins and totals emit new records."""


class Pipeline(Sources):
    """A pipeline: sources, stages of plain Python functions, and sinks.

    An app is a Python file with one `Pipeline` in a module-level variable. `procession run` runs it.

    Args:
        name: Name of the pipeline. It is part of the names of directories and outputs.
        order: The order that every sink is promised. "total" (the default): the sequence of a run that processes one
            record at a time. "key" or "stream": this sequence among the records of each key or stream. "none": no
            order.
        preserve_order: `True` means `order="total"`, `False` means `order="none"`.
        strict: Raise `PlanError` instead of planning an exchange whose output must be merged back into order.
        exchange: How records move between tasks. "runs": through files in a directory that all tasks share. "spark":
            through Spark's shuffle, for clusters without a shared directory.
        parallelism: Number of tasks per stage.
        dead_letter: A sink, as "file:DIR", for records on which a function raises. Each becomes a JSON object, in the
            same transaction as the other output. Without it, the pipeline stops and the error names the record.
        guarantee: The delivery guarantee. A weaker guarantee than "effectively-once" costs less.
        deterministic: Declares that the functions return the same output for the same input in every run. Idempotent
            sinks require it.
        order_by: How the records of several streams are ordered: by "arrival" (the default) or by "event_time".
            Event-time order compares event time, stream id and message id, so two runs over the same inputs produce the
            same bytes. Each source must then name its `streams`, and output waits for the slowest stream.
        lateness_s: With event-time order: how far a record may be behind the latest record of its stream.
        late: With event-time order: what happens to a record that is further behind. "fail" (the default) stops the
            pipeline, "drop" drops and counts the record, "dead-letter" makes it a dead letter.
        idle_timeout_s: With event-time order: seconds after which output no longer waits for a silent stream. Two runs
            may then differ.
        fusion: Run consecutive functions of one record as one loop, and inline functions that are a single expression.
            `False` calls each function separately, stage by stage. This is slower and gives the same output.
        types: Dataclasses, named tuples and enums whose values are used as keys, in states or between tasks.

    Raises:
        PlanError: An argument is not valid, or two arguments contradict each other.

    Example:
        >>> from procession import Pipeline
        >>> pipeline = Pipeline("shouting", parallelism=2, dead_letter="file:output")
        >>> _ = pipeline.source(codec="text").map(str.upper).sink("words", to="file:output")
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
        fusion: bool = True,
        types: Iterable[type[Any]] = (),
    ) -> None:
        self.name = checked_name(name, "a pipeline")
        owner = f"pipeline {name!r}"
        if preserve_order is not None:
            checked_flag(preserve_order, "preserve_order", owner)
        self.order = _order(order, preserve_order)
        self.is_strict = checked_flag(strict, "strict", owner)
        self.is_fused = checked_flag(fusion, "fusion", owner)
        self.parallelism = checked_count(parallelism, "parallelism", owner, PARALLELISM_MAX)
        self.guarantee: Guarantee = checked_choice(Guarantee, guarantee, "guarantee")
        self.is_deterministic = checked_flag(deterministic, "deterministic", owner)
        self.exchange: Exchange = checked_choice(Exchange, exchange, "exchange")
        self.event_time = event_time(order_by, lateness_s, late, idle_timeout_s, owner)
        self.types = NamedTypes.of(types)
        self._nodes: list[Node] = []
        self._settings: dict[str, Setting] = {}
        self._groups: list[str] = []
        self._dead_letter = dead_letter
        if dead_letter is not None:
            checked_target(dead_letter, DEAD_LETTER)

    def setting(self, name: str, kind: Any = str, default: Any = NO_DEFAULT, *, secret: bool = False) -> Any:
        """Read a setting of the app, whose value comes from outside the program.

        The value of `--set NAME=VALUE` or of the environment variable PROCESSION_APP_NAME comes first. Next is the
        value of NAME in the table `[app]` of procession.toml, and last the default. The setting is read once, here, and
        does not change while the pipeline runs. `explain` shows it.

        Args:
            name: Name of the setting.
            kind: Its type: float, int, bool, str, Decimal, `Literal["a", "b"]`, or another type that pydantic reads.
            default: The value if no other is given. Without a default, a value must be given.
            secret: Hide the value in `explain` and in errors. Give it in the environment or the file, since other users
                of a machine can see its command lines.

        Returns:
            The value, of type `kind`.

        Raises:
            PlanError: There is no value, or it has another type.

        Example:
            >>> from procession import Pipeline
            >>> pipeline = Pipeline("alerts")
            >>> threshold = pipeline.setting("threshold", float, default=99.5)
        """
        checked_flag(secret, "secret", f"setting {name!r}")
        found = read_setting(self.name, name, kind, default, is_secret=secret)
        if self._settings.setdefault(name, found) != found:
            raise PlanError(
                f"pipeline {self.name!r} reads the setting {name!r} twice, with different arguments",
                next_step="read it once, and use its value in several places",
            )
        return found.value

    @property
    def size(self) -> int:
        """The number of stages."""
        return len(self._nodes)

    def graph(self) -> Graph:
        """Return the pipeline as an immutable, checked graph.

        Raises:
            PlanError: There is no source, no sink, or a contradiction between stages.
        """
        nodes = list(self._nodes)
        if not nodes:
            raise PlanError(f"pipeline {self.name!r} has no source", next_step="begin with pipeline.source(…)")
        if not any(node.kind is Kind.SINK for node in nodes):
            raise PlanError(f"pipeline {self.name!r} has no sink", next_step='end with .sink("name", to="file:DIR")')
        if self.event_time is not None:
            undeclared = [node.name for node in nodes if node.kind is Kind.SOURCE and node.streams is None]
            check_declared(self.name, undeclared, self.event_time, has_letters=self._dead_letter is not None)
        for node in nodes:
            if self._dead_letter is None and node.operator is not None and node.operator.state.late_to_dead_letters:
                raise PlanError(
                    f"stage {node.name!r} makes dead letters of late records, but pipeline {self.name!r} has no sink"
                    " for them",
                    next_step='write Pipeline(…, dead_letter="file:DIR"), or late="drop"',
                    stage=node.name,
                )
        on_error = OnError.STOP
        if self._dead_letter is not None:
            connector, _ = sink_of(self._dead_letter, f"sink {DEAD_LETTER!r}")
            is_in_blocks = connector.sink is not None and connector.sink.packing is Packing.BLOCKS
            nodes.append(Node(Kind.SINK, DEAD_LETTER, target=self._dead_letter, is_in_blocks=is_in_blocks))
            on_error = OnError.DEAD_LETTER
        return Graph(
            self.name,
            tuple(nodes),
            self.parallelism,
            on_error,
            self.guarantee,
            self.order,
            is_strict=self.is_strict,
            is_fused=self.is_fused,
            exchange=self.exchange,
            event_time=self.event_time,
            types=self.types,
            settings=tuple(self._settings.values()),
        )

    def stage_name(self, index: int) -> str:
        """Return the name of the stage with this index."""
        return self._nodes[index].name

    def codec_at(self, index: int, sink: str) -> PayloadCodec:
        """Return the codec of a sink after this stage if the sink names none: the codec of its source.

        Raises PlanError if its records come from sources with different codecs.
        """
        nearest = self._nearest(index, lambda node: node.kind is Kind.SOURCE or node.kind in GIVING_PAYLOADS)
        found = {node.codec: node.name for node in nearest}  # of other stages it is bytes
        # Bytes and text are written in the same way.
        if (
            len(found.keys() - {PayloadCodec.TEXT, PayloadCodec.BYTES})
            + bool(found.keys() & {PayloadCodec.TEXT, PayloadCodec.BYTES})
            > 1
        ):
            names = " and ".join(f'{source!r} (codec="{codec.value}")' for codec, source in found.items())
            raise PlanError(
                f"sink {sink!r} has no codec, and gets records of {names}",
                next_step='name its codec, as in sink(…, codec="json")',
                stage=sink,
            )
        return PayloadCodec.BYTES if len(found) > 1 else next(iter(found))

    def key_at(self, index: int, word: str) -> RecordKey | None:
        """Return the key that `key_by` has set on records at this stage, or None.

        Raises PlanError if only some of the branches that lead here have a `key_by`.
        """
        nearest = self._nearest(index, lambda node: not _is_keeping_key(node))
        given = [node.function for node in nearest if node.kind is Kind.KEY_BY and node.function is not None]
        if given and len(given) < len(nearest):
            other = next(node.name for node in nearest if node.kind is not Kind.KEY_BY)
            raise PlanError(
                f".{word}() gets records with a key of key_by, and records of {other!r} without one",
                next_step="write key_by after the merge, or on each branch before it; or give the stage its own key=",
            )
        return RecordKey(tuple(given)) if given else None

    def _nearest(self, index: int, is_one: Callable[[Node], bool]) -> list[Node]:
        """Return the nearest stages that satisfy the predicate, one for each branch that leads here. This stage is
        included."""
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
        """Return the plan as text: how order is kept on each edge, and why. `procession explain` prints this text.

        Raises:
            PlanError: The pipeline cannot run as it is declared.
        """
        return explain(make_plan(self.graph()))

    def run(
        self,
        inputs: Mapping[str, Any] | Iterable[Any] | str | Path | None = None,
        *,
        directory: str | Path | None = None,
        listen: str | None = None,
        event_time_field: str | None = None,
        event_time_unit: str = "s",
        **settings: Any,
    ) -> FinishedRun:
        """Run the pipeline from a script or a notebook, with the same processes as `procession run`.

        The call returns when the input is committed. In a notebook, the cell shows the progress. Ctrl-C, or an
        interrupt of the cell, stops all processes. It raises KeyboardInterrupt if a part of the input is not committed
        then.

        Args:
            inputs: The paths of files; or the records of each source by its name, as in `procession.testing.run`:
                `{"orders": [{"id": 1}, {"id": 2}]}`. None: producers send, and the pipeline runs until it is stopped.
            directory: The pipeline's directory. A later run with the same directory continues. None: a new directory
                for this run. It also contains the sinks' relative directories, and is removed together with the
                returned run.
            listen: Address for producers, HOST:PORT. None: a free port of this machine.
            event_time_field: With files: JSON field that holds a record's event time.
            event_time_unit: Unit of numbers in that field: s, ms, us or ns since 1970.
            settings: Settings of `procession run`, such as `epoch_interval_s=1`.

        Returns:
            The figures of the run, and the committed output: `run["alerts"]`.

        Raises:
            UsageError: The inputs do not fit the sources, or the run needs a directory to be continued and has none.
            PlanError: The pipeline cannot run, or a function uses something that other processes cannot have.
            PartFailed: A process failed too often, or with an error that a restart does not cure.
        """
        # Loaded by name, because the API does not import the processes of a run.
        run: Callable[..., FinishedRun] = load("procession.jobs.pipeline_run:run_pipeline")
        return run(self, inputs, directory, listen, event_time_field, event_time_unit, settings)

    def check_idempotent(self, sink: str) -> None:
        """Raise PlanError unless a repeated epoch sends this sink the same bytes."""
        if not self.is_deterministic:
            raise PlanError(
                f"sink {sink!r} is idempotent, but pipeline {self.name!r} is not declared deterministic: an epoch"
                " that runs again might have other bytes for the same positions",
                next_step="if the functions always return the same output for the same input, write"
                f" Pipeline({self.name!r}, deterministic=True); otherwise remove idempotent=True, and the sink takes"
                " part in the commit",
            )
        if not POLICIES[self.guarantee].is_sent_again:
            raise PlanError(
                f"sink {sink!r} is idempotent, but with guarantee={self.guarantee.value!r} no record is sent again",
                next_step='remove idempotent=True, or use "effectively-once" or "at-least-once"',
            )

    @contextmanager
    def group(self, name: str) -> Iterator[None]:
        """Assign the stages that are added inside the block to the piece with this name."""
        self._groups.append(name)
        try:
            yield
        finally:
            self._groups.pop()

    def _add(self, node: Node) -> Stage:
        """Append a stage. A stage without a name is named after its kind and index."""
        if not node.name:
            node = replace(node, name=f"{node.kind.value.replace('_', '-')}-{len(self._nodes)}", is_named=False)
        is_sink = node.kind is Kind.SINK
        if self._groups:
            # A piece may be used twice, so the names of its stages begin with the name of the piece. Names of sinks do
            # not.
            named = node.name if is_sink else checked_name(f"{self._groups[-1]}-{node.name}", "a stage of a piece")
            node = replace(node, group="/".join(self._groups), name=named)
        if any(other.id == node.id for other in self._nodes) or (is_sink and node.name == DEAD_LETTER):
            raise PlanError(
                f"pipeline {self.name!r} has two {'sinks' if is_sink else 'stages'} named {node.name!r}",
                next_step="give one of them another name",
            )
        if node.parallelism is not None:
            tasks = checked_count(node.parallelism, "parallelism", f"stage {node.name!r}", PARALLELISM_MAX)
            node = replace(node, parallelism=tasks)
        self._nodes.append(node)
        return Stage(self, len(self._nodes) - 1, self._add)


def _is_keeping_key(node: Node) -> bool:
    if node.kind is Kind.REBALANCE:
        return node.function is None
    return node.kind in KEEPING_KEY or (node.kind in KEEPING_KEY_GIVEN and isinstance(node.key, RecordKey))


def _order(order: str | None, preserve_order: bool | None) -> Order:
    if order is None:
        return Order.NONE if preserve_order is False else Order.TOTAL
    if preserve_order is not None:
        raise PlanError(
            f"order={order!r} and preserve_order={preserve_order!r} exclude each other",
            next_step='write order="total" or order="none" alone',
        )
    chosen: Order = checked_choice(Order, order, "order")
    return chosen
