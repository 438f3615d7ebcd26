"""The context: a record's data besides its value, for functions that ask for it.

Invariant: a function asks by a second parameter that is annotated with `Context`; other functions have no extra cost.
`api/stage` inspects the function, and `operators/chain` calls it. Pure.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from procession.planner.keys import KeyCodec
from procession.planner.validation import checked_name

COUNTERS_MAX = 1_000
"""Maximum number of counters of an app."""


@dataclass(frozen=True, slots=True)
class Context:
    """A record's data besides its value, for functions of `map`, `filter` and `flat_map` that ask for it.

    The result of a window or a join has the context of the record that fired it.

    Args:
        key: The key that the record was sent with, as bytes, or that `key_by` or a keyed stage has set.
        event_time: Nanoseconds since 1970.
        stream: Id of the stream that the record came in.

    Example:
        >>> from procession import Context
        >>> def tagged(value: str, context: Context) -> str:
        ...     return f"{context.key} {value}"
        >>> tagged("a", Context(key=7, event_time=0, stream=1))
        '7 a'
    """

    key: Any
    event_time: int
    stream: int
    _counts: Counter[str] = field(default_factory=Counter, compare=False, repr=False)

    def counter(self, name: str, add: int = 1) -> None:
        """Add to a counter of the app.

        Its value is the sum over all committed epochs: a record counts once, even if its epoch ran several times. `run`
        prints it at the end (docs/how-to/monitor.md). If the function raises later, the amount still counts.

        Args:
            name: Name of the counter. Use a few fixed names, not a name for each record.
            add: The amount to add, which may be negative.

        Raises:
            PlanError: The name is not valid.
            ValueError: `add` is not an int, or the app has too many counters.
        """
        count(self._counts, name, add)


def count(counts: Counter[str], name: str, add: int) -> None:
    """Add to a counter of the app, if the name and the number are valid."""
    if name not in counts:
        checked_name(name, "a counter")
        if len(counts) >= COUNTERS_MAX:
            raise ValueError(f"there are more than {COUNTERS_MAX:,} counters: use names from a fixed set")
    if type(add) is not int:
        raise ValueError(f"counter {name!r} cannot add {add!r}, which is not an int")
    counts[name] += add


ANNOTATIONS = (Context, "Context", "procession.Context")


def is_asking(function: Any) -> bool:
    """Whether a function has a second parameter that is annotated with `Context`."""
    try:
        parameters = list(_signature(function).parameters.values())
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [parameter for parameter in parameters if parameter.kind in kinds]
    return len(positional) == 2 and positional[1].annotation in ANNOTATIONS


def _signature(function: Any) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except (
        NameError,
        AttributeError,
        SyntaxError,
    ):  # a name that is imported for type checking only
        return inspect.signature(function)


def with_contexts(
    function: Callable[[Any, Context], Any],
    keys: pa.Array,
    others: pa.RecordBatch,
    codec: KeyCodec,
    counts: Counter[str],
) -> Callable[[Any], Any]:
    """Convert the function to a function of only the value. It must be called once per record, in order."""
    contexts = _contexts(keys, others, codec, counts)
    return lambda value: function(value, next(contexts))


def _contexts(keys: pa.Array, others: pa.RecordBatch, codec: KeyCodec, counts: Counter[str]) -> Iterator[Context]:
    columns = (keys, others.column("event_time"), others.column("stream_id"))
    for key, time, stream in zip(*(column.to_pylist() for column in columns), strict=True):
        yield Context(codec.decode(key), time, stream, counts)
