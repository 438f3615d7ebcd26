"""Compares the committed output of the sinks of a chaos run with the inputs, continuously.

Invariant: every committed byte is read once, soon after its commit, and must belong to the next record of its stream.
All sinks must have the same bytes, including the salt, and all visible output must be decided. Output that was never
compared with a decision or an acknowledgement is not clean. The harness polls several times per second, and checks at
each drain that no record is missing.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from procession.chaos.chaos_records import SALT_BYTES, key_of, unsalted
from procession.connectors.file_source import stream_id_of
from procession.sdk.transaction_log import TransactionTail
from procession.verify.decided import Decisions, is_decided, is_named
from procession.verify.order import PromisedOrder
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
    stream_id: int | None = None
    """The stream id at the gateway. None: the stream id of the file."""
    id_bytes: int = 1
    """Number of input bytes per message id. 1: a message id is the position of a byte."""

    @property
    def id(self) -> int:
        return stream_id_of(self.path) if self.stream_id is None else self.stream_id


class MonitoredOutput(ABC):
    """One sink's output, and the position of each stream in it. Subclasses determine the visible records."""

    order = PromisedOrder.TOTAL
    """The promised order of a stream's records; with `KEY`, of the records of one stream and key."""

    def __init__(self, name: str, data: Path) -> None:
        self.name = name
        self.data = data
        """File with the visible records, salted, one per line."""
        self.end = 0
        """End of the committed bytes that were checked."""
        self.named = 0
        """Number of this output's transactions that were found in a round record."""
        self.wrong = ""
        """A violation that `refresh` has found, as a sentence."""
        self.checks: dict[str, PrefixCheck] = {}

    @abstractmethod
    def poll(self, streams: Mapping[str, MonitoredStream], decide: Decide | None) -> Iterator[str]:
        """Check new output. Yield a sentence for every violation."""

    @abstractmethod
    def refresh(self) -> None:
        """Read the visible records again, before the complete comparison."""

    def whole(self) -> Iterator[list[bytes]]:
        """Yield all lines of the output, from the first byte on."""
        return lines_of(self.data, self.end)

    @property
    def key_of(self) -> Callable[[bytes], bytes] | None:
        return key_of if self.order is PromisedOrder.KEY else None

    def take(self, lines: Iterable[bytes], streams: Mapping[str, MonitoredStream]) -> Iterator[str]:
        """Check that these lines are the next lines of their streams."""
        for tag, own in unsalted(lines).items():
            yield from self._take(tag, own, streams.get(tag))

    def _take(self, tag: str, lines: list[bytes], stream: MonitoredStream | None) -> Iterator[str]:
        if stream is None:
            yield f"{self.name}: a record of a stream that no producer sent: {lines[0]!r}"
            return
        check = self.checks.get(tag)
        if check is None:
            read_stream = partial(_read_input, stream.path)
            check = self.checks[tag] = PrefixCheck(1, read_stream, order=self.order, key_of=self.key_of)
        was_over = check.is_over
        check.take(b"".join(line + b"\n" for line in lines))
        if check.is_over and not was_over:
            yield f"{self.name}: {check.doubt or self._judged(stream).sentence()} (stream {tag})"

    def _judged(self, stream: MonitoredStream) -> Verdict:
        """Classify the damage: compare the stream's part of the whole output with its input."""

        def lines() -> Iterator[bytes]:
            for found in lines_of(self.data, self.end):
                yield from (line + b"\n" for line in unsalted(found).get(stream.tag, []))

        whole = [lambda: iter([stream.path.read_bytes()])]
        return compare(whole, lines, order=self.order, key_of=self.key_of, is_complete=False)

    def records(self, tag: str) -> int:
        check = self.checks.get(tag)
        return check.records if check is not None else 0


class FileSinkOutput(MonitoredOutput):
    """The output of a file sink: the bytes that its transaction log commits."""

    def __init__(self, name: str, instance: Path) -> None:
        super().__init__(name, instance.with_suffix(".data"))
        self._tail = TransactionTail(instance.with_suffix(".txnlog"))

    def poll(self, streams: Mapping[str, MonitoredStream], decide: Decide | None) -> Iterator[str]:
        new = list(self._tail.poll())
        decisions = decide(new) if new and decide else None
        for transaction in new:
            self.named += decisions is not None and is_named(transaction.txn_id, decisions)
            if decisions is not None and not is_decided(*transaction, decisions):
                yield f"{self.name}: {transaction.txn_id} is visible, but no round decided to commit it"
            if transaction.start != self.end:
                yield f"{self.name}: {transaction.txn_id} commits from {transaction.start}, but {self.end} was the end"
            data = read(self.data, transaction.start, transaction.end)
            if len(data) < transaction.end - transaction.start:
                yield f"{self.name}: committed output is missing: {self.data} ends before {transaction.end}"
            self.end = transaction.end
            if data[-1:] not in (b"", b"\n"):
                yield f"{self.name}: {transaction.txn_id} ends in the middle of a record"
            yield from self.take(data.splitlines(), streams)

    def refresh(self) -> None:
        """Do nothing, because the file itself is read."""


class MonitoredOutputs:
    """Compares all sinks' outputs with all inputs."""

    def __init__(self, outputs: Mapping[str, Path] | Sequence[MonitoredOutput], decide: Decide | None = None) -> None:
        """Compare these outputs; file sinks can be given as instances by name."""
        self._decide = decide
        self.streams: dict[str, MonitoredStream] = {}
        found = [FileSinkOutput(*item) for item in outputs.items()] if isinstance(outputs, Mapping) else outputs
        self.outputs = {output.name: output for output in found}
        self.acknowledged: Mapping[int, int] = {}
        """The last acknowledged message id of each stream."""
        self._names: dict[int, str] = {}
        self._same = 0

    def expect(self, stream: MonitoredStream) -> None:
        self.streams[stream.tag] = stream
        self._names[stream.id] = stream.tag

    def name_of(self, stream_id: int) -> str:
        return f"stream {self._names.get(stream_id, stream_id)}"

    @property
    def named(self) -> int:
        """Return the number of visible transactions whose decision was found, at the sink with the fewest."""
        return min(output.named for output in self.outputs.values())

    def poll(self) -> list[str]:
        """Return the violations in the output that was committed since the last poll."""
        wrong = [sentence for output in self.outputs.values() for sentence in output.poll(self.streams, self._decide)]
        return wrong or self._differences()

    def _differences(self) -> list[str]:
        """Return where the sinks' bytes differ, up to the shortest output."""
        alike = [output for output in self.outputs.values() if output.order is PromisedOrder.TOTAL]
        if len(alike) < 2:
            return []
        first = alike[0]
        end = min(output.end for output in alike)
        ours = read(first.data, self._same, end)
        for other in alike[1:]:
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
        for output in self.outputs.values():
            output.refresh()
        acknowledged = [self._acknowledged_end(stream) for stream in self.streams.values()]
        verdicts = {
            name: compare(
                inputs,
                partial(_unsalted_pieces, output),
                order=output.order,
                key_of=output.key_of,
                acknowledged=acknowledged,
            )
            for name, output in self.outputs.items()
        }
        for name, output in self.outputs.items():
            if output.wrong:
                verdicts[name] = replace(verdicts[name], outcome=Outcome.VIOLATED, why=output.wrong)
        if not (why := self._unproven()):
            return verdicts
        unknown = {name: replace(verdict, outcome=Outcome.UNKNOWN, why=why) for name, verdict in verdicts.items()}
        return {name: unknown[name] if verdict.is_clean else verdict for name, verdict in verdicts.items()}

    def _acknowledged_end(self, stream: MonitoredStream) -> int | None:
        """Return the position in the input of the last acknowledged record."""
        last = self.acknowledged.get(stream.id)
        return None if last is None else last * stream.id_bytes

    def _unproven(self) -> str:
        """Return which comparisons with decisions or acknowledgements were impossible; empty if none."""
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


def lines_of(path: Path, end: int) -> Iterator[list[bytes]]:
    """Yield the lines of a file up to this position."""
    position, rest = 0, b""
    while position < end:
        piece = read(path, position, min(end, position + READ_BYTES))
        if not piece:
            return
        position += len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        yield lines


def _read_input(path: Path, _number: int, position: int, size: int) -> bytes:
    return read(path, position, position + size)


def _pieces(path: Path) -> Iterator[bytes]:
    for position in range(0, os.stat(path).st_size, READ_BYTES):
        yield read(path, position, position + READ_BYTES)


def _unsalted_pieces(output: MonitoredOutput) -> Iterator[bytes]:
    for lines in output.whole():
        yield b"".join(line[:-SALT_BYTES] + b"\n" for line in lines)
