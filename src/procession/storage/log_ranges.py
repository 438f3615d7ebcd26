"""Log ranges: which part of which gateway's log a range of record numbers is.

Invariant: an epoch consists of what each gateway has offered, in the order of the gateways' names. The number of a
record is its place in the concatenation of all epochs: the sum of the offsets before the epoch, plus its place in the
epoch. With one gateway it is the gateway's own sequence number. `spark/tasks` reads the ranges.

In Spark's checkpoint an offset is `[sequence, incarnation, checksum]`, or a sequence alone: nothing was offered yet, or
it was written before logs had incarnations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

FIRST_GATEWAY = "gateway-0"
"""The name of the first gateway of a pipeline: the only one, or the one that leads."""


class LogOffset(NamedTuple):
    """How far the log of one gateway was offered, and which log that was. A log that reaches `sequence` with another
    incarnation or running checksum is another one: an older copy, or one that was created again."""

    sequence: int = 0
    incarnation: str = ""
    """Empty: nothing was offered, or by a version that did not know it."""
    checksum: str = ""

    def as_json(self) -> int | list[int | str]:
        return list(self) if self.checksum else self.sequence


NOTHING = LogOffset()
"""Nothing was offered, or it is not known from which log."""


def read_offsets(offsets: Mapping[str, Any]) -> dict[str, LogOffset]:
    """Raises ValueError or TypeError if these are none."""
    return {str(name): _offset(value) for name, value in offsets.items()}


def _offset(value: Any) -> LogOffset:
    if isinstance(value, int):
        return LogOffset(value)
    sequence, incarnation, checksum = value
    return LogOffset(int(sequence), str(incarnation), str(checksum))


def sequences(offsets: Mapping[str, Any]) -> dict[str, int]:
    """The sequences alone of offsets as Spark keeps them."""
    return {name: offset.sequence for name, offset in read_offsets(offsets).items()}


@dataclass(frozen=True, slots=True)
class LogLocation:
    """Where a gateway's log is. `directory` holds its files. The log is fetched over Flight, from the address `flight`,
    if the directory above it has another `identity`, or if the gateway runs on another `machine`: a file that grows
    there may seem too short when it is mapped here."""

    directory: str
    identity: str = ""
    flight: str = ""
    machine: str = ""
    """Empty: not known, and any machine that has the directory will do."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """The rows [first, last) of one gateway's log."""

    gateway: str
    first: int
    last: int
    place: LogLocation
    offered: LogOffset = NOTHING
    """The end of the epoch in this log. A reader uses it to recognise the log. The default: unknown."""

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> LogRange:
        offered = LogOffset(*fields.get("offered", ()))
        return cls(fields["gateway"], fields["first"], fields["last"], LogLocation(**fields["place"]), offered)


def numbered_from(starts: Mapping[str, int]) -> int:
    """The number of the first record of an epoch that starts at these offsets."""
    return sum(starts.values())


def laid(
    starts: Mapping[str, int],
    ends: Mapping[str, int],
    places: Mapping[str, LogLocation],
    offered: Mapping[str, LogOffset] | None = None,
) -> Iterator[LogRange]:
    """An epoch: what each gateway has offered, one after the other. A gateway that is new starts at 0. `offered` says
    of which logs the `ends` are."""
    for gateway in sorted(ends):
        start = starts.get(gateway, 0)
        if start < ends[gateway]:
            known = (offered or {}).get(gateway, NOTHING)
            yield LogRange(gateway, start, ends[gateway], places[gateway], known)


def cut(pieces: Iterable[LogRange], edges: Sequence[int]) -> Iterator[tuple[LogRange, ...]]:
    """Cut the pieces, laid one after the other from 0 on, at these edges, which ascend: the parts between the first
    edge and the second, and so on. Each piece is looked at once for each part that it has."""
    ahead = iter(pieces)
    piece, at = next(ahead, None), 0
    for first, last in pairwise(edges):
        parts = []
        while piece is not None:
            end = at + piece.last - piece.first
            lower, upper = max(first, at), min(last, end)
            if lower < upper:
                parts.append(replace(piece, first=piece.first + lower - at, last=piece.first + upper - at))
            if end > last:
                break
            piece, at = next(ahead, None), end
        yield tuple(parts)


def sequence_of(number: int, first: int, pieces: Iterable[LogRange]) -> tuple[LogRange, int] | None:
    """The piece that has this record, and its sequence there, if the pieces begin with record `first`."""
    for piece in pieces:
        if first <= number < first + piece.last - piece.first:
            return piece, piece.first + number - first
        first += piece.last - piece.first
    return None
