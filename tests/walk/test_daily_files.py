"""Daily files in event-time order: a real run to which a file of the next day is added."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from procession.exit_status import Status
from tests.walk.cluster import wait_for
from tests.walk.commands import run, running

APP = """
from procession import Pipeline

pipeline = Pipeline("rating", order_by="event_time", late="drop")
calls = pipeline.source(
    "calls", from_="file:calls-*.jsonl", codec="json", ends=False, event_time_field="at", event_time_unit="ms"
)
rates = pipeline.source("rates", from_="file:rates.jsonl", codec="json", event_time_field="valid.from")
calls.merge(rates).sink("out", to="file:out")
"""


def write(path: Path, records: list[Any]) -> None:
    """All of it at once: the next file makes the one before complete."""
    draft = path.with_suffix(".draft")
    draft.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    draft.rename(path)


@pytest.mark.slow
def test_a_file_of_the_next_day_joins_the_order_and_what_is_older_than_its_stream_is_late(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    rates = [{"valid": {"from": second}} for second in (0, 15, 35, 99)]
    write(tmp_path / "rates.jsonl", rates)
    write(tmp_path / "calls-1.jsonl", [{"at": 10_000}, {"at": 20_000}])

    def output() -> list[Any]:
        return [json.loads(line) for line in run("cat", "out", cwd=tmp_path).stdout.splitlines()]

    first = [rates[0], {"at": 10_000}, rates[1], {"at": 20_000}]
    with running("run", "app.py", "--listen", "127.0.0.1:0", cwd=tmp_path) as pipeline:
        wait_for(lambda: (tmp_path / "out").exists() and output() == first, "day 1", lambda: pipeline.said)
        # Older than the last record of its stream, and than one of another stream that was emitted already.
        write(tmp_path / "calls-2.jsonl", [{"at": 12_000}, {"at": 30_000}, {"at": 40_000}])
        both = [*first, {"at": 30_000}, rates[2], {"at": 40_000}]
        wait_for(lambda: output() == both, "day 2", lambda: pipeline.said)
        pipeline.process.send_signal(signal.SIGINT)
        assert pipeline.wait() == Status.DONE, pipeline.said
    assert "1 of them came late, and was dropped" in pipeline.said
