"""Tasks read the ordered logs of several gateways as one sequence, for any number of logs and tasks.

Without Spark: the reader assigns ranges, and each task runs its range.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from procession.api.pipeline import Pipeline
from procession.commit.emitter import payloads, runs_for
from procession.errors import ProcessionError, RecordError
from procession.merge.event_time import NO_REFERENCE
from procession.planner.rules import make_plan
from procession.spark.epoch_tasks import ranges_of
from procession.spark.tasks import Attempt, Task
from procession.storage.log import IngressLog
from procession.storage.log_ranges import LogLocation
from procession.storage.run_store import Manifest, RunStore
from procession.storage.segment import KIND_EOS, KIND_RECORD, ORDERED, ORDERED_SCHEMA

STREAMS = (1, 2, 3, 4)
ROWS = 300


def rows() -> list[dict[str, object]]:
    """Return all streams in order, with many equal times; the end of each comes after its last record."""
    chance, found = random.Random(3), []
    for stream_id in STREAMS:
        now = 0
        for number in range(ROWS):
            now += chance.randrange(2)
            found.append((now, stream_id, number, KIND_RECORD))
        found.append((now, stream_id, ROWS - 1, KIND_EOS))
    found.sort(key=lambda one: (one[0], one[1], one[3], one[2]))
    return [
        {
            "kind": kind,
            "stream_id": stream_id,
            "message_id": message_id,
            "event_time": time,
            "key": b"",
            "payload": b"%d of %d" % (message_id, stream_id) if kind == KIND_RECORD else b"",
            "order_time": time,
            "reference": message_id if kind == KIND_RECORD else NO_REFERENCE,
        }
        for time, stream_id, message_id, kind in found
    ]


def unlucky(payload: bytes) -> bytes:
    if payload == b"150 of 3":
        raise ValueError("unlucky")
    return payload


class Logs:
    """The feed of a driver, with streams distributed over several gateways."""

    def __init__(self, directory: Path, gateways: int) -> None:
        self.ends: dict[str, int] = {}
        self._places: dict[str, LogLocation] = {}
        for number in range(gateways):
            own = [row for row in rows() if int(str(row["stream_id"])) % gateways == number]
            where = directory / f"gateway-{number}"
            with IngressLog(where, use=ORDERED) as log:
                for start in range(0, len(own), 40):
                    log.append(pa.RecordBatch.from_pylist(own[start : start + 40], schema=ORDERED_SCHEMA))
                log.sync()
            self.ends[f"gateway-{number}"] = len(own)
            self._places[f"gateway-{number}"] = LogLocation(str(where))

    def next_ends(self, starts: Mapping[str, int], records_max: int) -> dict[str, int]:
        return self.ends

    def places(self) -> Mapping[str, LogLocation]:
        return self._places


def run(directory: Path, gateways: int, parallelism: int, *, is_forgiving: bool = True) -> tuple[bytes, list[Manifest]]:
    pipeline = Pipeline("p", order_by="event_time", dead_letter="file:dead" if is_forgiving else None)
    pipeline.source("lines", streams=STREAMS).map(unlucky).sink("plain", to="file:out")
    logs = Logs(directory / f"{gateways}-logs", gateways)
    task = Task(make_plan(pipeline.graph()), directory, directory / f"runs-{gateways}-{parallelism}")
    ranges = ranges_of(task, {"gateway-0": 0}, logs.ends, logs.places(), parallelism)
    manifests = [
        task.run_range(Attempt(0, share.number, 1), share.first, share.last, pieces=share.pieces) for share in ranges
    ]
    drawn = payloads(RunStore(task.runs_directory), 0, runs_for("plain", None, manifests))
    return b"".join(b"".join(column.to_pylist()) for column in drawn), manifests


@pytest.mark.parametrize("gateways", [2, 3])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_the_output_is_the_same_from_one_log_and_from_several(tmp_path: Path, gateways: int, parallelism: int) -> None:
    expected, _ = run(tmp_path / "one", 1, 2)
    assert expected.count(b"\n") == len(STREAMS) * ROWS - 1
    output, manifests = run(tmp_path / "several", gateways, parallelism)
    assert output == expected
    sizes = [manifest.last - manifest.first for manifest in manifests]
    assert max(sizes) - min(sizes) <= 1, "each task has an even share of the sequence"
    positions: dict[int, int] = {}
    for manifest in manifests:
        positions.update(manifest.positions)
    assert positions == dict.fromkeys(STREAMS, ROWS - 1)


def test_an_error_names_the_record_wherever_it_is(tmp_path: Path) -> None:
    _, manifests = run(tmp_path, 3, 2, is_forgiving=False)
    (failure,) = [manifest.failure for manifest in manifests if manifest.failure is not None]
    error = ProcessionError.from_dict(failure)
    assert isinstance(error, RecordError)
    assert "message 150 of stream 3" in error.sentence
