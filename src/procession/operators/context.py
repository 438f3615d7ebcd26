"""The context: what a record has beside its value, for functions that ask for it.

The one rule: a function asks by a second parameter that is annotated with `Context`; one that does not ask costs
nothing more. Before it `api/stage`, which looks at the function; after it `operators/chain`, which calls it. Pure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from procession.planner.keys import KeyCodec


@dataclass(frozen=True, slots=True)
class Context:
    """What a record has beside its value. `key` is the one that it came with, as bytes, or was given by `key_by` or a
    keyed stage. `event_time` is in nanoseconds since 1970. `stream` is the id of the stream that it came in. What a
    window or a join gives has those of the record that let it out.

    >>> from procession import Context
    >>> def told(value: str, context: Context) -> str:
    ...     return f"{context.key} {value}"
    >>> told("a", Context(key=7, event_time=0, stream=1))
    '7 a'
    """

    key: Any
    event_time: int
    stream: int


ANNOTATIONS = (Context, "Context", "procession.Context")


def is_asking(function: Any) -> bool:
    """Whether a function has a second parameter that is annotated with `Context`."""
    try:
        parameters = list(_signature(function).parameters.values())
    except (TypeError, ValueError):  # some of Python's own have none
        return False
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return len(positional) == 2 and positional[1].annotation in ANNOTATIONS


def _signature(function: Any) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except (NameError, AttributeError, SyntaxError):  # a name that is imported for the type checker only
        return inspect.signature(function)


def with_contexts(
    function: Callable[[Any, Context], Any], keys: pa.Array, others: pa.RecordBatch, codec: KeyCodec
) -> Callable[[Any], Any]:
    """The function as one of the value alone, to be called once for each of these records, in their order."""
    contexts = _contexts(keys, others, codec)
    return lambda value: function(value, next(contexts))


def _contexts(keys: pa.Array, others: pa.RecordBatch, codec: KeyCodec) -> Iterator[Context]:
    columns = (keys, others.column("event_time"), others.column("stream_id"))
    for key, time, stream in zip(*(column.to_pylist() for column in columns), strict=True):
        yield Context(codec.decode(key), time, stream)
