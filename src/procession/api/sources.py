"""Sources: the method of a pipeline that declares where records enter.

Invariant: a stream belongs to one source. `api/pipeline` inherits the method; `planner/source_streams` decides at run
time which streams a source takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from glob import has_magic
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from procession.errors import PlanError
from procession.operators.named_types import NamedTypes
from procession.operators.record_schema import SchemaJson, json_with
from procession.operators.typed_json import TypedJson
from procession.planner.connector import SourceTraits
from procession.planner.connector_registry import source_of
from procession.planner.connector_url import ConnectorUrl
from procession.planner.event_order import EventTime
from procession.planner.graph import Kind, Node, PayloadCodec
from procession.planner.validation import checked_choice, checked_flag, checked_name, checked_unit
from procession.record import id_in_share, share_of, stream_id
from procession.times import Unit

if TYPE_CHECKING:
    from procession.api.stage import Stage


class Sources:
    """The `Pipeline` methods that declare sources."""

    name: str
    types: NamedTypes
    event_time: EventTime | None
    _nodes: list[Node]
    _add: Callable[[Node], Stage]

    def source(
        self,
        name: str = "source",
        *,
        from_: str | None = None,
        codec: Literal["bytes", "text", "json", "msgpack", "arrow"] | TypedJson = "bytes",
        schema: pa.Schema | None = None,
        streams: Iterable[int | str | Path] | None = None,
        ends: bool | None = None,
        event_time_field: str | None = None,
        event_time_unit: Unit = "s",
        parallelism: int | None = None,
    ) -> Stage:
        """Declare where records enter the pipeline. Producers send them to the gateway, or `from_` names a URL.

        By default, all streams enter at one source, in the order of arrival. To process some streams differently,
        declare several sources and name the `streams` of each. `merge` joins the sources again, in the order of
        arrival.

        Args:
            name: Name of the source.
            from_: A URL to read from, such as "kafka://HOST:PORT/TOPIC" or "file:PATTERN". `procession run` starts the
                connector that reads it. docs/how-to/connectors.md lists the connectors. The connector defines the
                streams, so omit `streams`. Without a URL, producers connect to the gateway.
            codec: How records are decoded. Functions receive `bytes`, `str` ("text"), the decoded value ("json",
                "msgpack", "arrow"), or objects of your class (`json_of(Call)`).
            schema: With codec="json": the fields of the records, as a `pyarrow.Schema`. Each record is validated when
                it enters, and functions receive a dict with these fields. docs/how-to/typed-records.md lists the types.
            streams: The streams of this source, by name or id, or as `Path("a.log")` for a file. The files of a
                pattern, `Path("calls-*.jsonl")`, form one stream, in the order of their names; files that appear later
                continue it. One source may omit `streams`; it receives all other streams.
            ends: `True`: the source ends when all its streams have ended (all of `streams`, or all that have begun).
                Open windows then fire. `sort` and `aggregate` require a source that ends. `None`: the source ends if
                the app runs with `--input`, or if the connector of its URL ends, such as the connector for files.
                `False`: the source never ends; files are followed, and new files that match the pattern are read, too.
            event_time_field: With `from_`: the field of JSON records that has the event time, such as "at" or
                "after.at". Without it, the connector gives the event times, if it has any.
            event_time_unit: The unit of numbers in that field: "s", "ms", "us" or "ns" since 1970. Texts are ISO 8601.
            parallelism: Number of tasks. None: that of the pipeline.

        Returns:
            The stage to continue from.

        Raises:
            PlanError: Two sources claim the same streams, or an argument is not valid.
        """
        checked_name(name, "a source")
        typed = _typed(codec, schema, f"source {name!r}")
        if typed is not None:
            self.types = self.types.including(typed.classes)
        streams = list(streams) if isinstance(streams, Iterable) and not isinstance(streams, str) else streams
        taken = None if streams is None else _streams(streams, name)
        share = None
        if from_ is not None:
            connector, url = source_of(from_, f"source {name!r}")
            assert connector.source is not None
            share = self._share(name, taken)
            if self.event_time is not None:
                taken = self._declared(name, share, connector.source, url)
                if event_time_field is None and not connector.source.is_timed:
                    raise PlanError(
                        f"pipeline {self.name!r} is ordered by event time, but the records of source {name!r} have"
                        " no event time",
                        next_step="name the field of its JSON records that has it: event_time_field=…",
                    )
            if ends is None:
                ends = connector.source.ends(url)
        field = _time_field(name, event_time_field, event_time_unit, has_url=from_ is not None)
        for other in self._nodes:
            if other.kind is Kind.SOURCE and (
                (other.streams is taken is None and other.share is share is None)
                or (other.streams or frozenset()) & (taken or frozenset())
            ):
                raise PlanError(
                    f"pipeline {self.name!r} has a second source {name!r} for the streams of {other.name!r}",
                    next_step="let all producers send to the one source; each sends its own streams. Or name the"
                    " streams of each source: source(…, streams=[…])",
                )
        return self._add(
            Node(
                Kind.SOURCE,
                name,
                codec=PayloadCodec.JSON
                if isinstance(codec, TypedJson)
                else checked_choice(PayloadCodec, codec, "codec"),
                typed=typed,
                target=from_ or "",
                share=share,
                streams=taken,
                patterns=_patterns(streams or ()),
                ends=None if ends is None else checked_flag(ends, "ends", f"source {name!r}"),
                awaited=taken or frozenset() if ends else frozenset(),
                time_field=field,
                unit=event_time_unit,
                parallelism=parallelism,
            )
        )

    def clock(self, interval_s: float = 1.0, *, name: str = "clock") -> Stage:
        """Declare a clock: a source whose records are the time, for timers by the clock (`process(…, clock=…)`).

        Each tick is a record of the log, so timers fire at the same position if an epoch is run again. The output
        depends on when records arrive, so two runs may differ. `procession run` starts the clock, and the pipeline then
        runs until it is stopped. In a test, the ticks are inputs: `("clock", 10.5)`.

        Args:
            interval_s: Seconds between two ticks, from 0.01 to 3600. A timer fires up to two intervals late.
            name: Name of the source.

        Returns:
            The stage of ticks: numbers of seconds since 1970.

        Raises:
            PlanError: The interval is not possible, or the pipeline has this source already.
        """
        return self.source(name, from_=f"clock:{interval_s}", codec="json")

    def _share(self, name: str, streams: frozenset[int] | None) -> int:
        """Return the share of the stream ids for a source that reads a URL."""
        if streams is not None:
            raise PlanError(
                f"source {name!r} reads a URL and names streams, but the URL defines its streams",
                next_step="omit streams; or omit from_, and start the connector with `procession source`",
            )
        share = share_of(name)
        for other in self._nodes:
            if other.kind is Kind.SOURCE and other.share == share and other.name != name:
                raise PlanError(
                    f"sources {other.name!r} and {name!r} have the same stream ids, by a rare coincidence",
                    next_step="give one of them another name",
                )
        return share

    def _declared(self, name: str, share: int, traits: SourceTraits, url: ConnectorUrl) -> frozenset[int]:
        """Return the streams of a URL in event-time order."""
        if traits.declared is None:
            raise PlanError(
                f"source {name!r} reads a URL, whose streams are unknown before the start, but pipeline"
                f" {self.name!r} is ordered by event time and must know them",
                next_step="omit from_, name the streams, and start the connector with `procession source`",
            )
        return frozenset(id_in_share(share, stream) for stream in traits.declared(url))


def _typed(codec: str | TypedJson, schema: pa.Schema | None, owner: str) -> TypedJson | SchemaJson | None:
    if schema is None:
        return codec if isinstance(codec, TypedJson) else None
    if codec != PayloadCodec.JSON.value:
        raise PlanError(
            f"{owner} has a schema, but its codec is {codec.shown if isinstance(codec, TypedJson) else codec!r}",
            next_step='write codec="json" with a schema, or omit the schema',
        )
    return json_with(schema, owner)


def _time_field(name: str, field: str | None, unit: Unit, *, has_url: bool) -> str:
    if field is None:
        if unit != "s":
            raise PlanError(
                f"source {name!r} has event_time_unit={unit!r}, but no event_time_field",
                next_step="name the field that has the event time: event_time_field=…",
            )
        return ""
    if not isinstance(field, str) or not all(field.split(".")):
        raise PlanError(
            f"event_time_field={field!r} of source {name!r} is not the name of a field",
            next_step='name a field of its JSON records, such as event_time_field="at"',
        )
    if not has_url:
        raise PlanError(
            f"source {name!r} has event_time_field={field!r}, but no from_: its producers give the event times",
            next_step=f"start them with --event-time-field {field}; or call add_timestamps after the source",
        )
    checked_unit(unit)
    return field


def _streams(streams: Any, name: str) -> frozenset[int]:
    named = streams if isinstance(streams, list) else [streams]
    if pattern := next((stream for stream in named if isinstance(stream, str) and "*" in stream), None):
        raise PlanError(
            f"source {name!r} names the stream {pattern!r}, but only files are declared by pattern",
            next_step=f"for files write streams=[Path({pattern!r})]; let other producers continue one stream",
        )
    found = [number_of_stream(stream) for stream in named]
    if not found or None in found:
        raise PlanError(
            f"source {name!r} takes streams {streams!r}, which are not all ids or names of streams",
            next_step="name the streams in a list: by the names or numbers that their producers use, a file as Path(…)",
        )
    return frozenset(stream for stream in found if stream is not None)


def _patterns(streams: Iterable[int | str | Path]) -> tuple[str, ...]:
    """Return the file patterns among these streams."""
    return tuple(str(stream) for stream in streams if isinstance(stream, Path) and has_magic(str(stream)))


def number_of_stream(stream: object) -> int | None:
    """Return the id of a stream, or None if the value does not name a stream."""
    if isinstance(stream, Path):
        # Like the file source: the same file is the same stream, whatever the working directory is.
        return stream_id(bytes(Path(normpath(stream.absolute()))))
    if isinstance(stream, str):
        return stream_id(stream.encode()) if stream else None
    return stream if type(stream) is int and 0 <= stream < 2**64 else None
