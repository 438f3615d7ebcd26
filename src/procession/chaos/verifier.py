"""The verifier: compares what went in with what came out, and says what is lost, doubled, out of order or corrupt.

The one rule: it calls clean only what it has seen to be equal; empty input or output is never clean, it is *unknown*.
Records are lines. Equal bytes are compared chunk by chunk; only when they differ, each line is reduced to a 64-bit
hash and judged by where it stands in the input: less than 200 bytes of memory a record, whatever its length. Before
it stands a reader of files; after it a verdict that a person, a test or a script can act on.

What is counted. *Corrupt*: an output line that no input has, or a last line without its newline. *Doubled*: a line
that came out more often than it went in. *Lost*: a line that came out less often. *Disordered*: the fewest lines that
would have to be taken out so that the rest stands in the order of its input (all lines less the longest increasing
subsequence of positions). Several inputs were interleaved as they arrived, so each is held to its own order. Lines
that repeat are paired in turn, the first with the first: for one input the verdict is exact, the counts then are an
upper bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

RECORD_BYTES_MAX = 16 * 1024 * 1024
SHOWN_BYTES_MAX = 200

# A stream of bytes, from its beginning, as often as it is asked for.
Chunks = Callable[[], Iterator[bytes]]
Numbers = npt.NDArray[np.int64]


class Outcome(StrEnum):
    """A verdict has three values: what we could not judge is not clean."""

    CLEAN = "clean"
    VIOLATED = "violated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Offender:
    """The first record of its kind: its number (from 0) in the output or, if it never came out, in its input."""

    where: str
    number: int
    record: str

    def __str__(self) -> str:
        return f"record {self.number} of the {self.where}: {self.record}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found. `first` holds an offender for each kind that has any; `why` says why nothing could be said."""

    outcome: Outcome
    records: int
    committed: int
    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    corrupt: int = 0
    first: dict[str, Offender] = field(default_factory=dict)
    why: str = ""

    @property
    def is_clean(self) -> bool:
        return self.outcome is Outcome.CLEAN

    def sentence(self) -> str:
        counts = f"{self.records} records: {self.lost} lost, {self.doubled} doubled, {self.disordered} out of order"
        return counts + (f", {self.corrupt} corrupt" if self.corrupt else "")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(inputs: Sequence[Chunks], output: Chunks) -> Verdict:
    """Judge an output that should hold every line of the inputs, once, each input's in its order."""
    if len(inputs) == 1:
        records = _count_if_equal(_terminated(inputs[0]()), output())
        if records:
            return Verdict(Outcome.CLEAN, records, records)
    return _judge(inputs, output)


def _terminated(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """An input's last line is a record even without its newline; the output gives it one."""
    last = b"\n"
    for chunk in filter(None, chunks):
        yield chunk
        last = chunk[-1:]
    if last != b"\n":
        yield b"\n"


def _count_if_equal(expected: Iterator[bytes], actual: Iterator[bytes]) -> int | None:
    """The number of lines if both are the same bytes, None if not."""
    lines = 0
    ours, theirs = memoryview(b""), memoryview(b"")
    while True:
        ours = ours or memoryview(next(filter(None, expected), b""))
        theirs = theirs or memoryview(next(filter(None, actual), b""))
        size = min(len(ours), len(theirs))
        if ours[:size] != theirs[:size]:
            return None
        if size == 0:
            return lines if not ours and not theirs else None
        lines += bytes(ours[:size]).count(b"\n")
        ours, theirs = ours[size:], theirs[size:]


def _lines(chunks: Iterable[bytes]) -> Iterator[tuple[list[bytes], bool]]:
    """Lines without their newlines, many at a time, and whether they were whole: a last one may have had no newline."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines, True
        if len(rest) > RECORD_BYTES_MAX:  # no record is that long: what is this?
            yield [rest], False
            rest = b""
    if rest:
        yield [rest], False


def _hashes(chunks: Iterable[bytes]) -> tuple[Numbers, Numbers]:
    """A hash for each line, and the numbers of the lines that are not whole. (A collision: 1 in 10^7 for 2 M lines.)"""
    parts: list[Numbers] = []
    broken: list[int] = []
    count = 0
    for lines, are_whole in _lines(chunks):
        parts.append(np.fromiter(map(hash, lines), np.int64, len(lines)))
        if not are_whole:
            broken.append(count)
        count += len(lines)
    return np.concatenate([*parts, np.empty(0, np.int64)]), np.array(broken, np.int64)


def _judge(inputs: Sequence[Chunks], output: Chunks) -> Verdict:
    streams = [_hashes(_terminated(chunks()))[0] for chunks in inputs]
    ends = np.cumsum([len(stream) for stream in streams])
    expected = np.concatenate([*streams, np.empty(0, np.int64)])
    actual, broken = _hashes(output())

    positions = _positions(expected, actual)
    positions[broken] = -1
    known = positions[positions >= 0]
    is_present = np.zeros(len(expected), bool)
    is_present[known] = True
    is_disordered = is_present.copy()
    for start, end in zip([0, *ends], ends, strict=False):
        of_stream = known[(known >= start) & (known < end)]
        is_disordered[_longest_increasing(of_stream)] = False

    lost, corrupt = np.flatnonzero(~is_present), np.flatnonzero(positions < 0)
    doubled = _repeated(positions)
    disordered = np.flatnonzero((positions >= 0) & is_disordered[positions]) if len(expected) else lost
    first = {
        kind: Offender("output", int(numbers[0]), _shown(output(), int(numbers[0])))
        for kind, numbers in (("doubled", doubled), ("disordered", disordered), ("corrupt", corrupt))
        if len(numbers)
    }
    if len(lost):
        stream = int(np.searchsorted(ends, lost[0], "right"))
        number = int(lost[0] - (ends[stream - 1] if stream else 0))
        where = "input" if len(inputs) == 1 else f"input {stream + 1}"
        first["lost"] = Offender(where, number, _shown(inputs[stream](), number))

    counts = (len(lost), len(doubled), int(is_disordered.sum()), len(corrupt))
    why = _why_unknown(expected, actual, len(inputs), counts)
    outcome = Outcome.UNKNOWN if why else Outcome.VIOLATED if any(counts) else Outcome.CLEAN
    return Verdict(outcome, len(expected), len(actual), *counts, first, why)


def _positions(expected: Numbers, actual: Numbers) -> Numbers:
    """Where each output line stands in the input; -1 if nowhere. The n-th of equal lines is paired with the n-th."""
    order, turn = np.argsort(expected, kind="stable"), np.argsort(actual, kind="stable")
    known, seen = expected[order], actual[turn]
    begin, end = np.searchsorted(known, seen, "left"), np.searchsorted(known, seen, "right")
    nth = np.arange(len(seen)) - np.searchsorted(seen, seen, "left")
    positions = np.full(len(actual), -1, np.int64)
    is_known = end > begin
    # One too many stands where the last of its equals stands: it is found there as doubled.
    positions[turn[is_known]] = order[np.minimum(begin + nth, end - 1)[is_known]]
    return positions


def _repeated(positions: Numbers) -> Numbers:
    """The output lines whose place in the input was taken before them."""
    _, firsts = np.unique(positions, return_index=True)
    is_repeated = positions >= 0
    is_repeated[firsts] = False
    return np.flatnonzero(is_repeated)


def _longest_increasing(positions: Numbers) -> Numbers:
    """A longest strictly increasing subsequence (patience sorting with links back)."""
    tops: list[int] = []
    pile_of = np.empty(len(positions), np.int64)
    for number, position in enumerate(positions.tolist()):
        if not tops or position > tops[-1]:
            pile_of[number] = len(tops)
            tops.append(position)
        else:
            pile_of[number] = pile = bisect_left(tops, position)
            tops[pile] = position
    # Backwards: on each pile, the last that is smaller than the one taken from the pile after it.
    taken = np.empty(len(tops), np.int64)
    pile, below = len(tops) - 1, np.iinfo(np.int64).max
    for position, its_pile in zip(reversed(positions.tolist()), reversed(pile_of.tolist()), strict=True):
        if its_pile == pile and position < below:
            taken[pile] = below = position
            pile -= 1
    return taken


def _why_unknown(expected: Numbers, actual: Numbers, inputs: int, counts: tuple[int, int, int, int]) -> str:
    lost, doubled, disordered, corrupt = counts
    if not len(expected):
        return "The input is empty, so there is nothing to compare with."
    if not len(actual):
        return "Nothing is committed at the output, so there is nothing to judge."
    if disordered and not (lost or doubled or corrupt) and inputs > 1 and len(np.unique(expected)) < len(expected):
        return "The same line stands in the inputs more than once, so their order in the output cannot be told."
    return ""


def _shown(chunks: Iterable[bytes], number: int) -> str:
    line = next(islice((line for lines, _ in _lines(chunks) for line in lines), number, None))
    shown = repr(line[:SHOWN_BYTES_MAX])[1:]
    return shown if len(line) <= SHOWN_BYTES_MAX else f"{shown}… ({len(line)} bytes)"
