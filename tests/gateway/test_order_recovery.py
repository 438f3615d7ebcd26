"""What a restarted gateway with event-time order does, for every length of its two logs that a crash can leave.

Arrivals are on disk before they are ordered. A snapshot is on disk only after the ordered log has every row that its
replay point counts on; it may be older than both logs. The order is checked against a sort of the records.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from procession.gateway.event_time_log import Ordering
from procession.gateway.event_time_state import UNPLACED
from procession.gateway.gateway_options import GatewayConfig
from procession.gateway.log_rows import LogRow, batch_of
from procession.gateway.snapshot import Position, Snapshot
from procession.merge.event_time import NO_REFERENCE, DeclaredOrder
from procession.storage.log import IngressLog
from procession.storage.segment import HEADER_BYTES, KIND_EOS, KIND_RECORD, ORDERED, segment_name

Row = dict[str, Any]
FIRST, SECOND = 1, 2


def record(stream_id: int, message_id: int, time: int) -> LogRow:
    return LogRow(KIND_RECORD, stream_id, message_id, time, b"", b"x" * message_id)


IN_ORDER = [
    [record(FIRST, 0, 10), record(FIRST, 1, 20)],
    [record(SECOND, 5, 15)],
    [record(FIRST, 2, 30), record(SECOND, 6, 25), record(SECOND, 7, 25)],
    [record(SECOND, 8, 60), record(FIRST, 3, 40)],
    [LogRow(KIND_EOS, FIRST, 3)],
    [record(SECOND, 9, 70), LogRow(KIND_EOS, SECOND, 9)],
]
"""The arrivals, each list with one write."""
OUT_OF_ORDER = [
    [record(FIRST, 0, 20), record(FIRST, 1, 12)],
    [record(SECOND, 5, 28), record(SECOND, 6, 18)],
    [record(FIRST, 2, 40), record(FIRST, 3, 31), record(SECOND, 7, 44)],
    [record(SECOND, 8, 38), record(FIRST, 4, 52)],
    [LogRow(KIND_EOS, SECOND, 8)],
    [record(FIRST, 5, 47), LogRow(KIND_EOS, FIRST, 5)],
]
"""No record is later than the lateness of 10."""
OVERTAKEN = [
    [record(FIRST, 0, 10), record(FIRST, 1, 12), record(SECOND, 5, 11)],
    [record(FIRST, 2, 40), record(SECOND, 6, 44)],
    [record(FIRST, 3, 34), record(FIRST, 4, 47)],
    [record(SECOND, 7, 60)],
    [LogRow(KIND_EOS, FIRST, 4)],
    [record(SECOND, 8, 70), LogRow(KIND_EOS, SECOND, 8)],
]
"""A record is ordered while one with a lower id waits, after records that the snapshot counts on."""
CASES = {"in order": (IN_ORDER, 0), "out of order": (OUT_OF_ORDER, 10), "overtaken": (OVERTAKEN, 10)}


def in_event_time(arrivals: list[list[LogRow]]) -> list[tuple[int, int]]:
    """The records in their order: stream and message id."""
    rows = [row for write in arrivals for row in write if row.kind == KIND_RECORD]
    return [(row[1], row[2]) for row in sorted(rows, key=lambda row: (row.event_time, row.stream_id, row.message_id))]


@dataclass(frozen=True)
class Live:
    """What a gateway that never crashed has written."""

    ordered: list[Row]
    ends: list[int]
    """The end of the ordered log after each number of writes."""
    points: list[Any]
    clocks: list[Any]


def config_of(directory: Path, lateness_ns: int) -> GatewayConfig:
    return GatewayConfig(directory, declared=DeclaredOrder(frozenset({FIRST, SECOND}), lateness_ns))


def start(config: GatewayConfig, found: Snapshot) -> tuple[Ordering, IngressLog]:
    arrivals = IngressLog(config.log_directory)
    assert config.declared is not None
    return Ordering(config, config.declared, found, arrivals), arrivals


def order(ordering: Ordering, arrivals: IngressLog, rows: list[LogRow] | None = None) -> None:
    if rows is not None:
        arrivals.append(batch_of(rows))
    arrivals.sync()
    ordering.observe(0.0)
    ordering.take(0.0)
    ordering.log.sync()


def rows_of(ordering: Ordering) -> list[Row]:
    start, end = ordering.log.start_sequence, ordering.log.next_sequence
    return [row for batch in (ordering.log.read(start, end) if start < end else ()) for row in batch.to_pylist()]


def lived(directory: Path, writes: list[list[LogRow]], lateness_ns: int) -> Live:
    ordering, arrivals = start(config_of(directory, lateness_ns), Snapshot())
    ends, points, clocks = [0], [ordering.order.point], [{}]
    for rows in writes:
        order(ordering, arrivals, rows)
        ends.append(ordering.log.next_sequence)
        points.append(ordering.order.point)
        clocks.append(ordering.order.clocks.all_reached())
    live = Live(rows_of(ordering), ends, points, clocks)
    arrivals.close()
    ordering.log.close()
    return live


def committed(ordered: list[Row]) -> dict[int, int]:
    """The message ids that are acknowledged when these rows are committed."""
    return {row["stream_id"]: row["reference"] for row in ordered if row["reference"] != NO_REFERENCE}


def lay(config: GatewayConfig, writes: list[list[LogRow]], ordered: list[Row], trimmed: int) -> None:
    with IngressLog(config.log_directory) as log:
        for rows in writes:
            log.append(batch_of(rows))
    is_empty = bool(ordered) and len(ordered) == trimmed
    with IngressLog(config.ordered_directory, use=ORDERED, segment_bytes_max=1) as log:  # each row has a file
        for row in [*ordered, *ordered[:is_empty]]:
            log.append(pa.RecordBatch.from_pylist([row], schema=ORDERED.schema))
        log.sync()
        log.trim(trimmed)
    if is_empty:  # a file was begun, and a crash came before its first row
        os.truncate(config.ordered_directory / segment_name(trimmed), HEADER_BYTES)


def states(live: Live, made: int, writes: int) -> Iterator[tuple[int, int, int, bool]]:
    """With a snapshot after write `made`: where its epoch ends, how many writes and ordered rows are there, and whether
    the ordered rows of the epoch are deleted."""
    for end in sorted({0, live.ends[made] // 2, live.ends[made]}):
        for arrived in range(made, writes + 1):
            for length in range(live.ends[made], live.ends[arrived] + 1):
                yield end, arrived, length, False
                if end and length in (end, live.ends[arrived]):
                    yield end, arrived, length, True


@pytest.mark.parametrize("made", range(len(IN_ORDER) + 1))
@pytest.mark.parametrize("case", CASES)
def test_rows_that_a_crash_cut_off_are_ordered_again_and_no_row_is_there_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, made: int
) -> None:
    for name in ("fsync", "fdatasync"):  # the files are laid out as they are; nothing is lost here
        monkeypatch.setattr(os, name, lambda _: None)
    writes, lateness_ns = CASES[case]
    live = lived(tmp_path / "live", writes, lateness_ns)
    assert [(row["stream_id"], row["message_id"]) for row in live.ordered if row["kind"] == KIND_RECORD] == (
        in_event_time(writes)
    )
    for number, state in enumerate(states(live, made, len(writes))):
        end, arrived, length, is_trimmed = state
        config = config_of(tmp_path / str(number), lateness_ns)
        lay(config, writes[:arrived], live.ordered[:length], end if is_trimmed else 0)
        positions = {stream_id: Position("", at) for stream_id, at in committed(live.ordered[:end]).items()}
        found = Snapshot(1, 0, end, 0, positions, live.points[made], live.clocks[made])
        ordering, arrivals = start(config, found)
        check_recovered(ordering, live, writes[:arrived], end, length, state)
        order(ordering, arrivals)
        for rows in writes[arrived:]:
            order(ordering, arrivals, rows)
        first = ordering.log.start_sequence
        assert (first == end) if is_trimmed else (first == 0), state
        ordered = [*live.ordered[:first], *rows_of(ordering)]
        assert [{**row, "reference": 0} for row in ordered] == [{**row, "reference": 0} for row in live.ordered], state
        check_references(ordered, state)
        assert ordering.skipped == 0, state
        arrivals.close()
        ordering.log.close()


def check_recovered(
    ordering: Ordering, live: Live, writes: list[list[LogRow]], end: int, length: int, state: object
) -> None:
    """What the gateway knows at its start: uncommitted records, the last id of their streams, and ends of streams."""
    done = {(row["kind"], row["stream_id"], row["message_id"]) for row in live.ordered[:end]}
    rows = [row for write in writes for row in write if tuple(row[:3]) not in done]
    left = {(row.stream_id, row.message_id) for row in rows if row.kind == KIND_RECORD}
    recovered = ordering.recovered
    assert {
        pair for streams, ids in recovered.uncommitted for pair in zip(streams.tolist(), ids.tolist(), strict=True)
    } == left, state
    assert sum(len(streams) for streams, _ in recovered.uncommitted) == len(left), state
    arrived = [row for write in writes for row in write if row.kind == KIND_RECORD]
    last = {stream_id: max(row.message_id for row in arrived if row.stream_id == stream_id) for stream_id, _ in left}
    assert recovered.tail.seen == last, state
    places = {row["stream_id"]: place for place, row in enumerate(live.ordered) if row["kind"] == KIND_EOS}
    ended = {row.stream_id for row in rows if row.kind == KIND_EOS}
    assert recovered.tail.eos_sequences == {
        stream_id: places[stream_id] if places[stream_id] < length else UNPLACED for stream_id in ended
    }, state
    assert recovered.ordered_end == length, state


def check_references(ordered: list[Row], state: object) -> None:
    """A reference counts only on rows that are there, never goes back, and the last one counts on all records."""
    ids: dict[int, list[int]] = {}
    before: dict[int, int] = {}
    for row in ordered:
        if row["kind"] == KIND_RECORD:
            ids.setdefault(row["stream_id"], []).append(row["message_id"])
        if row["reference"] != NO_REFERENCE:
            counted = [at for at in ids[row["stream_id"]] if at <= row["reference"]]
            first = {FIRST: 0, SECOND: 5}[row["stream_id"]]
            assert row["reference"] >= before.get(row["stream_id"], 0), state
            before[row["stream_id"]] = row["reference"]
            assert len(counted) == row["reference"] - first + 1, state
    assert committed(ordered) == {stream_id: max(found) for stream_id, found in ids.items()}, state
