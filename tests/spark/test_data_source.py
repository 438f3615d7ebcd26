"""The data source that Spark registers: Spark's planning processes unpickle it without the modules of our tasks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from procession.spark.data_source import FORMAT, SCHEMA, IngressSource, PackedReader

PLANNED = """
import sys
from pyspark import cloudpickle

source = cloudpickle.loads(open(sys.argv[1], "rb").read())({})
again = cloudpickle.dumps(source.streamReader(None))
print(source.name(), source.schema(), sep="\\n")
print(sorted(name for name in sys.modules if name.startswith("procession.")))
"""


class Reader(DataSourceStreamReader):
    def __init__(self) -> None:
        from procession.spark import tasks

        self.heavy = tasks.Attempt(1, 2, 3, False)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        return {"at": start["at"] + 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition((start["at"], end["at"]))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield partition.value


def test_spark_plans_the_source_without_the_modules_of_our_tasks(tmp_path: Path) -> None:
    path = tmp_path / "source"
    path.write_bytes(cloudpickle.dumps(IngressSource.bound(Reader())))
    done = subprocess.run([sys.executable, "-c", PLANNED, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [FORMAT, SCHEMA, "['procession.spark', 'procession.spark.data_source']"]


def test_a_packed_reader_reads_what_its_reader_reads() -> None:
    packed = cloudpickle.loads(cloudpickle.dumps(PackedReader.of(Reader())))
    assert packed.initialOffset() == {"at": 0}
    assert packed.latestOffset({"at": 4}, None) == {"at": 5}
    (partition,) = packed.partitions({"at": 4}, {"at": 5})
    assert list(packed.read(partition)) == [(4, 5)]


def test_a_reader_that_was_used_is_pickled_as_it_was_made() -> None:
    packed = PackedReader.of(Reader())
    size = len(cloudpickle.dumps(packed))
    packed.initialOffset()
    assert len(cloudpickle.dumps(packed)) == size
