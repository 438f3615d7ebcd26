"""The benchmark of the merger measures a merge whose output is correct."""

from __future__ import annotations

from procession.bench.lane_merge_speed import lanes_of, measure, report_lines
from procession.sdk.lane_merge import LaneMerge, MergeOptions


def test_the_benchmark_merges_all_records_in_order() -> None:
    made = lanes_of(4000, 30)
    merge = LaneMerge(lambda _: made, MergeOptions(is_verifying=True))
    keys = [key for turn in merge.turns() for batch in turn for key in batch.rows.column("order_0").to_pylist()]
    assert keys == list(range(4000))


def test_the_benchmark_reports_a_merge_with_and_without_verification() -> None:
    figures = measure(4000, 3, 1)
    assert figures.keys() == {"merged", "verified"}
    assert "3 lanes in memory" in "".join(report_lines(figures, 3))
