"""The share of a source: the streams of a connector, under ids that belong to one source of a pipeline.

Invariant: a connector knows its own stream ids, and the gateway knows the ids of the share (`record.id_in_share`). Only
this module maps between them. `procession run` starts connectors with `--source NAME` for this.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from dataclasses import replace

from procession.errors import ConfigError
from procession.record import id_in_share
from procession.sdk.source_records import Forgetful, Items, Source, Stream, Streams, UnnumberedSource


class SharedSource:
    """A Source whose streams have ids in a share."""

    def __init__(self, source: Source, share: int) -> None:
        self._source = source
        self._share = share
        self._streams: dict[int, Stream] = {}
        # The optional methods of a source are found by name, so this wrapper has only those of the wrapped source.
        if isinstance(source, Forgetful):
            self.forget = lambda stream, message_id: source.forget(self._streams[stream.id], message_id)
        if isinstance(source, UnnumberedSource):
            self.is_unnumbered = lambda stream: source.is_unnumbered(self._streams[stream.id])
            self.number_above = lambda stream, last: source.number_above(self._streams[stream.id], last)

    def streams(self) -> Streams:
        found = self._source.streams()
        return self._as_they_come(found) if isinstance(found, AsyncIterable) else self._all(found)

    def read(self, stream: Stream, after: int | None) -> Items:
        return self._source.read(self._streams[stream.id], after)

    def _all(self, streams: Iterable[Stream]) -> Iterator[Stream]:
        return map(self._shared, streams)

    async def _as_they_come(self, streams: AsyncIterable[Stream]) -> AsyncIterator[Stream]:
        async for stream in streams:
            yield self._shared(stream)

    def _shared(self, stream: Stream) -> Stream:
        shared = replace(stream, id=id_in_share(self._share, stream.id))
        before = self._streams.setdefault(shared.id, stream)
        if before.id != stream.id:
            raise ConfigError(
                f"streams {before.name!r} and {stream.name!r} have the same id, by a rare coincidence",
                next_step="give the source another name in the app, or read them in two sources",
            )
        return shared
