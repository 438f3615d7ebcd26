"""The log of epochs: latency is reported only where it was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from procession.commit.performer import CommittedEpoch
from procession.commit.round_record import RoundRecord
from procession.driver.epoch_log import EpochLog, EpochTail, Latency
from procession.storage.run_store import Manifest

NOW_NS = 1_700_000_000 * 10**9


@pytest.mark.parametrize(
    ("age_s", "latency_ms"),
    [(0.25, 250.0), (3599.0, 3_599_000.0), (7200.0, None), (NOW_NS / 1e9 - 1, None), (-3600.0, None)],
    ids=["just now", "behind by an hour", "a history", "a number that is not a time", "the future"],
)
def test_latency_is_reported_only_for_event_times_near_the_clock(
    tmp_path: Path, age_s: float, latency_ms: float | None
) -> None:
    time_ns = NOW_NS - round(age_s * 1e9)
    manifest = Manifest(0, 0, 0, 0, 2, records=2, times=(time_ns, time_ns))
    EpochLog(tmp_path / "epochs.jsonl").add(CommittedEpoch(RoundRecord(0, 1, "f", 0, 2, {}), [manifest], 0.1, NOW_NS))
    latency = Latency()
    latency.add(json.loads((tmp_path / "epochs.jsonl").read_text()))
    found = latency.quantile(0.5)
    assert found == (latency_ms if latency_ms is None else pytest.approx(latency_ms, rel=0.02))


def test_the_end_of_a_log_is_read_from_its_first_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "epochs.jsonl"
    lines = [json.dumps({"epoch": number}) + "\n" for number in range(10)]
    path.write_text("".join(lines))
    size = len(lines[0])
    for tail_bytes, first in ((3 * size, 7), (3 * size - 1, 8), (3 * size + 1, 7), (10 * size, 0), (1000, 0)):
        tail = EpochTail(path, tail_bytes)
        assert [line["epoch"] for line in tail.new()] == list(range(first, 10))
    assert list(EpochTail(tmp_path / "none", 10).new()) == []
