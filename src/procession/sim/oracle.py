"""Checks the invariants: knows all sent records and the content of every disk, and reports the first violation.

Invariant: the oracle uses only durable data and effects that others could see (ACKs, votes, visible output), never a
part's memory. A violation names its invariant in a sentence. An epoch is *decided* when `commits/N` and `rounds/N`
are durable in the copy of the checkpoint that `CURRENT` names. The oracle checks every step of every part; the runner
prints the first violation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from procession.sim.disk import Directory, Disk, File
from procession.sim.file_formats import DecidedRound, epoch_and_attempt, read_round, read_rows, segment_base
from procession.sim.sequential_run import Fold, Record, Sequential
from procession.wire.messages import NOTHING_COMMITTED


class InvariantViolation(Exception):
    """An invariant does not hold. Ends the run immediately, because later errors are only consequences."""

    def __init__(self, invariant: str, sentence: str) -> None:
        super().__init__(f"{invariant}: {sentence}")
        self.invariant = invariant
        self.sentence = sentence


CHECKPOINT, STATES = "checkpoint", "state"
MEMORY = 16_384
"""Size of the caches of names and records, which all runs share."""

Row = tuple[int, int, int, bytes]
"""Kind, stream id, message id, payload."""

parse = lru_cache(MEMORY)(epoch_and_attempt)
round_of = lru_cache(MEMORY)(read_round)


class Oracle:
    """`expected` is the final output of each sink: the records of each stream in order.

    A blind oracle reads no disk. Like an outside observer, it uses only visible output, acknowledgements and stalls.
    It also finds most planted bugs, some of them later. So these bugs are not found just because the oracle reads the
    disks."""

    def __init__(
        self, disk: Disk, expected: Mapping[str, Mapping[int, Sequence[int]]], *, is_blind: bool = False
    ) -> None:
        self.expected = expected
        self._first = next(iter(expected), "")
        self.is_blind = is_blind
        self.decided: dict[int, DecidedRound] = {}
        self.outputs: dict[str, bytes] = dict.fromkeys(expected, b"")
        self.acknowledged: dict[int, int] = {}
        self._disk = disk
        self._looked = -1
        """The change counter of the disks at the last check."""
        self._committed: dict[int, int] = {}
        """The last committed message of each stream."""
        self._missing = sum(len(ids) for streams in expected.values() for ids in streams.values())
        """Number of records that sinks have not shown yet."""
        self._records: dict[int, bytes] = {}
        self._reached = {sink: dict.fromkeys(streams, 0) for sink, streams in expected.items()}
        self._made_by: dict[Record, str] = {}
        self._contents: dict[tuple[str, str], bytes] = {}
        self._refused: set[tuple[str, str]] = set()
        self._attempts: set[tuple[str, int]] = set()
        self._sequences: dict[tuple[str, int], Record] = {}
        self._states: dict[str, bytes] = {}
        """Every state file that was written."""
        self._sequential, self._fold = Sequential(expected), Fold()
        self._lines = dict.fromkeys(expected, 0)
        """Number of lines that each sink has shown."""

    @property
    def is_complete(self) -> bool:
        return not self._missing

    # Decisions

    def check(self) -> None:
        """Record the decisions so far. A decision never changes."""
        if self.is_blind or self._looked == self._disk.syncs:
            return
        self._looked = self._disk.syncs
        root = self._disk.durable_directory(CHECKPOINT)
        current = root.durable.get("CURRENT") if root is not None else None
        if root is None or not isinstance(current, File) or not current.durable:
            return
        copy = root.durable.get(f"{int(current.durable):010d}")
        if not isinstance(copy, Directory):
            return  # the new driver has not finished its copy, so nothing in it is decided yet
        commits, rounds = copy.durable.get("commits"), copy.durable.get("rounds")
        if not isinstance(commits, Directory):
            return
        for name, file in commits.durable.items():
            epoch, record_name = _names(name)
            if epoch < 0 or type(file) is not File or not file.durable.endswith(b"}"):
                continue
            record = rounds.durable.get(record_name) if type(rounds) is Directory else None
            if type(record) is not File or not record.durable:
                raise InvariantViolation("I1", f"commits/{epoch} is durable, but its round record is not")
            known = self._records.get(epoch)
            if known is None:
                self._decide(epoch, record.durable)
            elif known is not record.durable and known != record.durable:
                raise InvariantViolation("I10", f"epoch {epoch} is decided twice, with two different round records")

    def _decide(self, epoch: int, data: bytes) -> None:
        self._records[epoch] = data
        self.decided[epoch] = record = round_of(data)
        for stream, message_id in record.positions.items():
            self._committed[stream] = max(message_id, self._committed.get(stream, -1))
        self._sequential.take(self.decided, self._sequences)

    # States

    def state_written(self, epoch: int, name: str, data: bytes) -> None:
        if name in self._states:
            raise InvariantViolation("I9", f"epoch {epoch} writes state file {name}, which there was already")
        self._states[name] = data

    def state_read(self, epoch: int, name: str, data: bytes | None) -> None:
        """Check a state file that a task of the current driver reads at the beginning of this epoch, written by
        another task."""
        if self.is_blind:
            return
        if epoch - 1 not in self.decided:
            self.check()
        record = self.decided.get(epoch - 1)
        if record is None or name not in record.states:
            raise InvariantViolation(
                "I9", f"epoch {epoch} reads state file {name}, which rounds/{epoch - 1} does not name"
            )
        if data != self._states[name]:
            raise InvariantViolation(
                "I9", f"epoch {epoch} reads state file {name}, and it is {'gone' if data is None else 'torn'}"
            )

    def commit_written(self, epoch: int, record: bytes) -> None:
        """Note that `commits/N` exists, in the checkpoint copy of the current driver, with this round record."""
        if self.is_blind:
            return
        for name in round_of(record).states:
            if self._disk.durable_file(f"{STATES}/{name}") != self._states[name]:
                raise InvariantViolation("I9", f"commits/{epoch} is there, but its state file {name} is not durable")

    # Phase 1 and 2

    def about_to_commit(self, sink: str, txn: str, part: str) -> None:
        """Check a phase 2 (commit) that is sent or received."""
        if self.is_blind:
            return
        transaction = parse(txn)
        if transaction is None:
            raise InvariantViolation("I1", f"{part} commits {txn!r} at {sink}, which is not a transaction of ours")
        epoch, _ = transaction
        if epoch not in self.decided:
            self.check()
        record = self.decided.get(epoch)
        if record is None:
            raise InvariantViolation("I1", f"{part} commits {txn!r} at {sink}, but epoch {epoch} is not decided")
        if record.parts[sink].txn != txn:
            raise InvariantViolation(
                "I1", f"{part} commits {txn!r} at {sink}, but the round record names {record.parts[sink].txn!r}"
            )

    def attempted(self, sink: str, txn: str) -> None:
        """Check that a driver, current or not, asks for a vote with a new attempt number."""
        transaction = parse(txn)
        attempt = (sink, transaction[1] if transaction is not None else -1)
        if attempt in self._attempts:
            raise InvariantViolation("I3", f"{sink} is asked to vote on {txn}, and has had attempt {attempt[1]} before")
        self._attempts.add(attempt)

    def asked_to_vote(self, epoch: int, offsets: bytes | None) -> None:
        if not offsets and not self.is_blind:
            raise InvariantViolation("I5", f"phase 1 of epoch {epoch} goes out, but offsets/{epoch} is not durable")

    # Sinks

    def voted(self, sink: str, txn: str, commit: bool, content: bytes) -> None:
        if self._contents.setdefault((sink, txn), content) != content:
            raise InvariantViolation("I3", f"{txn!r} was used for two different contents at {sink}")
        if not commit:
            self._refused.add((sink, txn))

    def replied(self, sink: str, txn: str, is_durable: bool) -> None:
        if not is_durable and not self.is_blind:
            raise InvariantViolation("I2", f"{sink} tells its vote on {txn!r} before it is durable")

    def visible(self, sink: str, txn: str, output: bytes) -> None:
        """Check the sink's whole committed output after this transaction."""
        self.about_to_commit(sink, txn, "the sink")
        if (sink, txn) in self._refused:
            raise InvariantViolation("I3", f"{sink} commits {txn!r}, which it had voted to abort")
        self.recovered(sink, output)
        fresh = output[len(self.outputs[sink]) :]
        record = None if self.is_blind else self.decided[_epoch(txn)].parts[sink]
        if record is not None and (record.start, record.end) != (len(self.outputs[sink]), len(output)):
            raise InvariantViolation(
                "I2", f"{sink} shows {len(output)} bytes after {txn!r}, which covers {record.start} to {record.end}"
            )
        for line in fresh.splitlines():
            self._shown(sink, line)
        self.outputs[sink] = output

    def recovered(self, sink: str, output: bytes) -> None:
        """Check that the committed output of a restarted sink begins with the output that was visible before."""
        if not output.startswith(self.outputs[sink]):
            raise InvariantViolation(
                "I2", f"{sink} had {len(self.outputs[sink])} bytes of visible output and has lost or changed some"
            )

    def _shown(self, sink: str, line: bytes) -> None:
        name, _, made = line.decode().partition("@")
        stream_text, _, id_text = name.partition(":")
        stream, message_id = int(stream_text), int(id_text)
        ids, reached = self.expected[sink][stream], self._reached[sink][stream]
        if reached == len(ids) or ids[reached] != message_id:
            wanted = "nothing more" if reached == len(ids) else f"record {ids[reached]}"
            fault = "doubled or late" if message_id in ids[:reached] else "before its turn: one is lost or disordered"
            raise InvariantViolation(
                "I6", f"{sink} shows record {message_id} of stream {stream} {fault}; due was {wanted}"
            )
        self._reached[sink][stream] += 1
        self._missing -= 1
        if self._made_by.setdefault((stream, message_id), made) != made:
            raise InvariantViolation(
                "I2", f"record {message_id} of stream {stream} is from different runs of its epoch at two sinks"
            )
        self._compare(sink, (stream, message_id), int(made.partition("#")[0]))
        self._lines[sink] += 1

    def _compare(self, sink: str, record: Record, count: int) -> None:
        """Compare a line with the sequential run."""
        due = self._sequential.due(sink, self._lines[sink])
        if self.is_blind:
            # Only the first sink gets every record; the others get some of the same lines.
            due = (record, self._fold.take(record) if sink == self._first else count)
        if due != (record, count):
            raise InvariantViolation(
                "I11",
                f"line {self._lines[sink]} of {sink} is record {record[1]} of stream {record[0]}, counted {count};"
                f" a loop over the log would have had {due}",
            )

    # Producers and the gateway

    def check_ack(self, stream: int, message_id: int, is_durable: bool) -> None:
        """Check an acknowledgement of a gateway to a producer, up to this id."""
        if self.is_blind:
            return
        self.check()
        if message_id > self._committed.get(stream, -1):
            raise InvariantViolation(
                "I4", f"message {message_id} of stream {stream} is acknowledged, but its epoch is not committed"
            )
        if not is_durable:
            raise InvariantViolation(
                "I4", f"message {message_id} of stream {stream} is acknowledged before the snapshot is durable"
            )

    def trimmed(self, before_sequence: int, snapshot_end: int) -> None:
        if before_sequence > snapshot_end and not self.is_blind:
            raise InvariantViolation(
                "I4", f"the log is trimmed to {before_sequence}, the durable snapshot ends at {snapshot_end}"
            )

    def opened(self, stream: int, point_of_reference: int) -> None:
        """Check a NOTIFY_ACK that opens a stream when the gateway sends it. A paused producer may read it much later,
        after another producer has received later ACKs."""
        known, committed = self.acknowledged.get(stream, -1), _committed(point_of_reference)
        if committed < known:
            raise InvariantViolation(
                "I4", f"stream {stream} was acknowledged up to {known}, and is opened again at {committed}"
            )

    def acknowledged_to(self, stream: int, point_of_reference: int) -> None:
        """Record an ACK, or the NOTIFY_ACK that opens a stream, that a producer has received."""
        self.acknowledged[stream] = max(self.acknowledged.get(stream, -1), _committed(point_of_reference))

    def set_back(self, gateway: str, end: int) -> None:
        """Record that the driver accepts a gateway whose directory is an older copy and whose log ends at `end`. Rows
        that were read after `end` belong to an offer that a power cut has undone."""
        self._sequences = {at: record for at, record in self._sequences.items() if at[0] != gateway or at[1] < end}

    def rows_read(self, gateway: str, log: Directory, start: int, end: int, rows: Sequence[Row]) -> None:
        """Check the rows [start, end) of this gateway's log, as a task has read them, against the files."""
        found = [] if self.is_blind else read_rows(_segments(log), start, end)
        if found != rows and not self.is_blind:
            raise InvariantViolation("I5", f"rows {start} to {end} of {gateway} are read as {rows}, and are {found}")

    def read(self, gateway: str, sequence: int, record: Record) -> None:
        """Check a record that a task has read at this sequence number of this gateway's log."""
        known = self._sequences.setdefault((gateway, sequence), record)
        if known != record:
            raise InvariantViolation("I5", f"sequence {sequence} of {gateway} was {known} and is now {record}")


@lru_cache(MEMORY)
def _names(name: str) -> tuple[int, str]:
    """Return the epoch of a commit and the name of its round record; -1 if the file is not a commit."""
    epoch = int(name) if name.isdigit() else -1
    return epoch, f"{epoch:020d}"


def _segments(log: Directory) -> dict[int, bytes]:
    files = {segment_base(name): node.data for name, node in log.names.items() if isinstance(node, File)}
    return {base: data for base, data in files.items() if base is not None}


def _committed(point_of_reference: int) -> int:
    return -1 if point_of_reference == NOTHING_COMMITTED else point_of_reference


def _epoch(txn: str) -> int:
    transaction = parse(txn)
    assert transaction is not None
    return transaction[0]
