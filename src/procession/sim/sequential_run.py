"""Computes the output of a sequential run: one loop over the log's rows without failures, for each sink.

Invariant: this module does not use tasks, states or runs of an epoch. Its input is the rows of the log: within an
epoch one gateway after another, each in sequence; with one gateway, epoch boundaries have no effect. A blind oracle,
which does not read the log, uses the output of the first sink, which gets every record. `oracle` compares the result
with the output of the sinks (I11).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from procession.sim.file_formats import DecidedRound

Record = tuple[int, int]
"""Stream id and message id."""

KEYS = (b"a", b"d", b"o")
"""The keys. With two or three tasks, each task has at least one key."""


def key_of(message_id: int) -> bytes:
    """Return the key by which the application counts. Two consecutive records of a stream have the same key."""
    return KEYS[message_id // 2 % len(KEYS)]


class Fold:
    """The application, written without regard to failures."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(KEYS, 0)

    def take(self, record: Record) -> int:
        """Return the count that this record gets."""
        key = key_of(record[1])
        self._counts[key] += 1
        return self._counts[key]


class Sequential:
    def __init__(self, expected: Mapping[str, Mapping[int, Sequence[int]]]) -> None:
        self._wanted = {
            sink: {(stream, message_id) for stream, ids in streams.items() for message_id in ids}
            for sink, streams in expected.items()
        }
        self._due: dict[str, list[tuple[Record, int]]] = {sink: [] for sink in expected}
        self._fold = Fold()
        self._epoch = 0
        self._ends: Mapping[str, int] = {}

    def take(self, rounds: Mapping[int, DecidedRound], rows: Mapping[tuple[str, int], Record]) -> None:
        """Continue up to the last decided epoch; `rows` are the log's, by gateway and sequence."""
        while (decided := rounds.get(self._epoch)) is not None:
            for record in self._between(decided.offsets, rows):
                count = self._fold.take(record)
                for sink, wanted in self._wanted.items():
                    if record in wanted:
                        self._due[sink].append((record, count))
            self._ends = decided.offsets
            self._epoch += 1

    def _between(self, ends: Mapping[str, int], rows: Mapping[tuple[str, int], Record]) -> Iterator[Record]:
        for gateway in sorted(ends):
            for sequence in range(self._ends.get(gateway, 0), ends[gateway]):
                if (record := rows.get((gateway, sequence))) is not None:
                    yield record

    def due(self, sink: str, place: int) -> tuple[Record, int] | None:
        """Return the record and the count of this line of the sink's output; None if the line does not exist yet."""
        due = self._due[sink]
        return due[place] if place < len(due) else None
