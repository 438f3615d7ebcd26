"""The outputs of a chaos run: continuously compares what the sinks have committed with the inputs.

Invariant: every committed byte is read once, soon after its commit, and must belong to the next record of its stream.
All sinks must have the same bytes, including the salt, and nothing may be visible that was not decided. Output that was
never compared with a decision or an acknowledgement is not clean. The harness looks several times per second, and at
each drain whether everything is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from procession.chaos.chaos_records import SALT_BYTES, unsalted
from procession.connectors.file_source import stream_id_of
from procession.sdk.transaction_log import TransactionTail
from procession.verify.decided import Decisions, is_decided, is_named
from procession.verify.prefix import PrefixCheck
from procession.verify.verifier import Outcome, Verdict, compare

READ_BYTES = 1024 * 1024

# Returns the checkpoint's decisions; called after these transactions were seen at a sink.
Decide = Callable[[Iterable[tuple[str, int, int]]], Decisions]


@dataclass(frozen=True, slots=True)
class MonitoredStream:
    """One input: a file of records, all with the same tag."""

    tag: str
    path: Path
    records: int


class MonitoredOutput:
    """One sink's output, and the position of each stream in it."""

    def __init__(self, name: str, instance: Path) -> None:
        self.name = name
        self.data = instance.with_suffix(".data")
        self.end = 0
        """End of the committed bytes that were checked."""
        self.named = 0
        """Number of its transactions that were found in a round record."""
        self.checks: dict[str, PrefixCheck] = {}
        self._tail = TransactionTail(instance.with_suffix(".txnlog"))

    def look(self, streams: Mapping[str, MonitoredStream], decide: Decide | None) -> Iterator[str]:
        """Check new output. Yield a sentence for every violation."""
        new = list(self._tail.look())
        decisions = decide(new) if new and decide else None
        for transaction in new:
            self.named += decisions is not None and is_named(transaction.txn_id, decisions)
            if decisions is not None and not is_decided(*transaction, decisions):
                yield f"{self.name}: {transaction.txn_id} is visible, but nobody decided to commit it"
            if transaction.start != self.end:
                yield f"{self.name}: {transaction.txn_id} commits from {transaction.start}, but {self.end} was the end"
            data = read(self.data, transaction.start, transaction.end)
            if len(data) < transaction.end - transaction.start:
                yield f"{self.name}: committed output is missing: {self.data} ends before {transaction.end}"
            self.end = transaction.end
            if data[-1:] not in (b"", b"\n"):
                yield f"{self.name}: {transaction.txn_id} ends in the middle of a record"
            for tag, lines in unsalted(data.splitlines()).items():
                yield from self._take(tag, lines, streams.get(tag))

    def _take(self, tag: str, lines: list[bytes], stream: MonitoredStream | None) -> Iterator[str]:
        if stream is None:
            yield f"{self.name}: a record of a stream that nobody sent: {lines[0]!r}"
            return
        check = self.checks.get(tag)
        if check is None:
            check = self.checks[tag] = PrefixCheck(1, partial(_read_input, stream.path))
        was_over = check.is_over
        check.take(b"".join(line + b"\n" for line in lines))
        if check.is_over and not was_over:
            yield f"{self.name}: {check.doubt or self._judged(stream).sentence()} (stream {tag})"

    def _judged(self, stream: MonitoredStream) -> Verdict:
        """Classify the damage: compare the stream's part of the whole output with its input."""

        def lines() -> Iterator[bytes]:
            for found in self.committed_lines():
                yield from (line + b"\n" for line in unsalted(found).get(stream.tag, []))

        return compare([lambda: iter([stream.path.read_bytes()])], lines, is_complete=False)

    def committed_lines(self) -> Iterator[list[bytes]]:
        position, rest = 0, b""
        while position < self.end:
            piece = read(self.data, position, min(self.end, position + READ_BYTES))
            if not piece:
                return
            position += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            yield lines

    def records(self, tag: str) -> int:
        check = self.checks.get(tag)
        return check.records if check is not None else 0


class MonitoredOutputs:
    """Compares all sinks' outputs with all inputs."""

    def __init__(self, instances: Mapping[str, Path], decide: Decide | None = None) -> None:
        self._decide = decide
        self.streams: dict[str, MonitoredStream] = {}
        self.outputs = {name: MonitoredOutput(name, instance) for name, instance in instances.items()}
        self.acknowledged: Mapping[int, int] = {}
        """The last acknowledged message id of each stream."""
        self._names: dict[int, str] = {}
        self._same = 0

    def expect(self, stream: MonitoredStream) -> None:
        self.streams[stream.tag] = stream
        self._names[stream_id_of(stream.path)] = stream.tag

    def name_of(self, stream_id: int) -> str:
        return f"stream {self._names.get(stream_id, stream_id)}"

    @property
    def named(self) -> int:
        """Visible transactions whose decision was found, of the sink with the fewest."""
        return min(output.named for output in self.outputs.values())

    def look(self) -> list[str]:
        """Return the violations in the output that was committed since the last look."""
        wrong = [sentence for output in self.outputs.values() for sentence in output.look(self.streams, self._decide)]
        return wrong or self._differences()

    def _differences(self) -> list[str]:
        """Return where the sinks' bytes differ, up to the shortest output."""
        first, *others = self.outputs.values()
        end = min(output.end for output in self.outputs.values())
        ours = read(first.data, self._same, end)
        for other in others:
            if read(other.data, self._same, end) != ours:
                return [f"{first.name} and {other.name} differ between bytes {self._same} and {end}"]
        self._same = end
        return []

    @property
    def committed(self) -> int:
        """The number of records that every sink shows."""
        return min(sum(check.records for check in output.checks.values()) for output in self.outputs.values())

    @property
    def ends(self) -> dict[str, int]:
        return {name: output.end for name, output in self.outputs.items()}

    def missing(self) -> list[str]:
        """Return the missing records, after all sources have ended."""
        return [
            f"{output.name} has {output.records(tag)} of {stream.records} records of stream {tag}"
            for output in self.outputs.values()
            for tag, stream in self.streams.items()
            if output.records(tag) != stream.records
        ]

    def compare_all(self) -> dict[str, Verdict]:
        """Compare all inputs with each output, from the first byte."""
        inputs = [partial(_pieces, stream.path) for stream in self.streams.values()]
        heard = [self.acknowledged.get(stream_id_of(stream.path)) for stream in self.streams.values()]
        verdicts = {
            name: compare(inputs, partial(_unsalted_pieces, output), acknowledged=heard)
            for name, output in self.outputs.items()
        }
        if not (why := self._unproven()):
            return verdicts
        unknown = {name: replace(verdict, outcome=Outcome.UNKNOWN, why=why) for name, verdict in verdicts.items()}
        return {name: unknown[name] if verdict.is_clean else verdict for name, verdict in verdicts.items()}

    def _unproven(self) -> str:
        """Return what could not be verified against decisions or acknowledgements; empty if nothing."""
        if self._decide is None:
            return ""
        if not self.named:
            return "No round record named any of the visible transactions."
        return "" if self.acknowledged else "No producer logged its acknowledgements."


def read(path: Path, start: int, end: int) -> bytes:
    """Return the bytes of a file from start to end; fewer if it is shorter or missing."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(end - start)
    except FileNotFoundError:
        return b""


def _read_input(path: Path, _number: int, position: int, size: int) -> bytes:
    return read(path, position, position + size)


def _pieces(path: Path) -> Iterator[bytes]:
    for position in range(0, os.stat(path).st_size, READ_BYTES):
        yield read(path, position, position + READ_BYTES)


def _unsalted_pieces(output: MonitoredOutput) -> Iterator[bytes]:
    for lines in output.committed_lines():
        yield b"".join(line[:-SALT_BYTES] + b"\n" for line in lines)
