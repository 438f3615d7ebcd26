"""Sends dead letters again, each once, or marks them as dropped.

Invariant: a letter belongs to at most one batch, which is in `letters.journal` in the pipeline's directory before its
first letter is sent. Each batch is a separate stream, and a letter's number is its message id. So a killed replay
continues where it stopped, and the gateway drops duplicates. Used by `procession letters`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from procession.errors import ConfigError, UsageError
from procession.format_number import check_format
from procession.planner.graph import Graph, Node
from procession.planner.source_streams import streams_of
from procession.record import id_in_share
from procession.sdk.source_records import Record, Stream
from procession.storage.driver_claim import checkpoint_of
from procession.storage.journal import Entry, Journal, read_journal
from procession.storage.process_lock import locked
from procession.verify.dead_letter_file import StoredLetter, letters_in

JOURNAL, LOCK = "letters.journal", "letters.lock"
FORMAT = 1
"""Format of `letters.journal`, in its first entry."""
RANGES_MAX = 200_000
"""Maximum number of ranges of letters per command, because they are one entry of the journal."""


@dataclass
class NumberRanges:
    """A set of numbers, as sorted ranges [first, last]."""

    ranges: list[list[int]] = field(default_factory=list)

    def add(self, number: int) -> None:
        """Add a number that is larger than all others."""
        if self.ranges and self.ranges[-1][1] + 1 >= number:
            self.ranges[-1][1] = number
        else:
            self.ranges.append([number, number])

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self.ranges, number, key=lambda found: found[0])
        return at > 0 and number <= self.ranges[at - 1][1]

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)


@dataclass
class LetterBatch:
    """A batch of letters that are sent again together."""

    number: int
    letters: NumberRanges
    is_done: bool = False


@dataclass
class HandledLetters:
    """The letters that are in the journal at `path`."""

    path: Path
    batches: dict[int, LetterBatch] = field(default_factory=dict)
    dropped: list[NumberRanges] = field(default_factory=list)

    def take(self, entry: Entry) -> None:
        if "format" in entry:
            check_format(self.path, entry["format"], FORMAT)
        elif "replay" in entry:
            number = int(entry["replay"])
            self.batches[number] = LetterBatch(number, NumberRanges(entry["letters"]))
        elif "done" in entry:
            self.batches[int(entry["done"])].is_done = True
        else:
            self.dropped.append(NumberRanges(entry["drop"]))

    def state_of(self, number: int) -> str:
        """Return the state of a letter: `open`, `dropped`, `replaying` or `replayed`."""
        if any(number in dropped for dropped in self.dropped):
            return "dropped"
        batch = next((batch for batch in self.batches.values() if number in batch.letters), None)
        return "open" if batch is None else "replayed" if batch.is_done else "replaying"


@dataclass(frozen=True)
class PipelineLetters:
    """The dead letters of a pipeline. `output` is the directory of its dead-letter sink."""

    directory: Path
    graph: Graph
    output: Path

    @classmethod
    def of_app(cls, graph: Graph, directory: Path, base: Path) -> Self:
        """Return the letters of an app. `base` is the directory in which the app was started. Raises ConfigError if
        the app has no dead letters that can be read here."""
        sink = graph.dead_letter
        if sink is None:
            raise ConfigError(
                f"Pipeline {graph.name!r} has no dead letters.", next_step='Write Pipeline(…, dead_letter="file:DIR").'
            )
        named = sink.sink_traits.directory
        if named is None:
            raise ConfigError(
                f"The dead letters of pipeline {graph.name!r} go to {sink.target}, which cannot be read here.",
                next_step="Read them there, and send the corrected records with a source of your own.",
            )
        return cls(directory, graph, base / named(sink.url))

    @property
    def _instance(self) -> str:
        assert self.graph.dead_letter is not None, "`of_app` has checked it"
        return f"{self.graph.name}-{self.graph.dead_letter.name}"

    def all(self) -> Iterator[tuple[StoredLetter, str]]:
        """Return every letter, with its state. Raises ConfigError if there is no pipeline."""
        if not (checkpoint_of(self.directory)).exists():
            raise ConfigError(
                f"There is no pipeline in {self.directory}.",
                next_step="Give the --dir of a pipeline, in the directory in which it was started.",
            )
        handled = HandledLetters(self.directory / JOURNAL)
        for entry in read_journal(self.directory / JOURNAL):
            handled.take(entry)
        return ((letter, handled.state_of(letter.number)) for letter in letters_in(self.output, self._instance))

    def drop(self, is_chosen: Callable[[StoredLetter], bool]) -> int:
        """Mark the chosen open letters as dropped. Return their number."""
        with self._writing() as (journal, _):
            chosen = self._open_letters(is_chosen)
            if len(chosen):
                journal.append({"drop": chosen.ranges})
            return len(chosen)

    def replay(
        self, is_chosen: Callable[[StoredLetter], bool], send: Callable[[LetterSource], bool]
    ) -> tuple[int, bool]:
        """Send the chosen open letters, after the unfinished batches of earlier replays. `send` returns True when
        everything is committed. Return the number of sent letters, and whether all are committed."""
        with self._writing() as (journal, handled):
            sources = [LetterSource(self, batch) for batch in handled.batches.values() if not batch.is_done]
            chosen = self._open_letters(is_chosen)
            if len(chosen):
                batch = LetterBatch(max(handled.batches, default=0) + 1, chosen)
                sources.append(LetterSource(self, batch))  # if this raises an error, the letters stay open
                journal.append({"replay": batch.number, "letters": chosen.ranges})
            count = 0
            for source in sources:
                if not send(source):
                    return count, False
                journal.append({"done": source.batch.number})
                count += len(source.batch.letters)
            return count, True

    def _open_letters(self, is_chosen: Callable[[StoredLetter], bool]) -> NumberRanges:
        chosen = NumberRanges()
        for letter, state in self.all():
            if state == "open" and is_chosen(letter):
                chosen.add(letter.number)
            if len(chosen.ranges) > RANGES_MAX:
                raise UsageError(
                    f"These letters are in more than {RANGES_MAX:,} places.",
                    next_step="Choose fewer at once, by number.",
                )
        return chosen

    @contextmanager
    def _writing(self) -> Iterator[tuple[Journal, HandledLetters]]:
        """Yield the journal, for one process at a time."""
        journal, handled = Journal(self.directory / JOURNAL), HandledLetters(self.directory / JOURNAL)
        with locked(self.directory / LOCK, self._refusal):
            try:
                journal.open(handled.take)
                if journal.is_empty:
                    journal.append({"format": FORMAT})
                yield journal, handled
            finally:
                journal.close()

    def _refusal(self) -> ConfigError:
        return ConfigError(
            f"Another command handles the dead letters of {self.directory} now.", next_step="Wait until it has ended."
        )


class LetterSource:
    """The records of a batch, as a source with one stream for each source of the pipeline that has letters in the
    batch."""

    def __init__(self, letters: PipelineLetters, batch: LetterBatch) -> None:
        self._letters = letters
        self.batch = batch
        self._sources = [(source, streams_of(letters.graph, [source])) for source in letters.graph.sources]
        found = {self._source_of(letter).name: self._source_of(letter) for letter in self._chosen()}
        self._streams = {name: self._stream(source) for name, source in found.items()}

    @property
    def name(self) -> str:
        return f"letters-{self.batch.number}"

    def streams(self) -> Iterable[Stream]:
        return self._streams.values()

    def read(self, stream: Stream, after: int | None) -> Iterator[Record]:
        for letter in self._chosen():
            is_due = after is None or letter.number > after
            if is_due and self._streams[self._source_of(letter).name] == stream:
                yield letter.number, letter.event_time, letter.key, letter.payload

    def _chosen(self) -> Iterator[StoredLetter]:
        return (letter for letter, _ in self._letters.all() if letter.number in self.batch.letters)

    def _source_of(self, letter: StoredLetter) -> Node:
        """Return the source of the app from which the record came, and to which it is sent again."""
        for source, taken in self._sources:
            if taken.takes(letter.stream_id):
                return source
        raise ConfigError(
            f"Letter {letter.number} is from stream {letter.stream_id}, which no source of the app accepts now.",
            next_step="Give the app with which it was made, or drop the letter.",
        )

    def _stream(self, source: Node) -> Stream:
        if source.streams is not None:
            raise ConfigError(
                f"Source {source.name!r} takes only the streams that it names, so letters cannot be sent in a new"
                " stream.",
                next_step="Send the corrected records with a source of your own, in one of its streams.",
            )
        named = Stream.named(f"{self.name}-{source.name}")
        return named if source.share is None else replace(named, id=id_in_share(source.share, named.id))
