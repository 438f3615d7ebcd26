"""The share of a source: its streams have ids of the share outside, and the connector's own ids inside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from procession.errors import ConfigError
from procession.record import SHARE_SHIFT, id_in_share
from procession.sdk.source_records import Forgetful, Stream, UnnumberedSource
from procession.sdk.source_share import SharedSource

A, B = Stream(5, "a"), Stream(2**63 + 6, "b")


class Numbers:
    def __init__(self, *streams: Stream) -> None:
        self.given = list(streams)
        self.read_of: list[tuple[Stream, int | None]] = []

    def streams(self) -> list[Stream]:
        return self.given

    def read(self, stream: Stream, after: int | None) -> list[tuple[int, int, bytes, bytes]]:
        self.read_of.append((stream, after))
        return [(1, 0, b"", b"x")]


class Careful(Numbers):
    """A source that forgets streams and assigns its own ids."""

    def __init__(self, *streams: Stream) -> None:
        super().__init__(*streams)
        self.heard: list[object] = []

    def forget(self, stream: Stream, message_id: int) -> None:
        self.heard.append((stream, message_id))

    def is_unnumbered(self, stream: Stream) -> bool:
        return stream == A

    def number_above(self, stream: Stream, last: int | None) -> None:
        self.heard.append((stream, last))


class Appearing(Numbers):
    async def streams(self) -> AsyncIterator[Stream]:  # type: ignore[override]
        for stream in self.given:
            yield stream


def test_streams_have_ids_of_the_share_and_are_read_by_their_own() -> None:
    inside = Numbers(A, B)
    outside = SharedSource(inside, 9)
    streams = list(outside.streams())  # type: ignore[arg-type]
    assert [(stream.id, stream.name) for stream in streams] == [
        (id_in_share(9, A.id), "a"),
        (id_in_share(9, B.id), "b"),
    ]
    assert list(outside.read(streams[1], 4)) == [(1, 0, b"", b"x")]  # type: ignore[arg-type]
    assert inside.read_of == [(B, 4)]


def test_streams_that_appear_later_are_shared_too() -> None:
    async def listed() -> list[int]:
        found = SharedSource(Appearing(A, B), 9).streams()  # type: ignore[arg-type]
        return [stream.id async for stream in found]  # type: ignore[union-attr]

    assert asyncio.run(listed()) == [id_in_share(9, A.id), id_in_share(9, B.id)]


def test_a_source_is_notified_of_its_own_streams_only() -> None:
    inside = Careful(A)
    outside = SharedSource(inside, 9)
    [stream] = outside.streams()  # type: ignore[misc]
    assert isinstance(outside, Forgetful)
    assert isinstance(outside, UnnumberedSource)
    outside.forget(stream, 3)
    assert outside.is_unnumbered(stream)
    outside.number_above(stream, None)
    assert inside.heard == [(A, 3), (A, None)]


def test_a_source_without_forget_is_not_called() -> None:
    outside = SharedSource(Numbers(A), 9)
    assert not isinstance(outside, Forgetful)
    assert not isinstance(outside, UnnumberedSource)


def test_two_streams_with_one_id_in_the_share_are_refused() -> None:
    with pytest.raises(ConfigError, match="'a' and 'twin' have the same id"):
        list(SharedSource(Numbers(A, Stream(A.id + 2**SHARE_SHIFT, "twin")), 9).streams())  # type: ignore[arg-type]
