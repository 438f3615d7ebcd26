"""The query's checkpoint: the same directory of this machine, however Spark names directories."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from procession import Pipeline
from procession.planner.plan import Plan
from procession.planner.rules import make_plan
from procession.spark import query
from procession.spark.session import local_url
from tests.operators.reference import batch_of
from tests.spark.spark import patient, run_on_spark, session

ROOT = Path(__file__).resolve().parents[2]
PAYLOADS = [b"%d" % number for number in range(20)]

# A process of its own, because the properties of a session stay in its JVM. Spark has no file system for this scheme,
# so a path without a scheme fails at once.
ELSEWHERE = """
import sys
from pathlib import Path

from tests.operators.reference import batch_of
from tests.spark import test_query
from tests.spark.spark import run_on_spark, session

with session("local[2,2]", {"spark.hadoop.fs.defaultFS": "nowhere://host"}) as spark:
    run_on_spark(spark, test_query.plan(), batch_of(test_query.PAYLOADS), [7], Path(sys.argv[1]), test_query.__name__)
"""


def plan() -> Plan:
    pipeline = Pipeline("plain", parallelism=1)
    pipeline.source().map(bytes.upper).sink("output", to="file:output")
    return make_plan(pipeline.graph())


@patient
def test_the_checkpoint_is_on_this_machine_although_the_default_file_system_is_elsewhere(tmp_path: Path) -> None:
    work = tmp_path / "a place, with %20 and #"
    work.mkdir()
    arguments = [sys.executable, "-c", ELSEWHERE, str(work)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (work / "cp" / "offsets").iterdir()) == ["0", "1"]


@patient
def test_a_checkpoint_whose_name_is_its_path_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, metadata = batch_of(PAYLOADS), tmp_path / "cp" / "metadata"
    with session("local[2,2]") as spark:
        with monkeypatch.context() as earlier:
            earlier.setattr(query, "local_url", str)
            run_on_spark(spark, plan(), batch, [7], tmp_path, __name__)
        before = json.loads(metadata.read_text())
        epochs = run_on_spark(spark, plan(), batch, [2 * len(PAYLOADS)], tmp_path, __name__)
    ranges = [(manifest.epoch, manifest.first, manifest.last) for epoch in epochs for manifest in epoch]
    # Spark repeats epoch 1 if it was stopped before it committed it.
    assert ranges in ([(2, 20, 40)], [(1, 7, 20), (2, 20, 40)])
    assert json.loads(metadata.read_text()) == before


def test_a_relative_directory_is_named_with_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_url(Path("a b")) == f"file://{tmp_path}/a b"
