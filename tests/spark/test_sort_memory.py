"""A sort of more data than the memory of one task. The memory of the process is measured while it reads and emits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

RECORDS = 60_000
RECORD_BYTES = 4_000
"""The size of one payload. All records together have 240 MB."""

EPOCHS = 30

PROGRAM = """
import itertools
import json
import random
import sys
from pathlib import Path

from procession import Pipeline
from procession.commit.emitter import payloads, runs_for
from procession.operators import sort
from procession.planner.rules import make_plan
from procession.spark.tasks import Task
from procession.spark.task_state import TaskStateStore
from procession.storage.log import IngressLog
from procession.storage.run_store import RunStore
from tests.operators.reference import batch_of
from tests.spark.cluster import Remembered, run_epoch

work, records, record_bytes, epochs, fan_in = Path(sys.argv[1]), *map(int, sys.argv[2:])
sort.FAN_IN = fan_in
peak = 0


def held():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024


def rank(value):
    global peak
    peak = max(peak, held())
    return int(value[:10]) % 1000


def watched(value):
    global peak
    peak = max(peak, held())
    return value[:10]


pipeline = Pipeline("large", parallelism=1)
pipeline.source(ends=True).sort(rank).map(watched).sink("out", to="file:out")
plan = make_plan(pipeline.graph())
numbers = list(range(records))
random.Random(1).shuffle(numbers)
each = records // epochs
bounds = [0]
with IngressLog(work / "log") as log:
    for start in range(0, records, each):
        some = [(b"%010d" % number).ljust(record_bytes, b".") for number in numbers[start : start + each]]
        ends = [(len(some), 0)] if start + each >= records else []
        batch = batch_of(some, ends=ends)
        log.append(batch)
        bounds.append(bounds[-1] + batch.num_rows)
        del some, batch
    log.sync()
(work / "state").mkdir()
committed = Remembered()
task = Task(plan, work / "log", work / "runs", TaskStateStore(work / "state", committed, 1))
before = held()
for epoch, (first, last) in enumerate(itertools.pairwise(bounds)):
    told = run_epoch(task, epoch, first, last, random.Random(0))
    assert [one.failure for one in told if one.failure] == []
    committed.add(plan, told)
    found = [
        line
        for column in payloads(RunStore(work / "runs"), epoch, runs_for("out", None, told))
        for line in b"".join(column.to_pylist()).splitlines()
    ]
    assert bool(found) == (last == bounds[-1]), "nothing comes out before the end"
    RunStore(work / "runs").drop(epoch)
# Stable: records of one rank in the order in which they came.
assert found == [b"%010d" % number for number in sorted(numbers, key=lambda number: number % 1000)]
print(json.dumps({"grown": peak - before}))
"""


def grown(work: Path, fan_in: int) -> int:
    arguments = [sys.executable, "-c", PROGRAM, str(work), *map(str, (RECORDS, RECORD_BYTES, EPOCHS, fan_in))]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(arguments, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)["grown"])


def test_a_sort_of_more_than_memory_holds_a_part_of_it_and_is_stable(tmp_path: Path) -> None:
    assert grown(tmp_path, 8) < 0.5 * RECORDS * RECORD_BYTES
