"""The merge of sequences by event time: a row is final when no sequence can have an earlier one."""

from __future__ import annotations

import pyarrow as pa

from procession.merge.sequence_merge import TimedSequence, final_counts, rows_by_time


def rows(*times: int | None) -> pa.RecordBatch:
    names = pa.array([str(time).encode() for time in times], pa.binary())
    return pa.record_batch({"payload": names, "key": names, "event_time": pa.array(times, pa.int64())})


def test_records_that_are_out_of_order_in_time_stay_in_the_order_of_their_pipeline() -> None:
    one, two = TimedSequence(), TimedSequence()
    one.add(rows(5, 2, None, 7))
    two.add(rows(3, 6))
    assert final_counts([one, two]) == [3, 2], "both sequences have reached 6"
    taken = rows_by_time([one.take(3), two.take(2)])
    assert taken.column("payload").to_pylist() == [b"3", b"5", b"2", b"None", b"6"]
    assert final_counts([one, two]) == [0, 0]
    two.is_ended = True
    assert final_counts([one, two]) == [1, 0]


def test_a_sequence_without_rows_holds_back_all_others_until_it_ends() -> None:
    one, two = TimedSequence(), TimedSequence()
    one.add(rows(1, 2))
    assert final_counts([one, two]) == [0, 0]
    two.is_ended = True
    assert final_counts([one, two]) == [2, 0]


def test_of_equal_times_those_of_the_first_sequence_come_first() -> None:
    one, two = TimedSequence(), TimedSequence()
    one.add(rows(4, 4))
    two.add(rows(4))
    assert final_counts([one, two]) == [2, 0], "the first may have more rows of this time"
    one.is_ended = True
    assert final_counts([one, two]) == [2, 1]
