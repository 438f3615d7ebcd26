"""The pipeline: the words in which people write their application.

The one rule: building is all it does; a mistake is a `PlanError` at the line that made it. Before it stands the user's
file, after it `plan/graph` and the driver that runs the graph.

    >>> from procession import Pipeline
    >>> pipeline = Pipeline("doubler")
    >>> numbers = pipeline.source("numbers", codec="text")
    >>> doubled = numbers.map(lambda n: f"{n}:{int(n) * 2}").sink("doubled", to="file:out")
    >>> [node.name for node in pipeline.graph().nodes]
    ['numbers', 'map-1', 'doubled']
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Literal

from procession.errors import PlanError
from procession.plan.graph import Codec, Framing, Graph, Kind, Node, OnError
from procession.plan.guarantee import POLICIES, Guarantee

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
TARGET = re.compile(r"file:.+|[^:\s]+:[0-9]{1,5}")
PARALLELISM_MAX = 1024


class Pipeline:
    """A pipeline: one source, stages in plain Python, one or more sinks.

    `parallelism` is how many tasks work on an epoch. With `dead_letter="file:DIR"` a record on which a function raises
    goes there, as a line of JSON, in the same transaction as the rest; without it, the pipeline stops and names it.
    `guarantee` may ask for less than the default, "effectively-once": see docs/guarantees.md. `deterministic=True` says
    that the functions give the same output for the same input whenever they are run; only then may sinks be idempotent.
    """

    def __init__(
        self,
        name: str,
        *,
        order: Literal["total"] = "total",
        parallelism: int = 2,
        dead_letter: str | None = None,
        guarantee: Literal["effectively-once", "at-least-once", "at-most-once", "none"] = "effectively-once",
        deterministic: bool = False,
    ) -> None:
        self.name = _name(name, "a pipeline")
        if order != "total":
            raise PlanError(f"order={order!r} is not known yet", next_step='use order="total", which every sink gets')
        if not isinstance(parallelism, int) or not 1 <= parallelism <= PARALLELISM_MAX:
            raise PlanError(
                f"parallelism={parallelism!r} of pipeline {name!r} is out of range",
                next_step=f"choose a number from 1 to {PARALLELISM_MAX}",
            )
        self.parallelism = parallelism
        self.guarantee: Guarantee = _choice(Guarantee, guarantee, "guarantee")
        self.is_deterministic = deterministic
        self._nodes: list[Node] = []
        self._dead_letter = dead_letter
        if dead_letter is not None:
            _target(dead_letter, "dead-letter")

    def source(self, name: str = "source", *, codec: Literal["bytes", "text"] = "bytes") -> Stage:
        """Where records come in: connectors send to the gateway. `codec` is what the functions are handed."""
        if self._nodes:
            raise PlanError(
                f"pipeline {self.name!r} has a second source {name!r}",
                next_step="let all producers send to the one source; each sends its own streams",
            )
        return self._add(Node(Kind.SOURCE, _name(name, "a source"), codec=_choice(Codec, codec, "codec")))

    def graph(self) -> Graph:
        """The pipeline, frozen and checked."""
        nodes = list(self._nodes)
        if not nodes:
            raise PlanError(f"pipeline {self.name!r} has no source", next_step="begin with pipeline.source(…)")
        if not any(node.kind is Kind.SINK for node in nodes):
            raise PlanError(f"pipeline {self.name!r} has no sink", next_step='end with .sink("name", to="file:DIR")')
        on_error = OnError.STOP
        if self._dead_letter is not None:
            nodes.append(Node(Kind.SINK, "dead-letter", target=self._dead_letter))
            on_error = OnError.DEAD_LETTER
        return Graph(self.name, tuple(nodes), self.parallelism, on_error, self.guarantee)

    def _check_idempotent(self, sink: str) -> None:
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
        if any(other.name == node.name for other in self._nodes) or node.name == "dead-letter":
            raise PlanError(
                f"pipeline {self.name!r} has two stages named {node.name!r}", next_step="give one of them another name"
            )
        self._nodes.append(node)
        return Stage(self, len(self._nodes) - 1)


class Stage:
    """A place in the pipeline to go on from. Going on twice from one stage makes two branches."""

    def __init__(self, pipeline: Pipeline, index: int) -> None:
        self._pipeline = pipeline
        self._index = index

    def map(self, function: Callable[[Any], str | bytes], *, name: str | None = None) -> Stage:
        """One record in, one record out."""
        return self._then(Kind.MAP, function, name)

    def filter(self, predicate: Callable[[Any], bool], *, name: str | None = None) -> Stage:
        """Keep the records for which the predicate is true."""
        return self._then(Kind.FILTER, predicate, name)

    def flat_map(self, function: Callable[[Any], Iterable[str | bytes]], *, name: str | None = None) -> Stage:
        """One record in, any number out, in the order in which they are given."""
        return self._then(Kind.FLAT_MAP, function, name)

    def map_batches(self, function: Callable[[Any], Any], *, name: str | None = None) -> Stage:
        """Arrow in, Arrow out: a `RecordBatch` with payload, key, event_time, stream_id and message_id comes; what goes
        back is the new payloads, as an Arrow array or as a `RecordBatch` with a column `payload`. How records are cut
        into batches is not part of the promise, so the function must treat each row on its own."""
        return self._then(Kind.MAP_BATCHES, function, name)

    def sink(
        self, name: str, *, to: str, framing: Literal["lines", "raw"] = "lines", idempotent: bool = False
    ) -> Stage:
        """Where records go: `to="file:DIR"` (a file sink that is started with the pipeline), or the `HOST:PORT` of a
        sink that runs already. `framing="lines"` puts a newline after each record, `"raw"` nothing.

        `idempotent=True`: no two-phase commit; the sink shows what it gets, and after a crash gets the same positions
        again with the same bytes. Only for a pipeline that is declared deterministic."""
        if idempotent:
            self._pipeline._check_idempotent(name)
        node = Node(
            Kind.SINK,
            _name(name, "a sink"),
            parent=self._index,
            framing=_choice(Framing, framing, "framing"),
            target=_target(to, name),
            is_idempotent=idempotent,
        )
        self._pipeline._add(node)
        return self

    def _then(self, kind: Kind, function: Callable[..., Any], name: str | None) -> Stage:
        if not callable(function):
            raise PlanError(f".{kind.value}() was given {function!r}", next_step="give it a function")
        index = len(self._pipeline._nodes)
        name = _name(name, "a stage") if name is not None else f"{kind.value.replace('_', '-')}-{index}"
        return self._pipeline._add(Node(kind, name, parent=self._index, function=function))


def _name(name: str, what: str) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise PlanError(
            f"{name!r} cannot name {what}", next_step="use 1 to 64 letters, digits, '-' and '_', not beginning with '-'"
        )
    return name


def _target(to: str, name: str) -> str:
    if not isinstance(to, str) or not TARGET.fullmatch(to):
        raise PlanError(
            f"sink {name!r} goes to {to!r}, which is neither a file sink nor an address",
            next_step='write to="file:DIR" or to="HOST:PORT"',
        )
    return to


def _choice(kind: type[Any], value: str, what: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(member.value) for member in kind)
        raise PlanError(f"{what}={value!r} is not known", next_step=f"choose one of {known}") from None
