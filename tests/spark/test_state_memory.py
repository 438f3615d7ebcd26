"""States larger than the memory of one task are paged. The test measures the real memory of the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

KEYS = 60_000
STATE_BYTES = 3_000
"""The size of one state. All states together have 180 MB."""

PROGRAM = """
import json
import random
import sys
from pathlib import Path

from procession import Pipeline
from procession.planner.rules import make_plan
from procession.spark.tasks import Task
from procession.spark.task_state import TaskStateStore
from tests.operators.reference import batch_of
from tests.spark.cluster import Remembered, run_epoch, write_log, written

work, keys, state_bytes, keys_max = Path(sys.argv[1]), *map(int, sys.argv[2:])
epoch_records = keys // 24
peak = 0


def held():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024


def remembered(state, value):
    global peak
    if int(value) % 500 == 0:
        peak = max(peak, held())
    count = state[0] + 1
    return (count, value * (state_bytes // len(value))), b"%s %d" % (value, count)


pipeline = Pipeline("large", parallelism=1)
pipeline.source().map_stateful(remembered, key=bytes, initial=(0, b"")).sink("out", to="file:out")
plan = make_plan(pipeline.graph())
numbers = [*range(keys), *range(0, keys, 7)]
random.Random(1).shuffle(numbers)
payloads = [b"%010d" % number for number in numbers]
write_log(work / "log", batch_of(payloads))
(work / "state").mkdir()
committed = Remembered()
task = Task(plan, work / "log", work / "runs", TaskStateStore(work / "state", committed, 1, keys_max))
before = held()
seen, wanted = {}, []
for epoch, first in enumerate(range(0, len(payloads), epoch_records)):
    told = run_epoch(task, epoch, first, min(len(payloads), first + epoch_records), random.Random(0))
    assert [one.failure for one in told if one.failure] == []
    committed.add(plan, told)
    lines = written(plan, work / "runs", [told])["out"].splitlines()
    for payload, line in zip(payloads[first:first + epoch_records], lines, strict=True):
        seen[payload] = seen.get(payload, 0) + 1
        assert line == b"%s %d" % (payload, seen[payload])
print(json.dumps({"grown": peak - before, "files": sum(p.stat().st_size for p in (work / "state").iterdir())}))
"""


def measured(work: Path, keys_max: int) -> dict[str, int]:
    work.mkdir()
    arguments = [sys.executable, "-c", PROGRAM, str(work), str(KEYS), str(STATE_BYTES), str(keys_max)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(arguments, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_states_larger_than_a_task_may_hold_are_paged_and_the_memory_stays_small(tmp_path: Path) -> None:
    paged, whole = measured(tmp_path / "paged", 500), measured(tmp_path / "whole", 10 * KEYS)
    states = KEYS * STATE_BYTES
    assert paged["files"] > states
    assert whole["grown"] > 0.9 * states, "otherwise this test proves nothing"
    assert paged["grown"] < 0.5 * states, "parts of the states, not all of them"
