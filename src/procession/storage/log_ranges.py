"""Log ranges: maps a range of record numbers to parts of the gateways' logs.

Invariant: an epoch consists of the records that each gateway has offered, in the order of the gateways' names. The
number of a record is its position in the concatenation of all epochs: the sum of the offsets before the epoch, plus its
position in the epoch. With one gateway it is the gateway's own sequence number. `spark/tasks` reads the ranges.

In Spark's checkpoint an offset is `[sequence, incarnation, checksum]`. It is only a sequence if no record was offered
yet, or if it was written before logs had incarnations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

FIRST_GATEWAY = "gateway-0"
"""The name of the first gateway of a pipeline: the only gateway, or the leader."""


class LogOffset(NamedTuple):
    """The end of the records that a gateway has offered, and the identity of its log. A log with another incarnation or
    running checksum at `sequence` is a different log: an older copy, or one that was created again."""

    sequence: int = 0
    incarnation: str = ""
    """Empty: no record was offered, or the version that offered records had no incarnations."""
    checksum: str = ""

    def as_json(self) -> int | list[int | str]:
        return list(self) if self.checksum else self.sequence


NOTHING = LogOffset()
"""No record was offered, or the log is unknown."""


def read_offsets(offsets: Mapping[str, Any]) -> dict[str, LogOffset]:
    """Parse offsets. Raises ValueError or TypeError if the values are not offsets."""
    return {str(name): _offset(value) for name, value in offsets.items()}


def _offset(value: Any) -> LogOffset:
    if isinstance(value, int):
        return LogOffset(value)
    sequence, incarnation, checksum = value
    return LogOffset(int(sequence), str(incarnation), str(checksum))


def sequences(offsets: Mapping[str, Any]) -> dict[str, int]:
    """Return only the sequences of offsets in Spark's form."""
    return {name: offset.sequence for name, offset in read_offsets(offsets).items()}


@dataclass(frozen=True, slots=True)
class LogLocation:
    """The place of a gateway's log. `directory` holds its files. The log is fetched over Flight, from the address
    `flight`, if this machine's directory has another `identity`, or if the gateway runs on another `machine`: a growing
    file of another machine may seem too short when it is mapped here."""

    directory: str
    identity: str = ""
    flight: str = ""
    machine: str = ""
    """Empty: unknown, and any machine that has the directory may read the files."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """The rows [first, last) of one gateway's log."""

    gateway: str
    first: int
    last: int
    place: LogLocation
    offered: LogOffset = NOTHING
    """The end of the epoch in this log, by which a reader recognizes the log. By default it is unknown."""

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> LogRange:
        offered = LogOffset(*fields.get("offered", ()))
        return cls(fields["gateway"], fields["first"], fields["last"], LogLocation(**fields["place"]), offered)


def numbered_from(starts: Mapping[str, int]) -> int:
    """Return the number of the first record of an epoch that starts at these offsets."""
    return sum(starts.values())


def epoch_ranges(
    starts: Mapping[str, int],
    ends: Mapping[str, int],
    places: Mapping[str, LogLocation],
    offered: Mapping[str, LogOffset] | None = None,
) -> Iterator[LogRange]:
    """Yield the ranges of an epoch, gateway by gateway. A new gateway starts at 0. `offered` has the identities of the
    logs at the `ends`."""
    for gateway in sorted(ends):
        start = starts.get(gateway, 0)
        if start < ends[gateway]:
            known = (offered or {}).get(gateway, NOTHING)
            yield LogRange(gateway, start, ends[gateway], places[gateway], known)


def cut(pieces: Iterable[LogRange], edges: Sequence[int]) -> Iterator[tuple[LogRange, ...]]:
    """Cut the pieces, which are concatenated from 0 on, at these ascending edges. Yields the parts between consecutive
    edges. Visits each piece once for each of its parts."""
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
    """Return the piece that has this record, and its sequence there. The pieces begin with record `first`."""
    for piece in pieces:
        if first <= number < first + piece.last - piece.first:
            return piece, piece.first + number - first
        first += piece.last - piece.first
    return None
